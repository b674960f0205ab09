"""Synthesizer (Tay et al., 2020): logits that are learned, or computed from the query alone."""

import torch.nn.functional as F
from torch import Tensor


def random_logits(table: Tensor, positions: Tensor | None, queries: int, keys: int) -> Tensor:
    """A learned number for each pair of positions.

        logits[h, t, s] = R[h, p(t), p(s)]

    Source: Tay et al. (2020), Random Synthesizer.

    Args:
        table: (H, N, N), R.
        positions: (B, S) p, from 0 at the first real token; None: 0 ... S - 1 in every sentence.
        queries, keys: T and S; the queries are the last T of the S tokens.

    Returns:
        (B or 1, H, T, S).
    """
    if positions is None:
        return table[None, :, keys - queries : keys, :keys]
    heads, most, _ = table.shape
    rows = F.embedding(positions[:, keys - queries :], table.transpose(0, 1).flatten(1))  # (B, T, H N)
    return at_positions(rows.unflatten(-1, (heads, most)).transpose(1, 2), positions, keys)


def dense_logits(x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
    """A logit for each position, from the query alone.

        logits[h, t] = W_2[h] ReLU(W_1[h] x_t + b_1[h]) + b_2[h]

    Source: Tay et al. (2020), Dense Synthesizer, with one network for each head, whose inner width is D.

    Args:
        x: (B, T, C), the input of the query projection.
        inner: (H D, C) and inner_bias (H D,), W_1 and b_1 of all heads.
        outer: (H, N, D) and outer_bias (H, N).

    Returns:
        (B, H, T, N), the logits of positions 0 ... N - 1.
    """
    heads, _, width = outer.shape
    hidden = F.relu(F.linear(x, inner, inner_bias)).unflatten(-1, (heads, width)).transpose(1, 2)  # (B, H, T, D)
    return hidden @ outer.transpose(1, 2).type_as(hidden) + outer_bias[:, None].type_as(hidden)


def at_positions(logits: Tensor, positions: Tensor | None, keys: int) -> Tensor:
    """(B, H, T, N) logits of positions -> (B, H, T, S) of the keys, which are at ``positions`` (B, S)."""
    if positions is None:
        return logits[..., :keys]
    return logits.gather(-1, positions[:, None, None].expand(*logits.shape[:3], keys))
