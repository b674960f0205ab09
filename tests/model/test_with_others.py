"""Several mechanisms on the same attention train, decode and ignore padding, and each reads what it carries itself."""

import pytest
import torch

from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.functional.rotary import rotate
from fairseq_diverse.attention.mechanisms.rotary import RotaryPositions
from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import attentions_at
from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES, batch, build_model
from tests.reference import evolving

NAMES = [*MECHANISMS]


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_each_with_every_other(name, elsewhere):
    """On one component, of the decoder if both may be there; slow: on the others."""
    together: dict[str, list[str]] = {}
    for other in NAMES[NAMES.index(name) + 1 :]:
        of_both = {*MECHANISMS[name].components} & {*MECHANISMS[other].components}
        first, *rest = sorted(of_both, key=["decoder", "cross", "encoder"].index) or [""]
        for component in rest if elsewhere else [first] * bool(first):
            together.setdefault(component, []).append(other)
    for component, others in together.items():
        properties.with_others(name, component, others)


def test_a_new_process_loads_them_all(monkeypatch):
    """With the same outputs, but for what a checkpoint does not keep."""
    trained_model = properties.trained_model

    def changed_model(flags):
        model = trained_model(flags)
        model.encoder.embed_scale *= 1 if flags else 2
        return model

    monkeypatch.setattr(properties, "trained_model", changed_model)
    changed, *differences = properties.reload([{}, *(flags for _, flags in [*CASES, ALL_ON])])
    assert len(differences) == len(CASES) + 1 and max(differences) <= 1e-6 and changed > 1e-3


BOTH = {"residual_logits_on": "{on}", "value_residual_on": "{on}"}
PLACES = {place: dict.fromkeys(BOTH, place) for place in ("encoder", "decoder", "cross")}
PLACES["encoder"] |= {"evolving_on": "encoder", "evolving_conv": "0.4"}  # a third one
PLACES["roberta"] = {**PLACES["encoder"], "arch": "diverse_roberta"}


def test_each_reads_what_it_carries_itself():
    """In layers over a second one that has only evolving attention; compared with loops."""
    flags = {"encoder_layers": 4, "evolving_on": "encoder", "evolving_carry": 0.3, "evolving_conv": "0.4"}
    model = properties.trained_model({**flags, "value_residual_on": "encoder:1+3-4"}).double().eval()
    seen = {}
    for name, module in model.encoder.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(lambda module, given, out, name=name: seen.update({name: out}))
    request = AttentionRequest(inside="encoder", weights="encoder")
    with torch.no_grad():
        extra = model(**batch(), attention_request=request)[1]
    real = batch()["src_tokens"] != 1
    cells = (real[:, :, None] & real[:, None]).tolist()
    evolved, first = [None] * 3, None  # of the layer before, by sentence; values of the first layer
    for number, layer in enumerate(model.encoder.layers):
        q, k, v = (seen[f"layers.{number}.self_attn.{n}_proj"].unflatten(-1, (4, 6)).permute(1, 2, 0, 3) for n in "qkv")
        logits, conv = q @ k.transpose(-1, -2) * 6**-0.5, layer.self_attn.evolving.conv
        kernel = conv.weight.tolist(), conv.bias.tolist()
        evolved = [
            evolving.evolve_logits(one.tolist(), before, *kernel, "encoder", 0.3, 0.4, where)
            for one, before, where in zip(logits, evolved, cells, strict=True)
        ]
        weights = masked_softmax(torch.tensor(evolved, dtype=torch.float64), real[:, None, None])
        first = v if first is None else first
        shares = layer.self_attn.value_residual.shares if number != 1 else (0, 1)
        torch.testing.assert_close(extra["maps"]["encoder", number + 1].transpose(0, 1), weights)
        inside = extra["inside"]["encoder", number + 1][0]
        torch.testing.assert_close(inside, weights @ (shares[0] * first + shares[1] * v))


@pytest.mark.parametrize("place", PLACES)
def test_they_have_the_properties_of_one(place):
    """Activation checkpointing, LayerDrop, padding, one graph; decoding with reordered beams."""
    flags = PLACES[place]
    for holds in (properties.gradients, properties.layerdrop, properties.called_twice):
        holds(flags)
    properties.one_graph(flags, evaluation=False)
    properties.padding(flags, properties.SIDES[:1])
    if place in ("decoder", "cross"):
        for holds in (properties.causality, properties.step_by_step, properties.finished_sentences_leave):
            holds(flags)


def test_they_work_with_every_other_mechanism():
    for place in ("encoder", "decoder", "cross"):
        properties.with_others("residual-logits", place, ["value-residual", "evolving"])
    properties.gradients({**ALL_ON[1], **dict.fromkeys(BOTH, "encoder,decoder")})


@pytest.mark.parametrize("place", ["encoder:1", "encoder:2"])
@pytest.mark.parametrize("other", [*({"qk_head_dim": width} for width in (4, 5, 7)), {"differential_on": "{on}"}])
def test_rotary_layers_with_heads_of_other_widths_have_their_own_angles(other, place, monkeypatch):
    """The others have the width 6."""

    def own_angles(self, context):
        return *rotate(context.q, context.k, self.maps), context.v

    flags = {name: place if value == "{on}" else value for name, value in other.items()}
    flags |= {"qk_head_dim_on": place} if "qk_head_dim" in flags else {}
    model = properties.trained_model({"rotary_on": "encoder", "encoder_layers": 3, **flags}).eval()
    with torch.no_grad():
        shared = model(**batch())[0]
        monkeypatch.setattr(RotaryPositions, "qkv", own_angles)
        assert torch.equal(shared, model(**batch())[0])
        monkeypatch.setattr(RotaryPositions, "qkv", lambda self, context: (context.q, context.k, context.v))
        assert not torch.allclose(shared, model(**batch())[0], atol=1e-3)


def test_the_tensors_are_named_by_mechanism_and_pass_layers_that_carry_nothing():
    model = build_model({"residual_logits_on": "decoder:1", "value_residual_on": "decoder:2"})
    x, carried = torch.randn(5, 2, 24), {}
    named = []
    for attention in attentions_at(model, "decoder"):
        before, carried = carried, attention.attend(x, x, x, carried=carried).carry
        named.append(set(carried))
        assert all(carried[name] is tensor for name, tensor in before.items())
    assert named == [{"residual-logits"}, {"residual-logits", "value-residual"}, {"residual-logits", "value-residual"}]
