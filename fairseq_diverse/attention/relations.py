"""Relations between subwords, from the trees of the source."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_diverse.attention.functional.syntax import dependency_relation, phrase_relation

COLUMNS = ("word", "head", "start", "end", "layer")
PADDING = (-1, -1, 0, 0, 0)  # the columns of a padded subword
EVERYTHING_RELATED = (0, 0, 0, 1, 0)  # those of each subword of a sentence without trees


class Relations(NamedTuple):
    """Relations between the subwords of a batch; None if no attention of the model needs them."""

    dependency: Tensor | None  # (B, T, T) bool
    phrase: Tensor | None  # (B, T, T) bool
    layer: Tensor | None  # (B, T)


def relate(trees: Tensor, needed: tuple[str, ...]) -> Relations:
    """The relations of a batch, computed once for all layers.

    Args:
        trees: (B, T, 5) integers, the ``COLUMNS`` of each subword; see ``functional/syntax.py``.
        needed: the kinds of trees to read: dependency, constituency or both.
    """
    word, head, start, end, layer = trees.unbind(-1)
    constituency = "constituency" in needed
    return Relations(
        dependency_relation(word, head) if "dependency" in needed else None,
        phrase_relation(word, start, end) if constituency else None,
        layer if constituency else None,
    )


def place_trees(batch: dict[str, Any], trees: Any, padding: int) -> Tensor:
    """(B, T, 5) the trees of a batch, at the positions of its source tokens; sentences are found by id."""
    source = batch["net_input"]["src_tokens"]
    placed = torch.tensor(PADDING, device=source.device).repeat(*source.shape, 1)
    for row, index in enumerate(batch["id"].tolist()):
        placed[row, source[row] != padding] = trees[index].to(source.device)
    return placed
