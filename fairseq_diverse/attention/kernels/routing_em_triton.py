"""EM routing in Triton, for a GPU; takes and keeps what ``routing_simple_triton.py`` does. Formulas and names:
``functional/routing.py``.

d: a head's votes relative to the first head's. EM routing is the same for them but for the mean, and votes that nearly
agree keep all their digits. A step: sum_h C, mean (relative), variance; A, 1 - A; 1 / (2 variance), log A - log sigma.
"""

# mypy: allow-incomplete-defs, disable-error-code="assignment, valid-type"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_diverse.attention.kernels import first_derivative_only
from fairseq_diverse.attention.kernels.launching import cdiv, launch, next_power_of_2, operator
from fairseq_diverse.attention.kernels.routing_simple_triton import normals_of, row, softmax, steps_flops, warps

EPSILON = tl.constexpr(1e-9)
HALF_LOG_2_PI_E = tl.constexpr(1.4189385332046727)
TINY = tl.constexpr(1e-37)

TOKENS = 8  # of one program of the backward pass, which adds up their gradients of the betas


@triton.jit
def _em_share(c, n, normal, precision, offset, N: tl.constexpr, KNOWN: tl.constexpr):
    """C of one head: softmax over n of  log A - log sigma - (d - mean)^2 / (2 variance)."""
    shifted, inverse = softmax(offset - precision * c * c, n, normal, N, False, KNOWN)
    return tl.exp(shifted) * inverse


@triton.jit
def _m_step(
    votes,
    first,
    n,
    normal,
    before,
    H: tl.constexpr,
    N: tl.constexpr,
    UNIFORM: tl.constexpr,
    KNOWN: tl.constexpr,
    PRECISE: tl.constexpr,
):
    """Sum_h C, base, mean and variance, with C by the step before, or 1/N.

    In one pass: mean and sum of squares are updated head by head (West, 1979), which keeps their digits. The mean is
    base + mean: PRECISE takes as base the votes of a head with most of C, if there is one. After many iterations the
    mean is nearly these, and the rounding of the difference, divided by a variance of about 1e-9, would be large.
    """
    _, base_before, mean_before, _, _, _, precision, offset = before
    total = tl.zeros_like(first)
    base = tl.zeros_like(first)
    mean = tl.zeros_like(first)
    squares = tl.zeros_like(first)  # sum_h C (d - mean)^2
    for h in range(H):
        d = row(votes + h * N, n, N) - first
        off = (d - base) - mean
        if UNIFORM:
            share = 1.0 / N
            part = 1 / (h + 1.0)
        else:
            share = _em_share((d - base_before) - mean_before, n, normal + 2 * h, precision, offset, N, KNOWN)
            part = share / tl.maximum(total + share, TINY)
        squares += total * part * off * off
        mean += off * part
        if PRECISE and not UNIFORM:
            more = share > total
            base = tl.where(more, d, base)
            mean = tl.where(more, -off * (total / tl.maximum(total + share, TINY)), mean)
        total += share
    inverse = 1 / (total + EPSILON)
    shift = EPSILON * inverse * (base + mean + first)  # what the epsilon of its denominator takes from the mean
    return total, base, mean - shift, (squares + total * shift * shift) * inverse + EPSILON


@triton.jit
def _em_steps(
    votes,
    first,
    n,
    normals,
    beta_a,
    beta_u,
    H: tl.constexpr,
    N: tl.constexpr,
    ITERATIONS: tl.constexpr,
    LEARNED: tl.constexpr,
    KNOWN: tl.constexpr,
):
    """The steps of one token; ``normals`` of its softmaxes are written, or read where they are known."""
    steps = ()
    before = (first, first, first, first, first, first, first, first)
    PRECISE: tl.constexpr = ITERATIONS > 3
    for t in tl.static_range(ITERATIONS):
        total, base, mean, variance = _m_step(
            votes, first, n, normals + (t - 1) * H * 2, before, H, N, t == 0, KNOWN, PRECISE
        )
        active = tl.full(first.shape, 1.0, tl.float32)
        inactive = tl.zeros_like(first)
        offset = -0.5 * tl.log(variance)
        if LEARNED:
            z = _heat(t, ITERATIONS) * (beta_a - beta_u * total - (HALF_LOG_2_PI_E - offset) * total)
            small = tl.exp(-tl.abs(z))
            larger = 1 / (1 + small)
            active = tl.where(z < 0, small, 1.0) * larger
            inactive = tl.where(z < 0, 1.0, small) * larger  # with all its digits
            offset += tl.minimum(z, 0.0) + tl.log(larger)
        before = (total, base, mean, variance, active, inactive, 0.5 / variance, offset)
        steps = steps + (before,)
    return steps


@triton.jit
def _heat(t: tl.constexpr, ITERATIONS: tl.constexpr):
    """lambda_t, see ``routing.temperature``."""
    return 1 + (min(ITERATIONS, 3) - 1) * t / max(1, ITERATIONS - 1)


@triton.jit
def _em_forward(
    votes,
    beta_a,
    beta_u,
    out,
    normals,
    H: tl.constexpr,
    N: tl.constexpr,
    ITERATIONS: tl.constexpr,
    LEARNED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, WIDTH)
    votes += token * H * N
    normals += token * (ITERATIONS - 1) * H * 2
    first = row(votes, n, N)
    a = first
    u = first
    if LEARNED:
        a = row(beta_a, n, N)
        u = row(beta_u, n, N)
    _, base, mean, _, active, _, _, _ = _em_steps(votes, first, n, normals, a, u, H, N, ITERATIONS, LEARNED, False)[-1]
    tl.store(out + token * N + n, (active * (base + mean + first)).to(out.dtype.element_ty), n < N)


@triton.jit(do_not_specialize=["tokens"])
def _em_backward(
    votes,
    beta_a,
    beta_u,
    normals,
    grad,
    grad_votes,
    grad_betas,
    tokens,
    H: tl.constexpr,
    N: tl.constexpr,
    ITERATIONS: tl.constexpr,
    LEARNED: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """A block of tokens; ``grad_betas`` (blocks, 2, N) are this block's.  G_x: gradient of x."""
    n = tl.arange(0, WIDTH)
    block = tl.program_id(0).to(tl.int64)
    zero = tl.zeros((WIDTH,), tl.float32)
    a = zero
    u = zero
    g_a = zero
    g_u = zero
    if LEARNED:
        a = row(beta_a, n, N)
        u = row(beta_u, n, N)
    for token in range(block * TOKENS, tl.minimum(block * TOKENS + TOKENS, tokens)):
        v = votes + token * H * N
        first = row(v, n, N)
        known = normals + token * (ITERATIONS - 1) * H * 2
        steps = _em_steps(v, first, n, known, a, u, H, N, ITERATIONS, LEARNED, True)

        # from the last step to the first: gradients of mean, log A, log sigma and variance become those of sum_h C d,
        # sum_h C and sum_h C (d - mean)^2
        _, base, mean, _, active, _, _, _ = steps[ITERATIONS - 1]
        g_mean = row(grad + token * N, n, N) * active
        g_log_active = g_mean * (base + mean + first)
        g_log_sigma = zero
        g_variance = zero
        slopes = ()
        for t in tl.static_range(ITERATIONS - 1, -1, -1):
            total, base, mean, variance, active, inactive, precision, _ = steps[t]
            inverse = 1 / (total + EPSILON)
            g_total = zero
            if LEARNED:
                g_cost = -_heat(t, ITERATIONS) * g_log_active * inactive
                g_a -= g_cost
                g_u += g_cost * total
                g_total = g_cost * (u + 0.5 * tl.log(variance) + HALF_LOG_2_PI_E)
                g_log_sigma += g_cost * total
            g_variance = (g_variance + g_log_sigma * precision) * inverse
            # sum_h C (d - mean) = epsilon (mean + first)
            g_mean = (g_mean - 2 * g_variance * EPSILON * (base + mean + first)) * inverse
            g_total -= g_variance * (variance - EPSILON)
            dots = tl.zeros((HEADS,), tl.float32)
            if t > 0:  # through the E-step: a head's G_logit = C (G_C - sum_n C G_C)
                _, base_before, mean_before, _, _, _, precision_before, offset_before = steps[t - 1]
                normal = known + (t - 1) * H * 2
                sum_0 = zero  # over heads of G_logit
                sum_1 = zero  # ... times its logit's derivative by the mean
                sum_2 = zero  # ... times that and (d - mean before)
                for h in range(H):
                    d = row(v + h * N, n, N) - first
                    c_before = (d - base_before) - mean_before
                    share = _em_share(c_before, n, normal + 2 * h, precision_before, offset_before, N, True)
                    c = (d - base) - mean
                    g_share = (g_variance * c + g_mean) * c + g_total
                    dot = tl.sum(share * g_share, 0)
                    dots += tl.where(tl.arange(0, HEADS) == h, dot, 0.0)
                    g_logit = share * (g_share - dot)
                    sum_0 += g_logit
                    steep = 2 * precision_before * c_before
                    sum_1 += g_logit * steep
                    sum_2 += g_logit * steep * c_before
            slopes = ((g_mean, g_variance, g_total, dots),) + slopes
            if t > 0:
                g_mean = sum_1
                g_log_active = sum_0
                g_log_sigma = -sum_0
                g_variance = precision_before * sum_2

        for h in range(H):
            d = row(v + h * N, n, N) - first
            g_vote = zero
            for t in tl.static_range(ITERATIONS):
                g_mean, g_variance, g_total, dots = slopes[t]
                c = (d - steps[t][1]) - steps[t][2]
                g_c = 2 * g_variance * c + g_mean
                if t == 0:
                    g_vote += g_c * (1.0 / N)
                else:
                    _, base_before, mean_before, _, _, _, precision_before, offset_before = steps[t - 1]
                    c_before = (d - base_before) - mean_before
                    normal = known + ((t - 1) * H + h) * 2
                    share = _em_share(c_before, n, normal, precision_before, offset_before, N, True)
                    dot = tl.sum(tl.where(tl.arange(0, HEADS) == h, dots, 0.0), 0)
                    g_share = (g_variance * c + g_mean) * c + g_total
                    g_vote += share * (g_c - (g_share - dot) * 2 * precision_before * c_before)
            tl.store(grad_votes + (token * H + h) * N + n, g_vote.to(grad_votes.dtype.element_ty), n < N)
    if LEARNED:
        tl.store(grad_betas + block * 2 * N + n, g_a, n < N)
        tl.store(grad_betas + block * 2 * N + N + n, g_u, n < N)


@operator
def em_forward(votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> tuple[Tensor, Tensor]:
    """(tokens, N) capsules of votes (tokens, H, N), and what ``em_backward`` needs of the softmaxes."""
    tokens, heads, capsules = votes.shape
    out, normals, width = votes.new_empty(tokens, capsules), normals_of(votes, iterations), next_power_of_2(capsules)
    shape = (heads, capsules, iterations, beta_a is not None, width)
    launch(_em_forward, tokens, warps(width, 4), votes, beta_a, beta_u, out, normals, *shape)
    return out, normals


@operator
def em_backward(
    votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, normals: Tensor, grad: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Gradient of the votes, and (blocks, 2, N) of both betas, to be added up."""
    tokens, heads, capsules = votes.shape
    blocks, width = cdiv(tokens, TOKENS), next_power_of_2(capsules)
    grad_votes = torch.empty_like(votes)
    grad_betas = votes.new_empty(0 if beta_a is None else blocks, 2, capsules, dtype=torch.float32)
    tensors = (votes, beta_a, beta_u, normals, grad, grad_votes, grad_betas)
    shape = (heads, capsules, iterations, beta_a is not None, width, next_power_of_2(heads), TOKENS)
    launch(_em_backward, blocks, warps(width, 2), *tensors, tokens, *shape)
    return grad_votes, grad_betas


FLOPS = {  # as those of ``routing_simple_triton.py``
    "em_forward": steps_flops(6 * 2, 20 * 2 + 3 * 16),
    "em_backward": steps_flops(10 * 2, 59 * 2 + 4 * 16),
}


class EMRouting(torch.autograd.Function):
    """(tokens, N) capsules of contiguous votes (tokens, H, N)."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, beta_a: Tensor | None, beta_u: Tensor | None, iterations: int) -> Tensor:
        out, normals = em_forward(votes, beta_a, beta_u, iterations)
        ctx.save_for_backward(votes, beta_a, beta_u, normals)
        ctx.iterations = iterations
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        votes, beta_a, beta_u, normals = ctx.saved_tensors
        grad_votes, grad_betas = em_backward(votes, beta_a, beta_u, normals, grad.contiguous(), ctx.iterations)
        if beta_a is None:
            return grad_votes, None, None, None
        grad_a, grad_u = grad_betas.sum(0)  # in an order that is always the same
        return grad_votes, grad_a.type_as(beta_a), grad_u.type_as(beta_u), None
