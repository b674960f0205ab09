"""Agreement of the heads in Triton, for a GPU: the terms of an attention in two launches, their gradients in one.

A program takes a few positions of one term, the rows of a tile, and goes through the heads one by one. Formulas:
``functional/agreement.py``. Tensors may be strided but for their last dimension.
"""

# mypy: allow-incomplete-defs, disable-error-code="valid-type"

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_diverse.attention.kernels import first_derivative_only
from fairseq_diverse.attention.kernels.launching import cdiv, launch, next_power_of_2, operator

SMALLEST_NORM = tl.constexpr(1e-8)

TILE = 1024  # numbers
COLUMNS = 128  # of a tile of a map
WARPS = 8


@triton.jit
def _rows(program, valid, count, length, ROWS: tl.constexpr):
    """A tile's rows: their numbers in (B, T), sentences and positions, which exist, which are valid."""
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    return row, (row // length).to(tl.int64), row % length, row < count, tl.load(valid + row, row < count, 0) != 0


# ---- cosines: the subspace and the output term ----


@triton.jit
def _unit(x, D: tl.constexpr, valid, WIDTH: tl.constexpr):
    """The vectors at ``x`` divided by their norms, and 1 / norm; both 0 where the norm is at most 1e-8."""
    d = tl.arange(0, WIDTH)[None, :]
    vectors = tl.load(x + d, valid & (d < D), 0.0).to(tl.float32)
    squared = tl.sum(vectors * vectors, 1)[:, None]
    nonzero = squared > SMALLEST_NORM * SMALLEST_NORM
    scale = tl.where(nonzero, 1 / tl.sqrt(tl.where(nonzero, squared, 1.0)), 0.0)
    return vectors * scale, scale


@triton.jit
def _mean_unit(x, head, valid, H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Mean over heads of the unit vectors."""
    total, _ = _unit(x, D, valid, WIDTH)
    for h in range(1, H):
        unit, _ = _unit(x + h * head, D, valid, WIDTH)
        total += unit
    return total * (1.0 / H)


@triton.jit
def _cosines(program, term, figures, H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    x, valid, count, length, batch, head, position = term
    row, sentence, place, real, valid = _rows(program, valid, count, length, ROWS)
    mean = _mean_unit(x + sentence * batch + place * position, head, valid, H, D, WIDTH)
    tl.store(figures + row, tl.where(valid, tl.sum(mean * mean, 1)[:, None], -1.0), real)


@triton.jit
def _cosines_backward(
    program, term, out, factor, H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """``factor``: the gradient of every position's figure; ``out``: that of x, and its strides."""
    x, valid, count, length, batch, head, position = term
    grad, grad_batch, grad_head, grad_position = out
    _, sentence, place, real, valid = _rows(program, valid, count, length, ROWS)
    x += sentence * batch + place * position
    grad += sentence * grad_batch + place * grad_position
    mean = _mean_unit(x, head, valid, H, D, WIDTH)
    d = tl.arange(0, WIDTH)[None, :]
    for h in range(H):
        unit, scale = _unit(x + h * head, D, valid, WIDTH)
        g = factor * (2.0 / H) * scale * (mean - unit * tl.sum(unit * mean, 1)[:, None])
        tl.store(grad + h * grad_head + d, g.to(grad.dtype.element_ty), real & (d < D))


# ---- overlaps: the position term ----


@triton.jit
def _overlaps(program, term, keys, means, figures, H: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Sum over keys of (mean over heads)^2; the means (B, T, S) are kept, 0 where a query is not valid."""
    x, valid, count, length, batch, head, position = term
    row, sentence, place, real, valid = _rows(program, valid, count, length, ROWS)
    x += sentence * batch + place.to(tl.int64) * position
    figure = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, keys, COLUMNS):
        s = start + tl.arange(0, COLUMNS)[None, :]
        total, at = tl.zeros((ROWS, COLUMNS), tl.float32), x + s
        for _ in range(H):  # h * head would be an int32
            total += tl.load(at, valid & (s < keys), 0.0).to(tl.float32)
            at += head
        mean = total * (1.0 / H)
        tl.store(means + row.to(tl.int64) * keys + s, mean, real & (s < keys))
        figure += tl.sum(mean * mean, 1)[:, None]
    tl.store(figures + row, tl.where(valid, figure, -1.0), real)


@triton.jit
def _overlaps_backward(
    program, count, keys, means, grad, factor, H: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    """The gradient (B, T, S), the same for every head."""
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    for start in range(0, keys, COLUMNS):
        s = start + tl.arange(0, COLUMNS)[None, :]
        at, real = row.to(tl.int64) * keys + s, (row < count) & (s < keys)
        g = factor * (2.0 / H) * tl.load(means + at, real, 0.0)
        tl.store(grad + at, g.to(grad.dtype.element_ty), real)


# ---- all terms: values, heads (both cosines) and weights; a place is that of a term's figure ----

VARYING = [
    *(f"{x}_{what}" for x in "vow" for what in ("count", "length", "batch", "head", "position", "place", "programs")),
    *(f"{x}_grad_{what}" for x in "vo" for what in ("batch", "head", "position")),
    *("keys", "most", "first", "second", "third"),
]  # from batch to batch: a kernel is not compiled again for each kind of number


@triton.jit(do_not_specialize=VARYING)
def _agreement_forward(
    values, v_valid, v_count, v_length, v_batch, v_head, v_position, v_place, v_programs,
    heads, o_valid, o_count, o_length, o_batch, o_head, o_position, o_place, o_programs,
    weights, w_valid, w_count, w_length, w_batch, w_head, w_position, w_place, keys, means, figures, most,
    H: tl.constexpr, V_D: tl.constexpr, V_WIDTH: tl.constexpr, V_ROWS: tl.constexpr,
    O_D: tl.constexpr, O_WIDTH: tl.constexpr, O_ROWS: tl.constexpr, COLUMNS: tl.constexpr, W_ROWS: tl.constexpr,
):  # fmt: skip
    """The figure of every position for every term, ``figures`` (K, most); -1 where a position is not valid."""
    program = tl.program_id(0)
    if values is not None:
        if program < v_programs:
            v = (values, v_valid, v_count, v_length, v_batch, v_head, v_position)
            _cosines(program, v, figures + v_place * most, H, V_D, V_WIDTH, V_ROWS)
    program -= v_programs
    if heads is not None:
        if (program >= 0) & (program < o_programs):
            o = (heads, o_valid, o_count, o_length, o_batch, o_head, o_position)
            _cosines(program, o, figures + o_place * most, H, O_D, O_WIDTH, O_ROWS)
    program -= o_programs
    if weights is not None:
        if program >= 0:
            w = (weights, w_valid, w_count, w_length, w_batch, w_head, w_position)
            _overlaps(program, w, keys, means, figures + w_place * most, H, COLUMNS, W_ROWS)


@triton.jit(do_not_specialize=VARYING)
def _agreement_mean(figures, out, shares, most, first, second, third, TILE: tl.constexpr):
    """Of one term: the mean over its valid positions, and the share of each; ``first`` positions has the first term."""
    term = tl.program_id(0)
    count = tl.where(term == 0, first, tl.where(term == 1, second, third))
    total = tl.zeros((TILE,), tl.float32)
    valid = tl.zeros((TILE,), tl.float32)
    for start in range(0, count, TILE):
        i = start + tl.arange(0, TILE)
        figure = tl.load(figures + term * most + i, i < count, -1.0)
        total += tl.where(figure == -1.0, 0.0, figure)
        valid += tl.where(figure == -1.0, 0.0, 1.0)
    share = 1 / tl.maximum(tl.sum(valid, 0), 1.0)
    tl.store(out + term, tl.sum(total, 0) * share)
    tl.store(shares + term, share)


@triton.jit(do_not_specialize=VARYING)
def _agreement_backward(
    grad, shares,
    values, v_valid, v_count, v_length, v_batch, v_head, v_position, v_place, v_programs,
    grad_values, v_grad_batch, v_grad_head, v_grad_position,
    heads, o_valid, o_count, o_length, o_batch, o_head, o_position, o_place, o_programs,
    grad_heads, o_grad_batch, o_grad_head, o_grad_position,
    means, grad_means, w_count, w_place, keys,
    H: tl.constexpr, V_D: tl.constexpr, V_WIDTH: tl.constexpr, V_ROWS: tl.constexpr,
    O_D: tl.constexpr, O_WIDTH: tl.constexpr, O_ROWS: tl.constexpr, COLUMNS: tl.constexpr, W_ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if values is not None:
        if program < v_programs:
            v = (values, v_valid, v_count, v_length, v_batch, v_head, v_position)
            v_out = (grad_values, v_grad_batch, v_grad_head, v_grad_position)
            v_factor = tl.load(grad + v_place) * tl.load(shares + v_place)
            _cosines_backward(program, v, v_out, v_factor, H, V_D, V_WIDTH, V_ROWS)
    program -= v_programs
    if heads is not None:
        if (program >= 0) & (program < o_programs):
            o = (heads, o_valid, o_count, o_length, o_batch, o_head, o_position)
            o_out = (grad_heads, o_grad_batch, o_grad_head, o_grad_position)
            o_factor = tl.load(grad + o_place) * tl.load(shares + o_place)
            _cosines_backward(program, o, o_out, o_factor, H, O_D, O_WIDTH, O_ROWS)
    program -= o_programs
    if means is not None:
        if program >= 0:
            w_factor = tl.load(grad + w_place) * tl.load(shares + w_place)
            _overlaps_backward(program, w_count, keys, means, grad_means, w_factor, H, COLUMNS, W_ROWS)


# ---- operators ----


class _Term:
    """How a kernel is given one term: ``x`` (B, H, T, D), or None where it is not measured."""

    def __init__(self, x: Tensor | None, valid: Tensor | None, place: int, columns: int | None = None) -> None:
        self.x, self.valid, self.place = x, valid, place
        self.shape = (0, 0, 0, 0) if x is None else tuple(x.shape)
        self.count, self.length = self.shape[0] * self.shape[2], max(1, self.shape[2])
        self.width = columns or next_power_of_2(max(1, self.shape[3]))
        self.rows = max(1, TILE // self.width)
        self.programs = cdiv(self.count, self.rows)
        self.strides = (0, 0, 0) if x is None else x.stride()[:3]
        self.arguments = (x, valid, self.count, self.length, *self.strides, place)
        self.constants = (self.shape[3], self.width, self.rows)


@operator
def agreement_forward(
    values: Tensor | None,
    heads: Tensor | None,
    weights: Tensor | None,
    valid_keys: Tensor,
    valid_queries: Tensor,
    places: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """(K,) agreement of the terms that are given, in their places; the share of each position; means of the maps."""
    v, o = _Term(values, valid_keys, places[0]), _Term(heads, valid_queries, places[1])
    w = _Term(weights, valid_queries, places[2], COLUMNS)
    number = sum(place >= 0 for place in places)
    counts = [0, 0, 0]
    for term in (v, o, w):
        if term.x is not None:
            counts[term.place] = term.count
    most = functools.reduce(torch.sym_max, counts)
    figures = valid_keys.new_empty(number, most, dtype=torch.float32)
    out, shares = figures.new_empty(number), figures.new_empty(number)
    means = figures.new_empty(w.shape[0], w.shape[2], w.shape[3])
    launch(
        *(_agreement_forward, v.programs + o.programs + w.programs, WARPS),
        *(*v.arguments, v.programs, *o.arguments, o.programs, *w.arguments, w.shape[3], means, figures, most),
        *(max(v.shape[1], o.shape[1], w.shape[1]), *v.constants, *o.constants, COLUMNS, w.rows),
    )
    launch(_agreement_mean, number, WARPS, figures, out, shares, most, *counts, TILE)
    return out, shares, means


@operator
def agreement_backward(
    grad: Tensor,
    shares: Tensor,
    values: Tensor | None,
    heads: Tensor | None,
    means: Tensor,
    valid_keys: Tensor,
    valid_queries: Tensor,
    number: int,
    places: list[int],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values, heads and the means of the maps (in ``dtype``); empty where there are none."""
    v, o = _Term(values, valid_keys, places[0]), _Term(heads, valid_queries, places[1])
    grads = [grad.new_empty(0) if x is None else torch.empty_like(x) for x in (values, heads)]
    grad_means = torch.empty_like(means, dtype=dtype)
    rows = TILE // COLUMNS
    count, keys = means.size(0) * means.size(1), means.size(2)
    strides = [(0, 0, 0) if x.dim() == 1 else x.stride()[:3] for x in grads]
    programs = cdiv(count, rows)
    launch(
        *(_agreement_backward, v.programs + o.programs + programs, WARPS, grad, shares),
        *(*v.arguments, v.programs, grads[0], *strides[0], *o.arguments, o.programs, grads[1], *strides[1]),
        *(means if count else None, grad_means, count, places[2], keys),
        *(number, *v.constants, *o.constants, COLUMNS, rows),
    )
    return grads[0], grads[1], grad_means


class Agreement(torch.autograd.Function):
    """(K,) agreement of the heads by the terms whose tensors are given, in their ``places``; see ``agreement``."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor | None,
        heads: Tensor | None,
        weights: Tensor | None,
        valid_keys: Tensor,
        valid_queries: Tensor,
        places: list[int],
    ) -> Tensor:
        values, heads, weights = (
            x if x is None or x.stride(-1) == 1 else x.contiguous() for x in (values, heads, weights)
        )
        valid_keys, valid_queries = valid_keys.contiguous(), valid_queries.contiguous()
        out, shares, means = agreement_forward(values, heads, weights, valid_keys, valid_queries, places)
        ctx.save_for_backward(shares, values, heads, means, valid_keys, valid_queries)
        ctx.number, ctx.dtype = next((x.size(1), x.dtype) for x in (weights, values, heads) if x is not None)
        ctx.places = places
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shares, values, heads, *others = ctx.saved_tensors
        made = agreement_backward(grad.contiguous(), shares, values, heads, *others, ctx.number, ctx.places, ctx.dtype)
        grads = [x if place >= 0 else None for x, place in zip(made, ctx.places, strict=True)]
        if grads[2] is not None:
            grads[2] = grads[2].unsqueeze(1).expand(-1, ctx.number, -1, -1)
        return *grads, None, None, None
