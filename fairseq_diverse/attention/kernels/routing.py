"""Routing in C and Triton, with the backward pass; formulas: ``functional/routing.py``.

Both are for capsules of width 1: Triton on a GPU (``routing_*_triton.py``), C for float32 on a CPU (``routing.c``).
"""

import math

import torch
from torch import Tensor

from fairseq_diverse.attention.kernels import cpu, gpu

GPU_HEADS, GPU_CAPSULES, GPU_ITERATIONS = 32, 1024, 8  # at most, for the Triton kernels

Betas = tuple[Tensor, Tensor] | None


def on_gpu(votes: Tensor, iterations: int, *betas: Tensor | None) -> bool:
    """Whether the Triton kernels take these votes."""
    heads, capsules, width = votes.shape[-3:]
    fit = width == 1 and heads <= GPU_HEADS and capsules <= GPU_CAPSULES and iterations <= GPU_ITERATIONS
    return fit and gpu.available(votes, *(beta for beta in betas if beta is not None))


def simple_on_gpu(votes: Tensor, iterations: int) -> Tensor:
    """(..., N) capsules of votes (..., H, N, 1)."""
    from fairseq_diverse.attention.kernels import routing_simple_triton as triton

    return triton.SimpleRouting.apply(_rows(votes), iterations).view(_of_capsules(votes))


def em_on_gpu(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> Tensor:
    """(..., N) capsules of votes (..., H, N, 1)."""
    from fairseq_diverse.attention.kernels import routing_em_triton as triton

    betas = (None if beta is None else beta.expand(votes.size(-2)).contiguous() for beta in (beta_a, beta_u))
    return triton.EMRouting.apply(_rows(votes), *betas, iterations).view(_of_capsules(votes))


def _of_capsules(votes: Tensor) -> tuple[int, ...]:
    return *votes.shape[:-3], votes.size(-2)


def _rows(x: Tensor, width: int = 0) -> Tensor:
    """Contiguous (tokens, H, N) of votes (..., H, N, 1), or (tokens, width)."""
    shape = (width,) if width else x.shape[-3:-1]
    return x.reshape(x.numel() // math.prod(shape), *shape).contiguous()


def usable(votes: Tensor) -> bool:
    """Whether the kernel in C takes these votes: float32, capsules of width 1, on a CPU."""
    return votes.size(-1) == 1 and cpu.available("routing", votes)


def _call(name: str, votes: Tensor, iterations: int, *others: Tensor | None, shared: int = 0) -> bool:
    """Run a routing kernel over the tokens.

    Args:
        votes: (tokens, H, N).
        others: the kernel's other arguments; all but the first ``shared`` are split along their first dimension.

    Returns:
        Whether it succeeded, see ``in_threads``.
    """
    tokens, heads, capsules = votes.shape
    threads, function = cpu.share(tokens), getattr(cpu.library("routing"), name)

    def part(thread: int, start: int, stop: int) -> int:
        pointers = [
            cpu.pointer(x if i < shared or x is None else x[x.size(0) * thread // threads :])
            for i, x in enumerate(others)
        ]
        return function(cpu.pointer(votes[start:]), stop - start, heads, capsules, iterations, *pointers)

    return cpu.in_threads(tokens, part)


def capsules_in_c(votes: Tensor, betas: Betas, iterations: int, em: bool) -> Tensor | None:
    """(..., N) capsules of votes (..., H, N, 1); None if torch must compute them."""
    out, name = votes.new_empty(_of_capsules(votes)), "em_forward" if em else "simple_forward"
    shared = (betas or (None, None)) if em else ()
    done = _call(name, _rows(votes), iterations, *shared, _rows(out, votes.size(-2)), shared=len(shared))
    return out if done else None


def gradients_in_c(votes: Tensor, betas: Betas, grad: Tensor, iterations: int, em: bool) -> tuple[Tensor, ...] | None:
    """Gradients of the votes and, with ``em``, of both betas, given that of the capsules; None if torch must compute
    them."""
    rows, name = _rows(votes), "em_backward" if em else "simple_backward"
    shared = (betas or (None, None)) if em else ()
    grad_betas = [votes.new_zeros(max(1, cpu.share(len(rows))), votes.size(-2)) for _ in shared]
    grad_votes, grad = torch.empty_like(rows), _rows(grad, votes.size(-2))
    done = _call(name, rows, iterations, *shared, grad, grad_votes, *grad_betas, shared=len(shared))
    return (grad_votes.view(votes.shape), *(each.sum(0) for each in grad_betas)) if done else None
