"""Differential and gated attention equal their formulas with loops."""

import math
import re

import pytest
import torch
from torch.autograd import gradcheck

from fairseq_diverse.attention.functional import differential_attention, differential_ratio, gate_heads
from fairseq_diverse.attention.request import AttentionRequest
from tests.cases import batch, build_model
from tests.reference import differential as reference
from tests.refusals import refused

B, H, T, S, DK, D, C = 3, 4, 5, 7, 6, 8, 9
ALLOWED = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(1)) > 0.3
ALLOWED[..., 0] = True


def qkv():
    return [torch.randn(B, H, *shape, dtype=torch.float64, requires_grad=True) for shape in ((T, DK), (S, DK), (S, D))]


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_differential_attention_is_its_formula(need_weights):
    (q, k, v), gain = qkv(), torch.rand(D, dtype=torch.float64)
    ratio = torch.tensor(0.3, dtype=torch.float64)
    heads, weights = differential_attention(q, k, v, ratio, gain, 0.2, ALLOWED, need_weights=need_weights)
    for b in range(B):
        for h in range(H):
            rows = (x[b, h].tolist() for x in (q, k, v))
            out, maps = reference.differential_attention(*rows, ALLOWED[b, 0].tolist(), 0.3, gain.tolist(), 0.2)
            torch.testing.assert_close(heads[b, h], torch.tensor(out, dtype=torch.float64))
            if weights is not None:
                torch.testing.assert_close(weights[b, h], torch.tensor(maps, dtype=torch.float64))
    assert (weights is not None) == need_weights
    if weights is not None:
        torch.testing.assert_close(weights.sum(-1), torch.full((B, H, T), 0.7, dtype=torch.float64))


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_gradients_and_dropout_of_differential_attention(need_weights):
    (q, k, v), gain = qkv(), torch.rand(D, dtype=torch.float64, requires_grad=True)
    ratio = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def attend(*x, dropout=0.0):
        torch.manual_seed(2)
        return differential_attention(*x, 0.2, ALLOWED, dropout, need_weights=need_weights)[0]

    assert gradcheck(attend, (q, k, v, ratio, gain), fast_mode=True)
    assert not torch.allclose(attend(q, k, v, ratio, gain, dropout=0.5), attend(q, k, v, ratio, gain))


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_the_difference_of_half_types_is_rounded_once(need_weights):
    """With one key both outputs are its value, exactly: nothing else is rounded."""
    v = torch.randn(B, H, 1, D, dtype=torch.bfloat16)
    heads, _ = differential_attention(v, v, v, torch.tensor(0.3), torch.ones(D), 0.2, need_weights=need_weights)
    exact = 0.7 * v.double()
    expected = 0.8 * exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert heads.dtype == torch.bfloat16
    torch.testing.assert_close(heads.double(), expected, rtol=1.01 * 2**-8, atol=0)


def test_an_odd_width_cannot_be_halved():
    q = torch.zeros(1, 1, 2, 3)
    refused("even width to be halved, not 3", differential_attention, q, q, q, torch.tensor(0.1), torch.ones(3), 0.2)
    said = "--differential-on 'encoder': the width of each head's queries and keys, 5"
    refused(said, build_model, {"differential_on": "encoder", "qk_head_dim": 5})


def test_the_weight_of_the_second_map_also_under_autocast():
    vectors = [torch.randn(3, dtype=torch.float64) for _ in range(4)]
    got = differential_ratio((vectors[0], vectors[1]), (vectors[2], vectors[3]), 0.2)
    expected = reference.differential_ratio(*(x.tolist() for x in vectors), 0.2)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    vectors = [torch.randn(32) for _ in range(4)]
    with torch.autocast("cpu", torch.bfloat16):
        got = differential_ratio((vectors[0], vectors[1]), (vectors[2], vectors[3]), 0.2)
    assert torch.equal(got, differential_ratio((vectors[0], vectors[1]), (vectors[2], vectors[3]), 0.2))


def test_a_model_has_the_initial_ratio_of_its_layer():
    model = build_model({"differential_on": "encoder,decoder,cross"})
    for number, layer in enumerate(model.decoder.layers, 1):
        own = layer.encoder_attn.differential
        assert own.initial_ratio == pytest.approx(0.8 - 0.6 * math.exp(-0.3 * (number - 1)))
        assert [tuple(p.shape) for p in own.parameters()] == [(3,)] * 4 + [(6,)]
        assert torch.equal(own.gain, torch.ones(6))
    vectors = [p for name, p in model.named_parameters() if re.search(r"differential\.(query|key)_[12]$", name)]
    assert torch.cat(vectors).std().item() == pytest.approx(0.1, rel=0.3)
    old = {name: value for name, value in model.state_dict().items() if not name.endswith("differential.layer")}
    model.load_state_dict(old, strict=True)  # of before the layer's number was kept
    assert model.decoder.layers[1].self_attn.differential.initial_ratio == pytest.approx(0.8 - 0.6 * math.exp(-0.3))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"talking": "both", "talking_on": "encoder"}, "talking"), ({"evolving_on": "encoder"}, "evolving"),
        ({"relative_on": "encoder"}, "relative"), ({"localness_on": "encoder"}, "localness"),
        ({"syntax": "phrase"}, "--syntax phrase"), ({"syntax": "dependency", "enliven": "enliven"}, "enliven"),
        ({"interacting": "sum", "interacting_on": "encoder"}, "differential")
    ],
)  # fmt: skip
def test_what_differential_attention_refuses(flags, names):
    where = "pairs of heads" if "interacting" in flags else "the difference of two"
    said = f"encoder:1 also has {names}, which is not defined for {where}"
    refused(said, build_model, {"differential_on": "encoder", **flags})
    build_model({"differential_on": "decoder", **flags})


def test_dependencies_and_routing_work_with_differential_attention():
    flags = {"differential_on": "encoder", "syntax": "dependency", "routing": "em", "gated": "head"}
    output, _ = build_model(flags)(**batch())
    assert output.isfinite().all()


@pytest.mark.parametrize(("kind", "gates"), [("head", 4), ("element", 24)])
def test_gates_start_with_xaviers_values(kind, gates):
    weights = [layer.self_attn.gated.projection.weight for layer in build_model({"gated": kind}).decoder.layers]
    assert {tuple(weight.shape) for weight in weights} == {(gates, 24)}
    values, bound = torch.cat(weights), (6 / (24 + gates)) ** 0.5
    assert 0.9 * bound < values.abs().max() <= bound
    assert values.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)


@pytest.mark.parametrize("gates", [H, H * D], ids=["head", "element"])
def test_gates_are_their_formula(gates):
    heads = torch.randn(B, H, T, D, dtype=torch.float64, requires_grad=True)
    x = torch.randn(B, T, C, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(gates, C, dtype=torch.float64, requires_grad=True)
    got = gate_heads(heads, x, weight)
    for b in range(B):
        expected = reference.gate_heads(heads[b].tolist(), x[b].tolist(), weight.tolist())
        torch.testing.assert_close(got[b], torch.tensor(expected, dtype=torch.float64))
    assert gradcheck(gate_heads, (heads, x, weight), fast_mode=True)


@pytest.mark.parametrize(("dtype", "opening"), [(torch.bfloat16, 6.5), (torch.float16, 8.5)])
def test_a_gate_that_is_nearly_open_has_a_gradient_in_half_types(dtype, opening):
    """Where its sigmoid would round to 1."""
    weight = torch.full((1, 1), opening, dtype=dtype, requires_grad=True)
    gate_heads(torch.ones(1, 1, 1, 1, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype), weight).sum().backward()
    slope = torch.tensor(opening).sigmoid() * torch.tensor(-opening).sigmoid()
    torch.testing.assert_close(weight.grad.float().squeeze(), slope, rtol=1e-2, atol=0)


def test_disagreement_is_measured_before_the_gate():
    model = build_model({"gated": "element", "gated_on": "encoder"}).eval()
    request = AttentionRequest(("output",), "encoder:1")
    before = model(**batch(), attention_request=request)[1]["agreement"]
    torch.nn.init.normal_(model.encoder.layers[0].self_attn.gated.projection.weight, std=3)
    torch.testing.assert_close(model(**batch(), attention_request=request)[1]["agreement"], before)
