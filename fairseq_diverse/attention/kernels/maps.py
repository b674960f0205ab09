"""Convolutions over maps with the heads as channels, in Triton on a GPU (``maps_triton.py``)."""

import math

from torch import Tensor

from fairseq_diverse.attention.kernels import gpu

GPU_SUMS = 16 * 16 * 5 * 5  # most weights that the Triton kernels keep sums for: 16 heads with 5 x 5 taps


def taps(weight: Tensor) -> int:
    """k of weights (H, H, k, k), 1 of (H, H)"""
    return weight.size(-1) if weight.dim() == 4 else 1


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    cells: Tensor | None = None,
    top: int = 0,
    left: int = 0,
    ratio: float = 1.0,
) -> Tensor | None:
    """Maps (B, H, T, S), contiguous; None where no kernel of ours takes them.

        conv[b, g, t, s] = sum over h, i, j of weight[g, h, i, j] seen[b, h, t + i - top, s + j - left]
        out = conv, or with a bias (1 - ratio) x + ratio ReLU(conv + bias);  seen = x within ``cells``, 0 elsewhere

    Args:
        x: (B, H, T, S)
        weight: (H, H, k, k), or (H, H) for one tap, and bias (H,) or None.
        cells: bool, broadcast to (B, 1, T, S); None = everywhere.
        ratio: in [0, 1]; 1 without a bias.
    """
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    sums = math.ceil(weight.size(0) / 16) ** 2 * 256 * taps(weight) ** 2
    fit = x.dim() == 4 and sums <= GPU_SUMS and 0 < x[:1].numel() < 2**31
    if not (fit and gpu.available(*inputs)):
        return None
    from fairseq_diverse.attention.kernels.maps_triton import Convolution

    if cells is not None:
        cells = cells[(None,) * (4 - cells.dim())].expand(-1, 1, -1, x.size(3)).contiguous()
    return Convolution.apply(x.contiguous(), weight.contiguous(), bias, cells, top, left, ratio)
