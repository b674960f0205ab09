"""Li et al. (2021), Algorithms 1 and 2, as tensors; autograd keeps those of every iteration."""

import math

from torch import Tensor, float32, full_like, promote_types, where
from torch.nn.functional import logsigmoid

EPSILON = 1e-9


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(promote_types(x.dtype, float32))


def simple_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """(..., H, N, D) -> (..., N*D)"""
    v = at_least_float32(votes)
    b = v.new_zeros(v.shape[:-1])  # (..., H, N)
    capsules = v
    for iteration in range(iterations):
        # C / sum_h C, computed as a softmax over heads of log C to avoid 0/0
        share = b.log_softmax(-1).softmax(-2)
        total = (share.unsqueeze(-1) * v).sum(-3)  # (..., N, D)
        squared = total.square().sum(-1, keepdim=True)
        norm = where(squared > 0, where(squared > 0, squared, 1).sqrt(), 0)
        capsules = total * (norm / (1 + squared))
        if iteration + 1 < iterations:
            b = b + (capsules.unsqueeze(-3) * v).sum(-1)
    return capsules.flatten(-2).type_as(votes)


def em_routing(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int = 3, activation: bool = True
) -> Tensor:
    """(..., H, N, D) -> (..., N*D)"""
    v = at_least_float32(votes)
    n, width = v.shape[-2:]
    share = full_like(v[..., 0], 1 / n)  # (..., H, N)
    mean, log_a = v, None
    for t in range(iterations):
        total = share.sum(-2)  # (..., N)
        inverse = 1 / (total + EPSILON).unsqueeze(-1)
        mean = (share.unsqueeze(-1) * v).sum(-3) * inverse  # (..., N, D)
        squared = (v - mean.unsqueeze(-3)).square()  # (..., H, N, D)
        variance = (share.unsqueeze(-1) * squared).sum(-3) * inverse + EPSILON
        log_sigma = 0.5 * variance.log().sum(-1)  # (..., N)
        if activation and beta_a is not None and beta_u is not None:
            cost = (log_sigma + width * (1 + math.log(2 * math.pi)) / 2) * total
            temperature = 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)
            log_a = logsigmoid(temperature * (beta_a - beta_u * total - cost))
        if t + 1 < iterations:
            # the constant of log P is the same for every n and cancels in the softmax
            log_p = -(squared / (2 * variance).unsqueeze(-3)).sum(-1) - log_sigma.unsqueeze(-2)
            share = (log_p if log_a is None else log_p + log_a.unsqueeze(-2)).softmax(-1)
    capsules = mean if log_a is None else log_a.exp().unsqueeze(-1) * mean
    return capsules.flatten(-2).type_as(votes)
