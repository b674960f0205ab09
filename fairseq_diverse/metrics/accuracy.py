"""Accuracy of classifiers, and its plot by length."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairseq_diverse.support.pictures import STYLES, Figure, new_figure


class Accuracy(NamedTuple):
    """The number of examples of each class, and for each example 1 if it is classified correctly, else 0."""

    classes: list[int]
    hits: str

    @property
    def share(self) -> float:
        """Accuracy, in percent."""
        return 100 * self.hits.count("1") / len(self.hits)

    @property
    def largest(self) -> float:
        """Majority-class accuracy, in percent."""
        return 100 * max(self.classes) / len(self.hits)


def pooled(parts: Iterable[Accuracy]) -> Accuracy:
    """The examples of several parts together."""
    classes, hits = zip(*parts, strict=True)
    return Accuracy([sum(counts) for counts in zip(*classes, strict=True)], "".join(hits))


def draw_accuracy(lengths: Sequence[int], by_model: Mapping[str, Sequence[Accuracy]], trained: int) -> Figure:
    """Accuracy by number of operators, one curve per model, and the majority-class accuracy (Li et al., 2021, Fig. 4).
    ``by_model``: by name, the accuracies of ``lengths`` operators; ``trained``: most operators in training, drawn as a
    line.
    """
    figure = new_figure(5, 3.6)
    axis = figure.subplots()
    first = next(iter(by_model.values()))
    axis.plot(lengths, [a.largest for a in first], color="gray", linestyle=":", label="largest class")
    for number, (name, accuracies) in enumerate(by_model.items()):
        color, marker = STYLES[number % len(STYLES)]
        axis.plot(lengths, [a.share for a in accuracies], color=color, marker=marker, label=name)
    if trained < max(lengths):
        axis.axvline(trained + 0.5, color="black", linewidth=0.8, linestyle="--")
    axis.set(xticks=lengths, xlabel="operators (dashed: longest in training)", ylabel="accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    return figure
