"""Convolutions over maps with the heads as channels: in Triton on a GPU (``maps_triton.py``), those of evolving
attention in C for float32 on a CPU (``maps.c``); formulas: ``functional/evolving.py`` and ``functional/mixing.py``.

torch does the rest, and on a CPU numbers that are not finite and second derivatives. The Triton kernels have no second
derivative.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.attention.kernels import cpu, gpu

GPU_HEADS, GPU_TAPS = (16, 32), 5  # at most, for the Triton kernels: heads with several taps, with one; k


class _Sizes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("B", "H", "R", "T", "S", "K", "top", "left")),
        *((name, ctypes.c_long) for name in ("batch", "row")),
        ("ratio", ctypes.c_float),
    ]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    cells: Tensor | None = None,
    top: int = 0,
    left: int = 0,
    ratio: float = 1.0,
    above: int = 0,
) -> Tensor | None:
    """Maps (B, H, T, S), contiguous; None where no kernel of ours takes them.

        conv[b, g, t, s] = sum over h, i, j of weight[g, h, i, j] seen[b, h, t + i - top, s + j - left]
        out = conv, or with a bias (1 - ratio) x + ratio ReLU(conv + bias);  seen = x within ``cells``, 0 elsewhere

    Args:
        x: (B, H, ``above`` + T, S)
        weight: (H, H, k, k), or (H, H) for one tap, and bias (H,) or None.
        cells: bool, broadcast to (B, 1, T, S); None = everywhere.
        ratio: in [0, 1]; 1 without a bias.
        above: the number of first rows that are only read, without ``cells``; with gradients, the result is None.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    if above and torch.is_grad_enabled() and any(given.requires_grad for given in inputs):
        return None
    on_gpu = not above and gpu.available(*inputs)
    if not (on_gpu or (bias is not None and cpu.available("maps", *inputs))):
        return None
    weight = weight[..., None, None] if weight.dim() == 2 else weight
    if not (_fit(x, weight, bias) if on_gpu else _shaped(x, weight, bias) and x.numel()):
        return None
    if cells is not None:
        cells = cells if cells.dim() == 4 else cells[(None,) * (4 - cells.dim())]
        wanted = (len(x), 1, *x.shape[2:])
        if cells.dim() > 4 or any(size not in (1, of) for size, of in zip(cells.shape, wanted, strict=True)):
            return None
        cells = (cells if cells.size(3) == x.size(3) else cells.expand(-1, -1, -1, x.size(3))).contiguous()
    x, weight, bias = x.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous()
    given: tuple[Any, ...] = x, weight, bias, cells, top, left, ratio
    if on_gpu:
        from fairseq_diverse.attention.kernels.maps_triton import Convolution

        return Convolution.apply(*given)
    return _in_c(*given, above=above)[0] if above else _InC.apply(*given)


def plain_convolve(
    x: Tensor, weight: Tensor, bias: Tensor, cells: Tensor | None, top: int, left: int, ratio: float, above: int = 0
) -> Tensor:
    """As ``convolve`` with a bias, in torch."""
    seen = x if cells is None else torch.where(cells, x, 0)
    reach = weight.size(-1) - 1
    rows = F.pad(seen, (left, reach - left, 0 if above else top, reach - top))
    return torch.lerp(x[:, :, above:], F.conv2d(rows, weight, bias).relu_(), ratio)


def _shaped(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the sizes fit each other; torch raises where they do not."""
    heads, size = x.size(1), weight.size(-1)
    return x.dim() == 4 and weight.shape == (heads, heads, size, size) and (bias is None or bias.shape == (heads,))


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the Triton kernels take these sizes."""
    fit = _shaped(x, weight, bias) and 0 < x[:1].numel() < 2**31
    return fit and x.size(1) <= GPU_HEADS[1 if weight.size(-1) == 1 else 0] and weight.size(-1) <= GPU_TAPS


class _InC(torch.autograd.Function):
    """``convolve`` with a bias, of contiguous maps."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, cells: Tensor | None, top: int, left: int, ratio: float
    ) -> Tensor:
        ctx.options = top, left, ratio
        out, positive = _in_c(x, weight, bias, cells, *ctx.options, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(x, weight, bias, cells, positive)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, bias, cells, positive), (top, left, ratio) = ctx.saved_tensors, ctx.options
        twice = torch.is_grad_enabled()  # create_graph=True
        made = None if twice else _gradients_in_c(grad.contiguous(), x, weight, cells, positive, top, left, ratio)
        if made is None:
            a, b, c = (x, weight, bias) if twice else (y.detach().requires_grad_() for y in (x, weight, bias))
            with torch.enable_grad():
                out = plain_convolve(a, b, c, cells, top, left, ratio)
            made = torch.autograd.grad(out, (a, b, c), grad, create_graph=twice)
        return *made, None, None, None, None


def _in_c(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    cells: Tensor | None,
    top: int,
    left: int,
    ratio: float,
    above: int = 0,
    keep: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The result, and with ``keep`` where the convolution is positive."""
    out = x.new_empty(*x.shape[:2], x.size(2) - above, x.size(3))
    positive = torch.empty_like(out, dtype=torch.bool) if keep else None
    sizes = [x.size(1), x.size(2), out.size(2), x.size(3), weight.size(-1), top, left]

    def part(thread: int, start: int, stop: int) -> int:
        its, seen = _sizes(start, stop, sizes, cells, ratio)
        given = cpu.pointer(x, start), cpu.pointer(weight), cpu.pointer(bias), seen
        made = cpu.pointer(out, start), cpu.pointer(positive, start)
        return cpu.library("maps").maps_forward(its, *given, *made)

    if not cpu.in_threads(len(x), part):
        return plain_convolve(x, weight, bias, cells, top, left, ratio, above), positive
    return out, positive


def _gradients_in_c(
    grad: Tensor, x: Tensor, weight: Tensor, cells: Tensor | None, positive: Tensor, top: int, left: int, ratio: float
) -> tuple[Tensor, ...] | None:
    """Gradients of x, weight and bias; None if torch must compute them."""
    threads, grad_x = cpu.share(len(x)), torch.empty_like(x)
    grad_weight, grad_bias = x.new_empty(threads, *weight.shape), x.new_zeros(threads, x.size(1))
    sizes = [x.size(1), x.size(2), x.size(2), x.size(3), weight.size(-1), top, left]

    def part(thread: int, start: int, stop: int) -> int:
        its, seen = _sizes(start, stop, sizes, cells, ratio)
        given = cpu.pointer(grad, start), cpu.pointer(x, start), cpu.pointer(weight), seen, cpu.pointer(positive, start)
        made = cpu.pointer(grad_x, start), cpu.pointer(grad_weight, thread), cpu.pointer(grad_bias, thread)
        return cpu.library("maps").maps_backward(its, *given, *made)

    if not cpu.in_threads(len(x), part):
        return None
    return grad_x, *(made[0] if threads == 1 else made.sum(0) for made in (grad_weight, grad_bias))


def _sizes(start: int, stop: int, sizes: list[int], cells: Tensor | None, ratio: float) -> tuple[Any, Any]:
    """The first argument of a kernel in C for some sentences, and their cells."""
    batch = row = 0
    if cells is not None:
        batch, row = (0 if cells.size(i) == 1 else cells.stride(i) for i in (0, 2))
    made = _Sizes(stop - start, *sizes, batch, row, ratio)
    return ctypes.byref(made), cpu.pointer(cells, start if batch else 0)
