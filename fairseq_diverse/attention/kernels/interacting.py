"""Interacting heads in C (``interacting.c``) for narrow heads on a CPU; formula: ``functional/interacting.py``.

On a GPU ``interacting_triton.py`` does the work.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention.kernels import cpu, first_derivative_only, gpu

Plain = Callable[..., Tensor]  # the torch version, of scaled queries, keys, values, allowed and dropout

MAX_HEAD_WIDTH = 32  # for wider heads torch's fused kernel is as fast, and faster in long sentences
GPU_HEAD_WIDTH = {torch.float16: 128, torch.bfloat16: 128, torch.float32: 32}  # at most, for the Triton kernels


class _Sizes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("B", "H", "T", "S", "Dk", "D", "sum")),
        *((name, ctypes.c_long) for name in ("batch", "row", "step")),
        *(("first", ctypes.c_int), ("seed", ctypes.c_uint * 2), ("threshold", ctypes.c_uint), ("gain", ctypes.c_float)),
    ]


def usable(q: Tensor, k: Tensor, v: Tensor, summed: bool, dropout: float) -> bool:
    """Whether the kernel supports these (float32 on a CPU) and is faster than torch."""
    fast = summed or dropout > 0 or q.size(-1) != v.size(-1) or q.size(-1) <= MAX_HEAD_WIDTH
    return fast and dropout < 1 and _alike(q, k, v) and cpu.available("interacting", q, k, v)


def on_gpu(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, dropout: float) -> bool:
    """Whether the Triton kernels take these; they count with int32."""
    if not gpu.available(q, k, v):
        return False
    numbers = max(x.numel() for x in (q, k, v)) * q.size(1)  # of the outputs of all pairs, at most
    if allowed is not None and allowed.size(2) > 1:
        numbers = max(numbers, q.size(2) * (k.size(2) + 15))  # of a sentence's mask
    fit = q.dtype == k.dtype == v.dtype and max(q.size(-1), v.size(-1)) <= GPU_HEAD_WIDTH.get(q.dtype, 0)
    return fit and dropout < 1 and 0 < numbers < 2**31 and _alike(q, k, v)


def _alike(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels may read them: nothing is broadcast, and there are keys."""
    return q.shape[:2] == k.shape[:2] == v.shape[:2] and k.size(2) == v.size(2) > 0 and q.size(-1) == k.size(-1)


class Pairs(torch.autograd.Function):
    """``interacting_attention``: (B, T, H H D), or (B, T, H D) summed; every query has an allowed key.

    The memory layout is (T, B, ...), as the output projection reads it. ``plain`` is used if a number is not finite.
    Only the arguments are saved; backward recomputes the weights and drops the same ones, by a seed that torch's
    generator gives.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        summed: bool,
        scale: float,
        dropout: float,
        plain: Plain,
    ) -> Tensor:
        q, k, v = (q * scale).contiguous(), k.contiguous(), v.contiguous()
        (batch, heads, queries, _), width = q.shape, v.size(-1)
        if allowed is not None:
            allowed = allowed.expand(-1, 1, -1, k.size(2)).contiguous()
        out = q.new_empty(queries, batch, heads * width * (1 if summed else heads)).transpose(0, 1)
        ctx.summed, ctx.scale, ctx.plain = summed, scale, plain
        ctx.dropout = dropout, int(torch.randint(2**62, ())) if dropout else 0
        ctx.save_for_backward(q, k, v, allowed)
        done = _call("interacting_forward", q, k, v, allowed, summed, ctx.dropout, out)
        return out if done else _plain(ctx, q, k, v, allowed)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, allowed = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (q, k, v)]
        grad = grad.transpose(0, 1).contiguous().transpose(0, 1)
        if not _call("interacting_backward", q, k, v, allowed, ctx.summed, ctx.dropout, grad, *grads):
            q, k, v = inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad():
                out = _plain(ctx, q, k, v, allowed)
            grads = list(torch.autograd.grad(out, inputs, grad))
        return grads[0].mul_(ctx.scale), *grads[1:], None, None, None, None, None


def _plain(ctx: Any, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """By torch, which drops the same weights each time."""
    probability, seed = ctx.dropout
    with torch.random.fork_rng(devices=[], enabled=probability > 0):
        if probability:
            torch.manual_seed(seed)
        return ctx.plain(q, k, v, allowed, dropout=probability)


def _call(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    summed: bool,
    dropout: tuple[float, int],
    out: Tensor,
    *others: Tensor,
) -> bool:
    """Run a kernel over the sentences; all tensors but ``allowed`` are split along their first dimension.

    Args:
        dropout: probability, and the seed that says which weights are dropped.

    Returns:
        Whether it succeeded, see ``in_threads``.
    """
    (_, heads, queries, key_width), (keys, width) = q.shape, v.shape[2:]
    batch = row = 0
    if allowed is not None:
        batch, row = (0 if allowed.size(i) == 1 else allowed.stride(i) for i in (0, 2))

    probability, seed = dropout
    share, halves = int(probability * 2**32), (ctypes.c_uint * 2)(seed & 0xFFFFFFFF, seed >> 32)
    random = halves, share, 1 / (1 - probability)

    def part(thread: int, start: int, stop: int) -> int:
        sizes = _Sizes(
            stop - start, heads, queries, keys, key_width, width, summed, batch, row, out.stride(1), start, *random
        )
        seen = allowed if allowed is None or not batch else allowed[start:]
        rest = (cpu.pointer(x[start:]) for x in (q, k, v))
        return getattr(cpu.library("interacting"), function)(
            ctypes.byref(sizes), *rest, cpu.pointer(seen), *(cpu.pointer(x[start:]) for x in (out, *others))
        )

    return cpu.in_threads(q.size(0), part)
