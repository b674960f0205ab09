"""Talking heads: the maps of all heads mixed with each other."""

import torch
from torch import Tensor

from fairseq_diverse.attention.kernels import maps
from fairseq_diverse.attention.precision import without_autocast


def mix_heads(x: Tensor, matrix: Tensor) -> Tensor:
    """Replace each head's map by a weighted sum of the maps of all heads.

        mixed[b, g, t, s] = sum over h of matrix[g, h] x[b, h, t, s]

    Source: Shazeer et al. (2020); Li and Luo (2022), Eqs. 7-8. On a GPU: a Triton kernel (``kernels/maps.py``).

    Args:
        x: (B, H, T, S) logits, without infinities, or weights.
        matrix: (H, H).

    Returns:
        (B, H, T, S)
    """
    if (mixed := maps.convolve(x, matrix)) is not None:
        return mixed
    with without_autocast(x):  # a finite bias may be too large for half types
        return torch.bmm(matrix.type_as(x).expand(x.size(0), -1, -1), x.flatten(2)).view_as(x)
