"""Accuracy of classifiers by split."""

from collections.abc import Callable
from typing import Any

import torch

from fairseq_diverse.analysis.batches import evaluation_batches
from fairseq_diverse.metrics.accuracy import Accuracy


def measure_accuracy(model: Any, task: Any, split: str, max_tokens: int, done: Callable[[int], object]) -> Accuracy:
    """Classify a split; arguments as of `evaluation_batches`.

    Args:
        done: called with the number of examples after each batch.
    """
    dataset = task.dataset(split)
    hits = ["0"] * len(dataset)
    with torch.no_grad():
        for sample in evaluation_batches(model, task, split, max_tokens):
            logits = model(**sample["net_input"])[0]
            for i in sample["id"][logits.argmax(-1) == sample["target"]].tolist():
                hits[i] = "1"
            done(sample["nsentences"])
    return Accuracy([dataset.labels.count(label) for label in range(task.classes)], "".join(hits))
