"""A mechanism is exactly on the attentions of its placement, also after --*-layers-to-keep; refusals of a model."""

from argparse import Namespace

import pytest
import torch
from torch import nn

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.testing.models import at, examples
from fairseq_diverse.testing.properties import trained_model
from tests.cases import CASES, batch, build_model
from tests.refusals import refusal

ROBERTA, T5 = {"arch": "diverse_roberta"}, {"arch": "diverse_t5"}


def routed(flags):
    return {n.removesuffix(".aggregate") for n, _ in build_model(flags).named_modules() if n.endswith("aggregate")}


@pytest.mark.parametrize(("arch", "prefix"), [("diverse_roberta", "sentence_encoder."), ("diverse_transformer", "")])
def test_by_default_the_layers_are_those_of_the_paper(arch, prefix):
    names = routed({"arch": arch, "routing": "em", "encoder_layers": 3})
    assert names == {f"encoder.{prefix}layers.{layer}.self_attn" for layer in (0, 1)}


@pytest.mark.parametrize(
    ("placement", "names"),
    [
        ("encoder:1", {"encoder.layers.0.self_attn"}),
        ("decoder:3", {"decoder.layers.2.self_attn"}),
        ("cross:2", {"decoder.layers.1.encoder_attn"}),
        ("encoder:2,cross:1", {"encoder.layers.1.self_attn", "decoder.layers.0.encoder_attn"}),
    ],
)
def test_only_where_placed(placement, names):
    assert routed({"routing": "em", "routing_on": placement}) == names
    assert routed({"routing": "none", "routing_on": placement}) == set()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"routing": "em", "routing_on": ""}, "--routing-on '': selects no attention"),
        ({"routing": "none", "routing_on": "encodr"}, "unknown component 'encodr'"),
        ({"routing": "em", "routing_on": "cross", "no_cross_attention": True}, "this model has no cross attention"),
        ({"routing": "EM", "routing_on": "encoder"}, "--routing 'EM': allowed are none, simple, em"),
        ({"routing": "em", "routing_on": "encoder", "routing_activation": "Learned"}, "--routing-activation 'Learned'"),
        ({"routing": "em", "routing_on": "encoder", "routing_capsules": 32}, "must divide the width 24"),
        ({"routing": "em", "routing_iterations": 0}, "--routing-iterations 0: must be at least 1"),
        ({"routing": "em", "routing_capsules": 1}, "--routing-capsules 1: the activation of a single capsule is 0"),
        ({"relative_on": "cross"}, "--relative-on 'cross': relative is defined on encoder and decoder only"),
        ({"relative_on": "encoder", "relative_limit": 0}, "--relative-limit 0: must be at least 1"),
        ({"localness_on": "decoder"}, "--localness-on 'decoder': localness is defined on encoder only"),
        ({"qk_head_dim": -1}, "--qk-head-dim -1: must be at least 1"),
        ({"talking": "both", "talking_on": "self"}, "--talking-on 'self': unknown component 'self'"),
        *(
            (
                {"interacting": "sum", "interacting_on": "encoder:1", **flags},
                f"--interacting-on 'encoder:1': encoder:1 also has {next(iter(flags)).removesuffix('_on')}",
            )
            for flags in (
                {"routing": "em"},
                {"talking": "logits"},
                {"relative_on": "encoder"},
                {"localness_on": "encoder:1"},
                {"syntax": "phrase"},
                {"enliven": "prune"},
                {"evolving_on": "encoder"},
            )
        ),
        (
            {"interacting": "sum", "interacting_on": "encoder:2", "talking": "logits"},  # the last layer
            "--interacting-on 'encoder:2': encoder:2 also has talking",
        ),
        *(
            ({"evolving_on": "cross", "evolving_conv": conv}, f"--evolving-conv {conv!r}: must be a number in [0, 1]")
            for conv in ("1.5", "-0.1", "much", "encoder", "cross:0.1,cross:0.2", "self:0.1", "cross:x", "cross:2", "")
        ),
        ({"evolving_on": "encoder,cross", "evolving_conv": "cross:0.1"}, "--evolving-conv 'cross:0.1': encoder is"),
        ({"evolving_on": "encoder", "evolving_carry": 1.1}, "--evolving-carry 1.1: must be in [0, 1]"),
        ({"evolving_on": "encoder", "evolving_kernel": 4}, "--evolving-kernel 4: must be odd and at least 1"),
        ({"evolving_on": "encoder", "evolving_kernel": 0}, "--evolving-kernel 0: must be odd"),
        ({"decoder_attention_heads": 5}, "--decoder-attention-heads 5: must divide the width --decoder-embed-dim 24"),
        ({"encoder_attention_heads": 0}, "--encoder-attention-heads 0: must divide the width --encoder-embed-dim 24"),
        ({"encoder_attention_heads": 5, **ROBERTA}, "--encoder-attention-heads 5: must divide the width --encoder-em"),
        ({"encoder_attention_heads": 5, **T5}, "--encoder-attention-heads 5: must divide the width --encoder-emb"),
        ({"base_layers": 1}, "--base-layers: not supported by diverse_transformer"),
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config: not supported"),
        ({"decoder_xformers_att_config": "{}"}, "--decoder-xformers-att-config: not supported"),
        ({"syntax": "phrase", "syntax_on": "decoder"}, "--syntax-on 'decoder': syntax is defined on encoder only"),
        ({"syntax": "phrase", "phrase_limit": -1}, "--phrase-limit -1: must be at least 0"),
        ({"enliven": "prune", "enliven_on": "cross"}, "--enliven-on 'cross': enliven is defined on encoder only"),
        ({"enliven": "prune", "enliven_gate": "1.5"}, "--enliven-gate '1.5': must be dynamic or a number in (0, 1]"),
        ({"enliven": "prune", "enliven_gate": "0"}, "--enliven-gate '0': must be dynamic or a number in (0, 1]"),
        ({"enliven": "prune", "enliven_gate": "soft"}, "--enliven-gate 'soft': must be dynamic"),
        ({"enliven": "enliven"}, "--enliven-on 'encoder:1': encoder:1 has no mechanism to enliven its heads with"),
        ({"enliven": "prune", "relative_on": "encoder"}, "--enliven prune: encoder:1 has relative"),
        ({"evolving_on": "encoder,decoder", **ROBERTA}, "--evolving-on 'encoder,decoder': this model has no decoder"),
        ({"talking": "both", "talking_on": "cross", **ROBERTA}, "--talking-on 'cross': this model has no cross"),
        ({"syntax": "phrase", **ROBERTA}, "--syntax, --enliven: the sentences of a language model have no trees"),
        ({"gated": "head", "mha_heads_to_keep": 2, **ROBERTA}, "--mha-heads-to-keep: prunes fairseq's own heads;"),
        ({"t5_version": "2", **T5}, "--t5-version 2: allowed are 1.0 and 1.1"),
        ({"head_width": -1, **T5}, "--head-width -1: at least 1, or 0 for width / heads"),
        ({"decoder_embed_dim": 48, **T5}, "--decoder-embed-dim 48: T5 has one width, --encoder-embed-dim 24"),
        ({"layernorm_embedding": True, **T5}, "--layernorm-embedding: diverse_t5 has none; leave it out"),
        ({"gated_feed_forward": True, **T5}, "--gated-feed-forward: T5 1.0 has no gates; use --t5-version 1.1"),
        ({"position_bias_buckets": 7, **T5}, "--position-bias-buckets 7: must be even, from 4 to 1,024"),
        ({"position_bias_distance": 16, **T5}, "--position-bias-distance 16: must be above half of the 32 buckets"),
    ],
)
def test_refused_when_built(flags, message):
    assert message in refusal(build_model, flags)


def test_capsules_are_checked_against_the_width_of_their_attention():
    flags = {"routing": "em", "routing_on": "decoder", "routing_capsules": 32, "share_all_embeddings": False}
    model = build_model({**flags, "decoder_embed_dim": 32, "decoder_output_dim": 32})
    assert model.decoder.layers[0].self_attn.aggregate


@pytest.mark.parametrize("name", [name for name, mechanism in MECHANISMS.items() if mechanism.of_first])
def test_the_lowest_layer_of_a_placement_has_what_the_others_share(name):
    mechanism = MECHANISMS[name]
    keys = [*build_model(at(examples(name)[0], "decoder:2+3")).state_dict()]
    for parameter in mechanism.of_first:
        end = f".{mechanism.key}.{parameter}"
        assert [key for key in keys if key.endswith(end)] == [f"decoder.layers.1.self_attn{end}"]


@pytest.mark.parametrize(("given", "missing"), [("encoder", "decoder"), ("decoder", "encoder")])
def test_layers_to_keep_of_one_side_are_refused(given, missing):
    said = f"--model-overrides: without {missing}_layers_to_keep, fairseq drops all layers there; give it, too"
    assert said in refusal(build_model, {f"{given}_layers_to_keep": "0"})


@pytest.mark.parametrize("name", [name for name, mechanism in MECHANISMS.items() if "encoder" in mechanism.components])
def test_a_mechanism_without_a_kept_layer_is_off(name):
    keep = {"encoder_layers_to_keep": "1", "decoder_layers_to_keep": "0,1,2"}
    model = build_model({**at(examples(name)[0], "encoder:1"), **keep})
    assert all(module.is_plain for module in model.modules() if isinstance(module, StagedAttention))


KEPT = {"encoder": (1, 2), "decoder": (0, 2)}


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES])
def test_kept_layers_are_what_they_were(name, flags):
    flags = {**flags, "encoder_layers": 3, "decoder_layers": 3}
    keep = {f"{side}_layers_to_keep": ",".join(map(str, kept)) for side, kept in KEPT.items()}
    whole, pruned = trained_model(flags).eval(), build_model({**flags, **keep}).eval()
    pruned.load_state_dict(whole.state_dict(), model_cfg=Namespace(arch="diverse_transformer", **keep))
    for side, kept in KEPT.items():
        half = getattr(whole, side)
        first = half.layers[0].self_attn
        half.layers = nn.ModuleList([half.layers[number] for number in kept])
        for mechanism in (part for part in first.children() if getattr(part, "of_first", ())):  # it is for all layers
            setattr(half.layers[0].self_attn, mechanism.key, mechanism)
    with torch.no_grad():
        torch.testing.assert_close(pruned(**batch())[0], whole(**batch())[0])
