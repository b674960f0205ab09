"""The only place where logits are masked."""

import torch
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32


def attend_somewhere(allowed: Tensor) -> Tensor:
    """Let a query without an allowed key see every key: its output is finite, equal for every kernel, and ignored.

    Args:
        allowed: (..., T, S) bool, True where a query may see a key.
    """
    return allowed | ~allowed.any(-1, keepdim=True)


def masked_logits(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Logits (B, H, T, S) in at least float32, the least finite number where a key is not allowed."""
    logits = at_least_float32(logits)
    return logits if allowed is None else torch.where(allowed, logits, torch.finfo(logits.dtype).min)


def masked_softmax(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the allowed keys, in at least float32.

        weights[..., s] = exp(logits[..., s]) / sum over allowed s' of exp(logits[..., s']), 0 where not allowed

    Source: Vaswani et al. (2017), section 3.2.1. A row without an allowed key is uniform.

    Args:
        logits: (B, H, T, S), finite.
        allowed: bool, broadcast to (B, H, T, S); None allows everything.

    Returns:
        (B, H, T, S) float32, or float64 for float64 logits; rows sum to 1.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):  # a GPU reads float16 and writes float32 in one launch
        if allowed is not None:
            logits = torch.where(allowed, logits, torch.finfo(logits.dtype).min)
        return logits.softmax(-1, dtype=torch.float32)
    return masked_logits(logits, allowed).softmax(-1)


def additive_mask(bias: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A bias and a mask as one additive mask, for a fused kernel.

        mask[..., s] = bias[..., s] where allowed, -inf elsewhere

    In half types, the largest number of each row is subtracted, which does not change its softmax: they overflow only
    where the weight is 0.

    Args:
        bias: broadcast to (B, H, T, S), finite.
        allowed: bool, broadcast to (B, H, T, S), at least one True in every row; None allows everything.
        dtype: of the mask.

    Returns:
        The mask, of the broadcast shape of both.
    """
    if allowed is not None:
        bias = torch.where(allowed, bias, -torch.inf)
    if dtype in (torch.float16, torch.bfloat16):
        bias = bias - bias.detach().amax(-1, keepdim=True)
    return bias.to(dtype)
