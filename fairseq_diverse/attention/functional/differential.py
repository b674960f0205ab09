"""Differential attention (Ye et al., 2025): each head is the difference of two attentions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.precision import at_least_float32, without_autocast

EPSILON = 1e-5  # of the RMSNorm


def differential_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ratio: Tensor,
    gain: Tensor,
    initial_ratio: float,
    allowed: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the difference of two maps, one for each half of a head's queries and keys.

        A = softmax(mask(Q_1 K_1^T scale)) - ratio softmax(mask(Q_2 K_2^T scale))
        heads = (1 - initial_ratio) RMSNorm(A V),  RMSNorm(x) = gain x / sqrt(mean over D of x^2 + 1e-5)

    Source: Ye et al. (2025), Eqs. 1 and 3; ``ratio`` is lambda, ``initial_ratio`` is lambda_init. Each of the two maps
    has its own dropout. Without ``need_weights``, torch's fused attention is used.

    Args:
        q: (B, H, T, Dk), Dk even.
        k: (B, H, S, Dk)
        v: (B, H, S, D)
        ratio: scalar.
        gain: (D,), shared by the heads.
        initial_ratio: in [0, 1).
        allowed: bool, broadcast to (B, H, T, S), True where a query may see a key, at least once in every row; None
            allows everything.
        dropout: probability of dropping a weight, in [0, 1).
        scale: factor of Q K^T; None for 1 / sqrt(Dk / 2).
        need_weights: also return A.

    Returns:
        (B, H, T, D) head outputs, and A (B, H, T, S) before dropout, at least float32, whose rows sum to 1 - ratio;
        None unless ``need_weights``.

    Raises:
        ValueError: if Dk is odd.
    """
    if q.size(-1) % 2:
        raise ValueError(f"queries and keys need an even width to be halved, not {q.size(-1)}")
    scale = (q.size(-1) // 2) ** -0.5 if scale is None else scale
    # twice the queries, [Q_1, 0] and [0, Q_2], and one attention: fused, since its queries are as wide as its values
    first, second = q.chunk(2, -1)
    zero = torch.zeros_like(first)
    queries = torch.cat([torch.cat([first, zero], -1), torch.cat([zero, second], -1)], 2)
    if allowed is not None and allowed.size(-2) > 1:
        allowed = torch.cat([allowed, allowed], -2)
    length, weights = q.size(2), None
    if need_weights:
        maps = masked_softmax(queries @ k.transpose(-1, -2) * scale, allowed)
        outputs = (F.dropout(maps, dropout) if dropout else maps).type_as(v) @ v
        weights = maps[:, :, :length] - ratio * maps[:, :, length:]
    else:
        outputs = F.scaled_dot_product_attention(queries, k, v, allowed, dropout, scale=scale)
    heads = outputs[:, :, :length] - ratio.reshape(1) * outputs[:, :, length:]  # in float32, as a scalar would not
    heads = heads.transpose(1, 2)  # as fused attention has it in memory: no copies
    normed = F.rms_norm(heads, gain.shape, (1 - initial_ratio) * gain.type_as(heads), EPSILON)
    return normed.transpose(1, 2).type_as(v), weights


def differential_ratio(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], initial_ratio: float) -> Tensor:
    """The weight of the second map.

        lambda = exp(q_1 . k_1) - exp(q_2 . k_2) + lambda_init

    Source: Ye et al. (2025), Eq. 2.

    Args:
        first, second: two vectors (Dk / 2,) each.
        initial_ratio: lambda_init.

    Returns:
        Scalar, at least float32.
    """
    with without_autocast(first[0]):
        added, subtracted = (torch.exp(at_least_float32(a) @ at_least_float32(b)) for a, b in (first, second))
    return added - subtracted + initial_ratio
