"""Score a fine-tuned model on the dev sets of a GLUE task, and predict its test sets.

The data are a folder made by `fairseq-diverse prepare glue-TASK`. Scores are times 100, with those of always predicting
the most frequent label for comparison. GLUE's test sets have no labels: its site scores the files of --predictions.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_diverse import register
from fairseq_diverse.metrics.glue import HEADINGS, dev_scores
from fairseq_diverse.preparation.glue import HIGHEST, TASKS, GlueTask
from fairseq_diverse.preparation.pipeline import Preprocessing, glue_task, languages, read_record
from fairseq_diverse.support.errors import UserError, warn
from fairseq_diverse.support.files import read_lines, write_text

TEXT_TO_TEXT = "text_to_text"
EXAMPLE = "fairseq-diverse glue --checkpoint checkpoints/checkpoint_last.pt --data data/glue-CoLA --predictions send"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="CKPT", help="trained with --task sentence_prediction or text_to_text")
    add("--data", required=True, metavar="DIR", help="prepared data set of the task")
    add("--max-tokens", type=int, default=8000, metavar="N", help="tokens per batch (default: 8000)")
    add("--save", type=Path, metavar="FILE", help="also write the scores as JSON")
    add("--predictions", type=Path, metavar="DIR", help="write TASK.tsv for every test set there")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.analysis.predictions import answers, predict
    from fairseq_diverse.models.loading import load_models, task_of

    if args.max_tokens < 1:
        raise UserError(f"--max-tokens {args.max_tokens}: must be above 0")
    register()
    record = read_record(args.data)
    if (task := TASKS.get(glue_task(record) or "")) is None:
        raise UserError(f"{args.data}: no task of GLUE (`fairseq-diverse prepare glue-TASK`)")

    source, target = languages(args.data, record)
    as_text = bool(target)

    def look(settings: Mapping[str, Any]) -> dict[str, Any]:
        wanted = TEXT_TO_TEXT if as_text else "sentence_prediction"
        other_classes = not as_text and settings.get("num_classes") != (len(task.labels) or 1)
        if task_of(settings) != wanted or other_classes:  # of other dictionaries
            raise UserError(f"{args.checkpoint}: not trained for {task.name}{' as text' * as_text}, --task {wanted}")
        _warn_of_other_task(args.checkpoint, str(settings.get("data")), task.name)
        return {"source_lang": source, "target_lang": target} if as_text else {}

    (model,), _, trained = load_models([args.checkpoint], args.data, look)
    wanted = [*task.named("valid").items(), *(task.named("test").items() if args.predictions else ())]
    scores = {}
    others: dict[str, list[str]] = {}
    for name, split in wanted:
        if split not in record["splits"]:  # a test set that was not brought
            continue
        trained.load_dataset(split)
        with tqdm(total=len(trained.dataset(split)), desc=f"{name}, {split}", disable=None) as bar:
            if as_text:
                written = answers(model, trained, split, args.max_tokens, bar.update)
                predictions, targets, others[name] = _read(task, written, args.data, split)
            else:
                predictions, targets = predict(model, trained, split, args.max_tokens, bar.update)
        if split.startswith("test"):
            write_predictions(task, predictions, args.predictions / f"{name}.tsv")
        else:
            scores[name] = dev_scores(task.metrics, predictions, targets, classes=not task.regression)
            scores[name] |= {"no_label": len(others[name])} if as_text else {}
    if args.save is not None:
        write_text(args.save, json.dumps(scores))
    for name, part in scores.items():
        for metric, score in part["metrics"].items():
            most = f" (most frequent label: {part['majority'][metric]:.2f})" if "majority" in part else ""
            print(f"{name} {HEADINGS[metric]} {score:.2f}{most}, {part['examples']:,} examples")
    for name, words in others.items():
        if words:
            shown = ", ".join(sorted({repr(word[:40]) for word in words})[:5])
            print(f"{name}: {len(words):,} answers are no label and count as wrong, such as {shown}")


def _read(task: GlueTask, written: Sequence[str], data: str, split: str) -> tuple[list[float], list[float], list[str]]:
    """What a model's subwords mean, the targets of a dev set, and the answers that are no label.

    As in the authors' code, such an answer is another class than the right one, for Matthews a class of its own, -1, or
    the score -1. In a test set, whose labels are not known, it is the first class, or 0.
    """
    steps = Preprocessing.load(data)
    answers = [steps.decode(line) for line in written]
    values = task.read_answers(answers)
    others = [answer for answer, value in zip(answers, values, strict=True) if value is None]
    targets: list[float] = []
    wrong: list[float] = [0.0] * len(values)
    if split.startswith("valid"):
        targets = [value or 0.0 for value in task.read_answers(read_lines(Path(data) / "text" / f"{split}.label"))]
        if task.regression:
            wrong = [-1 / HIGHEST] * len(targets)
        elif "matthews" in task.metrics:  # the opposite class would be a correlation of -1, worse than guessing
            wrong = [-1.0] * len(targets)
        else:
            wrong = [(value + 1) % len(task.labels) for value in targets]
    predictions = [fallback if value is None else value for value, fallback in zip(values, wrong, strict=True)]
    return predictions, targets, others


def write_predictions(task: GlueTask, predictions: Sequence[float], path: Path) -> None:
    """The file that GLUE's site takes: a header, then the number of each example and its label or score."""
    if task.regression:
        shown = [f"{min(max(value, 0.0), 1.0) * HIGHEST:.3f}" for value in predictions]
    else:
        shown = [task.labels[int(number)] for number in predictions]
    write_text(path, "index\tprediction\n" + "".join(f"{number}\t{label}\n" for number, label in enumerate(shown)))


def _warn_of_other_task(checkpoint: str, data: str, task: str) -> None:
    """Where the data folder of training is still there and holds another task, of as many classes perhaps."""
    with suppress(ValueError):
        if (data_task := glue_task(read_record(data))) not in (None, task):
            warn(f"{checkpoint} was trained on {data}, {data_task}, not {task}")
