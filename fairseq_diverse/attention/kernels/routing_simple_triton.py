"""Simple routing in Triton, for a GPU: capsules of width 1; float16, bfloat16 or float32, computed in float32.

One program does all iterations of a token. It goes through the heads one by one, a row of N votes at a time, and keeps
only sums over heads, N numbers each. What it reads again is in the first-level cache: votes come from memory once in
the forward and once in the backward pass. For the backward pass the votes are kept, and of every softmax over N its
largest logit and its sum; the rest is computed again. Formulas and names: ``functional/routing.py``. EM routing
(``routing_em_triton.py``) works in the same way.
"""

# mypy: allow-incomplete-defs, disable-error-code="assignment, valid-type"

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_diverse.attention.kernels import first_derivative_only
from fairseq_diverse.attention.kernels.launching import launch, next_power_of_2, operator


@triton.jit
def row(x, n, N: tl.constexpr):
    """The N numbers at ``x`` in float32, 0 behind them."""
    return tl.load(x + n, n < N, 0.0).to(tl.float32)


@triton.jit
def softmax(logits, n, normal, N: tl.constexpr, LOG: tl.constexpr, KNOWN: tl.constexpr):
    """Of N logits: logits - largest, and the sum of their exponentials, as its inverse or its logarithm.

    ``normal`` keeps the largest and the sum, and gives them where they are known.
    """
    logits = tl.where(n < N, logits, float("-inf"))
    if KNOWN:
        largest = tl.load(normal)
        scale = tl.load(normal + 1)
    else:
        largest = tl.max(logits, 0)
        total = tl.sum(tl.exp(logits - largest), 0)
        scale = tl.log(total) if LOG else 1 / total
        tl.store(normal, largest)
        tl.store(normal + 1, scale)
    return logits - largest, scale


@triton.jit
def _simple_logs(v, n, normal, weight, N: tl.constexpr, KNOWN: tl.constexpr):
    """log C of one head: log softmax over n of B = weight v, where weight is the sum of the capsules so far."""
    shifted, log_sum = softmax(weight * v, n, normal, N, True, KNOWN)
    return tl.where(n < N, shifted - log_sum, 0.0)


@triton.jit
def _squash(s):
    """s |s| / (1 + s^2)."""
    signed = s * tl.abs(s)
    return signed / (1 + tl.abs(signed))


@triton.jit
def _simple_steps(
    votes,
    n,
    normals,
    H: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    ITERATIONS: tl.constexpr,
    KNOWN: tl.constexpr,
):
    """Of every iteration: S, the weight of its B, top = the largest log C of a capsule, 1 / sum_h exp(log C - top).

    C / sum_h C is a softmax over heads of log C, to avoid 0/0, and computed in one pass.
    """
    steps = ()
    weight = tl.zeros((WIDTH,), tl.float32)
    for t in tl.static_range(ITERATIONS):
        top = tl.full((WIDTH,), float("-inf"), tl.float32)
        total = tl.zeros((WIDTH,), tl.float32)
        agreed = tl.zeros((WIDTH,), tl.float32)
        for h in range(H):
            v = row(votes + h * N, n, N)
            if t == 0:  # C is the same for all
                total += 1.0
                agreed += v
            else:
                log_c = _simple_logs(v, n, normals + ((t - 1) * H + h) * 2, weight, N, KNOWN)
                higher = tl.maximum(top, log_c)
                kept = tl.exp(top - higher)
                share = tl.exp(log_c - higher)
                total = total * kept + share
                agreed = agreed * kept + share * v
                top = higher
        agreed = agreed / total
        steps = steps + ((agreed, weight, top, 1 / total),)
        weight += _squash(agreed)
    return steps


@triton.jit
def _simple_forward(
    votes, out, normals, H: tl.constexpr, N: tl.constexpr, ITERATIONS: tl.constexpr, WIDTH: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, WIDTH)
    normals += token * (ITERATIONS - 1) * H * 2
    s, _, _, _ = _simple_steps(votes + token * H * N, n, normals, H, N, WIDTH, ITERATIONS, False)[-1]
    tl.store(out + token * N + n, _squash(s).to(out.dtype.element_ty), n < N)


@triton.jit
def _simple_backward(
    votes,
    normals,
    grad,
    grad_votes,
    H: tl.constexpr,
    N: tl.constexpr,
    ITERATIONS: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One token.  G_x: gradient of x."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, WIDTH)
    zero = tl.zeros((WIDTH,), tl.float32)
    votes += token * H * N
    normals += token * (ITERATIONS - 1) * H * 2
    steps = _simple_steps(votes, n, normals, H, N, WIDTH, ITERATIONS, True)

    g_capsules = row(grad + token * N, n, N)
    g_weight = zero  # sum over the iterations after this one
    slopes = ()
    for t in tl.static_range(ITERATIONS - 1, -1, -1):
        s, weight, top, inverse = steps[t]
        r = 1 / (1 + s * s)
        g_s = g_capsules * 2 * tl.abs(s) * r * r
        dots = tl.zeros((HEADS,), tl.float32)
        if t > 0:  # a head's G_log_C = share G_S (v - S), its G_B = G_log_C - C sum_n G_log_C
            for h in range(H):
                v = row(votes + h * N, n, N)
                log_c = _simple_logs(v, n, normals + ((t - 1) * H + h) * 2, weight, N, True)
                g_log_c = tl.exp(log_c - top) * inverse * g_s * (v - s)
                dot = tl.sum(g_log_c, 0)
                dots += tl.where(tl.arange(0, HEADS) == h, dot, 0.0)
                g_weight += (g_log_c - tl.exp(log_c) * dot) * v
        slopes = ((g_s, dots),) + slopes
        g_capsules = g_weight

    for h in range(H):
        v = row(votes + h * N, n, N)
        g_vote = zero
        for t in tl.static_range(ITERATIONS):
            s, weight, top, inverse = steps[t]
            g_s, dots = slopes[t]
            if t == 0:
                g_vote += g_s * (1.0 / H)
            else:
                log_c = _simple_logs(v, n, normals + ((t - 1) * H + h) * 2, weight, N, True)
                share = tl.exp(log_c - top) * inverse
                dot = tl.sum(tl.where(tl.arange(0, HEADS) == h, dots, 0.0), 0)
                g_vote += share * g_s + (share * g_s * (v - s) - tl.exp(log_c) * dot) * weight
        tl.store(grad_votes + (token * H + h) * N + n, g_vote.to(grad_votes.dtype.element_ty), n < N)


def warps(width: int, of_each: int) -> int:
    """Warps of a program each of whose threads holds ``of_each`` of ``width`` numbers."""
    return max(1, width // (32 * of_each))


def normals_of(votes: Tensor, iterations: int) -> Tensor:
    return votes.new_empty(votes.size(0), iterations - 1, votes.size(1), 2, dtype=torch.float32)


@operator
def simple_forward(votes: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """(tokens, N) capsules of votes (tokens, H, N), and what ``simple_backward`` needs of the softmaxes."""
    tokens, heads, capsules = votes.shape
    out, normals, width = votes.new_empty(tokens, capsules), normals_of(votes, iterations), next_power_of_2(capsules)
    shape = (heads, capsules, iterations, width)
    launch(_simple_forward, tokens, warps(width, 4), votes, out, normals, *shape)
    return out, normals


@operator
def simple_backward(votes: Tensor, normals: Tensor, grad: Tensor, iterations: int) -> Tensor:
    """Gradient of the votes."""
    tokens, heads, capsules = votes.shape
    grad_votes, width = torch.empty_like(votes), next_power_of_2(capsules)
    shape = (heads, capsules, iterations, width, next_power_of_2(heads))
    launch(_simple_backward, tokens, warps(width, 4), votes, normals, grad, grad_votes, *shape)
    return grad_votes


def steps_flops(first: int, others: int) -> Callable[..., int]:
    """FLOPs of an operator: so many a vote in the first iteration, in each of the others.

    An operation is 2, as a multiply-add; an exponential, a logarithm and a quotient are 16: an SM of a GPU of sm_90
    makes 16 of them in the time of 128 multiply-adds (CUDA programming guide, throughput of arithmetic instructions).
    """
    return lambda votes, *given: votes.numel() * (first + others * (given[-1] - 1))  # the last are the iterations


# counted in the kernels: operations, exponentials and quotients a vote
FLOPS = {"simple_forward": steps_flops(2 * 2, 16 * 2 + 3 * 16), "simple_backward": steps_flops(4 * 2, 44 * 2 + 6 * 16)}


class SimpleRouting(torch.autograd.Function):
    """(tokens, N) capsules of contiguous votes (tokens, H, N)."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, iterations: int) -> Tensor:
        out, normals = simple_forward(votes, iterations)
        ctx.save_for_backward(votes, normals)
        ctx.iterations = iterations
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        votes, normals = ctx.saved_tensors
        return simple_backward(votes, normals, grad.contiguous(), ctx.iterations), None
