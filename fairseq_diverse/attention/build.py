"""The one place where a configured name becomes a module."""

from typing import Any

from fairseq_diverse.attention.mechanisms.evolving import EvolvingLogits
from fairseq_diverse.attention.mechanisms.mixing import TalkingHeads
from fairseq_diverse.attention.mechanisms.position import Localness, RelativePositions
from fairseq_diverse.attention.mechanisms.routing import RoutedAggregation
from fairseq_diverse.attention.mechanisms.syntax import DependencyMask, Enlivening, PhraseBias
from fairseq_diverse.attention.staged import StagedAttention
from fairseq_diverse.config import AttentionPlan


def build_attention(cfg: Any, plan: AttentionPlan, component: str, layer: int) -> StagedAttention:
    """The attention of one component at one layer, with what the plan puts there.

    Args:
        cfg: fairseq's ``TransformerConfig``.
        component: encoder, decoder or cross.
        layer: counted from 1 at the bottom.
    """
    side = cfg.encoder if component == "encoder" else cfg.decoder
    options: dict[str, Any] = {
        "self_attention": component != "cross",
        "encoder_decoder_attention": component == "cross",
    }
    if component == "cross":
        options |= {"kdim": cfg.encoder.embed_dim, "vdim": cfg.encoder.embed_dim}
    head_width = side.embed_dim // side.attention_heads
    key_width = head_width
    if width := plan.at("qk-head-dim", component, layer):
        key_width = options["key_width"] = width.kind
    if syntax := plan.at("syntax", component, layer):
        options["syntax"] = PhraseBias(key_width, syntax.limit) if syntax.kind == "phrase" else DependencyMask()
    if enliven := plan.at("enliven", component, layer):
        options["enlivening"] = Enlivening(enliven.kind == "prune", enliven.threshold)
    if relative := plan.at("relative", component, layer):
        options["relative"] = RelativePositions(key_width, head_width, relative.limit)
    if plan.at("localness", component, layer):
        options["localness"] = Localness(key_width)
    if talking := plan.at("talking", component, layer):
        options["talking"] = TalkingHeads(side.attention_heads, talking.kind)
    if evolving := plan.at("evolving", component, layer):
        carry, conv = evolving.carry if component == "encoder" else 0.0, evolving.conv_at(component)
        if carry or conv:  # without either it is the plain attention
            options["evolving"] = EvolvingLogits(side.attention_heads, component, carry, conv, evolving.kernel)
    if interacting := plan.at("interacting", component, layer):
        options["interacting"] = interacting.kind
    if routing := plan.at("routing", component, layer):
        options["aggregate"] = RoutedAggregation(
            side.embed_dim, side.attention_heads, routing.kind, routing.iterations, routing.capsules, routing.activation
        )
    return StagedAttention(
        side.embed_dim,
        side.attention_heads,
        dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
        **options,
    )
