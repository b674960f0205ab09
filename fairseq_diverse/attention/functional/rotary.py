"""Rotary positions (Su et al., 2021) and ALiBi (Press et al., 2022): only the distance of two tokens matters."""

import torch
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32

BASE = 10000.0


def rotate(q: Tensor, k: Tensor, maps: int = 1) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions: two channels at a time are one point of a plane.

        (x[2i], x[2i+1]) of position p is rotated by the angle  p 10000^(-2i/D),  i = 0 ... D/2 - 1

    so that q_t . k_s depends on t - s. Source: Su et al. (2021), Eqs. 14-16 and 34. With an odd D, the last channel
    stays as it is. The queries are the last ones of a sequence of S tokens, so one step of incremental decoding gives
    the same as the full pass. Angles are computed in at least float32.

    Args:
        q: (B, H, T, D).
        k: (B, H, S, D), S at least T.
        maps: the channels are those of several maps, one after the other, which are rotated alike; D is that of one.

    Returns:
        q and k, rotated; lengths of vectors do not change.
    """
    width = q.size(-1) // maps
    dtype = torch.promote_types(k.dtype, torch.float32)
    frequencies = BASE ** (-2 * torch.arange(width // 2, device=k.device, dtype=dtype) / width)
    angles = torch.arange(k.size(2), device=k.device, dtype=dtype)[:, None, None] * frequencies  # (S, 1, D/2)
    cos, sin = angles.cos().type_as(k), angles.sin().type_as(k)
    first = k.size(2) - q.size(2)
    q, k = (x.unflatten(-1, (maps, width)) for x in (q, k))
    return _rotated(q, cos[first:], sin[first:]), _rotated(k, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, H, T, maps, D) -> (B, H, T, maps D)"""
    even, odd = (x[..., start : 2 * cos.size(-1) : 2] for start in (0, 1))
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return (rotated if rotated.size(-1) == x.size(-1) else torch.cat([rotated, x[..., -1:]], -1)).flatten(-2)


def alibi_slopes(heads: int) -> list[float]:
    """The slope m_h of each head: 2^(-8h/H), h = 1 ... H.

    For H that is not a power of two: those of the largest power of two P below it, then every other one of 2 P heads,
    as in the authors' code. Source: Press et al. (2022), section 3.

    Returns:
        H numbers in (0, 1).
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes + [2 ** (-8 * head / (2 * power)) for head in range(1, 2 * (heads - power), 2)]


def alibi_bias(slopes: Tensor, queries: int, keys: int) -> Tensor:
    """The term that ALiBi adds to the logits: the farther a key, the lower.

        bias[h, t, s] = -m_h |t - s|

    Source: Press et al. (2022), section 3; its encoders' form is symmetric, as in the authors' code. The queries are
    the last T of the S tokens.

    Args:
        slopes: (H,).
        queries, keys: T and S.

    Returns:
        (1, H, T, S), at most 0, in at least float32.
    """
    position = torch.arange(keys, device=slopes.device)
    distance = (position[keys - queries :, None] - position).abs()  # (T, S)
    return (-at_least_float32(slopes)[:, None, None] * distance)[None]
