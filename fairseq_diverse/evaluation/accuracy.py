"""Accuracy of classifiers by split, and its picture by length."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq import utils

from fairseq_diverse.evaluation.pictures import new_figure
from fairseq_diverse.evaluation.row_curves import STYLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Accuracy(NamedTuple):
    """Of one split: how many examples are classified correctly, and how many always guessing the largest class gets."""

    examples: int
    correct: int
    largest: int


def measure_accuracy(
    model: Any, task: Any, split: str, max_tokens: int = 8000, done: Callable[[int], object] = lambda count: None
) -> Accuracy:
    """Classify a split; the model is put in evaluation mode.

    Args:
        task: with the split loaded.
        done: called with the number of examples of every batch.
    """
    model.eval()
    dataset = task.dataset(split)
    batches = task.get_batch_iterator(dataset, max_tokens=max_tokens).next_epoch_itr(shuffle=False)
    device = next(model.parameters()).device
    correct = 0
    with torch.no_grad():
        for sample in batches:
            sample = utils.move_to_cuda(sample) if device.type == "cuda" else sample
            logits = model(**sample["net_input"])[0]
            correct += int((logits.argmax(-1) == sample["target"]).sum())
            done(sample["nsentences"])
    return Accuracy(len(dataset), correct, max(Counter(dataset.labels).values()))


def draw_accuracy(lengths: Sequence[int], found: Mapping[str, Sequence[Accuracy]], trained: int) -> "Figure":
    """Accuracy by number of operators, a curve a model, and what always guessing the largest class gets (Li et al.,
    2021, Fig. 4).

    Args:
        lengths: x of every accuracy.
        found: the accuracies of every model, by its name.
        trained: the most operators of the training data; a line after it.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = new_figure(5, 3.6)
    axis = figure.subplots()
    first = next(iter(found.values()))
    axis.plot(
        lengths, [100 * a.largest / a.examples for a in first], color="gray", linestyle=":", label="largest class"
    )
    for number, (name, accuracies) in enumerate(found.items()):
        color, marker = STYLES[number % len(STYLES)]
        axis.plot(lengths, [100 * a.correct / a.examples for a in accuracies], color=color, marker=marker, label=name)
    if trained < max(lengths):
        axis.axvline(trained + 0.5, color="black", linewidth=0.8, linestyle="--")
    axis.set_xticks(lengths)
    axis.set_xlabel("operators (dashed: longest in training)")
    axis.set_ylabel("accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize="small")
    return figure
