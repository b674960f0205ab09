"""A mechanism is exactly on the attentions of its placement."""

import pytest

from fairseq_diverse.support.errors import UserError
from tests.cases import build_model


def routed(flags):
    return {n.removesuffix(".aggregate") for n, _ in build_model(flags).named_modules() if n.endswith("aggregate")}


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
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config: not supported"),
        ({"decoder_xformers_att_config": "{}"}, "--decoder-xformers-att-config: not supported"),
    ],
)
def test_refused_when_built(flags, message):
    with pytest.raises(UserError) as error:
        build_model(flags)
    assert message in str(error.value)


def test_capsules_are_checked_against_the_width_of_their_attention():
    flags = {"routing": "em", "routing_on": "decoder", "routing_capsules": 32, "share_all_embeddings": False}
    model = build_model({**flags, "decoder_embed_dim": 32, "decoder_output_dim": 32})
    assert model.decoder.layers[0].self_attn.aggregate
