"""The transformer with mechanisms in its attentions."""

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from fairseq.checkpoint_utils import prune_state_dict
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import BaseFairseqModel, register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
)
from torch import Tensor, nn

from fairseq_diverse.attention.fairseq_attention import IncrementalState
from fairseq_diverse.attention.plan import AttentionPlan, Component
from fairseq_diverse.attention.registry import add_flags, keep_layers, keep_names
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import NOTHING, AttentionRequest, ResolvedRequest
from fairseq_diverse.models.layers import (
    DecoderLayerOutput,
    DiverseDecoderLayer,
    DiverseEncoderLayer,
    EncoderLayerOutput,
    add_layer_flags,
    check_compile_layers,
    compile_layers,
    wrap_layer,
)
from fairseq_diverse.support.errors import UserError, exit_with

logger = logging.getLogger(__name__)

CRITERIONS_WITHOUT_MAPS = ("cross_entropy", "label_smoothed_cross_entropy")  # they do not read extra["attn"]

AttentionMaps = dict[tuple[str, int], Tensor]
Inside = dict[tuple[str, int], tuple[Tensor, Tensor]]  # head outputs (B, H, T, D), plain weights (B, H, T, S)


def layer_counts(cfg: Any) -> dict[str, int]:
    """Number of layers of each component."""
    return {
        "encoder": cfg.encoder.layers,
        "decoder": cfg.decoder.layers,
        "cross": 0 if cfg.no_cross_attention else cfg.decoder.layers,
    }


def attentions_at(model: Any, component: str) -> list[Any]:
    """The attentions of a component, one a layer; None in a decoder without cross-attention."""
    layers = model.encoder.layers if component == "encoder" else model.decoder.layers
    return [layer.encoder_attn if component == "cross" else layer.self_attn for layer in layers]


def attention_heads(cfg: Any) -> dict[str, int]:
    """Number of heads of each component's attentions."""
    return {
        "encoder": cfg.encoder.attention_heads,
        "decoder": cfg.decoder.attention_heads,
        "cross": cfg.decoder.attention_heads,
    }


def make_plan(cfg: Any) -> AttentionPlan:
    """The plan of a whole model; encoder and decoder both check the whole plan."""
    layers, heads = layer_counts(cfg), attention_heads(cfg)
    widths = {"encoder": cfg.encoder.embed_dim, "decoder": cfg.decoder.embed_dim, "cross": cfg.decoder.embed_dim}
    return AttentionPlan(cfg, {name: Component(layers[name], widths[name], heads[name]) for name in layers})


def check_heads(args: Any, sides: Sequence[str] = ("encoder", "decoder")) -> None:
    """Raise ``UserError`` if a number of heads does not divide its width."""
    for side in sides:
        heads, width = getattr(args, f"{side}_attention_heads"), getattr(args, f"{side}_embed_dim")
        if heads < 1 or width % heads:
            raise UserError(f"--{side}-attention-heads {heads}: must divide the width --{side}-embed-dim {width}")


def mean_agreement(measured: Sequence[list[Tensor]], request: ResolvedRequest, like: Tensor) -> Tensor:
    """(K,) the agreement by term: mean over the layers of each component that ran, then over components.

    Args:
        measured: (K,) values of the layers, by component.
        request: gives the terms; if no layer was measured, every term is 0.
    """
    components = [torch.stack(layers).mean(0) for layers in measured if layers]
    return torch.stack(components).mean(0) if components else torch.zeros(len(request.terms), device=like.device)


class DiverseEncoder(TransformerEncoderBase):
    """fairseq's encoder; its loop over the layers also collects the results of ``request``."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        self.plan = make_plan(cfg)
        self.built = 0
        super().__init__(cfg, dictionary, embed_tokens)
        self.dropout_module.module_name = "TransformerEncoder"  # the name that --retain-dropout-modules expects

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        self.built += 1
        return wrap_layer(DiverseEncoderLayer(cfg, self.plan, self.built), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        source_trees: Tensor | None = None,
        request: ResolvedRequest = NOTHING,
    ) -> dict[str, Any]:
        """As fairseq's encoder.

        The result also has ``agreement`` (one (K,) tensor per measured layer), ``maps``, ``inside``, ``losses``, and
        ``redundant`` (with --enliven: layer -> (B, H), True at redundant heads).

        Args:
            source_trees: (B, T, 5) integers, see ``relate``; ignored by a model without syntax.

        Raises:
            UserError: the model needs trees but none are given.
        """
        relations = None
        if self.plan.trees:
            if source_trees is None:
                raise UserError(
                    f"this model needs {' and '.join(self.plan.trees)} trees of its source sentences; add --task "
                    "translation_with_syntax; for new text use fairseq-diverse translate"
                )
            relations = relate(source_trees, self.plan.trees)
        padding = src_tokens.eq(self.padding_idx)  # (B, T)
        has_pads = padding.any()
        key_padding = padding if has_pads else None
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x * (1 - padding.unsqueeze(-1).type_as(x) * has_pads.type_as(x))
        x = x.transpose(0, 1)  # (T, B, C)

        states = [x] if return_all_hiddens else []
        agreement: list[Tensor] = []
        maps: AttentionMaps = {}
        redundant: dict[int, Tensor] = {}
        inside: Inside = {}
        losses: dict[tuple[str, int], Tensor] = {}
        carry = None
        for layer in self.layers:
            out = EncoderLayerOutput(
                *layer(
                    x,
                    encoder_padding_mask=key_padding,
                    terms=request.terms_at("encoder", layer.number),
                    need_head_weights=request.wants_weights("encoder", layer.number),
                    relations=relations,
                    previous=carry,
                    inside=request.wants_inside("encoder", layer.number),
                )
            )
            x = out.x
            carry = carry if out.carry is None else out.carry
            if return_all_hiddens:
                states.append(x)
            if out.agreement is not None:
                agreement.append(out.agreement)
            if out.weights is not None:
                maps["encoder", layer.number] = out.weights
            if out.redundant is not None:
                redundant[layer.number] = out.redundant
            if out.heads is not None and out.plain_weights is not None:
                inside["encoder", layer.number] = out.heads, out.plain_weights
            if out.loss is not None:
                losses["encoder", layer.number] = out.loss
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],  # (T, B, C)
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],  # (B, T, C)
            "encoder_states": states,
            "fc_results": [None] * max(0, len(states) - 1),
            "src_tokens": [],
            "src_lengths": [(~padding).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()],
            "agreement": agreement,
            "maps": maps,
            "redundant": redundant,
            "inside": inside,
            "losses": losses,
        }


class DiverseDecoder(TransformerDecoderBase):
    """fairseq's decoder; its loop over the layers also collects the results of ``request``."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding, no_encoder_attn: bool = False) -> None:
        self.plan = make_plan(cfg)
        self.built = 0
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.dropout_module.module_name = "TransformerDecoder"
        self.criterion_reads_map = True  # extra["attn"], which fairseq's decoder always computes

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        self.built += 1
        return wrap_layer(DiverseDecoderLayer(cfg, self.plan, self.built, no_encoder_attn), cfg)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Mapping[str, Any] | None = None,
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        src_lengths: Any = None,
        return_all_hiddens: bool = False,
        request: ResolvedRequest = NOTHING,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's decoder; the second result also has ``agreement``, ``maps``, ``inside`` and ``losses``
        (see ``DiverseEncoder``)."""
        x, extra = self.extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
            request,
        )
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Mapping[str, Any] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        request: ResolvedRequest = NOTHING,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq, without TorchScript support."""
        encoded = padding = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            encoded = encoder_out["encoder_out"][0]
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            padding = encoder_out["encoder_padding_mask"][0]

        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(prev_output_tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)  # (T, B, C)

        pads = prev_output_tokens.eq(self.padding_idx)
        target_padding = pads if pads.any() else None
        causal = incremental_state is None and not full_context_alignment
        future = self.buffered_future_mask(x) if causal else None

        read = request.alignment and (self.criterion_reads_map or not self.training)
        map_needed = read or alignment_layer is not None
        attn = None
        states = [x]
        agreement: dict[str, list[Tensor]] = {"decoder": [], "cross": []}
        maps: AttentionMaps = {}
        inside: Inside = {}
        losses: dict[tuple[str, int], Tensor] = {}
        carry = cross_carry = None
        for index, layer in enumerate(self.layers):
            aligned = index == (self.num_layers - 1 if alignment_layer is None else alignment_layer)
            out = DecoderLayerOutput(
                *layer(
                    x,
                    encoded,
                    padding,
                    incremental_state=incremental_state,
                    self_attn_mask=future,
                    self_attn_padding_mask=target_padding,
                    need_attn=aligned,
                    map_needed=map_needed,
                    cross_terms=request.terms_at("cross", layer.number),
                    decoder_terms=request.terms_at("decoder", layer.number),
                    need_cross_weights=request.wants_weights("cross", layer.number),
                    need_decoder_weights=request.wants_weights("decoder", layer.number),
                    inside_cross=request.wants_inside("cross", layer.number),
                    inside_decoder=request.wants_inside("decoder", layer.number),
                    previous_cross=cross_carry,
                    previous_decoder=carry,
                )
            )
            x = out.x
            carry = carry if out.decoder_carry is None else out.decoder_carry
            cross_carry = cross_carry if out.cross_carry is None else out.cross_carry
            states.append(x)
            if aligned and out.cross_weights is not None:
                attn = out.cross_weights.float().to(x)[:alignment_heads].mean(dim=0)
            of_decoder = out.decoder_weights, out.decoder_heads, out.decoder_plain_weights, out.decoder_loss
            of_cross = out.cross_weights, out.cross_heads, out.cross_plain_weights, out.cross_loss
            for component, figures, (weights, heads, plain, loss) in (
                ("decoder", out.decoder_agreement, of_decoder),
                ("cross", out.cross_agreement, of_cross),
            ):
                if figures is not None:
                    agreement[component].append(figures)
                if weights is not None and request.wants_weights(component, layer.number):
                    maps[component, layer.number] = weights
                if heads is not None and plain is not None:
                    inside[component, layer.number] = heads, plain
                if loss is not None:
                    losses[component, layer.number] = loss

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # (B, T, C)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        extra = {"agreement": agreement, "maps": maps, "inside": inside, "losses": losses}
        return x, {"attn": [attn], "inner_states": states, **extra}


class DiverseModel(BaseFairseqModel):
    """What fairseq's models with mechanisms share: flags, warm start and refusals; put it before fairseq's model."""

    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    ignored_by = ""  # the criterion, if it does not read ``extra["losses"]``

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super().add_args(parser)
        add_flags(parser)
        add_layer_flags(parser)

    @classmethod
    def prepare(cls, args: Namespace) -> AttentionPlan:
        """Check the arguments of a model before it is built, and let placements follow ``--*-layers-to-keep``.

        Returns:
            Where the model has mechanisms.

        Raises:
            UserError: a flag or a combination that does not fit the model.
        """
        if not isinstance(args, Namespace):
            exit_with(f"fairseq-hydra-train ignores misspelt flags of {cls.__name__}; use fairseq-train")
        if "decoder" not in cls.sides:
            args.decoder_layers, args.no_cross_attention = 0, True
        check_heads(args, cls.sides)
        keep_names(args)
        keep_layers(args)
        check_compile_layers(args)
        return make_plan(TransformerConfig.from_namespace(args))

    def finish(self, args: Namespace) -> None:
        """What depends on flags and is not in fairseq's ``build_model``: compiling, and who reads loss terms."""
        compile_layers(self, args)
        name = getattr(args, "criterion", None) or ""
        module = getattr(CRITERION_REGISTRY.get(name), "__module__", "")
        self.ignored_by = name if module.startswith(("fairseq.", "fairseq_diverse.")) else ""

    def warn_of_ignored(self, losses: Mapping[tuple[str, int], Tensor]) -> None:
        """Say, once in training, that the criterion ignores what mechanisms gave to ``add_loss``."""
        if losses and self.training and self.ignored_by:
            logger.warning(
                f"--criterion {self.ignored_by} ignores the loss terms of mechanisms (add_loss); "
                'docs/adding-a-mechanism.md, "A loss term", has one that adds them'
            )
            self.ignored_by = ""

    def __prepare_scriptable__(self) -> None:
        raise UserError(f"{type(self).__name__}: TorchScript is not supported; use the model without it")

    def load_state_dict(self, state_dict: Any, strict: bool = True, model_cfg: Any = None, args: Any = None) -> Any:
        """As in fairseq, but layers are pruned before a warm start compares their names.

        A moving average (--store-ema) has no versions; fairseq would take it for a model of before they were kept, and
        drop its last layer norms.
        """
        pruned = prune_state_dict(state_dict, model_cfg if model_cfg is not None else args)
        if not strict:
            own = {key: value for key, value in self.state_dict().items() if key.endswith(".version")}
            pruned = {**own, **pruned}
        return super().load_state_dict(pruned, strict, model_cfg, args)


@register_model("diverse_transformer")
class DiverseTransformerModel(DiverseModel, TransformerModel):
    """fairseq's ``transformer`` with mechanisms at any attention and layer; with all off, it is fairseq's model."""

    @classmethod
    def prepare(cls, args: Namespace) -> AttentionPlan:
        replaced = ("base_layers", "cross_self_attention", "encoder_xformers_att_config", "decoder_xformers_att_config")
        for flag in replaced:
            if getattr(args, flag, False):
                raise UserError(
                    f"--{flag.replace('_', '-')}: not supported by diverse_transformer; use --arch transformer"
                )
        return super().prepare(args)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "DiverseTransformerModel":
        cls.prepare(args)
        model = super().build_model(args, task)
        model.finish(args)
        model.decoder.criterion_reads_map = getattr(args, "criterion", None) not in CRITERIONS_WITHOUT_MAPS
        return model

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: nn.Embedding) -> DiverseEncoder:
        return DiverseEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> DiverseDecoder:
        return DiverseDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        source_trees: Tensor | None = None,
        attention_request: AttentionRequest | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's model, with ``source_trees`` as in ``DiverseEncoder``.

        The second result, a dictionary, also has

        - ``redundant``: ``{layer: (B, H)}`` from the encoder, True at redundant heads;
        - ``losses``: ``{(component, layer): ()}``, the sum of ``add_loss`` values, for layers that ran;
        - ``inside``, on request: ``{(component, layer): (head outputs, plain weights)}``;
        - ``agreement``, on request: (K,) float32, one value per term: the mean over measured layers that ran, then over
          components (0 if LayerDrop dropped all);
        - ``maps``, on request: ``{(component, layer): (H, B, T, S)}``.
        """
        request = NOTHING
        if attention_request is not None:
            request = attention_request.resolve(layer_counts(self.cfg), attention_heads(self.cfg))
        encoder_out = self.encoder(
            src_tokens,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
            source_trees=source_trees,
            request=request,
        )
        x, extra = self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
            request=request,
        )
        extra["agreement"] = mean_agreement([encoder_out["agreement"], *extra["agreement"].values()], request, x)
        extra["redundant"] = encoder_out["redundant"]
        for name in ("maps", "inside", "losses"):
            extra[name] |= encoder_out[name]
        self.warn_of_ignored(extra["losses"])
        return x, extra
