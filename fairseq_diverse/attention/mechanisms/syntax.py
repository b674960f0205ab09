"""Attention along the trees of the source (Zhang et al., 2021, section 4)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.syntax import (
    dependency_relation,
    phrase_bias,
    phrase_distance,
    phrase_relation,
)

COLUMNS = ("word", "head", "start", "end", "layer")


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


class DependencyMask(nn.Module):
    """Dependency-enhanced attention: a subword sees its word, its head and its dependents.

    Source: Zhang et al. (2021), Eqs. 4-5. No parameters.
    """

    def forward(self, relations: Relations) -> tuple[None, Tensor]:
        """No bias, and (B, 1, T, T) what may be seen."""
        assert relations.dependency is not None
        return None, relations.dependency.unsqueeze(1)


class PhraseBias(nn.Module):
    """Local-phrase-enhanced attention: a subword sees its local phrase, with a penalty by relative layer.

    Source: Zhang et al. (2021), Eqs. 6-8. (2k+1) D + D^2 + 2 D parameters: 5,056 at Base with k = 6.

    Args:
        head_width: D.
        limit: k, at least 0.
    """

    def __init__(self, head_width: int, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.embedding = nn.Parameter(torch.empty(2 * limit + 1, head_width))
        self.hidden = nn.Linear(head_width, head_width)
        self.out = nn.Parameter(torch.empty(1, head_width))
        nn.init.normal_(self.embedding, std=head_width**-0.5)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.xavier_uniform_(self.out)  # never 0: |x| has no gradient there

    def forward(self, relations: Relations) -> tuple[Tensor, Tensor]:
        """(B, 1, T, T) addends of the logits, and what may be seen."""
        assert relations.phrase is not None and relations.layer is not None
        distance = phrase_distance(relations.layer, self.limit)
        bias = phrase_bias(self.embedding, self.hidden.weight, self.hidden.bias, self.out[0], distance)
        inside = relations.phrase  # outside the mask rules; what mixes or convolves logits finds 0 there
        return torch.where(inside, bias, 0).unsqueeze(1), inside.unsqueeze(1)


@dataclass(frozen=True)
class Enlivening:
    """What happens to redundant heads (Zhang et al., 2021, section 4.2).

    Args:
        prune: they output zero; otherwise they, and only they, get the finite terms and the hard mask of the attention.
        gate: constant gate in (0, 1], or None for the dynamic one.
    """

    prune: bool
    gate: float | None
