"""Evolving attention: a residual connection between the logits of layers, and a convolution over them."""

from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention.kernels import maps
from fairseq_diverse.attention.precision import without_autocast


def evolve_logits(
    logits: Tensor,
    previous: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    component: str,
    carry_ratio: float,
    conv_ratio: float,
    cells: Tensor | None,
    above: int = 0,
) -> Tensor:
    """Add a share of the logits of the layer below, then convolve over the map with the heads as channels.

        A_in    = carry_ratio previous + (1 - carry_ratio) logits    (encoder; elsewhere A_in = logits)
        A_logit = conv_ratio ReLU(Conv(A_in)) + (1 - conv_ratio) A_in

    Source: Wang et al. (2021), sections 3.3, 3.5 and 4.3. On a GPU: a Triton kernel (``kernels/maps.py``). For
    cell (t, s) the k x k convolution reads, within ``cells``:

    - encoder: rows and columns up to (k - 1) / 2 away;
    - decoder: rows t - k + 1 to t and columns s - k + 1 to s;
    - cross: rows t - k + 1 to t and columns up to (k - 1) / 2 away.

    Args:
        logits: (B, H, ``above`` + T, S), finite, not masked.
        previous: (B, H, T, S) the result of this function in the layer below; None for the first layer. Used only in
            the encoder, like ``carry_ratio``.
        weight: (H, H, k, k), k odd, and bias (H,); not used if ``conv_ratio`` is 0.
        component: encoder, decoder or cross.
        carry_ratio, conv_ratio: alpha and beta, in [0, 1].
        cells: bool, broadcast to (B, 1, T, S), True where query and key are real tokens and, in the decoder, the key is
            not in the future; None = everywhere.
        above: the number of first rows that are only read; not in the encoder. Then ``logits`` are 0 outside their
            cells, and ``cells`` is None.

    Returns:
        (B, H, T, S), finite, not masked.
    """
    inner = logits
    if component == "encoder" and previous is not None:
        dtype = torch.promote_types(logits.dtype, previous.dtype)  # a bias makes logits of half types float32
        inner = torch.lerp(logits.to(dtype), previous.to(dtype), carry_ratio)
    if conv_ratio == 0:
        return inner[:, :, above:] if above else inner
    assert weight is not None and bias is not None
    top, left = _offsets(component, weight.size(-1))
    options: Any = (top, left, conv_ratio, above)
    if (done := maps.convolve(inner, weight, bias, cells, *options)) is not None:
        return done
    with without_autocast(logits):  # a finite bias may be too large for half types
        return maps.plain_convolve(inner, weight.type_as(inner), bias.type_as(inner), cells, *options)


def _offsets(component: str, size: int) -> tuple[int, int]:
    """How many rows above, and columns to the left, the convolution reads."""
    return (size // 2 if component == "encoder" else size - 1), (size - 1 if component == "decoder" else size // 2)
