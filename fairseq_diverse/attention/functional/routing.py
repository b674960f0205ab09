"""Routing-by-agreement: parts (heads) vote for wholes (output capsules) (Li et al., 2021, section 3.2).

``em_routing`` and ``simple_routing`` run kernels that save only the votes for the backward pass; the ``plain_``
functions are direct implementations of the same formulas, for autograd.
"""

import math

from torch import Tensor, full_like, where
from torch.nn.functional import logsigmoid

from fairseq_diverse.attention.kernels import routing as kernels
from fairseq_diverse.attention.kernels.routing import EPSILON, temperature
from fairseq_diverse.attention.precision import at_least_float32


def simple_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """Iterative simple routing.

        B = 0;  repeat:  C = softmax over n of B
                         S_n = sum_h C_hn V_hn / sum_h C_hn                      (Eq. 10)
                         Omega_n = S_n |S_n| / (1 + |S_n|^2)                     (Eq. 11 without its 0/0)
                         B_hn += Omega_n . V_hn

    Source: Li et al. (2021), Algorithm 1. The released code takes the softmax over heads and does not divide; this
    function follows the paper. Gradients flow through all iterations.

    Args:
        votes: (..., H, N, D): the vote of each head for each of N output capsules of width D.
        iterations: at least 1.

    Returns:
        (..., N*D) the squashed capsules of the last iteration, concatenated; the dtype of ``votes``.

    Raises:
        ValueError: if iterations < 1.
    """
    _check(iterations)
    return kernels.simple(votes, iterations)


def em_routing(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int = 3, activation: bool = True
) -> Tensor:
    """Iterative EM routing: output capsules are Gaussians, votes their data points.

        C = 1/N;  for t = 0..T-1:
            mu_n      = sum_h C_hn V_hn / sum_h C_hn                                         (Eq. 13)
            sigma_n^2 = sum_h C_hn (V_hn - mu_n)^2 / sum_h C_hn                              (Eq. 14)
            chi_n     = sum_i (log sigma_n^i + (1 + log 2 pi)/2) sum_h C_hn
            A_n       = sigmoid(lambda_t (beta_a - beta_u sum_h C_hn - chi_n))
            C_hn      = A_n P_hn / sum_n' A_n' P_hn',  P the density of V_hn  (not after the last M-step)  (Eq. 15)
        Omega_n = A_n mu_n                                                                   (Eq. 12)

    Source: Li et al. (2021), Algorithm 2. 1e-9 is added to the denominators and to sigma^2; P is the product over
    dimensions (Hinton et al., 2018; the printed sum is the same at width 1), in log space; lambda_t rises from 1 to
    min(T, 3). Gradients flow through all iterations.

    Args:
        votes: (..., H, N, D).
        beta_a, beta_u: (N,) learned costs of each capsule (beta_A and beta_mu in the paper); unused without activation.
        iterations: T, at least 1.
        activation: False fixes A = 1, as the released code does.

    Returns:
        (..., N*D) the capsules, concatenated; the dtype of ``votes``.

    Raises:
        ValueError: if iterations < 1, or activation is on without beta_a and beta_u.
    """
    _check(iterations)
    if not activation:
        beta_a = beta_u = None
    elif beta_a is None or beta_u is None:
        raise ValueError("activation=True needs beta_a and beta_u")
    return kernels.em(votes, beta_a, beta_u, iterations)


def plain_simple_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """Direct implementation of ``simple_routing``; autograd keeps the tensors of every iteration."""
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


def plain_em_routing(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int = 3, activation: bool = True
) -> Tensor:
    """Direct implementation of ``em_routing``; autograd keeps the tensors of every iteration."""
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
            log_a = logsigmoid(temperature(t, iterations) * (beta_a - beta_u * total - cost))
        if t + 1 < iterations:
            # the constant of log P is the same for every n and cancels in the softmax
            log_p = -(squared / (2 * variance).unsqueeze(-3)).sum(-1) - log_sigma.unsqueeze(-2)
            share = (log_p if log_a is None else log_p + log_a.unsqueeze(-2)).softmax(-1)
    capsules = mean if log_a is None else log_a.exp().unsqueeze(-1) * mean
    return capsules.flatten(-2).type_as(votes)


def _check(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
