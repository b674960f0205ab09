"""Measure the accuracy of classifiers on test data, with the majority-class accuracy for comparison.

Logical inference: one row per number of operators, one column per checkpoint. Probing: one row per task, one column per
name; give a name once for each task that it was trained on. Averages are those of Li et al. (2021), Table 7.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_diverse import register
from fairseq_diverse.cli import named_checkpoints
from fairseq_diverse.data.probing import GROUPS, TASKS, group_means
from fairseq_diverse.metrics.accuracy import Accuracy, draw_accuracy, pooled
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import write_text
from fairseq_diverse.support.pictures import add_picture_arguments, save_figure
from fairseq_diverse.support.tables import in_columns, one_line

EXAMPLE = "fairseq-diverse accuracy baseline=baseline.pt both=both.pt --data logic-data --out lengths.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="NAME=CHECKPOINT", help="a trained classifier and its name in the table")
    add("--data", required=True, help="data folder that they were trained on")
    add("--checkpoint-data", metavar="DIR", help="new folder of the data that probed encoders trained on, if moved")
    add("--max-tokens", type=int, default=8000, metavar="N", help="tokens per batch (default: 8000)")
    add("--save", type=Path, metavar="FILE", help="also write JSON, with 1 (correct) or 0 per example")
    add_picture_arguments(parser, "also draw a plot")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.analysis.predictions import classified
    from fairseq_diverse.models.loading import load_models

    register()
    results: dict[str, dict[str, Accuracy]] = {}
    trained: set[int] = set()  # operators in training, -1 for probes

    def moved(settings: Mapping[str, Any]) -> dict[str, str]:
        probes = args.checkpoint_data and settings.get("from_checkpoint")
        return {"checkpoint_data": args.checkpoint_data} if probes else {}

    for name, path in named_checkpoints(args.checkpoints):
        (model,), _, task = load_models([path], args.data, moved)
        if (tests := getattr(task, "tests", None)) is None:
            raise UserError(f"{path}: trained for another task than logical_inference and sentence_probing")
        trained.add(getattr(task.cfg, "train_operators", -1))
        if args.out is not None and -1 in trained:
            raise UserError("--out: only logical inference has a plot, by number of operators")
        if (-1 in trained and len(trained) > 1) or not set(tests).isdisjoint(results.get(name, {})):
            raise UserError(f"{name}={path}: one task at a time, and a name once for each probe")
        for split in tests.values():
            task.load_dataset(split)
        with tqdm(total=sum(len(task.dataset(split)) for split in tests.values()), desc=name, disable=None) as bar:
            for row, split in tests.items():
                hits, labels = classified(model, task, split, args.max_tokens, bar.update), task.dataset(split).labels
                results.setdefault(name, {})[row] = Accuracy([*map(labels.count, range(task.classes))], hits)
    if args.save is not None:
        content = {name: {row: part._asdict() for row, part in rows.items()} for name, rows in results.items()}
        write_text(args.save, json.dumps(content))
    print_table(results, -1 in trained)
    if args.out is not None:
        lengths = [int(length) for length in next(iter(results.values()))]
        accuracies = {name: list(rows.values()) for name, rows in results.items()}
        save_figure(draw_accuracy(lengths, accuracies, max(trained)), args.out)


def print_table(results: dict[str, dict[str, Accuracy]], probing: bool) -> None:
    """One row per split, one column per name, and totals: all lengths, or the groups of probes."""
    known = TASKS if probing else tuple(next(iter(results.values())))
    rows = [row for row in known if any(row in by_row for by_row in results.values())]
    cells = [["task" if probing else "operators", "examples", "largest class", *map(one_line, results)]]

    def add(name: str, parts: Sequence[Accuracy | None]) -> None:
        first = next(part for part in parts if part is not None)
        shares = ("" if part is None else f"{part.share:.2f}" for part in parts)
        cells.append([name, f"{len(first.hits):,}", f"{first.largest:.2f}", *shares])

    for row in rows:
        add(row, [by_row.get(row) for by_row in results.values()])
    if not probing:
        add("all", [pooled(by_row.values()) for by_row in results.values()])
    means = [group_means({row: part.share for row, part in by_row.items()}) for by_row in results.values()]
    for group in GROUPS:
        if all(group in by_row for by_row in means):
            cells.append([group, "", "", *(f"{by_row[group]:.2f}" for by_row in means)])
    print(in_columns(cells))
