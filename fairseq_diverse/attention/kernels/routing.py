"""Routing with a hand-derived backward pass that saves only the votes and recomputes the iterations.

Three equal versions: Triton on a GPU (``routing_*_triton.py``) and C for float32 on a CPU (``routing.c``), both for
capsules of width 1, and torch for everything else, in chunks of tokens that fit a CPU's cache. ``simple``, ``em`` and
``usable`` choose. Formulas: ``functional/routing.py``.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fairseq_diverse.attention.kernels import cpu, first_derivative_only, gpu
from fairseq_diverse.attention.precision import at_least_float32

EPSILON = 1e-9
CHUNK = {"cpu": 2**17, "other": 2**25}  # votes per chunk: what fits a core's cache, a GPU's memory

GPU_HEADS, GPU_CAPSULES, GPU_ITERATIONS = 32, 1024, 8  # at most, for the Triton kernels

Betas = tuple[Tensor, Tensor] | None


def simple(votes: Tensor, iterations: int) -> Tensor:
    if not _on_gpu(votes, iterations, votes):
        return SimpleRouting.apply(votes, iterations)
    from fairseq_diverse.attention.kernels import routing_simple_triton as triton

    return triton.SimpleRouting.apply(_rows(votes), iterations).view(*votes.shape[:-3], votes.size(-2))


def em(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> Tensor:
    if not _on_gpu(votes, iterations, *(x for x in (votes, beta_a, beta_u) if x is not None)):
        return EMRouting.apply(votes, beta_a, beta_u, iterations)
    from fairseq_diverse.attention.kernels import routing_em_triton as triton

    n = votes.size(-2)
    betas = (None if beta is None else beta.expand(n).contiguous() for beta in (beta_a, beta_u))
    return triton.EMRouting.apply(_rows(votes), *betas, iterations).view(*votes.shape[:-3], n)


def _on_gpu(votes: Tensor, iterations: int, *inputs: Tensor) -> bool:
    """Whether the Triton kernels take these votes."""
    heads, capsules, width = votes.shape[-3:]
    fit = width == 1 and heads <= GPU_HEADS and capsules <= GPU_CAPSULES and iterations <= GPU_ITERATIONS
    return fit and gpu.available(*inputs)


def temperature(t: int, iterations: int) -> float:
    return 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)


def _rows(x: Tensor, width: int = 0) -> Tensor:
    """Contiguous (tokens, H, N) of votes (..., H, N, 1), or (tokens, width)."""
    shape = (width,) if width else x.shape[-3:-1]
    return x.reshape(x.numel() // math.prod(shape), *shape).contiguous()


def _chunks(votes: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Ranges of tokens and their votes (M, H, N, D), in at least float32."""
    flat = votes.flatten(0, -4) if votes.dim() > 3 else votes.unsqueeze(0)
    tokens = max(1, CHUNK.get(votes.device.type, CHUNK["other"]) // math.prod(votes.shape[-3:]))
    for start in range(0, len(flat), tokens):
        part = slice(start, start + tokens)
        yield part, at_least_float32(flat[part])


def _sum_width(x: Tensor) -> Tensor:
    return x.squeeze(-1) if x.size(-1) == 1 else x.sum(-1)


def _capsules(votes: Tensor, *others: Any) -> Tensor:
    """Memory for the capsules (..., N D) of votes (..., H, N, D)."""
    return votes.new_empty(*votes.shape[:-3], votes.size(-2) * votes.size(-1))


def _gradient(votes: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(votes, memory_format=torch.contiguous_format)


@gpu.opaque(_capsules)
def simple_capsules(votes: Tensor, iterations: int) -> Tensor:
    """(..., N D) capsules of votes (..., H, N, D), in C or torch."""
    if usable(votes) and (made := _c_simple_forward(_rows(votes), iterations)) is not None:
        return made.view(*votes.shape[:-3], votes.size(-2))
    out = _capsules(votes)
    rows = out.view(-1, out.size(-1))
    for part, v in _chunks(votes):
        rows[part] = _simple_steps(v, iterations)[-1][-1].flatten(-2)
    return out


@gpu.opaque(_gradient)
def simple_gradient(votes: Tensor, grad: Tensor, iterations: int) -> Tensor:
    """The gradient of the votes, given that of the capsules."""
    if usable(votes):
        made = _c_simple_backward(_rows(votes), iterations, _rows(grad, votes.size(-2)))
        if made is not None:
            return made.view(votes.shape)
    grad_votes = _gradient(votes)
    rows, grad_rows = grad_votes.view(-1, *votes.shape[-3:]), grad.reshape(-1, *votes.shape[-2:])
    for part, v in _chunks(votes):
        rows[part] = _simple_backward(v, _simple_steps(v, iterations), at_least_float32(grad_rows[part]))
    return grad_votes


class SimpleRouting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: Tensor, iterations: int) -> Tensor:
        ctx.save_for_backward(votes)
        ctx.iterations = iterations
        return simple_capsules(votes, iterations)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (votes,) = ctx.saved_tensors
        return simple_gradient(votes, grad, ctx.iterations), None


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


@gpu.opaque(_capsules)
def em_capsules(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> Tensor:
    """(..., N D) capsules of votes (..., H, N, D), in C or torch."""
    betas = _betas(votes, beta_a, beta_u)
    if usable(votes) and (made := _c_em_forward(_rows(votes), betas, iterations)) is not None:
        return made.view(*votes.shape[:-3], votes.size(-2))
    out = _capsules(votes)
    rows = out.view(-1, out.size(-1))
    for part, v in _chunks(votes):
        first, relative = _relative(v)
        last = _em_steps(first, relative, betas, iterations)[-1]
        mean = last.mean + first
        capsules = mean if last.log_a is None else mean * last.log_a.exp().unsqueeze(-1)
        rows[part] = capsules.flatten(-2)
    return out


def _em_gradients(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients of votes and betas; empty for betas that there are not."""
    like_betas = (votes.new_empty(0) if beta is None else beta.new_empty(votes.size(-2)) for beta in (beta_a, beta_u))
    return _gradient(votes), *like_betas  # type: ignore[return-value]


@gpu.opaque(_em_gradients)
def em_gradients(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, grad: Tensor, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of votes and betas (empty without betas), given that of the capsules."""
    betas = _betas(votes, beta_a, beta_u)
    grad_betas: Betas
    made = None
    if usable(votes):
        made = _c_em_backward(_rows(votes), betas, iterations, _rows(grad, votes.size(-2)))
    if made is not None:
        grad_votes, grad_betas = made[0].view(votes.shape), made[1:]
    else:
        grad_votes = _gradient(votes)
        rows, grad_rows = grad_votes.view(-1, *votes.shape[-3:]), grad.reshape(-1, *votes.shape[-2:])
        grad_betas = None if betas is None else (torch.zeros_like(betas[0]), torch.zeros_like(betas[1]))
        for part, v in _chunks(votes):
            first, relative = _relative(v)
            steps = _em_steps(first, relative, betas, iterations)
            rows[part] = _em_backward(first, relative, steps, betas, grad_betas, at_least_float32(grad_rows[part]))
    if beta_a is None or beta_u is None or grad_betas is None:
        return grad_votes, votes.new_empty(0), votes.new_empty(0)
    return grad_votes, grad_betas[0].type_as(beta_a), grad_betas[1].type_as(beta_u)


class EMRouting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> Tensor:
        ctx.save_for_backward(votes, beta_a, beta_u)
        ctx.iterations = iterations
        return em_capsules(votes, beta_a, beta_u, iterations)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        votes, beta_a, beta_u = ctx.saved_tensors
        grads = em_gradients(votes, beta_a, beta_u, grad, ctx.iterations)
        return (grads[0], None, None, None) if beta_a is None else (*grads, None)


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


def _betas(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None) -> Betas:
    if beta_a is None or beta_u is None:
        return None
    dtype = torch.float64 if votes.dtype == torch.float64 else torch.float32
    n = votes.size(-2)
    return beta_a.to(dtype).expand(n).contiguous(), beta_u.to(dtype).expand(n).contiguous()


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


def _em_backward(
    first: Tensor, d: Tensor, steps: list[_EMStep], betas: Betas, grad_betas: Betas, grad: Tensor
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
        if (
            grad_share is not None
        ):  # E-step: share' = softmax over n of  -sum_i centred^2 / (2 variance) - log_sigma + log_a
            following = steps[t + 1].share
            grad_mean = torch.zeros_like(step.mean)
            grad_logits = grad_share.sub_((grad_share * following).sum(-1, keepdim=True)).mul_(following)
            summed = grad_logits.sum(-2)
            grad_log_sigma = -summed
            grad_log_a = None if step.log_a is None else summed
            grad_centred = grad_logits.unsqueeze(-1) * centred
            grad_variance = (grad_centred * centred).sum(-3).div_(2 * step.variance.square())
            grad_centred.mul_((-1 / step.variance).unsqueeze(-3))
        if grad_log_a is not None and betas is not None and grad_betas is not None:
            assert step.log_a is not None
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


# ---- in C ----


def usable(votes: Tensor) -> bool:
    """Whether the kernel takes these votes: float32, capsules of width 1, on a CPU."""
    return votes.size(-1) == 1 and cpu.available("routing", votes)


def _call(function: Any, votes: Tensor, iterations: int, *others: Tensor | None, shared: int = 0) -> bool:
    """Run a routing kernel over the tokens.

    Args:
        votes: (tokens, H, N).
        others: the kernel's other arguments; all but the first ``shared`` are split along their first dimension.

    Returns:
        Whether it succeeded, see ``in_threads``.
    """
    tokens, heads, capsules = votes.shape
    threads = cpu.share(tokens)

    def part(thread: int, start: int, stop: int) -> int:
        pointers = [
            cpu.pointer(x if i < shared or x is None else x[x.size(0) * thread // threads :])
            for i, x in enumerate(others)
        ]
        return function(cpu.pointer(votes[start:]), stop - start, heads, capsules, iterations, *pointers)

    return cpu.in_threads(tokens, part)


def _c_em_forward(votes: Tensor, betas: Betas, iterations: int) -> Tensor | None:
    """(tokens, N) capsules of votes (tokens, H, N); None if torch must compute them."""
    out = votes.new_empty(votes.size(0), votes.size(2))
    function = cpu.library("routing").em_forward
    return out if _call(function, votes, iterations, *(betas or (None, None)), out, shared=2) else None


def _c_em_backward(votes: Tensor, betas: Betas, iterations: int, grad: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of the votes and of both betas, given that of the capsules; None if torch must compute them."""
    grad_votes = torch.empty_like(votes)
    grad_betas = [votes.new_zeros(max(1, cpu.share(votes.size(0))), votes.size(2)) for _ in range(2)]
    function, shared = cpu.library("routing").em_backward, betas or (None, None)
    done = _call(function, votes, iterations, *shared, grad, grad_votes, *grad_betas, shared=2)
    return (grad_votes, grad_betas[0].sum(0), grad_betas[1].sum(0)) if done else None


def _c_simple_forward(votes: Tensor, iterations: int) -> Tensor | None:
    """(tokens, N) capsules of votes (tokens, H, N); None if torch must compute them."""
    out = votes.new_empty(votes.size(0), votes.size(2))
    return out if _call(cpu.library("routing").simple_forward, votes, iterations, out) else None


def _c_simple_backward(votes: Tensor, iterations: int, grad: Tensor) -> Tensor | None:
    """Gradient of the votes, given that of the capsules; None if torch must compute it."""
    grad_votes = torch.empty_like(votes)
    return grad_votes if _call(cpu.library("routing").simple_backward, votes, iterations, grad, grad_votes) else None
