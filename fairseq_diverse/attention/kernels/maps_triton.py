"""Convolutions over maps in Triton, for a GPU, with the heads as channels: evolving attention, and talking heads, whose
kernel has one tap. float16, bfloat16 or float32, summed in float32. Formulas: ``functional/evolving.py`` and
``functional/mixing.py``.

A program takes some cells of all heads of a sentence. It goes through pairs of a tap of the kernel and a head, 16 at a
time, as one product on tensor cores. The backward pass does likewise with the gradient, and adds up the gradients of
the weights over some tiles of cells; those of all programs are added in an order that is always the same.
"""

# mypy: allow-incomplete-defs, disable-error-code="assignment, valid-type"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_diverse.attention.kernels import first_derivative_only
from fairseq_diverse.attention.kernels.interacting_triton import TYPES, product
from fairseq_diverse.attention.kernels.launching import cdiv, launch, next_power_of_2, operator

CHUNK = tl.constexpr(16)  # pairs of a tap and a head in a product
CELLS = 128  # of a tile of 16 heads
PROGRAMS = 1024, 2048  # at most, that add up the gradients of the weights of several taps, of one
VARYING = ["cells_batch", "cells_row", "T", "S", "tiles", "per_program"]  # from batch to batch


@triton.jit
def _tile(tile, T, S, CELLS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sentence, rows and columns of a tile's cells."""
    across = tl.cdiv(S, COLUMNS)
    down = tl.cdiv(T, CELLS // COLUMNS)
    cell = tl.arange(0, CELLS)
    t = tile // across % down * (CELLS // COLUMNS) + cell // COLUMNS
    return (tile // (across * down)).to(tl.int64), t, tile % across * COLUMNS + cell % COLUMNS


@triton.jit
def _pairs(start, H: tl.constexpr, K: tl.constexpr):
    """Pairs of a tap and a head from ``start`` on: which exist, their heads, taps, and the rows and columns of these.

    The other heads' weights of a pair are at tap + head K K, and H K K apart.
    """
    pair = start + tl.arange(0, CHUNK)
    tap = pair // H
    return pair < H * K * K, pair % H, tap, tap // K, tap % K


@triton.jit
def _in_cells(cells, cells_row, t, s, T, S):
    """Where (t, s) is in the map, and in ``cells``."""
    inside = (t >= 0) & (t < T) & (s >= 0) & (s < S)
    if cells is not None:
        inside = tl.load(cells + t * cells_row + s, inside, 0) != 0
    return inside


@triton.jit(do_not_specialize=VARYING)
def _maps_forward(
    x, weight, bias, cells, cells_batch, cells_row, out, positive, T, S, ratio,
    H: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    CELLS: tl.constexpr, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    sentence, t, s = _tile(tl.program_id(0), T, S, CELLS, COLUMNS)
    g = tl.arange(0, HEADS)[:, None]
    x += sentence * H * T * S
    if cells is not None:
        cells += sentence * cells_batch
    total = tl.zeros((HEADS, CELLS), tl.float32)
    for start in range(0, H * K * K, CHUNK):
        exists, h, tap, i, j = _pairs(start, H, K)
        of_pair = tl.load(weight + (g * H + h[None, :]) * K * K + tap[None, :], (g < H) & exists[None, :], 0.0)
        y = t[None, :] + i[:, None] - TOP
        z = s[None, :] + j[:, None] - LEFT
        inside = exists[:, None] & _in_cells(cells, cells_row, y, z, T, S)
        seen = tl.load(x + (h[:, None] * T + y) * S + z, inside, 0.0)
        total = product(of_pair.to(NUMBERS), seen.to(NUMBERS), total)
    here = (g * T + t[None, :]) * S + s[None, :]
    exists = (g < H) & (t < T)[None, :] & (s < S)[None, :]
    if bias is not None:
        total += tl.load(bias + g, g < H, 0.0).to(tl.float32)
        tl.store(positive + sentence * H * T * S + here, ~(total <= 0), exists)
        inner = tl.load(x + here, exists, 0.0).to(tl.float32)
        total = (1 - ratio) * inner + ratio * tl.where(total <= 0, 0.0, total)
    tl.store(out + sentence * H * T * S + here, total.to(out.dtype.element_ty), exists)


@triton.jit(do_not_specialize=VARYING)
def _maps_inputs(
    grad, positive, weight, cells, cells_batch, cells_row, grad_x, T, S, ratio,
    H: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    CELLS: tl.constexpr, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Gradient of the maps. The head of a pair is that of an output."""
    sentence, t, s = _tile(tl.program_id(0), T, S, CELLS, COLUMNS)
    h = tl.arange(0, HEADS)[:, None]
    grad += sentence * H * T * S
    if positive is not None:
        positive += sentence * H * T * S
    total = tl.zeros((HEADS, CELLS), tl.float32)
    for start in range(0, H * K * K, CHUNK):
        exists, g, tap, i, j = _pairs(start, H, K)
        of_pair = tl.load(weight + (g[None, :] * H + h) * K * K + tap[None, :], (h < H) & exists[None, :], 0.0)
        y = t[None, :] - i[:, None] + TOP
        z = s[None, :] - j[:, None] + LEFT
        inside = exists[:, None] & _in_cells(None, 0, y, z, T, S)
        g_pair = _grad_of(grad, positive, (g[:, None] * T + y) * S + z, inside)
        total = product(of_pair.to(NUMBERS), g_pair.to(NUMBERS), total)
    if cells is not None:
        total = tl.where(_in_cells(cells + sentence * cells_batch, cells_row, t, s, T, S)[None, :], total, 0.0)
    here = (h * T + t[None, :]) * S + s[None, :]
    exists = (h < H) & (t < T)[None, :] & (s < S)[None, :]
    if positive is not None:
        total = total * ratio + (1 - ratio) * tl.load(grad + here, exists, 0.0).to(tl.float32)
    tl.store(grad_x + sentence * H * T * S + here, total.to(grad_x.dtype.element_ty), exists)


@triton.jit
def _grad_of(grad, positive, at, exists):
    """Gradients of what a convolution gives, but for the factor ``ratio``."""
    if positive is not None:
        exists = tl.load(positive + at, exists, 0) != 0
    return tl.load(grad + at, exists, 0.0)


@triton.jit(do_not_specialize=VARYING)
def _maps_weights(
    grad, positive, x, cells, cells_batch, cells_row, grad_weight, grad_bias, T, S, ratio, tiles, per_program,
    H: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    CELLS: tl.constexpr, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """A chunk of pairs, over some tiles: ``grad_weight`` (programs, H, K K H) and, by the first chunk, ``grad_bias``
    (programs, H)."""
    CHUNKS: tl.constexpr = (H * K * K + CHUNK - 1) // CHUNK
    chunk = tl.program_id(0) % CHUNKS
    program = tl.program_id(0) // CHUNKS
    g = tl.arange(0, HEADS)
    pair_exists, h, _, i, j = _pairs(chunk * CHUNK, H, K)
    total = tl.zeros((HEADS, CHUNK), tl.float32)
    biases = tl.zeros((HEADS,), tl.float32)
    for tile in range(program * per_program, tl.minimum(program * per_program + per_program, tiles)):
        sentence, t, s = _tile(tile, T, S, CELLS, COLUMNS)
        exists = (g < H)[:, None] & (t < T)[None, :] & (s < S)[None, :]
        here = sentence * H * T * S + (g[:, None] * T + t[None, :]) * S + s[None, :]
        g_out = _grad_of(grad, positive, here, exists)
        allowed = cells
        if cells is not None:
            allowed = cells + sentence * cells_batch
        y = t[None, :] + i[:, None] - TOP
        z = s[None, :] + j[:, None] - LEFT
        inside = pair_exists[:, None] & _in_cells(allowed, cells_row, y, z, T, S)
        seen = tl.load(x + sentence * H * T * S + (h[:, None] * T + y) * S + z, inside, 0.0)
        total = product(g_out.to(NUMBERS), tl.trans(seen.to(NUMBERS)), total)
        if positive is not None:
            biases += tl.sum(g_out.to(tl.float32), 1)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    at = grad_weight + ((program * H + g) * H * K * K)[:, None] + pair[None, :]
    tl.store(at, total * ratio, (g < H)[:, None] & pair_exists[None, :])
    if positive is not None:
        if chunk == 0:
            tl.store(grad_bias + program * H + g, biases * ratio, g < H)


class _Maps:
    """How the kernels are given maps; ``of_tile``: cells of 16 heads in a tile."""

    def __init__(
        self, x: Tensor, weight: Tensor, cells: Tensor | None, top: int, left: int, of_tile: int = CELLS
    ) -> None:
        batch, heads, queries, keys = x.shape
        width = max(16, next_power_of_2(heads))
        of_tile = max(16, of_tile * 16 // width)
        columns = 64  # the symbolic sizes of torch's compilers decide nothing
        if isinstance(keys, int):
            columns = 16 if keys <= 16 else 32 if keys <= 32 else 64
        columns = min(of_tile, columns)
        self.tiles = batch * cdiv(queries, of_tile // columns) * cdiv(keys, columns)
        strides = (0, 0)
        if cells is not None:
            strides = (0 if cells.size(0) == 1 else cells.stride(0)), (0 if cells.size(2) == 1 else cells.stride(2))
        self.cells = cells, *strides
        interpreted = x.is_cpu and x.dtype == torch.bfloat16  # Triton's interpreter cannot multiply these
        numbers = tl.float32 if interpreted else TYPES[x.dtype]
        self.sizes = queries, keys
        sizes = heads, width, weight.size(-1), top, left
        self.constants = *sizes, of_tile, columns, numbers


@operator
def maps_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, cells: Tensor | None, top: int, left: int, ratio: float
) -> tuple[Tensor, Tensor]:
    """Convolved maps, and where those of the convolution are positive (only with a bias)."""
    maps = _Maps(x, weight, cells, top, left)
    out, positive = torch.empty_like(x), x.new_empty(0 if bias is None else x.shape, dtype=torch.bool)
    given = x, weight, bias, *maps.cells, out, positive, *maps.sizes, ratio
    launch(_maps_forward, maps.tiles, 4, *given, *maps.constants)
    return out, positive


@operator
def maps_backward(
    grad: Tensor, x: Tensor, weight: Tensor, cells: Tensor | None, positive: Tensor, top: int, left: int, ratio: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of x; of the weights (programs, H, K, K, H), and of the bias (programs, H), both to be added up."""
    heads, size = x.size(1), weight.size(-1)
    evolves = positive if positive.numel() else None
    maps, grad_x = _Maps(x, weight, cells, top, left), torch.empty_like(x)
    given = grad, evolves, weight, *maps.cells, grad_x, *maps.sizes, ratio
    launch(_maps_inputs, maps.tiles, 4, *given, *maps.constants)
    maps = _Maps(x, weight, cells, top, left, CELLS // (2 if x.element_size() == 2 else 4))
    programs = torch.sym_min(PROGRAMS[1 if size == 1 else 0], x.size(0) * x.size(2))  # sizes may be symbolic
    per_program = cdiv(maps.tiles, programs)
    grad_weight = x.new_empty(programs, heads, size, size, heads, dtype=torch.float32)
    grad_bias = x.new_empty(0 if evolves is None else programs, heads, dtype=torch.float32)
    given = grad, evolves, x, *maps.cells, grad_weight, grad_bias, *maps.sizes, ratio, maps.tiles, per_program
    launch(_maps_weights, programs * cdiv(heads * size * size, CHUNK.value), 1, *given, *maps.constants)
    return grad_x, grad_weight, grad_bias


def _flops(x: Tensor, weight: Tensor) -> int:
    """Of a product of maps with the weights."""
    return 2 * x.numel() * x.size(1) * weight.size(-1) ** 2


PRODUCTS = {  # FLOPs of operators whose work is products on tensor cores
    "maps_forward": lambda x, weight, *rest: _flops(x, weight),
    "maps_backward": lambda grad, x, weight, *rest: 2 * _flops(x, weight),
}


class Convolution(torch.autograd.Function):
    """``maps.convolve``, of contiguous maps."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        cells: Tensor | None,
        top: int,
        left: int,
        ratio: float,
    ) -> Tensor:
        ctx.options = top, left, ratio
        out, positive = maps_forward(x, weight, bias, cells, *ctx.options)
        ctx.save_for_backward(x, weight, bias, cells, positive)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, cells, positive = ctx.saved_tensors
        grad_x, of_pairs, of_bias = maps_backward(grad.contiguous(), x, weight, cells, positive, *ctx.options)
        grad_weight = of_pairs.sum(0).permute(0, 3, 1, 2)  # in an order that is always the same
        grad_bias = None if bias is None else of_bias.sum(0).type_as(bias)
        return grad_x, grad_weight.reshape_as(weight).type_as(weight), grad_bias, None, None, None, None
