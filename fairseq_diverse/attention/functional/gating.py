"""Gated attention (Qiu et al., 2025)."""

import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32


def gate_heads(heads: Tensor, query: Tensor, weight: Tensor) -> Tensor:
    """Head outputs times a sigmoid gate, computed from the input of the query projection.

        heads'[b, h, t] = sigmoid(W_g x_t)[h] heads[b, h, t]            one gate per head, weight (H, C)
        heads'[b, h, t, d] = sigmoid(W_g x_t)[h D + d] heads[b, h, t, d]  one per channel, weight (H D, C)

    Source: Qiu et al. (2025), section 2.2, the gate after the attention.

    Args:
        heads: (B, H, T, D)
        query: (B, T, C) the input of the query projection.
        weight: (H, C) or (H D, C)

    Returns:
        (B, H, T, D)
    """
    by_position = query.transpose(0, 1)  # fairseq's queries are (T, B, C) in memory
    copied = not by_position.is_contiguous()
    gates = F.linear(query, weight) if copied else F.linear(by_position, weight).transpose(0, 1)
    gates = at_least_float32(gates).sigmoid()  # (B, T, H) or (B, T, H D); half types have no slope near 1
    return heads * gates.unflatten(-1, (heads.size(1), -1)).transpose(1, 2).type_as(heads)
