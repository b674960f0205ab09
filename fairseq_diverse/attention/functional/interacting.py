"""Interacting heads: the queries of every head attend to the keys and values of every head."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_diverse.attention.functional.masking import attend_somewhere, masked_softmax
from fairseq_diverse.attention.kernels import interacting as kernel

ALIGNMENT = 16  # of a mask's rows, in elements, for torch's fused attention on CUDA
FUSED_WIDTHS = 8  # divides the widths of heads that it takes on CUDA
_recomputed = functools.partial(checkpoint, use_reentrant=False)


def interacting_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None = None,
    combine: str = "concat",
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Attention of all H^2 ordered pairs of heads.

        O_ij = softmax(Q_i K_j^T / sqrt(Dk)) V_j
        concat: O_11, O_12, ..., O_1H, O_21, ..., O_HH side by side
        sum:    O_1, ..., O_H side by side, O_i = (sum over j of O_ij) / sqrt(H)

    Source: Li and Luo (2022), Eqs. 11-12; ``sum`` adds no parameters, in agreement with section 4.6.4.

    The queries of all heads are stacked along the query axis and attend to the keys of one head at a time, with torch's
    fused attention. At most H of the H^2 maps, and one of the H outputs that ``sum`` adds up, exist at a time, also in
    backward, which recomputes them. On a GPU a Triton kernel holds a tile of one map (heads of width 128 at most, in
    float32 of 32); on a CPU, a C kernel that holds a few rows of one map is used where it is faster.

    Args:
        q: (B, H, T, Dk)
        k: (B, H, S, Dk)
        v: (B, H, S, D)
        allowed: bool, broadcast to (B, 1, T, S), True where a query may see a key; None allows everything. A query
            without an allowed key sees every key: its output is finite and to be ignored.
        combine: concat or sum.
        dropout: probability of dropping a weight, in [0, 1].
        scale: factor of Q K^T; None for 1 / sqrt(Dk).

    Returns:
        (B, T, H H D) for concat, (B, T, H D) for sum.

    Raises:
        RuntimeError: shapes that do not fit together.
    """
    scale = q.size(-1) ** -0.5 if scale is None else scale
    allowed = None if allowed is None else attend_somewhere(allowed[(None,) * (4 - allowed.dim())])
    if allowed is not None:
        allowed.expand(q.size(0), 1, q.size(2), k.size(2))  # the kernels do not check it
    if kernel.on_gpu(q, k, v, allowed, dropout):
        from fairseq_diverse.attention.kernels import interacting_triton as triton

        return triton.attend(q, k, v, allowed, combine == "sum", scale, dropout)
    if kernel.usable(q, k, v, combine == "sum", dropout):
        plain = functools.partial(_in_torch, combine=combine, scale=1.0)
        return kernel.Pairs.apply(q, k, v, allowed, combine == "sum", scale, dropout, plain)
    return _in_torch(q, k, v, allowed, combine, dropout, scale)


def interacting_weights(q: Tensor, k: Tensor, allowed: Tensor | None = None, scale: float | None = None) -> Tensor:
    """The weights of each head's queries, averaged over the heads of the keys.

        A_i = (sum over j of softmax(Q_i K_j^T / sqrt(Dk))) / H

    Source: Li and Luo (2022), Eq. 11; the mean, which gives H maps to plot, is ours.

    Args:
        As ``interacting_attention``.

    Returns:
        (B, H, T, S), rows sum to 1.
    """
    scale = q.size(-1) ** -0.5 if scale is None else scale
    allowed = None if allowed is None else attend_somewhere(allowed)
    maps = (_recomputed(_map, q, key, allowed, scale, preserve_rng_state=False) for key in k.split(1, 1))
    return functools.reduce(torch.add, maps) / k.size(1)


def _map(q: Tensor, key: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    return masked_softmax(q @ key.transpose(-1, -2) * scale, allowed)


def _in_torch(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, combine: str, dropout: float, scale: float
) -> Tensor:
    """As ``interacting_attention``, with torch's fused attention; every query sees at least one key."""
    batch, heads, queries, _ = q.shape
    summed, mask = combine == "sum", None
    if allowed is not None:  # once, since torch would copy a bool or unaligned mask for every head
        allowed = allowed if allowed.size(2) == 1 else allowed.repeat(1, 1, heads, 1)
        allowed = F.pad(allowed, (0, -allowed.size(-1) % ALIGNMENT)) if q.is_cuda else allowed
        mask = q.new_zeros(1).masked_fill(~allowed, -torch.inf)[..., : k.size(2)]
    stacked = q.reshape(batch, 1, heads * queries, q.size(-1))
    unfused_on_cuda = k.size(-1) % FUSED_WIDTHS > 0 or v.size(-1) % FUSED_WIDTHS > 0
    keeps_maps = unfused_on_cuda if q.is_cuda else dropout > 0 or k.size(-1) != v.size(-1)
    recomputed = functools.partial(_recomputed, preserve_rng_state=dropout > 0)
    attend: Any = functools.partial(recomputed, _attend) if summed or keeps_maps else _attend
    outputs = (
        attend(stacked, key, value, mask, dropout, scale).view(batch, heads, queries, v.size(-1)).transpose(1, 2)
        for key, value in zip(k.split(1, 1), v.split(1, 1), strict=True)
    )
    if summed:
        return functools.reduce(torch.add, outputs).flatten(2) * heads**-0.5
    return torch.stack([*outputs], 3).flatten(2)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)
