"""Relative positions (Shaw et al., 2018) and localness (Yang et al., 2018), the baselines of Zhang et al. (2021), and
the position bias of T5 (Raffel et al., 2020)."""

from bisect import bisect_left
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32, without_autocast

MIN_WINDOW, MIN_SHARED_WINDOW = 0.1, 1e-3  # of localness, in positions
Linear = tuple[Tensor, Tensor]  # weight and bias


def relative_index(q: Tensor, table: Tensor, keys: int) -> Tensor | None:
    """The row of the table for every query and key, (T, S); None on a GPU, which would add what has one index one by
    one: there it is not needed.

    Args:
        q, table, keys: as in ``relative_logits``.
    """
    if q.is_cuda:
        return None
    position, limit = torch.arange(keys, device=q.device), len(table) // 2
    return (position - position[keys - q.size(2) :, None]).clamp(-limit, limit) + limit


def relative_logits(q: Tensor, table: Tensor, keys: int, index: Tensor | None = None) -> Tensor:
    """The term that relative positions add to the logits: a vector is added to each key.

        logits[t, s] = q_t . table[clip(s - t, -k, k) + k]

    Source: Shaw et al. (2018), Eq. 4, before its scale of 1/sqrt(D) (already in a scaled q). The queries are the last
    ones of a sequence of ``keys`` tokens, so one step of incremental decoding gives the same as the full pass.

    Args:
        q: (B, H, T, D).
        table: (2k+1, D), shared over heads.
        keys: S, at least T.
        index: of ``relative_index``, faster on a CPU.

    Returns:
        (B, H, T, S).
    """
    by_distance = q @ table.type_as(q).t()
    if index is None:
        return _ToKeys.apply(by_distance, keys)
    return by_distance.gather(-1, index.expand(*q.shape[:2], -1, -1))


def relative_values(weights: Tensor, table: Tensor, index: Tensor | None = None) -> Tensor:
    """The term that relative positions add to the head outputs: a vector is added to each value.

        heads[t] = sum_s weights[t, s] table[clip(s - t, -k, k) + k]

    Source: Shaw et al. (2018), Eq. 3.

    Args:
        weights: (B, H, T, S); the queries are the last T of the S tokens.
        table: (2k+1, D), shared over heads.
        index: as in ``relative_logits``.

    Returns:
        (B, H, T, D).
    """
    if index is None:
        return _ToDistances.apply(weights, len(table)) @ table.type_as(weights)
    sums = at_least_float32(weights).new_zeros(*weights.shape[:3], len(table))
    sums = sums.scatter_add(-1, index.expand(*weights.shape[:2], -1, -1), at_least_float32(weights))
    return sums.type_as(weights) @ table.type_as(weights)


def localness_bias(q: Tensor, hidden: Linear, centre: Linear, window: Linear, valid: Tensor) -> Tensor:
    """A Gaussian bias of each head around a position predicted from the queries of all heads.

        z_i = tanh(W_p q_i + b_p),  P_i = (S - 1) sigmoid(U_p z_i + u_p),  D_i = S sigmoid(U_d z_i + u_d) + 0.1
        bias[h, i, j] = -(j - P_i[h])^2 / (2 (D_i[h] / 2)^2)

    Source: Yang et al. (2018), section 3, as in the first author's code. S is the number of real tokens of the
    sentence, j counts from 0 at the first of them. At padded keys the bias is finite but has no meaning.

    Args:
        q: (B, H, T, D) queries; q_i are those of all heads, H D numbers.
        hidden: weight (H D, H D) and bias (H D,), W_p and b_p.
        centre, window: weight (H, H D) and bias (H,): U_p and u_p, U_d and u_d.
        valid: (B, T) bool, True at real tokens.

    Returns:
        (B, H, T, T) at most 0, float32, or float64 for float64 queries.
    """
    queries = at_least_float32(q).transpose(1, 2).flatten(2)  # (B, T, H D)
    length = valid.sum(-1)[:, None, None].type_as(queries)
    with without_autocast(q):
        z = torch.tanh(_linear(queries, hidden))
        mean = (length - 1) * torch.sigmoid(_linear(z, centre))  # (B, T, H)
        width = length * torch.sigmoid(_linear(z, window)) + MIN_WINDOW
    return _gaussian(mean.transpose(1, 2), width.transpose(1, 2), valid)


def shared_localness_bias(q: Tensor, weight: Tensor, centre: Tensor, window: Tensor, valid: Tensor) -> Tensor:
    """The bias of ``localness_bias`` with parameters that the heads share, as section 3 can also be read.

        P_i = S sigmoid(U_p . tanh(W_p q_i)),  D_i = max(S sigmoid(U_d . tanh(W_p q_i)), 1e-3)

    Args:
        q: (B, H, T, D) queries; q_i is that of one head.
        weight: (D, D), W_p.
        centre, window: (D,), U_p and U_d.
        valid: (B, T) bool, True at real tokens.

    Returns:
        (B, H, T, T) at most 0, float32, or float64 for float64 queries.
    """
    q = at_least_float32(q)
    weight, centre, window = (x.type_as(q) for x in (weight, centre, window))
    length = valid.sum(-1)[:, None, None].type_as(q)
    with without_autocast(q):
        hidden = torch.tanh(q @ weight.t())  # (B, H, T, D)
        mean = length * torch.sigmoid(hidden @ centre)  # (B, H, T)
        width = (length * torch.sigmoid(hidden @ window)).clamp(min=MIN_SHARED_WINDOW)
    return _gaussian(mean, width, valid)


def _linear(x: Tensor, linear: Linear) -> Tensor:
    return F.linear(x, *(parameter.type_as(x) for parameter in linear))


def _gaussian(mean: Tensor, width: Tensor, valid: Tensor) -> Tensor:
    """Centre and window (B, H, T) -> (B, H, T, T)."""
    position = (valid.cumsum(-1) - 1)[:, None, None].type_as(mean)  # (B, 1, 1, T)
    return -((position - mean.unsqueeze(-1)) / (width.unsqueeze(-1) / 2)).square() / 2


def bucket_starts(buckets: int, farthest: int) -> list[int]:
    """The smallest distance of each bucket of distances but the first, which holds distance 0.

        bucket(r) = r for r < m = floor(n/2), from there on  m + floor((n - m) log(r/m) / log(R/m)), at most n - 1

    Source: Raffel et al. (2020), section 2.1, in the authors' code. Computed in integers: exact.

    Args:
        buckets: n, at least 2.
        farthest: R, above m; from here on, all distances share the last bucket.

    Returns:
        n - 1 distances, which do not fall.
    """
    exact = buckets // 2
    wide = buckets - exact

    def first(bucket: int) -> int:
        least = exact**wide * farthest**bucket
        return exact + bisect_left(range(exact, farthest), least, key=lambda r: r**wide * exact**bucket)

    return [*range(1, exact), *map(first, range(wide))]


def position_bias(table: Tensor, starts: Tensor, queries: int, keys: int, both: bool) -> Tensor:
    """The term that T5 adds to the logits: a number for each head and bucket of distances.

        bias[h, t, s] = table[b, h],   b = bucket(t - s) for keys before the query, 0 for later ones, or with ``both``
        b = bucket(|t - s|), n later for keys after the query

    Source: Raffel et al. (2020), section 2.1. The queries are the last T of the S tokens, so one step of incremental
    decoding gives the same as the full pass.

    Args:
        table: (n, H), or (2n, H) with ``both``.
        starts: (n - 1,) integers, of `bucket_starts`.
        queries, keys: T and S.
        both: keys after the query are seen, as in an encoder.

    Returns:
        (1, H, T, S), in the type of the table.
    """
    position = torch.arange(keys, device=table.device)
    distances = position - position[keys - queries :, None]  # (T, S), s - t
    buckets = torch.bucketize(distances.abs() if both else (-distances).clamp(min=0), starts, right=True)
    if both:
        buckets = buckets + (distances > 0) * (len(starts) + 1)
    return F.embedding(buckets, table).permute(2, 0, 1)[None].contiguous()


# In rows of the distances -S-k ... S+k, the keys of a query begin one column earlier than those of the query before: a
# view with other strides. gather and scatter_add would do, but a GPU adds what has one index one by one.


class _ToKeys(torch.autograd.Function):
    """(B, H, T, 2k+1), S -> (B, H, T, S): column clip(s - t, -k, k) + k of row t for each (t, s)."""

    @staticmethod
    def forward(ctx: Any, by_distance: Tensor, keys: int) -> Tensor:
        ctx.rows = by_distance.size(-1)
        first, between, last = by_distance.split([1, ctx.rows - 2, 1], -1)
        clipped = (*by_distance.shape[:3], keys + 1)
        return _diagonals(torch.cat([first.expand(clipped), between, last.expand(clipped)], -1), keys)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _ToDistances.apply(grad, ctx.rows), None


class _ToDistances(torch.autograd.Function):
    """(B, H, T, S), 2k+1 -> (B, H, T, 2k+1): for each (t, j) the sum over the s with clip(s - t, -k, k) + k = j."""

    @staticmethod
    def forward(ctx: Any, by_key: Tensor, rows: int) -> Tensor:
        ctx.keys = by_key.size(-1)
        columns = [ctx.keys + 1, rows - 2, ctx.keys + 1]
        by_distance = by_key.new_zeros(*by_key.shape[:3], sum(columns))
        _diagonals(by_distance, ctx.keys).copy_(by_key)
        before, between, after = by_distance.split(columns, -1)
        first, last = (x.sum(-1, keepdim=True, dtype=x.dtype) for x in (before, after))  # autocast: not float32
        return torch.cat([first, between, last], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _ToKeys.apply(grad, ctx.keys), None


def _diagonals(by_distance: Tensor, keys: int) -> Tensor:
    """(B, H, T, 2(S+k)+1), contiguous, for each distance from -S-k -> the part (B, H, T, S) of the keys, a view."""
    batch, heads, queries, width = by_distance.shape
    strides = (*by_distance.stride()[:2], width - 1, 1)
    return by_distance.as_strided((batch, heads, queries, keys), strides, queries + width // 2 - keys)
