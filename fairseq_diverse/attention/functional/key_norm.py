"""Normalized queries and keys (Henry et al., 2020; Dehghani et al., 2023)."""

import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32

EPSILON = 1e-6


def normalize_queries_and_keys(
    q: Tensor, k: Tensor, query_gain: Tensor, key_gain: Tensor, temperature: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """RMSNorm of each query and key over its channels, then a factor of the logits for each head.

        q' = temperature[h] query_gain q / sqrt(mean(q^2) + 1e-6),   k' = key_gain k / sqrt(mean(k^2) + 1e-6)

    Source: Henry et al. (2020), with RMSNorm (Zhang and Sennrich, 2019) in place of the L2 norm, as
    Dehghani et al. (2023) have LayerNorm. Computed in at least float32.

    Args:
        q: (B, H, T, D), times ``scale``.
        k: (B, H, S, D).
        query_gain, key_gain: (D,), shared over heads.
        temperature: (H,), in place of 1/sqrt(D).
        scale: the factor that q has.

    Returns:
        q' and k', in the types of q and k.
    """
    factors = temperature[:, None, None].to(at_least_float32(q).dtype)
    return factors.mul(_rms_norm(q, query_gain, EPSILON * scale**2)).type_as(q), _rms_norm(
        k, key_gain, EPSILON
    ).type_as(k)


def _rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    x = at_least_float32(x)
    return F.rms_norm(x, (x.size(-1),), gain.type_as(x), epsilon)
