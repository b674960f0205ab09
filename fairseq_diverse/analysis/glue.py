"""Predictions for a task of GLUE: scores on its dev sets, files for its test sets."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_diverse.analysis.batches import evaluation_batches
from fairseq_diverse.metrics.glue import glue_scores
from fairseq_diverse.preparation.glue import HIGHEST, GlueTask
from fairseq_diverse.support.files import atomic_write


def predict(
    model: Any, task: Any, split: str, max_tokens: int, done: Callable[[int], object]
) -> tuple[list[float], list[float]]:
    """The number of the most likely class of every example of a split, or its predicted value, and the targets, which
    are empty where the split has none; arguments as of `evaluation_batches`.

    Args:
        task: fairseq's ``sentence_prediction`` with the split loaded.
        done: called with the number of examples after each batch.
    """
    import torch  # here, since reports do not need it

    examples = len(task.dataset(split))
    found, targets, labelled = [0.0] * examples, [0.0] * examples, True
    with torch.no_grad():
        for sample in evaluation_batches(model, task, split, max_tokens):
            head = task.cfg.classification_head_name
            logits = model(**sample["net_input"], features_only=True, classification_head_name=head)[0].float()
            values = logits.view(-1) if task.cfg.regression_target else logits.argmax(-1)
            labelled = "target" in sample
            given = sample["target"].view(-1) if labelled else values
            for i, value, target in zip(sample["id"].tolist(), values.tolist(), given.tolist(), strict=True):
                found[i], targets[i] = value, target
            done(len(values))
    return found, targets if labelled else []


def scores(task: GlueTask, predictions: Sequence[float], targets: Sequence[float]) -> dict[str, Any]:
    """``examples``, ``metrics``, and ``majority``: those of always predicting the most frequent label, none of values.

    Raises:
        ValueError: as `glue_scores`.
    """
    found: dict[str, Any] = {"examples": len(targets), "metrics": glue_scores(task.metrics, predictions, targets)}
    if not task.regression:
        (label, _), *_ = Counter(targets).most_common()
        found["majority"] = glue_scores(task.metrics, [label] * len(targets), targets)
    return found


def write_predictions(task: GlueTask, predictions: Sequence[float], path: Path) -> None:
    """The file that GLUE's site takes: a header, then the number of each example and its label or score."""
    if task.regression:
        shown = [f"{min(max(value, 0.0), 1.0) * HIGHEST:.3f}" for value in predictions]
    else:
        shown = [task.labels[int(number)] for number in predictions]
    with atomic_write(path) as f:
        f.write("index\tprediction\n")
        f.writelines(f"{number}\t{label}\n" for number, label in enumerate(shown))
