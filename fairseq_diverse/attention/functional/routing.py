"""Routing-by-agreement: parts (heads) vote for wholes (output capsules) (Li et al., 2021, section 3.2).

``em_routing`` and ``simple_routing`` have two equal forms. The ``plain_`` functions state the formulas. The others keep
nothing but the votes for the backward pass, recompute in it, and derive the gradients by hand, a chunk of tokens at a
time that fits a CPU's cache.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

EPSILON = 1e-9
CHUNK = {"cpu": 2**17, "other": 2**25}  # votes worked on at a time: what fits a core's cache, what fits a GPU


def simple_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """Iterative simple routing.

        B = 0;  repeat:  C = softmax over n of B
                         S_n = sum_h C_hn V_hn / sum_h C_hn                      (Eq. 10)
                         Omega_n = S_n |S_n| / (1 + |S_n|^2)                     (Eq. 11 without its 0/0)
                         B_hn += Omega_n . V_hn

    Source: Li et al. (2021), Algorithm 1. The released code takes the softmax over heads and does not divide; the paper
    is followed. Gradients flow through all iterations.

    Args:
        votes: (..., H, N, D): the vote of each head for each of N output capsules of width D.
        iterations: at least 1.

    Returns:
        (..., N*D) the squashed capsules of the last iteration, concatenated; the dtype of ``votes``.

    Raises:
        ValueError: if iterations < 1.
    """
    _check(iterations)
    return _SimpleRouting.apply(votes, iterations)


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
        ValueError: if iterations < 1.
    """
    _check(iterations)
    if not activation:
        beta_a = beta_u = None
    return _EMRouting.apply(votes, beta_a, beta_u, iterations)


def plain_simple_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """``simple_routing`` as its formula reads; autograd keeps every iteration's tensors."""
    v = _at_least_float32(votes)
    b = v.new_zeros(v.shape[:-1])  # (..., H, N)
    capsules = v
    for iteration in range(iterations):
        # C / sum_h C as a softmax over heads of log C: the same number without 0/0
        share = b.log_softmax(-1).softmax(-2)
        total = (share.unsqueeze(-1) * v).sum(-3)  # (..., N, D)
        squared = total.square().sum(-1, keepdim=True)
        norm = torch.where(squared > 0, torch.where(squared > 0, squared, 1).sqrt(), 0)
        capsules = total * (norm / (1 + squared))
        if iteration + 1 < iterations:
            b = b + (capsules.unsqueeze(-3) * v).sum(-1)
    return capsules.flatten(-2).type_as(votes)


def plain_em_routing(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int = 3, activation: bool = True
) -> Tensor:
    """``em_routing`` as its formula reads; autograd keeps every iteration's tensors."""
    v = _at_least_float32(votes)
    n, width = v.shape[-2:]
    share = torch.full_like(v[..., 0], 1 / n)  # (..., H, N)
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
            log_a = logsigmoid(_temperature(t, iterations) * (beta_a - beta_u * total - cost))
        if t + 1 < iterations:
            # the constant of log P is the same for every n and cancels in the softmax
            log_p = -(squared / (2 * variance).unsqueeze(-3)).sum(-1) - log_sigma.unsqueeze(-2)
            share = (log_p if log_a is None else log_p + log_a.unsqueeze(-2)).softmax(-1)
    capsules = mean if log_a is None else log_a.exp().unsqueeze(-1) * mean
    return capsules.flatten(-2).type_as(votes)


def _check(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _temperature(t: int, iterations: int) -> float:
    return 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)


def _chunks(votes: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Ranges of tokens and their votes (M, H, N, D), in at least float32."""
    flat = votes.reshape(-1, *votes.shape[-3:])
    tokens = max(1, CHUNK.get(votes.device.type, CHUNK["other"]) // flat[0].numel())
    for start in range(0, len(flat), tokens):
        part = slice(start, start + tokens)
        yield part, _at_least_float32(flat[part])


def _sum_width(x: Tensor) -> Tensor:
    return x.squeeze(-1) if x.size(-1) == 1 else x.sum(-1)


class _SimpleRouting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: Tensor, iterations: int) -> Tensor:
        ctx.save_for_backward(votes)
        ctx.iterations = iterations
        out = votes.new_empty(*votes.shape[:-3], votes.size(-2) * votes.size(-1))
        rows = out.view(-1, out.size(-1))
        for part, v in _chunks(votes):
            rows[part] = _simple_steps(v, iterations)[-1][-1].flatten(-2)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (votes,) = ctx.saved_tensors
        grad_votes = torch.empty_like(votes, memory_format=torch.contiguous_format)
        rows, grad_rows = grad_votes.view(-1, *votes.shape[-3:]), grad.reshape(-1, *votes.shape[-2:])
        for part, v in _chunks(votes):
            rows[part] = _simple_backward(v, _simple_steps(v, ctx.iterations), _at_least_float32(grad_rows[part]))
        return grad_votes, None


SimpleStep = tuple[Tensor | None, Tensor, Tensor, Tensor]  # softmax of B, shares of the heads, S, Omega


def _simple_steps(v: Tensor, iterations: int) -> list[SimpleStep]:
    steps: list[SimpleStep] = []
    b = None
    for iteration in range(iterations):
        softmax, share = None, v.new_full((1, 1, 1), 1 / v.size(-3))
        if b is not None:
            log = b.log_softmax(-1)
            softmax, share = log.exp(), log.softmax(-2)
        total = (share.unsqueeze(-1) * v).sum(-3)  # (M, N, D)
        squared = total.square().sum(-1, keepdim=True)
        capsules = total * squared.sqrt().div_(1 + squared)
        steps.append((softmax, share, total, capsules))
        if iteration + 1 < iterations:
            agreement = _sum_width(capsules.unsqueeze(-3) * v)
            b = agreement if b is None else b + agreement
    return steps


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


class _EMRouting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> Tensor:
        ctx.save_for_backward(votes, beta_a, beta_u)
        ctx.iterations = iterations
        betas = _betas(votes, beta_a, beta_u)
        out = votes.new_empty(*votes.shape[:-3], votes.size(-2) * votes.size(-1))
        rows = out.view(-1, out.size(-1))
        for part, v in _chunks(votes):
            last = _em_steps(v, betas, iterations)[-1]
            capsules = last.mean if last.a is None else last.mean * last.a.unsqueeze(-1)
            rows[part] = capsules.flatten(-2)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        votes, beta_a, beta_u = ctx.saved_tensors
        betas = _betas(votes, beta_a, beta_u)
        grad_votes = torch.empty_like(votes, memory_format=torch.contiguous_format)
        rows, grad_rows = grad_votes.view(-1, *votes.shape[-3:]), grad.reshape(-1, *votes.shape[-2:])
        grad_betas = None if betas is None else (torch.zeros_like(betas[0]), torch.zeros_like(betas[1]))
        for part, v in _chunks(votes):
            steps = _em_steps(v, betas, ctx.iterations)
            rows[part] = _em_backward(v, steps, betas, grad_betas, _at_least_float32(grad_rows[part]))
        if grad_betas is None:
            return grad_votes, None, None, None
        return grad_votes, grad_betas[0].type_as(beta_a), grad_betas[1].type_as(beta_u), None


class _EMStep(NamedTuple):
    """One M-step."""

    share: Tensor  # (M, H, N), or (1, 1, 1) before the first E-step
    total: Tensor  # (M, N): sum_h C
    inverse: Tensor  # (M, N, 1): 1 / (sum_h C + epsilon)
    mean: Tensor  # (M, N, D)
    variance: Tensor  # (M, N, D)
    log_sigma: Tensor  # (M, N): sum_i log sigma^i
    temperature: float
    a: Tensor | None  # (M, N)


def _betas(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None) -> tuple[Tensor, Tensor] | None:
    if beta_a is None or beta_u is None:
        return None
    dtype = torch.float64 if votes.dtype == torch.float64 else torch.float32
    return beta_a.to(dtype), beta_u.to(dtype)


def _em_steps(v: Tensor, betas: tuple[Tensor, Tensor] | None, iterations: int) -> list[_EMStep]:
    heads, n, width = v.shape[-3:]
    steps = []
    share, total = v.new_full((1, 1, 1), 1 / n), v.new_full((1, n), heads / n)
    for t in range(iterations):
        inverse = 1 / (total + EPSILON).unsqueeze(-1)
        mean = (share.unsqueeze(-1) * v).sum(-3).mul_(inverse)
        squared = (v - mean.unsqueeze(-3)).square_()
        variance = (share.unsqueeze(-1) * squared).sum(-3).mul_(inverse).add_(EPSILON)
        log_sigma = _sum_width(variance.log()) * 0.5
        temperature, log_a = _temperature(t, iterations), None
        if betas is not None:
            cost = (log_sigma + width * (1 + math.log(2 * math.pi)) / 2) * total
            log_a = logsigmoid(temperature * (betas[0] - betas[1] * total - cost))
        steps.append(
            _EMStep(
                share, total, inverse, mean, variance, log_sigma, temperature, None if log_a is None else log_a.exp()
            )
        )
        if t + 1 < iterations:
            log_p = _sum_width(squared.mul_((-0.5 / variance).unsqueeze(-3)))  # (M, H, N)
            offset = -log_sigma if log_a is None else log_a - log_sigma
            share = log_p.add_(offset.unsqueeze(-2)).softmax(-1)
            total = share.sum(-2)
    return steps


def _em_backward(
    v: Tensor,
    steps: list[_EMStep],
    betas: tuple[Tensor, Tensor] | None,
    grad_betas: tuple[Tensor, Tensor] | None,
    grad: Tensor,
) -> Tensor:
    """The gradient of the votes (M, H, N, D); those of the betas are added to ``grad_betas``."""
    width = v.size(-1)
    last = steps[-1]
    grad_v = torch.zeros_like(v)
    grad_mean = grad if last.a is None else grad * last.a.unsqueeze(-1)
    grad_log_a = None if last.a is None else _sum_width(grad * last.mean) * last.a
    grad_share: Tensor | None = None  # of the shares that this step's E-step made
    for t in range(len(steps) - 1, -1, -1):
        step = steps[t]
        centred = v - step.mean.unsqueeze(-3)  # (M, H, N, D)
        grad_total = torch.zeros_like(step.log_sigma)
        grad_log_sigma = torch.zeros_like(step.log_sigma)
        grad_variance: Tensor | float = 0.0
        grad_centred: Tensor | None = None
        if (
            grad_share is not None
        ):  # E-step: share' = softmax over n of  -sum_i centred^2 / (2 variance) - log_sigma + log_a
            following = steps[t + 1].share
            grad_mean = torch.zeros_like(step.mean)
            grad_logits = grad_share.sub_((grad_share * following).sum(-1, keepdim=True)).mul_(following)
            summed = grad_logits.sum(-2)
            grad_log_sigma = -summed
            grad_log_a = None if step.a is None else summed
            grad_centred = grad_logits.unsqueeze(-1) * centred
            grad_variance = (grad_centred * centred).sum(-3).div_(2 * step.variance.square())
            grad_centred.mul_((-1 / step.variance).unsqueeze(-3))
        if grad_log_a is not None and betas is not None and grad_betas is not None:
            assert step.a is not None
            grad_cost = grad_log_a * (1 - step.a) * -step.temperature
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
            grad_total = grad_total - _sum_width(grad_variance * (step.variance - EPSILON) + grad_mean * step.mean)
            centred.square_().mul_(grad_variance.unsqueeze(-3)).addcmul_(v, grad_mean.unsqueeze(-3))
            grad_share = _sum_width(centred).add_(grad_total.unsqueeze(-2))
    return grad_v
