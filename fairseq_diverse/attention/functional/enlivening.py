"""Which heads are redundant (Zhang et al., 2021, section 4.2)."""

import torch
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32


def head_confidence(weights: Tensor, valid: Tensor) -> Tensor:
    """The largest weight of a query, averaged over the real queries.

        h_conf = mean over valid i of  max_j weights[i, j]

    Source: Zhang et al. (2021), Eq. 3.

    Args:
        weights: (B, H, T, S) attention weights.
        valid: (B, T) bool, True at real queries.

    Returns:
        (B, H) in [0, 1], float32 or float64; 0 for a sentence without a real query.
    """
    return _mean_over_queries(weights.amax(-1), valid)


def syntactic_attention(weights: Tensor, relation: Tensor, valid: Tensor) -> Tensor:
    """The weight on related keys, averaged over the real queries.

        Syn_attn = mean over valid i of  sum over j related to i of weights[i, j]

    Source: Zhang et al. (2021), Eq. 9; the relation is ``dependency_relation``.

    Args:
        weights: (B, H, T, T) attention weights.
        relation: (B, T, T) bool.
        valid: (B, T) bool, True at real queries.

    Returns:
        (B, H) in [0, 1], float32 or float64; 0 for a sentence without a real query.
    """
    weights = at_least_float32(weights)
    return _mean_over_queries((weights * relation.unsqueeze(1)).sum(-1), valid).clamp(max=1)  # rounding can exceed 1


def redundant_heads(weights: Tensor, relation: Tensor, valid: Tensor, gate: float | None = None) -> Tensor:
    """The heads of each sentence whose attention to syntax does not exceed the gate.

        redundant = Syn_attn <= gate,  gate = sigmoid(h_conf), or the constant given

    Source: Zhang et al. (2021), Eq. 10. The gate has no parameter, though the paper calls it learnable.

    Args:
        weights: (B, H, T, T) attention weights without any mechanism, before dropout. No gradient flows through them.
        relation: (B, T, T) bool, ``dependency_relation``.
        valid: (B, T) bool, True at real tokens.
        gate: constant in (0, 1]; None = the dynamic gate.

    Returns:
        (B, H) bool.
    """
    weights = weights.detach()
    threshold = head_confidence(weights, valid).sigmoid() if gate is None else gate
    return syntactic_attention(weights, relation, valid) <= threshold


def _mean_over_queries(values: Tensor, valid: Tensor) -> Tensor:
    """(B, H, T) -> (B, H)."""
    values = at_least_float32(values)
    real = valid.unsqueeze(1)
    return torch.where(real, values, 0).sum(-1) / real.sum(-1).clamp(min=1)
