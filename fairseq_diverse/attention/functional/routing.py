"""Routing-by-agreement: parts (heads) vote for wholes (output capsules) (Li et al., 2021, section 3.2).

``_simple_steps`` and ``_em_steps`` are the formulas. Their gradients are derived by hand: only the votes are saved, and
the iterations are computed again. Torch goes through the tokens in chunks that fit a CPU's cache. For capsules of width
1 there are kernels (``kernels/routing.py``), which compute the same.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fairseq_diverse.attention.kernels import first_derivative_only
from fairseq_diverse.attention.kernels import routing as kernels
from fairseq_diverse.attention.kernels.launching import opaque
from fairseq_diverse.attention.precision import at_least_float32

EPSILON = 1e-9
CHUNK = {"cpu": 2**17, "other": 2**25}  # votes per chunk: what fits a core's cache, a GPU's memory

Betas = tuple[Tensor, Tensor] | None


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
    if kernels.on_gpu(votes, iterations):
        return kernels.simple_on_gpu(votes, iterations)
    return Routing.apply(votes, None, None, iterations, False)


def mean_of_votes(votes: Tensor) -> Tensor:
    """The heads' votes without routing, a control of ours: what the network that makes the votes does alone.

        Omega_n = 1/H sum_h V_hn

    Args:
        votes: (..., H, N, D).

    Returns:
        (..., N*D) the means, concatenated.
    """
    return votes.mean(-3).flatten(-2)


SimpleStep = tuple[Tensor | None, Tensor, Tensor, Tensor]  # softmax of B, shares of the heads, S, Omega


def _simple_steps(v: Tensor, iterations: int) -> list[SimpleStep]:
    """The iterations of simple routing of votes (M, H, N, D)."""
    steps: list[SimpleStep] = []
    b = None  # (M, H, N), all 0
    for iteration in range(iterations):
        softmax, share = None, v.new_full((1, 1, 1), 1 / v.size(-3))
        if b is not None:
            log = b.log_softmax(-1)
            softmax, share = log.exp(), log.softmax(-2)  # C, and C / sum_h C without its 0/0
        total = (share.unsqueeze(-1) * v).sum(-3)  # (M, N, D) S
        squared = total.square().sum(-1, keepdim=True)
        capsules = total * squared.sqrt().div_(1 + squared)  # Omega
        steps.append((softmax, share, total, capsules))
        if iteration + 1 < iterations:
            agreement = _sum_width(capsules.unsqueeze(-3) * v)
            b = agreement if b is None else b + agreement
    return steps


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
    if kernels.on_gpu(votes, iterations, beta_a, beta_u):
        return kernels.em_on_gpu(votes, beta_a, beta_u, iterations)
    return Routing.apply(votes, beta_a, beta_u, iterations, True)


def _check(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")


class _EMStep(NamedTuple):
    """One M-step."""

    share: Tensor  # (M, H, N), or (1, 1, 1) before the first E-step
    total: Tensor  # (M, N): sum_h C
    inverse: Tensor  # (M, N, 1): 1 / (sum_h C + epsilon)
    mean: Tensor  # (M, N, D), relative to the first head's vote
    variance: Tensor  # (M, N, D)
    log_sigma: Tensor  # (M, N): sum_i log sigma^i
    temperature: float
    log_a: Tensor | None  # (M, N)


def temperature(t: int, iterations: int) -> float:
    return 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)


def _relative(v: Tensor) -> tuple[Tensor, Tensor]:
    """Each capsule's first vote (M, N, D), and the votes (M, H, N, D) relative to it.

    EM routing is shift-invariant except for the mean, and relative votes that nearly agree keep full precision.
    """
    first = v[:, 0]
    return first, v - first.unsqueeze(-3)


def _em_steps(first: Tensor, d: Tensor, betas: Betas, iterations: int) -> list[_EMStep]:
    """The M-steps of ``_relative`` votes."""
    heads, n, width = d.shape[-3:]
    steps = []
    share, total = d.new_full((1, 1, 1), 1 / n), d.new_full((1, n), heads / n)
    for t in range(iterations):
        inverse = 1 / (total + EPSILON).unsqueeze(-1)
        mean = (share.unsqueeze(-1) * d).sum(-3).sub_(first, alpha=EPSILON).mul_(inverse)
        squared = (d - mean.unsqueeze(-3)).square_()
        variance = (share.unsqueeze(-1) * squared).sum(-3).mul_(inverse).add_(EPSILON)
        log_sigma = _sum_width(variance.log()) * 0.5
        heat, log_a = temperature(t, iterations), None
        if betas is not None:
            cost = (log_sigma + width * (1 + math.log(2 * math.pi)) / 2) * total
            log_a = logsigmoid(heat * (betas[0] - betas[1] * total - cost))
        steps.append(_EMStep(share, total, inverse, mean, variance, log_sigma, heat, log_a))
        if t + 1 < iterations:
            log_p = _sum_width(squared.mul_((-0.5 / variance).unsqueeze(-3)))  # (M, H, N)
            offset = -log_sigma if log_a is None else log_a - log_sigma
            share = log_p.add_(offset.unsqueeze(-2)).softmax(-1)
            total = share.sum(-2)
    return steps


def _em_capsules(v: Tensor, betas: Betas, iterations: int) -> Tensor:
    """(M, N, D) Omega of votes (M, H, N, D)."""
    first, relative = _relative(v)
    last = _em_steps(first, relative, betas, iterations)[-1]
    mean = last.mean + first
    return mean if last.log_a is None else mean * last.log_a.exp().unsqueeze(-1)


def _sum_width(x: Tensor) -> Tensor:
    return x.squeeze(-1) if x.size(-1) == 1 else x.sum(-1)


# ---- gradients, derived by hand ----


def _simple_backward(v: Tensor, steps: list[SimpleStep], grad: Tensor) -> Tensor:
    grad_v = torch.zeros_like(v)
    grad_b: Tensor | None = None
    for softmax, share, total, capsules in reversed(steps):
        if grad_b is not None:  # B grew by Omega . V after this step
            grad_v.addcmul_(grad_b.unsqueeze(-1), capsules.unsqueeze(-3))
            grad = (grad_b.unsqueeze(-1) * v).sum(-3)
        squared = total.square().sum(-1, keepdim=True)
        norm = squared.sqrt()
        along = (grad * total).sum(-1, keepdim=True) * (1 - squared) / (norm * (1 + squared).square())
        grad_total = grad * (norm / (1 + squared)) + total * along.masked_fill_(squared == 0, 0)
        grad_v.addcmul_(share.unsqueeze(-1), grad_total.unsqueeze(-3))
        if softmax is None:
            break
        grad_share = _sum_width(grad_total.unsqueeze(-3) * v)  # (M, H, N)
        grad_log = share * (grad_share - (share * grad_share).sum(-2, keepdim=True))
        here = grad_log - softmax * grad_log.sum(-1, keepdim=True)
        grad_b = here if grad_b is None else grad_b + here
    return grad_v


def _em_backward(
    first: Tensor, d: Tensor, steps: list[_EMStep], betas: Betas, grad_betas: list[Tensor], grad: Tensor
) -> Tensor:
    """The gradient of the votes (M, H, N, D); those of the betas are added to ``grad_betas``."""
    width = d.size(-1)
    last = steps[-1]
    grad_v = torch.zeros_like(d)
    a = None if last.log_a is None else last.log_a.exp()
    grad_mean = grad if a is None else grad * a.unsqueeze(-1)
    grad_log_a = None if a is None else _sum_width(grad * (last.mean + first)) * a
    grad_share: Tensor | None = None  # of the shares from this step's E-step
    for t in range(len(steps) - 1, -1, -1):
        step = steps[t]
        centred = d - step.mean.unsqueeze(-3)  # (M, H, N, D)
        grad_total = torch.zeros_like(step.log_sigma)
        grad_log_sigma = torch.zeros_like(step.log_sigma)
        grad_variance: Tensor | float = 0.0
        grad_centred: Tensor | None = None
        if grad_share is not None:
            # E-step: share' = softmax over n of  -sum_i centred^2 / (2 variance) - log_sigma + log_a
            following = steps[t + 1].share
            grad_mean = torch.zeros_like(step.mean)
            grad_logits = grad_share.sub_((grad_share * following).sum(-1, keepdim=True)).mul_(following)
            summed = grad_logits.sum(-2)
            grad_log_sigma = -summed
            grad_log_a = None if step.log_a is None else summed
            grad_centred = grad_logits.unsqueeze(-1) * centred
            grad_variance = (grad_centred * centred).sum(-3).div_(2 * step.variance.square())
            grad_centred.mul_((-1 / step.variance).unsqueeze(-3))
        if grad_log_a is not None and betas is not None and step.log_a is not None:
            grad_cost = grad_log_a * torch.expm1(step.log_a) * step.temperature
            grad_betas[0].sub_(grad_cost.sum(0))
            grad_betas[1].add_((grad_cost * step.total).sum(0))
            grad_total = grad_cost * (betas[1] + step.log_sigma + width * (1 + math.log(2 * math.pi)) / 2)
            grad_log_sigma = grad_log_sigma + grad_cost * step.total
        grad_variance = (grad_variance + 0.5 * grad_log_sigma.unsqueeze(-1) / step.variance) * step.inverse
        # variance = inverse sum_h share centred^2;  mean = inverse sum_h share v
        weighted = step.share.unsqueeze(-1) * centred  # (M, H, N, D)
        if grad_centred is None:
            grad_centred = weighted * (2 * grad_variance).unsqueeze(-3)
        else:
            grad_centred.addcmul_(weighted, (2 * grad_variance).unsqueeze(-3))
        grad_mean = (grad_mean - grad_centred.sum(-3)) * step.inverse
        grad_v.add_(grad_centred).addcmul_(step.share.unsqueeze(-1), grad_mean.unsqueeze(-3))
        if t > 0:
            # inverse = 1 / (total + epsilon) scales both
            grad_total = grad_total - _sum_width(grad_variance * (step.variance - EPSILON))
            slope = (centred * grad_variance.unsqueeze(-3)).add_(grad_mean.unsqueeze(-3))
            grad_share = _sum_width(slope.mul_(centred)).add_(grad_total.unsqueeze(-2))
    return grad_v


# ---- over all tokens ----


def _chunks(votes: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Ranges of tokens and their votes (M, H, N, D), in at least float32."""
    flat = votes.flatten(0, -4) if votes.dim() > 3 else votes.unsqueeze(0)
    tokens = max(1, CHUNK.get(votes.device.type, CHUNK["other"]) // math.prod(votes.shape[-3:]))
    for start in range(0, len(flat), tokens):
        part = slice(start, start + tokens)
        yield part, at_least_float32(flat[part])


def _capsules(votes: Tensor, *unused: Any) -> Tensor:
    """Memory for the capsules (..., N D) of votes (..., H, N, D)."""
    return votes.new_empty(*votes.shape[:-3], votes.size(-2) * votes.size(-1))


def _gradient(votes: Tensor, *unused: Any) -> Tensor:
    return torch.empty_like(votes, memory_format=torch.contiguous_format)


def _gradients(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, *unused: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients of votes and betas; empty for betas that there are not."""
    like_betas = (votes.new_empty(0) if beta is None else beta.new_empty(votes.size(-2)) for beta in (beta_a, beta_u))
    return _gradient(votes), *like_betas  # type: ignore[return-value]


def _betas(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None) -> Betas:
    if beta_a is None or beta_u is None:
        return None
    dtype = torch.float64 if votes.dtype == torch.float64 else torch.float32
    n = votes.size(-2)
    return beta_a.to(dtype).expand(n).contiguous(), beta_u.to(dtype).expand(n).contiguous()


@opaque(_capsules)
def routed_capsules(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int, em: bool) -> Tensor:
    """(..., N D) capsules of votes (..., H, N, D), in C or torch."""
    betas = _betas(votes, beta_a, beta_u)
    if kernels.usable(votes) and (capsules := kernels.capsules_in_c(votes, betas, iterations, em)) is not None:
        return capsules
    out = _capsules(votes)
    rows = out.view(-1, out.size(-1))
    for part, v in _chunks(votes):
        rows[part] = (_em_capsules(v, betas, iterations) if em else _simple_steps(v, iterations)[-1][-1]).flatten(-2)
    return out


@opaque(_gradients)
def routed_gradients(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, grad: Tensor, iterations: int, em: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of votes and betas (empty without betas), given that of the capsules."""
    betas = _betas(votes, beta_a, beta_u)
    gradients = kernels.gradients_in_c(votes, betas, grad, iterations, em) if kernels.usable(votes) else None
    grad_votes, *grad_betas = gradients or (_gradient(votes), *(torch.zeros_like(beta) for beta in betas or ()))
    rows, grad_rows = grad_votes.view(-1, *votes.shape[-3:]), grad.reshape(-1, *votes.shape[-2:])
    for part, v in _chunks(votes) if gradients is None else ():
        grad_part = at_least_float32(grad_rows[part])
        if em:
            first, relative = _relative(v)
            steps = _em_steps(first, relative, betas, iterations)
            rows[part] = _em_backward(first, relative, steps, betas, grad_betas, grad_part)
        else:
            rows[part] = _simple_backward(v, _simple_steps(v, iterations), grad_part)
    if beta_a is None or beta_u is None:
        return grad_votes, votes.new_empty(0), votes.new_empty(0)
    return grad_votes, grad_betas[0].type_as(beta_a), grad_betas[1].type_as(beta_u)


class Routing(torch.autograd.Function):
    """Simple routing, or with ``em`` EM routing."""

    @staticmethod
    def forward(
        ctx: Any, votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int, em: bool
    ) -> Tensor:
        ctx.save_for_backward(votes, beta_a, beta_u)
        ctx.options = iterations, em
        return routed_capsules(votes, beta_a, beta_u, *ctx.options)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        votes, *betas = ctx.saved_tensors
        grad_votes, *grad_betas = routed_gradients(votes, *betas, grad, *ctx.options)
        return grad_votes, *((None, None) if betas[0] is None else grad_betas), None, None
