"""Convolutions over maps with the heads as channels, in Triton on a GPU (``maps_triton.py``)."""

from torch import Tensor

from fairseq_diverse.attention.kernels import gpu

GPU_HEADS, GPU_TAPS = (16, 32), 5  # at most, for the Triton kernels: heads with several taps, with one; k


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
    weight = weight[..., None, None] if weight.dim() == 2 else weight
    if not (gpu.available(*(tensor for tensor in (x, weight, bias) if tensor is not None)) and _fit(x, weight, bias)):
        return None
    if cells is not None:
        cells = cells[(None,) * (4 - cells.dim())]
        wanted = (len(x), 1, *x.shape[2:])
        if cells.dim() > 4 or any(size not in (1, of) for size, of in zip(cells.shape, wanted, strict=True)):
            return None
        cells = cells.expand(-1, -1, -1, x.size(3)).contiguous()
    from fairseq_diverse.attention.kernels.maps_triton import Convolution

    bias = None if bias is None else bias.contiguous()
    return Convolution.apply(x.contiguous(), weight.contiguous(), bias, cells, top, left, ratio)


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernels take these sizes; torch raises where they do not fit each other."""
    heads, size = x.size(1), weight.size(-1)
    fit = x.dim() == 4 and weight.shape == (heads, heads, size, size) and (bias is None or bias.shape == (heads,))
    return fit and heads <= GPU_HEADS[1 if size == 1 else 0] and size <= GPU_TAPS and 0 < x[:1].numel() < 2**31
