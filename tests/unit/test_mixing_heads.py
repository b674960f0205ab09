"""Talking and interacting heads equal their loop versions; interacting heads never hold the maps of all pairs."""

import contextlib

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_diverse.attention.functional.interacting import interacting_attention, interacting_weights
from fairseq_diverse.attention.functional.mixing import mix_heads
from fairseq_diverse.attention.kernels import cpu
from fairseq_diverse.attention.kernels import interacting as kernel
from fairseq_diverse.attention.mechanisms.talking import TalkingHeads
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.attention.settings import AttentionShape
from tests.cases import batch, build_model
from tests.reference import heads as reference
from tests.refusals import refused
from tests.unit.test_triton import kept_weights as kept_in_triton

B, H, T, S, D = 2, 3, 4, 5, 2
PADDED = torch.tensor([[True] * S, [False, False, True, True, True]])[:, None, None]  # (B, 1, 1, S)
CAUSAL = torch.ones(T, S).tril(1).bool()[None, None]
MASKS = {"none": None, "padding": PADDED, "causal": CAUSAL, "both": PADDED & CAUSAL}


def qkv(key_width=D, queries=T, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (B, H, queries, key_width), (B, H, S, key_width), (B, H, S, D)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def test_mixing_equals_the_loop():
    x, matrix = torch.randn(B, H, T, S, dtype=torch.float64), torch.randn(H, H, dtype=torch.float64)
    expected = [reference.mix_heads(maps, matrix.tolist()) for maps in x.tolist()]
    torch.testing.assert_close(mix_heads(x, matrix), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_beyond_half_types_stay_finite_under_autocast(dtype):
    x, matrix = torch.full((B, H, T, S), -1e5), torch.eye(H)
    with torch.autocast("cpu", dtype):
        assert mix_heads(x, matrix).equal(x)


@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize("key_width", [D, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_interacting_equals_the_loop(mask, key_width, combine):
    q, k, v = qkv(key_width)
    allowed = MASKS[mask]
    everything = torch.ones(B, T, S).bool() if allowed is None else allowed.expand(B, 1, T, S).squeeze(1)
    if mask == "both":  # the first query of the second sentence sees nothing; its output is ignored
        everything = everything.clone()
        everything[1, 0] = True
    arguments = (x.tolist() for x in (q, k, v, everything))
    pairs = (reference.interacting_attention(*one, combine) for one in zip(*arguments, strict=True))
    expected, maps = zip(*pairs, strict=True)
    got = interacting_attention(q, k, v, allowed, combine)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    weights = interacting_weights(q, k, allowed)
    torch.testing.assert_close(weights, torch.tensor(maps, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    assert gradcheck(lambda *x: interacting_attention(*x, allowed, combine), (q, k, v))


@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("sentences", "heads", "queries", "keys", "key_width", "width"),
    [
        (5, 3, 7, 7, 5, 4), (2, 8, 33, 33, 4, 4), (3, 2, 9, 14, 1, 32), (4, 5, 1, 12, 32, 3), (1, 1, 1, 1, 1, 1),
        (2, 2, 5, 6, 40, 40)
    ],
)  # fmt: skip
def test_the_kernel_of_interacting_heads_equals_torch(
    sentences, heads, queries, keys, key_width, width, mask, combine, monkeypatch
):
    assert cpu.library("interacting") is not None  # always there, since make setup needs a compiler
    torch.manual_seed(0)
    shapes = (queries, key_width), (keys, key_width), (keys, width)
    inputs = [torch.randn(sentences, heads, *shape) * 2 for shape in shapes]
    seen = torch.rand(sentences, 1, 1, keys) < 0.7  # some sentences may see nothing
    causal = torch.ones(queries, keys).tril(keys - queries).bool()[None, None]
    allowed = {"none": None, "padding": seen, "causal": causal, "both": seen & causal}[mask]
    results = []
    for is_usable in (kernel.usable, lambda *x: False):
        monkeypatch.setattr(kernel, "usable", is_usable)
        x = [one.clone().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for one in inputs]
        out = interacting_attention(*x, allowed, combine)
        gradients = torch.autograd.grad(out, x, torch.sin(torch.arange(out.numel())).view(out.shape))
        results.append([out, *gradients])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-6, atol=2e-6 * float(expected.abs().max()) + 1e-7)


@pytest.mark.parametrize("sign", [-1, 1])
def test_logits_beyond_1e30_do_not_pass_the_mask(sign, monkeypatch):
    """What is hidden is replaced: a number that is added is too small."""
    q, k = torch.full((1, 2, 4, 3), 1e16), torch.full((1, 2, 4, 3), sign * 1e16)
    k[:, :, 1:] *= torch.tensor([1.0, -1.0, 2.0])[:, None]
    v = torch.arange(24.0).view(1, 2, 4, 3)
    found = []
    for is_usable in (kernel.usable, lambda *x: False):
        monkeypatch.setattr(kernel, "usable", is_usable)
        found.append(interacting_attention(q, k, v, torch.ones(4, 4).tril().bool(), "sum"))
    torch.testing.assert_close(*found)


def test_the_kernel_of_interacting_heads_is_used_where_it_is_faster():
    narrow, wide, fixed = (torch.zeros(B, H, T, width) for width in (32, 33, 40))
    taken = [kernel.usable(*x) for x in ((narrow, narrow, narrow, False, 0.0), (wide, wide, wide, True, 0.0))]
    assert all(taken) and kernel.usable(fixed, fixed, wide, False, 0.0)
    assert not kernel.usable(wide, wide, wide, False, 0.0)
    assert kernel.usable(wide, wide, wide, False, 0.1)
    assert not kernel.usable(narrow.double(), narrow.double(), narrow.double(), True, 0.0)
    with cpu.disabled():
        assert not kernel.usable(narrow, narrow, narrow, False, 0.0)


def mixed(x: np.ndarray) -> np.ndarray:
    """lowbias32 of unsigned 32-bit numbers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def kept_weights(seed: int, sentences: int, heads: int, queries: int, keys: int, share: float) -> torch.Tensor:
    """(B, H of keys, H of queries, T, S) True where the C kernel keeps a weight."""
    b, j, i, t, s = np.ogrid[:sentences, :heads, :heads, :queries, :keys]
    low, high = np.array(seed & 0xFFFFFFFF), np.array(seed >> 32)
    low, high, head, query, key = (x.astype(np.uint32) for x in (low, high, b * heads + j, t * heads + i, s))
    with np.errstate(over="ignore"):
        stream = mixed(low ^ mixed(high + mixed(head)))
        bits = mixed(mixed(query * np.uint32(0x9E3779B9) + stream) + key * np.uint32(0x85EBCA6B))
    return torch.from_numpy(bits >= np.uint32(int(share * 2**32)))


@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernel_of_interacting_heads_drops_weights(mask, combine):
    """Forward and backward are those of the formula with the same weights dropped."""
    sentences, heads, queries, keys, share = 3, 4, 9, 13, 0.3
    causal = torch.ones(queries, keys).tril(keys - queries).bool()[None, None]
    padding = (torch.arange(keys) < 11)[None, None, None]
    allowed = {"none": None, "padding": padding, "causal": causal, "both": padding & causal}[mask]
    torch.manual_seed(0)
    x = [torch.randn(sentences, heads, n, 6, requires_grad=True) for n in (queries, keys, keys)]
    torch.manual_seed(5)
    out = interacting_attention(*x, allowed, combine, dropout=share)
    gradients = torch.autograd.grad(out.sin().sum(), x)
    torch.manual_seed(5)
    kept = kept_weights(int(torch.randint(2**62, ())), sentences, heads, queries, keys, share)
    q, k, v = y = [one.detach().double().requires_grad_() for one in x]
    logits = torch.einsum("bitd,bjsd->bjits", q, k) / 6**0.5
    weights = (logits if allowed is None else logits.masked_fill(~allowed[:, None], -torch.inf)).softmax(-1)
    pairs = torch.einsum("bjits,bjsd->btijd", weights * kept / (1 - share), v)
    expected = (pairs.sum(3) / heads**0.5 if combine == "sum" else pairs).flatten(2)
    for ours, theirs in zip([out, *gradients], [expected, *torch.autograd.grad(expected.sin().sum(), y)], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_all_weights_may_be_dropped_and_a_mask_may_lack_dimensions(combine):
    q, k, v = (torch.randn(2, 3, 4, 5, requires_grad=True) for _ in range(3))
    out = interacting_attention(q, k, v, None, combine, 1.0)
    assert not out.any() and not torch.autograd.grad(out.sum(), v)[0].any()
    future = torch.ones(4, 4).tril().bool()
    expected = interacting_attention(q, k, v, future[None, None], combine)
    assert interacting_attention(q, k, v, future, combine).equal(expected)


@pytest.mark.parametrize("combine", ["concat", "sum"])
def test_one_sentence_of_keys_serves_all_queries_and_a_batch_may_be_empty(combine):
    """The kernels read as many sentences of keys as of queries."""
    q, k, v = (x.detach() for x in qkv(dtype=torch.float32))
    expected = interacting_attention(q, k[:1].repeat(B, 1, 1, 1), v[:1].repeat(B, 1, 1, 1), combine=combine)
    for keys, values in ((k[:1], v[:1]), (k[:1].repeat(B, 1, 1, 1), v[:1])):
        torch.testing.assert_close(interacting_attention(q, keys, values, combine=combine), expected)
    for nothing in ((q[:0], k[:0], v[:0]), (q[:, :, :0], k, v)):
        width = expected.size(2)
        for disabled in (False, True):
            with cpu.disabled() if disabled else contextlib.nullcontext():
                out = interacting_attention(*nothing, combine=combine)
            assert out.shape == (nothing[0].size(0), nothing[0].size(2), width)


@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize("shape", [(2, 1, 1, 9), (3, 1, 4, 9), (3, 1, 9, 9), (3, 1, 6, 8), (3, 2, 6, 9)])
def test_what_does_not_fit_reaches_no_kernel(shape, combine):
    q, k = torch.randn(3, 4, 6, 5), torch.randn(3, 4, 9, 5)
    with pytest.raises(RuntimeError, match="expand"):
        interacting_attention(q, k, k, torch.ones(shape, dtype=torch.bool), combine)
    with pytest.raises(RuntimeError):
        interacting_attention(q, torch.randn(3, 4, 9, 7), k, None, combine)
    nothing = interacting_attention(q, k[:, :, :0], k[:, :, :0], None, combine)
    assert nothing.shape == (3, 6, 20 if combine == "sum" else 80) and not nothing.any()


@pytest.mark.parametrize("keep", [kept_weights, kept_in_triton], ids=["C", "Triton"])
def test_dropped_weights_look_random(keep):
    kept = keep(2**61 + 12345, 4, 8, 60, 60, 0.1).double()
    assert abs(kept.mean() - 0.9) < 4 * (0.09 / kept.numel()) ** 0.5
    for dim in range(5):
        shifted = kept.roll(1, dim)
        correlation = ((kept - 0.9) * (shifted - 0.9)).mean() / 0.09
        assert abs(correlation) < 5 / kept.numel() ** 0.5, dim


def test_where_torch_takes_over_it_drops_the_same_weights_in_its_backward(monkeypatch):
    x = [one.detach().requires_grad_() for one in qkv(dtype=torch.float32)]
    monkeypatch.setattr(cpu, "in_threads", lambda *_: False)  # as if a number were too large for the kernel

    def draw(*x):
        torch.manual_seed(1)
        return interacting_attention(*x, PADDED, "sum", dropout=0.5)

    assert gradcheck(draw, x, eps=1e-2, atol=2e-2, rtol=1e-2)


def test_the_kernel_of_interacting_heads_takes_any_number_of_threads():
    q, k, v = qkv(dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for forward, backward in ((1, 1), (2, 1), (1, 2), (7, 7)):
            torch.set_num_threads(forward)
            torch.manual_seed(1)
            out = interacting_attention(q, k, v, PADDED, dropout=0.2)
            torch.set_num_threads(backward)
            results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    finally:
        torch.set_num_threads(before)
    assert all(a.equal(b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("combine", ["concat", "sum"])
def test_interacting_drops_weights_and_its_backward_drops_the_same(combine):
    q, k, v = qkv()

    def draw(*x):
        torch.manual_seed(1)
        return interacting_attention(*x, PADDED, combine, dropout=0.5)

    assert gradcheck(draw, (q, k, v))
    before = torch.get_rng_state()
    draws = torch.stack([interacting_attention(q, k, v, PADDED, combine, dropout=0.5).detach() for _ in range(1000)])
    assert not torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(draws.mean(0), interacting_attention(q, k, v, PADDED, combine), rtol=0, atol=0.24)


def test_interacting_in_torch_compiles_as_one_graph():
    """Forward and backward, with masks and dropout."""
    q, k, v = qkv()
    compiled = torch.compile(interacting_attention, backend="aot_eager", fullgraph=True)
    results = []
    for function in (interacting_attention, compiled):
        torch.manual_seed(1)
        out = function(q, k, v, PADDED & CAUSAL, "sum", 0.5)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    torch.testing.assert_close(*results)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            self.numbers = max(self.numbers, x.numel() if torch.is_tensor(x) else 0)
        return out


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("key_width", [4, 5])
@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize("in_c", [True, False], ids=["C", "torch"])
def test_interacting_never_holds_the_maps_of_all_pairs(combine, key_width, dropout, mask, in_c, monkeypatch):
    if not in_c:
        monkeypatch.setattr(kernel, "usable", lambda *x: False)
    heads, length = 8, 48
    causal, padding = torch.ones(length, length).tril().bool(), torch.arange(length) < 40
    allowed = {"none": None, "padding": padding[None], "causal": causal, "both": causal & padding}[mask]
    allowed = None if allowed is None else allowed[None, None]
    q, k = (torch.randn(1, heads, length, key_width, requires_grad=True) for _ in range(2))
    v = torch.randn(1, heads, length, 4, requires_grad=True)
    outputs = heads * length * 4 * (heads if combine == "concat" else 1)
    kept = []
    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            out = interacting_attention(q, k, v, allowed, combine, dropout)
        out.sum().backward()
    assert largest.numbers <= max(heads * length * length, outputs)
    stored = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() // 4 for x in kept}
    masks = heads * length * length if mask in ("causal", "both") else 0
    assert sum(stored.values()) <= 1.5 * (outputs + q.numel() + k.numel() + v.numel()) + masks


def test_talking_starts_as_the_identity_and_each_kind_has_its_matrices():
    maps = torch.randn(B, H, T, S)
    for kind, count in (("logits", 1), ("weights", 1), ("both", 2)):
        where = AttentionShape.of("encoder", 1, H, H)
        talking, nothing = TalkingHeads(TalkingHeads.Settings(kind), where), None
        assert [p.tolist() for p in talking.parameters()] == [torch.eye(H).tolist()] * count
        assert torch.equal(talking.logits(maps, nothing), maps)
        assert torch.equal(talking.weights(maps, nothing), maps)


def test_padded_keys_do_not_change_talking_heads():
    """Masking comes after the mixing, in the gradient too."""
    model = build_model({"talking": "both"})
    attention = model.encoder.layers[0].self_attn
    torch.nn.init.normal_(attention.talking.before)
    torch.nn.init.normal_(attention.talking.after)
    x, padding = torch.randn(5, 3, 24), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, :2] = True
    found = []
    for scale in (1.0, 1e3):
        model.zero_grad()
        padded = torch.where(padding.t().unsqueeze(-1), scale * x, x).requires_grad_()
        out = attention.attend(x, padded, padded, padding).value
        out.sum().backward()
        assert not padded.grad[padding.t()].any()
        found.append([out, *(p.grad for p in attention.parameters())])
    torch.testing.assert_close(*found)


def test_position_disagreement_of_interacting_heads_is_refused():
    model, request = build_model({"interacting": "sum"}), AttentionRequest(("output", "position"), "cross")
    refused("--disagreement position: interacting has no map per head", model, **batch(), attention_request=request)
