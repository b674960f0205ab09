"""Accuracy of classifiers: of logical inference by number of operators, beside always guessing the largest class.

Several checkpoints make a column each.
"""

import argparse
import json
from pathlib import Path

from fairseq_diverse.errors import UserError
from fairseq_diverse.evaluation.pictures import FORMATS_TEXT, check_name, save_figure
from fairseq_diverse.files import atomic_write

EXAMPLE = (
    "fairseq-diverse accuracy baseline=baseline/checkpoint_best.pt both=both/checkpoint_best.pt --data logic-data "
    "--out lengths.png"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--data", required=True, help="the folder that they were trained on")
    parser.add_argument("--max-tokens", type=int, default=8000, metavar="N", help="in a batch (default: 8000)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write JSON, with a 1 or 0 for every example")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"also draw it; {FORMATS_TEXT}")


def main(args: argparse.Namespace) -> None:
    if args.out is not None:
        check_name(args.out)
    from tqdm import tqdm

    from fairseq_diverse import register
    from fairseq_diverse.evaluation.accuracy import Accuracy, draw_accuracy, measure_accuracy, together
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
    if args.save is not None:
        content = {
            name: {str(length): part._asdict() for length, part in zip(lengths, parts, strict=True)}
            for name, parts in found.items()
        }
        with atomic_write(args.save) as file:
            json.dump(content, file)
    print("operators  examples  largest class" + "".join(f"{name:>16}" for name in found))
    columns = [[*parts, together(parts)] for parts in found.values()]
    for length, parts in zip([*map(str, lengths), "all"], zip(*columns, strict=True), strict=True):
        shares = "".join(f"{part.share:16.2f}" for part in parts)
        print(f"{length:>9}{len(parts[0].hits):10,d}{parts[0].largest:15.2f}{shares}")
    if args.out is not None:
        save_figure(draw_accuracy(lengths, found, trained), args.out)
