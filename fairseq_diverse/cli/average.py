"""Average the parameters of checkpoints: the last N, a range, the best N by a metric, or the files that you name.

In a folder, --last and --range take checkpoints of epochs (checkpoint7.pt) or of updates (checkpoint_2_500.pt). --best
takes every checkpoint that holds the metric; --epochs or --updates restrict it. If there are fewer than N checkpoints,
all are averaged with a warning; with --strict this is an error. The result is for fairseq-generate: it holds no
optimizer state.
"""

import argparse
from pathlib import Path

from fairseq_diverse.support.errors import warn

EXAMPLE = "fairseq-diverse average --checkpoints checkpoints --last 5 --out checkpoints/average.pt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoints", type=Path, nargs="+", required=True, metavar="PATH", help="folder or files")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=int, metavar="N", help="the last N checkpoints")
    choice.add_argument("--range", metavar="A-B", help="the checkpoints of epochs (or updates) A to B")
    choice.add_argument("--best", type=int, metavar="N", help="the best N checkpoints by --metric")
    parser.add_argument("--metric", help="loss, bleu, ...: the --best-checkpoint-metric of the training")
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--epochs", dest="unit", action="store_const", const="epochs", help="only those of epochs")
    unit.add_argument("--updates", dest="unit", action="store_const", const="updates", help="only those of updates")
    parser.add_argument("--strict", action="store_true", help="stop if there are fewer than N checkpoints")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="checkpoint to write")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.checkpoints.averaging import average_checkpoints

    chosen = _chosen_files(args)
    if args.out.is_dir():
        raise ValueError(f"--out {args.out}: a directory; name a file")
    if len(chosen) < (wanted := args.last or args.best or 0):
        shortage = f"{wanted} checkpoints are wanted, but there are {len(chosen)}: {', '.join(map(str, chosen))}"
        if args.strict:
            raise ValueError(shortage)
        warn(shortage)
    average_checkpoints([checkpoint.path for checkpoint in chosen], args.out)
    print(f"{args.out}: average of {', '.join(map(str, chosen))}")


def _chosen_files(args: argparse.Namespace) -> list:
    from fairseq_diverse.checkpoints import averaging

    if (args.best is None) != (args.metric is None):
        raise ValueError("--best and --metric go together: --best 5 --metric bleu")
    if (count := args.last if args.best is None else args.best) is not None and count < 1:
        raise ValueError(f"at least 1 checkpoint is needed, not {count}")
    if args.unit and (args.last, args.range, args.best) == (None, None, None):
        raise ValueError(f"--{args.unit} goes with --last, --range or --best")
    if args.out.resolve() in {path.resolve() for path in args.checkpoints}:
        raise ValueError(f"--out {args.out}: is one of --checkpoints; give another file")
    files = [path for path in averaging.checkpoint_files(args.checkpoints) if path.resolve() != args.out.resolve()]
    if args.best is not None:
        candidates = [checkpoint.path for checkpoint in averaging.numbered(files, args.unit)] if args.unit else files
        return averaging.best(candidates, args.best, args.metric)
    if args.last is not None:
        return averaging.numbered(files, args.unit)[-args.last :]
    if args.range is not None:
        first, dash, final = args.range.partition("-")
        if not (dash and first.isdecimal() and final.isdecimal() and int(first) <= int(final)):
            raise ValueError(f"--range {args.range}: write the first and the last number, as in --range 5-9")
        return averaging.in_range(averaging.numbered(files, args.unit), int(first), int(final))
    if any(path.is_dir() for path in args.checkpoints):
        raise ValueError("which of the directory's checkpoints? Add --last N, --range A-B or --best N --metric NAME")
    return [averaging.Checkpoint(path) for path in files]
