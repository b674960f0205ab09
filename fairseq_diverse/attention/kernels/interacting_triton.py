"""Interacting heads in Triton, for a GPU: heads of width 128 at most; float16, bfloat16 or float32 (of width 32 at
most), summed in float32.

Flash attention (Dao et al., 2022) of all pairs of heads. A row is one query of one head, row = t H + i, as they lie in
memory. A program takes some rows of a sentence and goes through the heads j of the keys, and through tiles of the keys
of each; maps and outputs of single pairs stay in registers. For the backward pass the arguments are kept, and of every
softmax its normal, log2 of the sum of its exponentials; the rest is computed again: by one program for the gradient of
some rows, by one for those of some keys and values. No two programs write to one place, so results repeat to the bit.

Dropout: weight s of a row and j stays where its 16 bits of Philox4x32 (Salmon et al., 2011; 7 rounds, the fewest that
pass their tests) are at least ``threshold``. Their counter is (4 (s // 32) + s % 8 // 2, row, sentence H + j, 0), and
number 2 (s % 32 // 8) + s % 2 of its 8 is that of s: the same bits in every kernel, whatever its tiles. Formulas:
``functional/interacting.py``.
"""

# mypy: allow-incomplete-defs, disable-error-code="assignment, valid-type"

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from fairseq_diverse.attention.kernels import first_derivative_only
from fairseq_diverse.attention.kernels.launching import cdiv, launch, next_power_of_2, operator

ROUNDS = tl.constexpr(7)
HIDDEN = tl.constexpr(-1e38)  # logit of a key that is not seen: finite, for rows that see none of a tile


@triton.jit
def _vectors(x, exists, D: tl.constexpr, WIDTH: tl.constexpr, NUMBERS: tl.constexpr):
    """The D numbers at each ``x`` (a column), 0 behind them and where nothing exists."""
    d = tl.arange(0, WIDTH)[None, :]
    return tl.load(x + d, exists & (d < D), 0.0).to(NUMBERS)


@triton.jit
def _put(to, x, exists, D: tl.constexpr, WIDTH: tl.constexpr):
    d = tl.arange(0, WIDTH)[None, :]
    tl.store(to + d, x.to(to.dtype.element_ty), exists & (d < D))


@triton.jit
def product(a, b, c):
    """a b + c"""
    return tl.dot(a, b, c, input_precision="tf32x3")


@triton.jit
def _seen(allowed, step, t, s, exists, S, BY_QUERY: tl.constexpr):
    """Where queries see keys, one of them in a row and one in a column; what does not exist sees nothing, or all.

    A query's own row of ``allowed`` has ``step`` times 16 bytes, False behind the keys.
    """
    if BY_QUERY:
        return tl.load(allowed + t * (step * 16) + s, exists & (s < step * 16), 0) != 0
    else:
        seen = s < S
        if allowed is not None:
            seen = tl.load(allowed + s, seen, 0) != 0
        return seen


@triton.jit
def _kept(seed, stream, row, start, threshold, KEYS: tl.constexpr, ROWS: tl.constexpr):
    """Where weights stay, (ROWS, KEYS), of the keys from ``start`` on, a multiple of KEYS, 32 at most.

    In tiles of a product a thread has, of every 8 keys, two next to each other: the numbers of other threads are not
    needed. (Numbers joined with ``tl.join`` were wrong in tiles of 16 rows, with Triton 3.6 on an H200.)
    """
    pair = start // 32 * 4 + tl.arange(0, 4)
    a, b, c, d = tl.philox(tl.load(seed), pair[None, :], row[:, None], stream, 0, ROUNDS)
    eight = (start % 32 // 8 + tl.arange(0, KEYS // 8))[None, :, None, None]
    first = tl.where(eight == 0, a[:, None, :, None], b[:, None, :, None])
    second = tl.where(eight == 2, c[:, None, :, None], d[:, None, :, None])
    bits = tl.where(eight < 2, first, second) >> (tl.arange(0, 2) * 16)[None, None, None, :]
    return tl.reshape((bits & 0xFFFF) >= threshold, (ROWS, KEYS))


VARYING = ["allowed_batch", "allowed_step", "T", "S", "threshold"]  # from batch to batch


@triton.jit
def _rows_of(block, T, H: tl.constexpr, ROWS: tl.constexpr):
    """The rows of a block: their numbers, which exist, their positions and heads."""
    row = block * ROWS + tl.arange(0, ROWS)
    return row, row < H * T, row // H, row % H


@triton.jit
def _keys_of_rows(allowed, step, t, exists, S, KEYS: tl.constexpr, BY_QUERY: tl.constexpr, ONE: tl.constexpr):
    """The first, a multiple of KEYS, and the last + 1 of the keys that some of these rows see; ONE: all of a tile."""
    first = 0
    end = KEYS if ONE else S
    if allowed is not None:
        if not ONE:
            first = S
            end = 0
            for start in range(0, S, KEYS):
                s = (start + tl.arange(0, KEYS))[None, :]
                seen = _seen(allowed, step, t[:, None], s, exists[:, None], S, BY_QUERY)
                first = tl.minimum(first, tl.min(tl.where(seen, s, S)))
                end = tl.maximum(end, tl.max(tl.where(seen, s + 1, 0)))
            first = first // KEYS * KEYS
    return first, end


@triton.jit
def _queries_of_keys(allowed, step, s, T, S, CHUNK: tl.constexpr, BY_QUERY: tl.constexpr):
    """The first and the last + 1 of the positions whose queries see some of these keys."""
    first = 0
    end = T
    if allowed is not None:
        if BY_QUERY:
            first = T
            end = 0
            for start in range(0, T, CHUNK):
                t = (start + tl.arange(0, CHUNK))[:, None]
                seen = _seen(allowed, step, t, s[None, :], t < T, S, BY_QUERY)
                first = tl.minimum(first, tl.min(tl.where(seen, t, T)))
                end = tl.maximum(end, tl.max(tl.where(seen, t + 1, 0)))
        else:
            end = T * tl.max(_seen(allowed, step, s, s, s < S, S, BY_QUERY).to(tl.int32), 0)
    return first, end


@triton.jit(do_not_specialize=VARYING)
def _interacting_forward(
    q, q_batch, q_head, q_step, k, k_batch, k_head, k_step, v, v_batch, v_head, v_step,
    allowed, allowed_batch, allowed_step, seed, out, out_batch, out_step, normals, T, S, scale, factor, threshold,
    H: tl.constexpr, DK: tl.constexpr, D: tl.constexpr, SUM: tl.constexpr, BY_QUERY: tl.constexpr,
    DK_WIDTH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, NUMBERS: tl.constexpr,
    ONE: tl.constexpr,
):  # fmt: skip
    """``scale``: log2(e) times that of the logits; ``factor``: of the outputs."""
    blocks = tl.cdiv(H * T, ROWS)
    sentence = (tl.program_id(0) // blocks).to(tl.int64)
    row, exists, t, i = _rows_of(tl.program_id(0) % blocks, T, H, ROWS)
    there = exists[:, None]
    queries = _vectors((q + sentence * q_batch + t * q_step + i * q_head)[:, None], there, DK, DK_WIDTH, NUMBERS)
    k += sentence * k_batch
    v += sentence * v_batch
    out += sentence * out_batch
    normals += sentence * H * H * T
    if allowed is not None:
        allowed += sentence * allowed_batch * (16 if BY_QUERY else 1)
    first, end = _keys_of_rows(allowed, allowed_step, t, exists, S, KEYS, BY_QUERY, ONE)
    heads = tl.zeros((ROWS, WIDTH), tl.float32)
    for j in range(H):
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        pair = tl.zeros((ROWS, WIDTH), tl.float32)
        for start in range(first, end, KEYS):
            s = start + tl.arange(0, KEYS)
            keys = _vectors((k + j * k_head + s * k_step)[:, None], (s < S)[:, None], DK, DK_WIDTH, NUMBERS)
            logits = product(queries, tl.trans(keys), tl.zeros((ROWS, KEYS), tl.float32)) * scale
            seen = _seen(allowed, allowed_step, t[:, None], s[None, :], there, S, BY_QUERY)
            logits = tl.where(seen, logits, HIDDEN)
            values = _vectors((v + j * v_head + s * v_step)[:, None], (s < S)[:, None], D, WIDTH, NUMBERS)
            larger = tl.maximum(top, tl.max(logits, 1))
            weights = tl.exp2(logits - larger[:, None])
            shrink = tl.exp2(top - larger)
            top = larger
            total = total * shrink + tl.sum(weights, 1)
            if seed is not None:
                kept = _kept(seed, sentence.to(tl.int32) * H + j, row, start, threshold, KEYS, ROWS)
                weights = tl.where(kept, weights, 0.0)
            pair = product(weights.to(NUMBERS), values, pair * shrink[:, None])
        tl.store(normals + j * H * T + row, top + tl.log2(total), exists)
        pair *= (factor / total)[:, None]
        if SUM:
            heads += pair
        else:
            _put((out + t * out_step + (i * H + j) * D)[:, None], pair, there, D, WIDTH)
    if SUM:
        _put((out + t * out_step + i * D)[:, None], heads, there, D, WIDTH)


@triton.jit(do_not_specialize=VARYING)
def _interacting_queries(
    q, q_batch, q_head, q_step, k, k_batch, k_head, k_step, v, v_batch, v_head, v_step,
    allowed, allowed_batch, allowed_step, seed, grad, grad_batch, grad_step, normals, T, S, scale, factor, threshold,
    slopes, grad_q, grad_q_batch, grad_q_head, grad_q_step, grad_scale,
    H: tl.constexpr, DK: tl.constexpr, D: tl.constexpr, SUM: tl.constexpr, BY_QUERY: tl.constexpr,
    DK_WIDTH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, NUMBERS: tl.constexpr,
    ONE: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and of every row and j ``slopes``: the sum over keys of weight times its gradient.

    G_x: gradient of x.  G_logit = weight (G_weight - slope).  ONE: one tile has all keys, and is computed once.
    """
    blocks = tl.cdiv(H * T, ROWS)
    sentence = (tl.program_id(0) // blocks).to(tl.int64)
    row, exists, t, i = _rows_of(tl.program_id(0) % blocks, T, H, ROWS)
    there = exists[:, None]
    queries = _vectors((q + sentence * q_batch + t * q_step + i * q_head)[:, None], there, DK, DK_WIDTH, NUMBERS)
    k += sentence * k_batch
    v += sentence * v_batch
    grad += sentence * grad_batch
    normals += sentence * H * H * T
    slopes += sentence * H * H * T
    if allowed is not None:
        allowed += sentence * allowed_batch * (16 if BY_QUERY else 1)
    first, end = _keys_of_rows(allowed, allowed_step, t, exists, S, KEYS, BY_QUERY, ONE)
    g_queries = tl.zeros((ROWS, DK_WIDTH), tl.float32)
    for j in range(H):
        normal = tl.load(normals + j * H * T + row, exists, 0.0)
        at = grad + t * grad_step + (i * D if SUM else (i * H + j) * D)
        g_pair = _vectors(at[:, None], there, D, WIDTH, NUMBERS)
        slope = tl.zeros((ROWS,), tl.float32)
        for twice in range(1 if ONE else 2):
            for start in range(first, end, KEYS):
                s = start + tl.arange(0, KEYS)
                keys = _vectors((k + j * k_head + s * k_step)[:, None], (s < S)[:, None], DK, DK_WIDTH, NUMBERS)
                logits = product(queries, tl.trans(keys), tl.zeros((ROWS, KEYS), tl.float32)) * scale
                seen = _seen(allowed, allowed_step, t[:, None], s[None, :], there, S, BY_QUERY)
                weights = tl.where(seen, tl.exp2(logits - normal[:, None]), 0.0)
                values = _vectors((v + j * v_head + s * v_step)[:, None], (s < S)[:, None], D, WIDTH, NUMBERS)
                g_weights = product(g_pair, tl.trans(values), tl.zeros((ROWS, KEYS), tl.float32)) * factor
                if seed is not None:
                    stream = sentence.to(tl.int32) * H + j
                    kept = _kept(seed, stream, row, start, threshold, KEYS, ROWS)
                    g_weights = tl.where(kept, g_weights, 0.0)
                if twice == 0:
                    slope += tl.sum(weights * g_weights, 1)
                if ONE or twice == 1:
                    g_logits = weights * (g_weights - slope[:, None])
                    g_queries = product(g_logits.to(NUMBERS), keys, g_queries)
        tl.store(slopes + j * H * T + row, slope, exists)
    at = grad_q + sentence * grad_q_batch + t * grad_q_step + i * grad_q_head
    _put(at[:, None], g_queries * grad_scale, there, DK, DK_WIDTH)


@triton.jit(do_not_specialize=VARYING)
def _interacting_keys(
    q, q_batch, q_head, q_step, k, k_batch, k_head, k_step, v, v_batch, v_head, v_step,
    allowed, allowed_batch, allowed_step, seed, grad, grad_batch, grad_step, normals, T, S, scale, factor, threshold,
    slopes, grad_k, grad_k_batch, grad_k_head, grad_k_step, grad_v, grad_v_batch, grad_v_head, grad_v_step, grad_scale,
    H: tl.constexpr, DK: tl.constexpr, D: tl.constexpr, SUM: tl.constexpr, BY_QUERY: tl.constexpr,
    DK_WIDTH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Gradients of some keys and values of one head."""
    blocks = tl.cdiv(S, KEYS)
    sentence = (tl.program_id(0) // (blocks * H)).to(tl.int64)
    j = tl.program_id(0) // blocks % H
    start = tl.program_id(0) % blocks * KEYS
    s = start + tl.arange(0, KEYS)
    there = (s < S)[:, None]
    keys = _vectors((k + sentence * k_batch + j * k_head + s * k_step)[:, None], there, DK, DK_WIDTH, NUMBERS)
    values = _vectors((v + sentence * v_batch + j * v_head + s * v_step)[:, None], there, D, WIDTH, NUMBERS)
    q += sentence * q_batch
    grad += sentence * grad_batch
    normals += (sentence * H + j) * H * T
    slopes += (sentence * H + j) * H * T
    if allowed is not None:
        allowed += sentence * allowed_batch * (16 if BY_QUERY else 1)
    first, end = _queries_of_keys(allowed, allowed_step, s, T, S, ROWS, BY_QUERY)
    g_keys = tl.zeros((KEYS, DK_WIDTH), tl.float32)
    g_values = tl.zeros((KEYS, WIDTH), tl.float32)
    for block in range(first * H // ROWS, tl.cdiv(end * H, ROWS)):
        row, exists, t, i = _rows_of(block, T, H, ROWS)
        queries = _vectors((q + t * q_step + i * q_head)[:, None], exists[:, None], DK, DK_WIDTH, NUMBERS)
        normal = tl.load(normals + row, exists, 0.0)
        logits = product(queries, tl.trans(keys), tl.zeros((ROWS, KEYS), tl.float32)) * scale
        seen = _seen(allowed, allowed_step, t[:, None], s[None, :], exists[:, None], S, BY_QUERY)
        weights = tl.where(seen, tl.exp2(logits - normal[:, None]), 0.0)
        at = grad + t * grad_step + (i * D if SUM else (i * H + j) * D)
        g_pair = _vectors(at[:, None], exists[:, None], D, WIDTH, NUMBERS)
        g_weights = product(g_pair, tl.trans(values), tl.zeros((ROWS, KEYS), tl.float32)) * factor
        if seed is not None:  # from here on, dropped weights are negative
            kept = _kept(seed, sentence.to(tl.int32) * H + j, row, start, threshold, KEYS, ROWS)
            weights = tl.where(kept, weights, -weights)
            g_weights = tl.where(weights > 0, g_weights, 0.0)
        g_values = product(tl.trans(tl.maximum(weights, 0.0).to(NUMBERS)), g_pair, g_values)
        slope = tl.load(slopes + row, exists, 0.0)
        g_logits = tl.abs(weights) * (g_weights - slope[:, None])
        g_keys = product(tl.trans(g_logits.to(NUMBERS)), queries, g_keys)
    at = grad_k + sentence * grad_k_batch + j * grad_k_head + s * grad_k_step
    _put(at[:, None], g_keys * grad_scale, there, DK, DK_WIDTH)
    at = grad_v + sentence * grad_v_batch + j * grad_v_head + s * grad_v_step
    _put(at[:, None], g_values * factor, there, D, WIDTH)


# ---- operators ----

TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


class _Pairs:
    """How the kernels are given an attention; they share what comes first, and their constants."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        seed: Tensor | None,
        summed: bool,
        scale: float,
        dropout: float,
    ) -> None:
        (self.batch, self.heads, self.queries, key_width), (self.keys, width) = q.shape, v.shape[2:]
        self.width = self.heads * width * (1 if summed else self.heads)  # of an output
        by_query = allowed is not None and allowed.size(2) > 1
        batch = step = 0
        if allowed is not None:
            batch = 0 if allowed.size(0) == 1 else allowed.stride(0) // (16 if by_query else 1)
            step = allowed.size(-1) // 16
        share = threshold(dropout)
        factor = 65536 / (65536 - share) * (self.heads**-0.5 if summed else 1)
        self.inputs = (*(y for x in (q, k, v) for y in (x, *x.stride()[:3])), allowed, batch, step, seed)
        self.numbers = (self.queries, self.keys, scale * math.log2(math.e), factor, share)
        widths = [max(32 if q.dtype == torch.float32 else 16, next_power_of_2(x)) for x in (key_width, width)]
        self.rows, self.tile, self.warps = 64, 32, 4  # as the next two lines, the fastest on an H200: results/gpu.md
        registers = 128 if max(widths) <= 32 else 168 if max(widths) == 64 else 255
        self.options = {"maxnreg": registers, "num_stages": 2}  # 2: keys and values of the next tile are read ahead
        if q.dtype == torch.float32:
            self.options = {"maxnreg": 255, "num_stages": 1}
        interpreted = q.is_cpu and q.dtype == torch.bfloat16  # Triton's interpreter cannot multiply these
        numbers = tl.float32 if interpreted else TYPES[q.dtype]
        sizes = (self.heads, key_width, width, summed, by_query)
        self.constants = (*sizes, *widths, self.rows, self.tile, numbers)
        self.one = self.keys <= self.tile


def threshold(dropout: float) -> int:
    """The 65,536ths of the weights that are dropped."""
    return min(round(dropout * 65536), 65535)


@operator
def interacting_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    seed: Tensor | None,
    summed: bool,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, H H D) or (B, T, H D), (T, B, ...) in memory; normals (B, H of keys, T, H of queries)."""
    x = _Pairs(q, k, v, allowed, seed, summed, scale, dropout)
    out = q.new_empty(x.queries, x.batch, x.width).transpose(0, 1)
    normals = q.new_empty(x.batch, x.heads, x.queries, x.heads, dtype=torch.float32)
    launch(
        *(_interacting_forward, x.batch * cdiv(x.heads * x.queries, x.rows), x.warps, *x.inputs),
        *(out, *out.stride()[:2], normals, *x.numbers, *x.constants, x.one),
        **x.options,
    )
    return out, normals


@operator
def interacting_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    seed: Tensor | None,
    summed: bool,
    scale: float,
    dropout: float,
    normals: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    x = _Pairs(q, k, v, allowed, seed, summed, scale, dropout)
    grads = [torch.empty_like(one) for one in (q, k, v)]
    slopes = torch.empty_like(normals)
    given = (*x.inputs, grad, *grad.stride()[:2], normals, *x.numbers, slopes)
    of_q, *of_others = ((one, *one.stride()[:3]) for one in grads)
    blocks = cdiv(x.heads * x.queries, x.rows)
    launch(_interacting_queries, x.batch * blocks, x.warps, *given, *of_q, scale, *x.constants, x.one, **x.options)
    blocks = x.heads * cdiv(x.keys, x.tile)
    launch(
        _interacting_keys,
        x.batch * blocks,
        x.warps,
        *given,
        *of_others[0],
        *of_others[1],
        scale,
        *x.constants,
        **x.options,
    )
    return grads[0], grads[1], grads[2]


def _products(key_widths: int, widths: int) -> Callable[..., int]:
    """FLOPs of so many products of maps with queries or keys, and with values or outputs."""
    return lambda q, k, v, *given: (
        2 * q[..., 0].numel() * q.size(1) * k.size(2) * (key_widths * q.size(-1) + widths * v.size(-1))
    )


PRODUCTS = {  # FLOPs of operators whose work is products on tensor cores; the rest they do is not counted
    "interacting_forward": _products(1, 1),
    "interacting_backward": lambda *given: _products(*((4, 3) if _Pairs(*given[:8]).one else (5, 4)))(*given),
}


class Pairs(torch.autograd.Function):
    """``interacting_attention``: (B, T, H H D), or (B, T, H D) summed; every query has an allowed key.

    ``seed``: one int64, which chooses the weights to drop.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        seed: Tensor | None,
        summed: bool,
        scale: float,
        dropout: float,
    ) -> Tensor:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        ctx.options = summed, scale, dropout
        out, normals = interacting_forward(q, k, v, allowed, seed, *ctx.options)
        ctx.save_for_backward(q, k, v, allowed, seed, normals)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, normals = ctx.saved_tensors
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        return *interacting_backward(*inputs, *ctx.options, normals, grad), *[None] * 5


def attend(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, summed: bool, scale: float, dropout: float
) -> Tensor:
    """As ``Pairs``; ``allowed`` (B or 1, 1, T or 1, S). torch's generator of the device gives the seed."""
    if allowed is not None:
        allowed = allowed.expand(-1, 1, -1, k.size(2))
        if allowed.size(2) > 1:
            allowed = F.pad(allowed, (0, -k.size(2) % 16))
        allowed = allowed.contiguous()
    seed = torch.randint(2**62, (1,), device=q.device) if threshold(dropout) else None
    return Pairs.apply(q, k, v, allowed, seed, summed, scale, dropout)
