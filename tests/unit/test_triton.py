"""Triton kernels equal the formulas, in Triton's interpreter or on a GPU, and fit the registers of GPUs."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_diverse.attention.functional import agreement as formulas
from fairseq_diverse.attention.functional.evolving import evolve_logits
from fairseq_diverse.attention.functional.interacting import interacting_attention
from fairseq_diverse.attention.functional.masking import attend_somewhere
from fairseq_diverse.attention.functional.mixing import mix_heads
from fairseq_diverse.attention.functional.routing import em_routing, simple_routing
from fairseq_diverse.attention.kernels import gpu, launching
from tests.reference import routing_by_autograd

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton (extra dev)")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """The Triton kernels take all tensors that they can: on a CPU Triton interprets them."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        assert gpu.available(torch.zeros(1, device="cuda"))
    elif torch.cuda.is_available():
        pytest.skip("on a machine with a GPU the kernels run there")
    else:
        monkeypatch.setattr(gpu, "available", lambda *inputs: all(x.dtype in gpu.TYPES for x in inputs))
    return request.param


ROUNDING = {"cpu": 1e-5, "cuda": 1e-4}  # a GPU approximates exponentials and quotients


def relative(got, expected):
    got, expected = got.cpu().double(), expected.cpu()
    return ((got - expected).norm() / expected.norm().clamp(min=1e-30)).item()


# ---- routing ----

KINDS = ("simple", "em", "em-none")


def routed(kind, votes, betas, iterations, grad, plain=False):
    """Capsules, gradients of the votes and, for em, of the betas."""
    betas = [beta.detach().to(votes.device, torch.float64 if plain else beta.dtype).requires_grad_() for beta in betas]
    votes = votes.detach().to(torch.float64 if plain else votes.dtype).requires_grad_()
    if kind == "simple":
        out = (routing_by_autograd.simple_routing if plain else simple_routing)(votes, iterations)
    else:
        out = (routing_by_autograd.em_routing if plain else em_routing)(votes, *betas, iterations, kind == "em")
    inputs = [votes, *betas] if kind == "em" else [votes]
    return out, *torch.autograd.grad(out, inputs, grad.to(out))


def compare(kind, votes, iterations=3, betas=None):
    """The relative errors of capsules and gradients."""
    n = votes.size(-2)
    betas = [torch.randn(n) for _ in range(2)] if betas is None else betas
    grad = torch.randn(*votes.shape[:-3], n, device=votes.device).to(votes.dtype)
    with launching.launches() as seen:
        got = routed(kind, votes, betas, iterations, grad)
    assert len(seen) == 2
    return [relative(*pair) for pair in zip(got, routed(kind, votes, betas, iterations, grad, True), strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokens", "heads", "capsules", "iterations"),
    [(2, 4, 12, 1), (9, 2, 5, 2), (2, 4, 12, 3), (1, 3, 33, 5), (1, 1, 1, 3), (1, 32, 1024, 2)],
)
def test_routing_equals_the_formula(kind, tokens, heads, capsules, iterations, device):
    torch.manual_seed(0)
    errors = compare(kind, torch.randn(tokens, heads, capsules, 1, device=device), iterations)
    assert max(errors) < ROUNDING[device]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_routing_of_half_types_is_computed_in_float32(kind, dtype, most, device):
    """Only what is returned is rounded: gradients of the float32 betas are exact."""
    torch.manual_seed(0)
    out, votes, *betas = compare(kind, torch.randn(2, 1, 3, 12, 1, device=device).to(dtype))
    assert max(out, votes) < most and all(error < ROUNDING[device] for error in betas)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-4, 1e3, 1e9, 1e17])
def test_routing_of_large_and_small_votes_equals_the_formula(kind, scale, device):
    """Up to 1e17, as in C; squares of 1e19 are not float32 numbers. Of simple routing the gradient is then about 0."""
    torch.manual_seed(0)
    errors = compare(kind, scale * torch.randn(1, 4, 12, 1, device=device))
    assert max(errors if kind != "simple" or scale < 1e6 else errors[:1]) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_votes_that_agree(kind, dtype, device):
    """Zeros, one number, equal heads, equal capsules, and large ones: finite and right, also where variances are 0."""
    torch.manual_seed(0)
    random = torch.randn(1, 4, 12, 1, device=device)
    votes = [0 * random, 0 * random + 1, random[:, :1].expand_as(random), random[:, :, :1].expand_as(random)]
    votes = torch.cat([*votes, 1e3 + 0 * random]).to(dtype)
    betas = [torch.zeros(12) for _ in range(2)]
    grad = torch.randn(5, 12, device=device).to(dtype)
    got, expected = (routed(kind, votes, betas, 3, grad, plain) for plain in (False, True))
    assert all(x.isfinite().all() for x in got)
    assert all(relative(x, y) < (8e-3 if dtype == torch.bfloat16 else 1e-3) for x, y in zip(got, expected, strict=True))


@pytest.mark.parametrize(("heads", "shift"), [(2, 0), (2, 100), (8, 100)])
def test_votes_that_nearly_agree_keep_their_digits(heads, shift, device):
    torch.manual_seed(0)
    votes = torch.randn(2, heads, 64, 1, device=device) + shift
    assert max(compare("em", votes, betas=[torch.zeros(64) for _ in range(2)])[:2]) < 1e-4


@pytest.mark.parametrize("seed", [20, 35])  # of votes of which one head takes some capsules nearly alone
def test_many_iterations_keep_the_digits_of_the_gradient(seed, device):
    torch.manual_seed(seed)
    votes, betas = torch.randn(1, 3, 7, 1).to(device), [torch.randn(7) for _ in range(2)]
    assert max(compare("em", votes, 8, betas)) < 1e-3


def test_certain_capsules_keep_the_digits_of_their_costs_gradient(device):
    torch.manual_seed(0)
    errors = compare("em", 1e-2 * torch.randn(3, 2, 4, 1, device=device), betas=[5 * torch.ones(4), torch.zeros(4)])
    assert max(errors) < 1e-2


def test_votes_that_are_not_numbers_are_seen(device):
    votes = torch.randn(2, 4, 12, 1, device=device)
    votes[1, 2, 3] = float("nan")
    betas = torch.zeros(2, 12, device=device)
    for out in (simple_routing(votes), em_routing(votes, *betas)):
        assert out[0].isfinite().all() and out[1].isnan().any()


def test_strided_empty_and_half_betas(device):
    torch.manual_seed(0)
    votes = torch.randn(4, 12, 5, 1, device=device).permute(2, 0, 1, 3)
    assert max(compare("simple", votes)) < ROUNDING[device]
    betas = [torch.randn(24, dtype=torch.float16)[::2] for _ in range(2)]
    assert max(compare("em", votes, betas=betas)) < 1e-3
    empty = torch.zeros(0, 4, 12, 1, device=device, requires_grad=True)
    betas = [torch.zeros(12, device=device, requires_grad=True) for _ in range(2)]
    em_routing(empty, *betas).sum().backward()
    assert empty.grad.shape == empty.shape and not betas[0].grad.any()
    assert simple_routing(empty).shape == (0, 12)


def test_gradients_repeat_to_the_last_bit(device):
    torch.manual_seed(0)
    tokens = 9 if device == "cpu" else 4096
    votes, betas = torch.randn(tokens, 3, 6, 1, device=device), [torch.randn(6) for _ in range(2)]
    runs = [routed("em", votes, betas, 2, votes[:, 0, :, 0]) for _ in range(2)]
    assert all(x.equal(y) for x, y in zip(*runs, strict=True))


# ---- agreement ----

TERMS = ("subspace", "position", "output")
B, H, T, S, D = 3, 4, 5, 7, 6


def attention(device, dtype=torch.float32, sizes=(B, H, T, S, D, D)):
    """Values (strided, as projections are), heads, weights, valid keys and queries."""
    torch.manual_seed(0)
    b, h, t, s, d, wide = sizes
    values = torch.randn(s, b, h, d, device=device).permute(1, 2, 0, 3).to(dtype)
    heads = torch.randn(b, h, t, wide, device=device).to(dtype)
    weights = torch.randn(b, h, t, s, device=device).softmax(-1)
    lengths = torch.arange(b, device=device)[:, None]
    valid_keys, valid_queries = (torch.arange(n, device=device) < n - lengths for n in (s, t))
    return values, heads, weights, valid_keys, valid_queries


def measured(terms, values, heads, weights, valid_keys, valid_queries):
    """The figures, and gradients of what they measure."""
    tensors = {"subspace": values, "output": heads, "position": weights}
    names = [name for name in tensors if any(name in term for term in terms)]
    inputs = {name: x.detach().requires_grad_(name in names) for name, x in tensors.items()}
    figures = formulas.agreement(terms, *inputs.values(), valid_keys, valid_queries)
    grad = torch.arange(1.0, len(terms) + 1, device=values.device).to(figures)
    return figures, *torch.autograd.grad(figures, [inputs[name] for name in names], grad)


def double(*tensors):
    return [x.double() if x.is_floating_point() else x for x in tensors]


@pytest.mark.parametrize(
    ("terms", "sizes"),
    [
        (TERMS, (B, H, T, S, D, D)), (TERMS, (1, 2, 1, 1, 1, 3)), (TERMS, (2, 3, 9, 150, 5, 40)),
        (TERMS, (1, 32, 2, 3, 64, 2048)), *(((term,), (B, H, T, S, D, D)) for term in TERMS),
        (("centred-output", "subspace"), (B, H, T, S, D, D))
    ],
)  # fmt: skip
def test_agreement_equals_the_formula(terms, sizes, device):
    inputs = attention(device, sizes=sizes)
    with launching.launches() as seen:
        got = measured(terms, *inputs)
    assert len(seen) == 3
    for x, y in zip(got, measured(terms, *double(*inputs)), strict=True):
        assert (x - y).norm() < ROUNDING[device] * y.norm() + 1e-6  # heads of width 1 have no gradient


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_agreement_of_half_types_is_measured_in_float32(dtype, device):
    inputs = attention(device, dtype)
    figures, *grads = measured(TERMS, *inputs)
    expected, *expected_grads = measured(TERMS, *double(*inputs))
    assert figures.dtype == torch.float32 and relative(figures, expected) < 1e-6
    assert all(relative(x, y) < 8e-3 for x, y in zip(grads, expected_grads, strict=True))


def test_agreement_of_equal_zero_tiny_large_and_padded_heads(device):
    values, heads, weights, valid_keys, valid_queries = attention(device)
    terms = ("subspace", "output")
    same = heads[:, :1].expand(-1, H, -1, -1)
    figures = measured(terms, same, 1e12 * same, weights, valid_queries, valid_queries)[0]
    torch.testing.assert_close(figures.cpu(), torch.ones(2))
    for scale in (0, 1e-10):
        figures, *grads = measured(terms, scale * values, scale * heads, weights, valid_keys, valid_queries)
        assert not figures.any() and not any(grad.any() for grad in grads)
    nothing = torch.zeros_like(valid_queries)
    assert not measured(("position",), values, heads, weights, valid_keys, nothing)[0].any()
    expected = measured(TERMS, values, heads, weights, valid_keys, valid_queries)
    values, heads, weights = values.clone(), heads.clone(), weights.clone()
    values.transpose(1, 2)[~valid_keys] = float("nan")
    for x in (heads, weights):
        x.transpose(1, 2)[~valid_queries] = float("nan")
    for x, y in zip(measured(TERMS, values, heads, weights, valid_keys, valid_queries), expected, strict=True):
        assert x.equal(y)


def test_maps_of_very_long_sentences_are_found(device):
    """From a head to the next are 2^30 numbers, T S of 32,768 tokens; memory that nothing touches is not taken."""
    heads, step = 3, 2**30
    maps = torch.empty(step * (heads - 1) + 4, dtype=torch.float16, device=device)
    maps = maps.as_strided((1, heads, 1, 4), (step * heads, step, 4, 1))
    share = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for head in range(heads):
        maps[:, head] = share.roll(head)
    valid = torch.ones(1, 1, dtype=torch.bool, device=device)
    unread = torch.zeros(1, heads, 1, 2, device=device)
    got = formulas.agreement(("position",), unread, unread, maps, valid, valid)
    expected = formulas.agreement(("position",), *double(unread, unread, maps.contiguous()), valid, valid)
    assert relative(got, expected) < 1e-3


# ---- interacting heads ----


def philox(seed, *counter):
    """The four 32-bit numbers of Philox4x32 with 7 rounds (Salmon et al., 2011, section 4.1)."""
    low, shift = np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = np.broadcast_arrays(*(np.asarray(x).astype(np.uint64) for x in counter))
    keys = [seed & (2**32 - 1), seed >> 32]
    for _ in range(7):
        one, two = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (two >> shift) ^ b ^ np.uint64(keys[0]), two & low
        c, d = (one >> shift) ^ d ^ np.uint64(keys[1]), one & low
        keys = [(key + step) % 2**32 for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return a, b, c, d


def kept_weights(seed, sentences, heads, queries, keys, dropout):
    """(B, H of keys, H of queries, T, S) True where the Triton kernels keep a weight."""
    b, j, i, t, s = np.ogrid[:sentences, :heads, :heads, :queries, :keys]
    words = philox(seed, s // 32 * 4 + s % 8 // 2, t * heads + i, b * heads + j, 0)
    word = np.choose(s % 32 // 8, [x.astype(np.int64) for x in words])
    return torch.from_numpy((word >> 16 * (s % 2)) % 2**16 >= round(dropout * 2**16))


def interacting(q, k, v, allowed, combine, dropout, grad, plain=False):
    """Outputs, gradients of q, k and v; ``plain``: by the formula in float64, with the same weights dropped."""
    torch.manual_seed(3)
    x = [one.detach().to(torch.float64 if plain else one.dtype).requires_grad_() for one in (q, k, v)]
    if not plain:
        out = interacting_attention(*x, allowed, combine, dropout)
        return out, *torch.autograd.grad(out, x, grad)
    seed = int(torch.randint(2**62, (1,), device=q.device)) if dropout else 0
    logits = torch.einsum("bitd,bjsd->bjits", x[0], x[1]) / q.size(-1) ** 0.5
    weights = logits if allowed is None else logits.masked_fill(~attend_somewhere(allowed)[:, None], -torch.inf)
    weights = weights.softmax(-1)
    if dropout:
        kept = kept_weights(seed, *q.shape[:3], k.size(2), dropout).to(q.device)
        weights = weights * kept / (1 - round(dropout * 2**16) / 2**16)
    pairs = torch.einsum("bjits,bjsd->btijd", weights, x[2])
    out = (pairs.sum(3) / q.size(1) ** 0.5 if combine == "sum" else pairs).flatten(2)
    return out, *torch.autograd.grad(out, x, grad.double())


def pairs_of_heads(device, sizes, dtype=torch.float32, mask="none", combine="sum"):
    """Queries, keys, values (strided, as projections are), allowed keys (a sentence may see none), a gradient."""
    torch.manual_seed(0)
    b, h, t, s, key_width, width = sizes
    shapes = (t, key_width), (s, key_width), (s, width)
    inputs = [torch.randn(n, b, h, d, device=device).permute(1, 2, 0, 3).to(dtype) for n, d in shapes]
    padding = (torch.arange(s, device=device) >= torch.arange(b, device=device)[:, None] * s // 2)[:, None, None]
    causal = torch.ones(t, s, device=device).tril(s - t).bool()[None, None]
    random = torch.rand(b, 1, t, s, device=device) < 0.4
    allowed = {"none": None, "padding": padding, "causal": causal, "both": padding & causal, "any": random}[mask]
    grad = torch.randn(b, t, h * width * (1 if combine == "sum" else h), device=device).to(dtype)
    return *inputs, allowed, grad


def pair_errors(device, sizes, dtype=torch.float32, mask="none", combine="sum", dropout=0.0):
    *inputs, grad = pairs_of_heads(device, sizes, dtype, mask, combine)
    with launching.launches() as seen:
        got = interacting(*inputs, combine, dropout, grad)
    assert len(seen) == 3
    return [relative(*pair) for pair in zip(got, interacting(*inputs, combine, dropout, grad, True), strict=True)]


@pytest.mark.parametrize("combine", ["sum", "concat"])
@pytest.mark.parametrize(
    ("sizes", "mask", "dropout"),
    [
        ((2, 3, 5, 7, 6, 6), "none", 0.0), ((2, 3, 5, 7, 6, 5), "padding", 0.3), ((2, 2, 6, 6, 4, 4), "causal", 0.0),
        ((2, 2, 9, 19, 5, 20), "both", 0.3), ((1, 2, 3, 33, 2, 3), "any", 0.1), ((2, 1, 1, 1, 1, 1), "none", 0.5),
        ((1, 2, 1, 18, 32, 32), "padding", 0.0)
    ],
)  # fmt: skip
def test_interacting_heads_equal_the_formula(sizes, mask, dropout, combine, device):
    assert max(pair_errors(device, sizes, mask=mask, combine=combine, dropout=dropout)) < ROUNDING[device]


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
@pytest.mark.parametrize(
    ("sizes", "dropout", "combine"),
    [
        ((1, 2, 5, 35, 64, 64), 0.1, "sum"),  # every shape of tile, with dropout
        ((2, 3, 7, 20, 64, 64), 0.1, "concat"),
        ((2, 2, 9, 19, 5, 20), 0.3, "sum"),
        ((1, 2, 5, 35, 100, 100), 0.1, "sum"),
        ((1, 2, 3, 4, 100, 128), 0.0, "sum"),
    ],
)
def test_interacting_heads_of_half_types(sizes, dropout, combine, dtype, most, device):
    """float16 and bfloat16 products, float32 sums."""
    assert max(pair_errors(device, sizes, dtype, "both", combine, dropout)) < most


def test_interacting_heads_that_see_nothing_zeros_large_and_no_numbers(device):
    q, k, v, allowed, grad = pairs_of_heads(device, (2, 2, 3, 5, 4, 4), mask="none")
    nothing = torch.zeros(2, 1, 3, 5, dtype=torch.bool, device=device)
    seen_all = interacting(q, k, v, None, "sum", 0.0, grad)
    pairs = zip(interacting(q, k, v, nothing, "sum", 0.0, grad), seen_all, strict=True)
    assert all(relative(x, y) < 1e-6 for x, y in pairs)
    for scale in (0, 1e-10, 30, 1e6):  # in the last the weights are 0 and 1
        inputs = scale * q, k, v, allowed, "sum", 0.0, grad
        got, expected = interacting(*inputs), interacting(*inputs, True)
        assert all(x.isfinite().all() for x in got)
        assert all(relative(x, y) < 1e-4 for x, y in zip(got, expected, strict=True) if scale < 1e6 or y is expected[0])
    v[1, 0, 2, 1] = float("nan")
    out = interacting(q, k, v, allowed, "sum", 0.0, grad)[0]
    assert out[0].isfinite().all() and out[1].isnan().any()


def test_interacting_heads_repeat_to_the_last_bit_and_their_dropout_follows_the_generator(device):
    *inputs, grad = pairs_of_heads(device, (2, 3, 5, 7, 6, 6), mask="both")
    first, second = (interacting(*inputs, "sum", 0.5, grad) for _ in range(2))
    assert all(x.equal(y) for x, y in zip(first, second, strict=True))
    assert not interacting_attention(*inputs, "sum", 0.5).equal(interacting_attention(*inputs, "sum", 0.5))


# ---- convolutions over maps ----


def convolved(x, weight, bias, cells, component, grad, plain=False):
    """Evolved maps, or mixed ones without a bias; gradients of x, weight and bias; ``plain``: by torch in float64."""
    given = [x, weight] if bias is None else [x, weight, bias]
    x, weight, *bias = (y.detach().to(torch.float64 if plain else y.dtype).requires_grad_() for y in given)
    out = evolve_logits(x, None, weight, bias[0], component, 0.5, 0.3, cells) if bias else mix_heads(x, weight)
    return out, *torch.autograd.grad(out, [x, weight, *bias], grad.to(out))


def maps_of_heads(device, sizes, cells="none", dtype=torch.float32):
    """Maps, weights (H, H, k, k) and biases, the cells that are seen, a gradient."""
    torch.manual_seed(0)
    b, h, t, s, k = sizes
    x, grad = torch.randn(2, b, h, t, s, device=device).to(dtype)
    weight, bias = torch.randn(h, h, k, k, device=device).to(dtype), torch.randn(h, device=device).to(dtype)
    every = torch.rand(b, 1, t, s, device=device) < 0.7
    causal = torch.ones(t, s, device=device).tril(s - t).bool()
    return x, weight, bias, {"none": None, "all": every, "keys": every[:, :, :1], "causal": causal}[cells], grad


def map_errors(device, sizes, cells, component, dtype=torch.float32):
    *inputs, grad = maps_of_heads(device, sizes, cells, dtype)
    with launching.launches() as seen:
        got = convolved(*inputs, component, grad)
    assert len(seen) == 3
    return [relative(*pair) for pair in zip(got, convolved(*inputs, component, grad, True), strict=True)]


@pytest.mark.parametrize(
    ("sizes", "cells", "component"),
    [
        *(((2, 3, 5, 7, 3), "none", component) for component in ("encoder", "decoder", "cross")),
        *(((2, 8, 6, 6, 3), "all", component) for component in ("encoder", "decoder", "cross")),
        ((1, 2, 9, 70, 5), "keys", "cross"),
        ((1, 4, 40, 33, 3), "causal", "decoder"),
        ((1, 16, 3, 20, 5), "all", "encoder"),
        ((2, 17, 3, 20, 1), "all", "decoder"),
        ((1, 1, 1, 1, 3), "none", "encoder"),
    ],
)
def test_convolved_maps_equal_the_formula(sizes, cells, component, device):
    assert max(map_errors(device, sizes, cells, component)) < ROUNDING[device]


@pytest.mark.parametrize("cells", ["none", "keys"])
def test_convolved_maps_may_be_strided_and_of_many_tiles(cells, device, monkeypatch):
    """Biases too; a program adds up the gradients of several tiles, of several sentences."""
    from fairseq_diverse.attention.kernels import maps_triton

    monkeypatch.setattr(maps_triton, "PROGRAMS", (2, 2))
    x, weight, bias, seen, grad = maps_of_heads(device, (3, 2, 9, 40, 3), cells)
    strided = [y.transpose(0, -1).contiguous().transpose(0, -1) for y in (x, weight, grad)]
    wide = torch.stack([bias, bias + 1], 1)[:, 0]
    assert not any(y.is_contiguous() for y in (*strided, wide))
    x, weight, grad = strided
    with launching.launches() as launched:
        got = convolved(x, weight, wide, seen, "cross", grad)
    assert len(launched) == 3
    expected = convolved(x, weight, wide, seen, "cross", grad, True)
    assert all(relative(*pair) < ROUNDING[device] for pair in zip(got, expected, strict=True))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("sizes", [(2, 8, 6, 7, 3), (1, 16, 3, 20, 5), (1, 32, 5, 20, 1)])
def test_convolved_maps_of_half_types_are_summed_in_float32(sizes, dtype, most, device):
    assert max(map_errors(device, sizes, "all", "decoder", dtype)) < most


@pytest.mark.parametrize(
    ("sizes", "dtype", "most"),
    [
        ((2, 3, 5, 7, 1), torch.float32, 0), ((1, 32, 2, 9, 1), torch.float32, 0),
        ((2, 8, 9, 33, 1), torch.float16, 1e-3), ((2, 16, 9, 33, 1), torch.bfloat16, 8e-3)
    ],
)  # fmt: skip
def test_mixed_heads_equal_the_formula(sizes, dtype, most, device):
    x, weight, _, _, grad = maps_of_heads(device, sizes, dtype=dtype)
    given = x, weight[:, :, 0, 0], None, None, "", grad
    with launching.launches() as seen:
        got = convolved(*given)
    assert len(seen) == 3
    assert all(relative(*pair) < (most or ROUNDING[device]) for pair in zip(got, convolved(*given, True), strict=True))


def test_convolved_maps_repeat_to_the_last_bit_and_see_numbers_within_their_cells_alone(device):
    sizes = (2, 3, 20, 40, 3) if device == "cuda" else (2, 3, 9, 20, 3)
    x, weight, bias, cells, grad = maps_of_heads(device, sizes, "all")
    first, second = (convolved(x, weight, bias, cells, "cross", grad) for _ in range(2))
    assert all(one.equal(other) for one, other in zip(first, second, strict=True))
    spoilt = x.masked_fill(~cells, float("nan"))
    again = convolved(spoilt, weight, bias, cells, "cross", grad)
    assert all(one.equal(other) for one, other in zip(again[2:], first[2:], strict=True))
    assert again[0].isnan().equal(spoilt.isnan())
    row, column = cells[1, 0].nonzero()[0].tolist()
    x[1, 2, row, column] = float("nan")
    out = convolved(x, weight, bias, cells, "cross", grad)[0]
    assert out[0].isfinite().all() and out[1, :, row, column].isnan().all()


# ---- which version runs ----


def test_layers_with_the_kernels_are_one_graph(device):
    """For all lengths, with dropout, forward and backward."""

    def work(q, k, v, kernel, allowed, keys, queries, betas):
        heads = interacting_attention(q, k, v, allowed, "sum", 0.5).unflatten(2, (2, 3)).transpose(1, 2)
        figures = formulas.agreement(("subspace", "output"), v, heads, None, keys, queries)
        votes = heads.transpose(1, 2).unsqueeze(-1)
        maps = mix_heads(q @ k.transpose(-1, -2), q[0, :, 0, :2])
        maps = evolve_logits(maps, None, kernel, kernel[0, :, 0, 0], "encoder", 0.5, 0.5, allowed)
        return em_routing(votes, *betas, 2), simple_routing(votes, 2), figures, maps

    torch._dynamo.reset()
    traced = []
    kernel = torch.randn(2, 2, 3, 3, device=device)
    compiled = torch.compile(work, fullgraph=True, dynamic=True, backend=lambda g, inputs: traced.append(g) or g)
    for queries, keys in ((4, 5), (6, 3), (5, 16), *([(40, 80)] if device == "cuda" else [])):  # not the heads
        q, k, v, allowed, _ = pairs_of_heads(device, (2, 2, queries, keys, 3, 3), mask="both")
        real = [torch.ones(2, length, dtype=torch.bool, device=device) for length in (keys, queries)]
        results = []
        for run in (work, compiled):
            torch.manual_seed(7)
            inputs = [x.detach().requires_grad_() for x in (q, k, v, kernel, *torch.ones(2, 3, device=device))]
            with launching.launches() as seen:
                out = run(*inputs[:4], allowed, *real, inputs[4:])
                results.append([*out, *torch.autograd.grad(sum(x.square().sum() for x in out), inputs)])
            assert len(seen) >= 16
        for x, y in zip(*results, strict=True):
            assert relative(x, y) < ROUNDING[device]
    assert len(traced) == 1


def test_torch_works_on_what_the_kernels_do_not_take(device):
    votes, beta = torch.randn(2, 3, 4, 1, device=device), torch.zeros(4, device=device)
    other = (votes.double(), votes.expand(2, 3, 4, 2), votes.repeat(1, 11, 1, 1), votes.repeat(1, 1, 257, 1))
    with launching.launches() as seen:
        for wrong in other:
            simple_routing(wrong)
        em_routing(votes, beta.double(), beta.double())
        simple_routing(votes, 9)
        formulas.agreement(("output",), *double(*attention(device)))
        with pytest.raises(ValueError, match="at least 2 heads, not 1"):
            formulas.agreement(("output",), *(x[:, :1] for x in attention(device)[:3]), *attention(device)[3:])
        q, k, v = (torch.randn(1, 2, 3, 5, device=device) for _ in range(3))
        for wide in ((q, k, q.repeat(1, 1, 1, 7)), (q.half(), k.half(), q.half().repeat(1, 1, 1, 26)), double(q, k, v)):
            interacting_attention(*wide, combine="sum")
        for alone in ((q.repeat(2, 1, 1, 1), k, v), (q[:0], k[:0], v[:0])):
            interacting_attention(*alone, combine="sum")
        interacting_attention(q, k, v, combine="sum", dropout=1.0)
        for sizes in ((1, 17, 2, 3, 3), (1, 33, 2, 3, 1), (1, 2, 2, 3, 7)):
            *inputs, grad = maps_of_heads(device, sizes)
            convolved(*inputs, "encoder", grad)
        x, weight, bias, *_ = double(*maps_of_heads(device, (1, 2, 2, 3, 3))[:3])
        evolve_logits(x, None, weight, bias, "encoder", 0.5, 0.3, None)
        evolve_logits(torch.cat([x, x], 2).float(), None, weight.float(), bias.float(), "decoder", 0.5, 0.3, None, 2)
        mix_heads(x, weight[:, :, 0, 0])
        x, weight, bias, *_ = maps_of_heads(device, (3, 2, 2, 3, 3))
        of_heads = torch.ones(3, 2, 2, 3, dtype=torch.bool, device=device)
        evolve_logits(x, None, weight, bias, "encoder", 0.5, 0.3, of_heads)
        for wrong in (of_heads[:2, :1], of_heads[:, :1, :, :2]):
            with pytest.raises(RuntimeError):
                evolve_logits(x, None, weight, bias, "encoder", 0.5, 0.3, wrong)
        for wrong in (weight[:1, :, 0, 0], torch.ones(3, 3, device=device)):
            with pytest.raises(RuntimeError):
                mix_heads(x, wrong)
        assert not seen
        simple_routing(votes)
        interacting_attention(q, k, v, combine="sum")
    assert len(seen) == 2


def test_cpu_tensors_never_ask_for_triton(monkeypatch):
    monkeypatch.setattr(gpu, "_works", lambda device: pytest.fail("asked"))
    simple_routing(torch.randn(2, 3, 4, 1))
    assert not gpu.available(torch.randn(2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="pretends to have a GPU")
def test_without_working_kernels_torch_is_used_and_said_once(monkeypatch, caplog):
    works, device = gpu._works.__wrapped__, torch.device("cuda:0")
    assert not works(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not works(device) and not caplog.records
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not works(device)  # a torch without CUDA
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not works(device)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("Triton kernels do not run here, torch does the work: ") and "\n" not in first
    assert second.startswith("triton is not installed")
    monkeypatch.setenv("FAIRSEQ_DIVERSE_KERNELS", "0")
    assert not works(device) and len(caplog.records) == 2


# ---- what they cost ----


class Operators(TorchDispatchMode):
    """Counts operators that launch something, and the bytes that they read and write."""

    def __init__(self):
        super().__init__()
        self.number = self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not function.is_view and function.namespace != "fairseq_diverse" and "empty" not in function.name():
            self.number += 1
            self.bytes += sum(x.nbytes for x in (*args, out) if isinstance(x, torch.Tensor))
        return out


def cost(work):
    """Launches, and bytes of every tensor that each reads or writes."""
    with launching.launches() as seen, Operators() as others:
        work()
    tensors = [{id(x): x.nbytes for x in launch.arguments if isinstance(x, torch.Tensor)} for launch in seen]
    return len(seen) + others.number, others.bytes + sum(sum(x.values()) for x in tensors)


def of_base(*shape, dtype=torch.float16):
    return torch.empty(*shape, device="meta", dtype=dtype)


def pairs(combine):
    return partial(interacting_attention, allowed=VALID[:, None, None], combine=combine, dropout=0.1)


HEADS, VALID = of_base(128, 32, 8, 64).transpose(1, 2), of_base(128, 32, dtype=torch.bool)
PROJECTED, MAPS = of_base(32, 128, 8, 64).permute(1, 2, 0, 3), of_base(128, 8, 32, 32, dtype=torch.float32)
ROUTED = [of_base(4096, 8, 512, 1), of_base(512), of_base(512)]
COSTS = {  # of 4,096 tokens, forward and backward: the function, its inputs, the most launches and bytes
    "simple routing": (simple_routing, ROUTED[:1], 6, 0.2e9),
    "em routing": (em_routing, ROUTED, 6, 0.2e9),
    "em-none": (partial(em_routing, beta_a=None, beta_u=None, activation=False), ROUTED[:1], 6, 0.2e9),
    "agreement": (lambda *x: formulas.agreement(TERMS, *x, VALID, VALID), [HEADS, HEADS, MAPS], 6, 1e9),
    "sum": (pairs("sum"), [PROJECTED] * 3, 7, 70e6),  # with the seed, and what lets every query see some key
    "concat": (pairs("concat"), [PROJECTED] * 3, 7, 160e6),  # outputs and their gradient, each 34 MB
}


@pytest.mark.parametrize("name", COSTS)
def test_what_the_kernels_cost_at_size_base(name, monkeypatch):
    function, inputs, most_launches, most_bytes = COSTS[name]
    inputs = [x.detach().requires_grad_() for x in inputs]
    monkeypatch.setattr(gpu, "available", lambda *inputs: True)
    launches, traffic = cost(lambda: torch.autograd.grad(out := function(*inputs), inputs, torch.empty_like(out)))
    assert 2 <= launches <= most_launches and 10e6 < traffic < most_bytes


@pytest.mark.slow
def test_registers_fit_and_the_table_is_this_one():
    """Compiled for A100 and H100; ``python -m benchmarks.registers > results/gpu-registers.md`` writes the table."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.registers", "--types", "float16", "--sizes", "base", "big"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 41
    table = (ROOT / "results/gpu-registers.md").read_text(encoding="utf-8").splitlines()
    if lines[2] in table:  # by the same Triton
        assert set(lines) <= set(table)


@pytest.mark.parametrize(("used", "said"), [((129, 0), "129 registers, 0 bytes"), ((64, 24), "64 registers, 24 bytes")])
def test_too_many_registers_fail(used, said, monkeypatch, capsys):
    from benchmarks import registers

    monkeypatch.setattr(registers, "used", lambda launch, capability: used if capability == 90 else (128, 0))
    with pytest.raises(SystemExit, match=f"em_forward at big, float32, H100: {said} spilled"):
        registers.main(["--types", "float32", "--sizes", "big"])
    assert "| em_backward | big | float32 | 512 | 16 | 128, 0 |" in capsys.readouterr().out
