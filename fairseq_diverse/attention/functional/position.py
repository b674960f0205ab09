"""Relative positions (Shaw et al., 2018) and localness (Yang et al., 2018), the baselines of Zhang et al. (2021)."""

import torch
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32

MIN_WINDOW = 1e-3  # of localness, in positions


def relative_logits(q: Tensor, table: Tensor, keys: int) -> Tensor:
    """The term that relative positions add to the logits: a vector is added to each key.

        logits[t, s] = q_t . table[clip(s - t, -k, k) + k]

    Source: Shaw et al. (2018), Eq. 4, before its scale of 1/sqrt(D) (already in a scaled q). The queries are the last
    ones of a sequence of ``keys`` tokens, so one step of incremental decoding gives the same as the full pass.

    Args:
        q: (B, H, T, D).
        table: (2k+1, D), shared over heads.
        keys: S, at least T.

    Returns:
        (B, H, T, S).
    """
    by_distance = q @ table.type_as(q).t()  # (B, H, T, 2k+1)
    return by_distance.gather(-1, _distance(q.size(2), keys, table).expand(*q.shape[:3], keys))


def relative_values(weights: Tensor, table: Tensor) -> Tensor:
    """The term that relative positions add to the head outputs: a vector is added to each value.

        heads[t] = sum_s weights[t, s] table[clip(s - t, -k, k) + k]

    Source: Shaw et al. (2018), Eq. 3.

    Args:
        weights: (B, H, T, S); the queries are the last T of the S tokens.
        table: (2k+1, D), shared over heads.

    Returns:
        (B, H, T, D).
    """
    index = _distance(weights.size(2), weights.size(3), table).expand_as(weights)
    by_distance = weights.new_zeros(*weights.shape[:3], len(table)).scatter_add(-1, index, weights)
    return by_distance @ table.type_as(weights)


def localness_bias(q: Tensor, weight: Tensor, centre: Tensor, window: Tensor, valid: Tensor) -> Tensor:
    """A Gaussian bias around a position predicted from each query.

        P_i = S sigmoid(U_p . tanh(W_p q_i)),  D_i = S sigmoid(U_d . tanh(W_p q_i))
        bias[i, j] = -(j - P_i)^2 / (2 (D_i / 2)^2)

    Source: Yang et al. (2018), section 3. S is the number of real tokens of the sentence, j counts from 0 at the first
    of them, D_i is at least 1e-3. At padded keys the bias is finite and meaningless.

    Args:
        q: (B, H, T, D) queries.
        weight: (D, D), W_p.
        centre, window: (D,), U_p and U_d; shared over heads, like W_p.
        valid: (B, T) bool, True at real tokens.

    Returns:
        (B, H, T, T) at most 0, float32, or float64 for float64 queries.
    """
    q = at_least_float32(q)
    weight, centre, window = (x.type_as(q) for x in (weight, centre, window))
    length = valid.sum(-1)[:, None, None].type_as(q)
    with torch.autocast(q.device.type, enabled=False):
        hidden = torch.tanh(q @ weight.t())  # (B, H, T, D)
        mean = length * torch.sigmoid(hidden @ centre)  # (B, H, T)
        deviation = (length * torch.sigmoid(hidden @ window)).clamp(min=MIN_WINDOW) / 2
    position = (valid.cumsum(-1) - 1)[:, None, None].type_as(q)  # (B, 1, 1, T)
    return -((position - mean.unsqueeze(-1)) / deviation.unsqueeze(-1)).square() / 2


def _distance(queries: int, keys: int, table: Tensor) -> Tensor:
    """(T, S) rows of the table."""
    limit = len(table) // 2
    positions = torch.arange(keys, device=table.device)
    return (positions - positions[keys - queries :, None]).clamp(-limit, limit) + limit
