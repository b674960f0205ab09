"""Routing-by-agreement: parts (heads) vote for wholes (output capsules) (Li et al., 2021, section 3.2).

The kernels save only the votes for the backward pass.
"""

from torch import Tensor

from fairseq_diverse.attention.kernels import routing as kernels


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


def _check(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
