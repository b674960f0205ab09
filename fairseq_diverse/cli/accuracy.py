"""Accuracy of classifiers: of logical inference by number of operators, beside always guessing the largest class.

Several checkpoints make a column each.
"""

import argparse
import json
from pathlib import Path

from fairseq_diverse.errors import UserError
from fairseq_diverse.evaluation.pictures import FORMATS_TEXT, check_name, save_figure

EXAMPLE = (
    "fairseq-diverse accuracy baseline=baseline/checkpoint_best.pt both=both/checkpoint_best.pt --data logic-data "
    "--out lengths.png"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--data", required=True, help="the folder that they were trained on")
    parser.add_argument("--max-tokens", type=int, default=8000, metavar="N", help="in a batch (default: 8000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"also draw it; {FORMATS_TEXT}")


def main(args: argparse.Namespace) -> None:
    if args.out is not None:
        check_name(args.out)
    from tqdm import tqdm

    from fairseq_diverse import register
    from fairseq_diverse.evaluation.accuracy import Accuracy, draw_accuracy, measure_accuracy
    from fairseq_diverse.models.loading import load_models
    from fairseq_diverse.tasks.logical_inference import MOST_OPERATORS, LogicalInference

    register()
    found: dict[str, list[Accuracy]] = {}
    lengths = range(1, MOST_OPERATORS + 1)
    trained = 0
    for text in args.checkpoints:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UserError(f"{text}: write NAME=CHECKPOINT")
        (model,), _, task = load_models([path], args.data)
        if not isinstance(task, LogicalInference):
            raise UserError(f"{path}: trained for another task than logical_inference")
        splits = [f"test{length}" for length in lengths]
        for split in splits:
            task.load_dataset(split)
        with tqdm(total=sum(len(task.dataset(split)) for split in splits), desc=name, disable=None) as bar:
            found[name] = [measure_accuracy(model, task, split, args.max_tokens, bar.update) for split in splits]
        trained = max(trained, task.cfg.train_operators)
    first = next(iter(found.values()))
    if args.json:
        rows = {
            name: dict(zip(lengths, (a._asdict() for a in of_model), strict=True)) for name, of_model in found.items()
        }
        print(json.dumps(rows, indent=1))
    else:
        print("operators  examples  largest class" + "".join(f"{name:>16}" for name in found))
        total = {name: Accuracy(*map(sum, zip(*of_model, strict=True))) for name, of_model in found.items()}
        for row, length in enumerate([*map(str, lengths), "all"]):
            at = {name: (of_model[row] if row < len(of_model) else total[name]) for name, of_model in found.items()}
            base = first[row] if row < len(first) else next(iter(total.values()))
            cells = "".join(f"{100 * a.correct / a.examples:16.2f}" for a in at.values())
            print(f"{length:>9}{base.examples:10,d}{100 * base.largest / base.examples:15.2f}{cells}")
    if args.out is not None:
        save_figure(draw_accuracy(lengths, found, trained), args.out)
