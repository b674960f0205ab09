"""What the trees of the source say about pairs of subwords."""

from typing import NamedTuple

from torch import Tensor

from fairseq_diverse.attention.functional.syntax import dependency_relation, phrase_relation

COLUMNS = ("word", "head", "start", "end", "layer")
PADDING = (-1, -1, 0, 0, 0)  # the columns of a padded subword


class Relations(NamedTuple):
    """What the trees of a batch say about pairs of subwords; None where no attention of the model needs it."""

    dependency: Tensor | None  # (B, T, T) bool
    phrase: Tensor | None  # (B, T, T) bool
    layer: Tensor | None  # (B, T)


def relate(trees: Tensor, needed: tuple[str, ...]) -> Relations:
    """The relations of a batch, made once for all layers.

    Args:
        trees: (B, T, 5) integers a subword: ``COLUMNS``, as in ``functional/syntax.py``.
        needed: dependency, constituency or both.
    """
    word, head, start, end, layer = trees.unbind(-1)
    constituency = "constituency" in needed
    return Relations(
        dependency_relation(word, head) if "dependency" in needed else None,
        phrase_relation(word, start, end) if constituency else None,
        layer if constituency else None,
    )
