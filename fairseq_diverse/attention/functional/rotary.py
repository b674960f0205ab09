"""Rotary positions (Su et al., 2021) and ALiBi (Press et al., 2022): only the distance of two tokens matters."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32

BASE = 10000.0


def rotation(k: Tensor, maps: int = 1) -> Tensor:
    """What ``rotate`` multiplies by: cosines of the angles of all positions and channels, and sines, those of even
    channels negative; (2, S, 1, D), computed in at least float32. The last channel of an odd D has angle 0.

    Args:
        k, maps: as in ``rotate``.
    """
    width = k.size(-1) // maps
    dtype = torch.promote_types(k.dtype, torch.float32)
    frequencies = BASE ** (-2 * torch.arange(width // 2, device=k.device, dtype=dtype) / width)
    angles = torch.arange(k.size(2), device=k.device, dtype=dtype)[:, None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    both = torch.stack([torch.stack([cos, cos], -1), torch.stack([-sin, sin], -1)]).flatten(-2)
    if width % 2:
        both = torch.stack([F.pad(both[0], (0, 1), value=1.0), F.pad(both[1], (0, 1))])
    return both.type_as(k)


def rotate(q: Tensor, k: Tensor, maps: int = 1, angles: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions: two channels at a time are one point of a plane.

        (x[2i], x[2i+1]) of position p is rotated by the angle  p 10000^(-2i/D),  i = 0 ... D/2 - 1

    so that q_t . k_s depends on t - s. Source: Su et al. (2021), Eqs. 14-16 and 34. With an odd D, the last channel
    stays as it is. The queries are the last ones of a sequence of S tokens, so one step of incremental decoding gives
    the same as the full pass.

    Args:
        q: (B, H, T, D).
        k: (B, H, S, D), S at least T.
        maps: the channels are those of several maps, one after the other, which are rotated alike; D is that of one.
        angles: of ``rotation``, if the caller has them.

    Returns:
        q and k, rotated; lengths of vectors do not change.
    """
    cos, sin = rotation(k, maps) if angles is None else angles
    first = k.size(2) - q.size(2)
    return _rotated(q, cos[first:], sin[first:], maps), _rotated(k, cos, sin, maps)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, maps: int) -> Tensor:
    """(B, H, T, maps D) -> (B, H, T, maps D)"""
    x = x.view(*x.shape[:-1], maps, x.size(-1) // maps)
    paired = x[..., :-1] if x.size(-1) % 2 else x
    swapped = paired.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    swapped = swapped if paired is x else torch.cat([swapped, x[..., -1:]], -1)
    return torch.addcmul(x * cos, swapped, sin).flatten(-2)


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
