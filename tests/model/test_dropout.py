"""Attention dropout works with and without maps, is retained as in fairseq, and does not change a returned map."""

import pytest
import torch
from fairseq.modules import FairseqDropout

from fairseq_diverse.attention.request import AttentionRequest, Measurement
from tests.cases import batch, build_model

EVERYWHERE = "encoder,decoder,cross"


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize(
    "flags", [{}, {"interacting": "concat"}, {"interacting": "sum"}], ids=["plain", "concat", "sum"]
)
def test_mean_over_draws_is_evaluation(flags, weights):
    attention = build_model({"attention_dropout": 0.5, **flags}).encoder.layers[0].self_attn
    x = torch.randn(5, 3, 24)
    measurement = Measurement(("output",), weights)
    draws = torch.stack([attention.attend(x, x, x, measurement=measurement).value for _ in range(1000)])
    expected = attention.eval().attend(x, x, x, measurement=measurement).value
    assert draws.std(0).mean() > 0.01
    torch.testing.assert_close(draws.mean(0), expected, rtol=0, atol=0.09)


def test_maps_are_taken_before_dropout():
    model = build_model({"attention_dropout": 0.5, "routing": "em", "routing_on": EVERYWHERE})
    _, extra = model(**batch(), attention_request=AttentionRequest(weights=EVERYWHERE))
    for weights in extra["maps"].values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_dropout_is_retained_at_inference_in_the_modules_that_fairseq_names():
    names = ["TransformerEncoder", "TransformerDecoderLayerBase", "MultiheadAttention"]
    kept = []
    for arch in ("transformer", "diverse_transformer"):
        model = build_model({"dropout": 0.1}, arch)
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
        dropouts = [(n, m.apply_during_inference) for n, m in model.named_modules() if isinstance(m, FairseqDropout)]
        kept.append(dropouts)
    assert kept[0] == kept[1] and any(on for _, on in kept[0]) and not all(on for _, on in kept[0])


def test_retained_attention_dropout_works_with_a_mechanism():
    model = build_model({"attention_dropout": 0.5, "talking": "both", "talking_on": EVERYWHERE}).eval()
    assert torch.equal(model(**batch())[0], model(**batch())[0])
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["MultiheadAttention"])
    assert not torch.allclose(model(**batch())[0], model(**batch())[0])
