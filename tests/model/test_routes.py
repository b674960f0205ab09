"""Each way of computing attention runs where it should, with maps and with dropout as in fairseq."""

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout, MultiheadAttention

from fairseq_diverse.attention.kernels import cpu
from fairseq_diverse.attention.mechanisms import interacting
from fairseq_diverse.attention.request import TERMS, AttentionRequest, Measurement
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.testing.comparing import attending
from tests.cases import CASES, batch, build_model

EVERYWHERE = "encoder,decoder,cross"


@pytest.mark.parametrize(("name", "flags"), [case for case in CASES if "differential_on" not in case[1]])
def test_the_rows_of_maps_sum_to_1(name, flags):
    """They are taken before dropout."""
    model = build_model({**flags, "attention_dropout": 0.5})
    _, extra = model(**batch(), attention_request=AttentionRequest(weights=EVERYWHERE))
    for weights in extra["maps"].values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_maps_are_those_before_dropout(name, flags):
    attention, attend = attending({**flags, "attention_dropout": 0.5})
    x = torch.randn(5, 2, 24)
    training = attend(x, measurement=Measurement(weights=True)).weights
    attention.eval()
    torch.testing.assert_close(training, attend(x, measurement=Measurement(weights=True)).weights)


@pytest.mark.parametrize("terms", [("output",), ("subspace",), ("position",), TERMS])
def test_the_map_is_computed_only_if_needed(terms, monkeypatch):
    fused = []
    original = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: fused.append(1) or original(*a, **k))
    model = build_model({"routing": "em", "routing_on": EVERYWHERE})
    _, extra = model(**batch())
    assert len(fused) == 7 and extra["attn"][0].shape == (3, 7, 8)  # fairseq's criterions may read the last map
    fused.clear()
    _, extra = model(**batch(), attention_request=AttentionRequest(terms, EVERYWHERE, alignment=False))
    assert len(fused) == (0 if "position" in terms else 8) and extra["attn"][0] is None
    fused.clear()
    _, extra = model.eval()(**batch())
    assert len(fused) == 7 and extra["attn"][0].shape == (3, 7, 8)


@pytest.mark.parametrize("criterion", ["cross_entropy", "label_smoothed_cross_entropy"])
@pytest.mark.parametrize("flags", [{"routing": "em", "routing_on": EVERYWHERE}, {"interacting": "concat"}])
def test_no_map_is_computed_for_a_criterion_that_reads_none(flags, criterion, monkeypatch):
    monkeypatch.setattr(cpu, "_enabled", False)  # on CUDA and for wide heads: torch's fused attention
    fused, pairs = [], []
    original, maps_of_pairs = F.scaled_dot_product_attention, interacting.interacting_weights
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: fused.append(1) or original(*a, **k))
    monkeypatch.setattr(interacting, "interacting_weights", lambda *a, **k: pairs.append(1) or maps_of_pairs(*a, **k))
    model = build_model({**flags, "criterion": criterion})
    _, extra = model(**batch())
    assert extra["attn"][0] is None and len(fused) >= 8 and not pairs
    _, extra = model.eval()(**batch())  # a generator may want it
    assert extra["attn"][0].shape == (3, 7, 8)


@pytest.mark.parametrize("incremental", [False, True])
def test_the_weights_are_those_of_every_head(incremental):
    attention = StagedAttention(24, 4, self_attention=True).eval()
    x, padding = torch.randn(5, 3, 24), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, :2] = True
    state = ({}, {}) if incremental else (None, None)
    got = attention.attend(x, x, x, padding, state[0], measurement=Measurement(weights=True))
    assert got.weights.shape == (3, 4, 5, 5) and not got.weights[1, ..., :2].any()
    plain, mean = MultiheadAttention.forward(attention, x, x, x, key_padding_mask=padding, incremental_state=state[1])
    torch.testing.assert_close(got.value, plain)
    torch.testing.assert_close(got.weights.mean(1), mean)


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("flags", [{}, {"interacting": "concat"}, {"interacting": "sum"}])
def test_mean_over_draws_is_evaluation(flags, weights):
    attention = build_model({"attention_dropout": 0.5, **flags}).encoder.layers[0].self_attn
    x = torch.randn(5, 3, 24)
    measurement = Measurement(("output",), weights)
    draws = torch.stack([attention.attend(x, x, x, measurement=measurement).value for _ in range(1000)])
    expected = attention.eval().attend(x, x, x, measurement=measurement).value
    assert draws.std(0).mean() > 0.01
    torch.testing.assert_close(draws.mean(0), expected, rtol=0, atol=0.09)


def test_dropout_is_retained_at_inference_in_the_modules_that_fairseq_names():
    names = ["TransformerEncoder", "TransformerDecoderLayerBase", "MultiheadAttention"]
    kept = []
    for arch in ("transformer", "diverse_transformer"):
        model = build_model({"dropout": 0.1}, arch)
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
        dropouts = [(n, m.apply_during_inference) for n, m in model.named_modules() if isinstance(m, FairseqDropout)]
        kept.append(dropouts)
    assert kept[0] == kept[1] and any(on for _, on in kept[0]) and not all(on for _, on in kept[0])

    # of attention, with a mechanism
    model = build_model({"attention_dropout": 0.5, "talking": "both", "talking_on": EVERYWHERE}).eval()
    assert torch.equal(model(**batch())[0], model(**batch())[0])
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["MultiheadAttention"])
    assert not torch.allclose(model(**batch())[0], model(**batch())[0])
