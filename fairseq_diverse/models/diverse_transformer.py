"""The transformer with mechanisms in its attentions."""

import functools
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import torch
from fairseq.checkpoint_utils import prune_state_dict
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import BaseFairseqModel, register_model, transformer
from torch import Tensor, nn

from fairseq_diverse.attention.body import build_mechanisms
from fairseq_diverse.attention.plan import AttentionPlan, Component
from fairseq_diverse.attention.registry import MECHANISMS, add_flags, keep_layers, keep_names
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import NOTHING, UNMEASURED, Measurement, Requests, ResolvedRequest, as_tuple
from fairseq_diverse.host.graphs import GraphSteps, check_graph_steps
from fairseq_diverse.models import layers
from fairseq_diverse.models.attention import IncrementalState, Masks
from fairseq_diverse.models.extras import Extras, Loop
from fairseq_diverse.models.layers import DiverseDecoderLayer, DiverseEncoderLayer, wrap_layer
from fairseq_diverse.support.errors import UserError, exit_with

logger = logging.getLogger(__name__)

CRITERIONS_WITHOUT_MAPS = ("cross_entropy", "label_smoothed_cross_entropy")  # they do not read extra["attn"]


def components(cfg: Any) -> dict[str, Component]:
    both = getattr(cfg, "head_width", 0), getattr(cfg, "scaled_attention", True)
    sides = cfg.encoder, cfg.decoder
    encoder, decoder = (Component(side.layers, side.embed_dim, side.attention_heads, *both) for side in sides)
    cross = decoder._replace(layers=0) if cfg.no_cross_attention else decoder
    return {"encoder": encoder, "decoder": decoder, "cross": cross}


def layer_counts(cfg: Any) -> dict[str, int]:
    return {name: component.layers for name, component in components(cfg).items()}


def attentions_at(model: Any, component: str) -> list[Any]:
    """The attentions of a component, one a layer; None in a decoder without cross-attention."""
    layers = model.encoder.layers if component == "encoder" else model.decoder.layers
    return [layer.encoder_attn if component == "cross" else layer.self_attn for layer in layers]


def resolve(requests: Requests, sizes: Mapping[str, Component]) -> ResolvedRequest:
    """One or several requests, for a model with these components."""
    layers, heads = ({name: getattr(size, field) for name, size in sizes.items()} for field in ("layers", "heads"))
    resolved = [request.resolve(layers, heads) for request in as_tuple(requests)]
    return functools.reduce(ResolvedRequest.joined, resolved) if resolved else NOTHING


class DiverseEncoder(transformer.TransformerEncoderBase):
    """fairseq's encoder; its loop over the layers also collects the results of ``request``."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        self.plan, self.built = AttentionPlan(cfg, components(cfg)), 0  # both sides check the whole plan
        super().__init__(cfg, dictionary, embed_tokens)
        self.dropout_module.module_name = "TransformerEncoder"  # the name that --retain-dropout-modules expects

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        self.built += 1
        return wrap_layer(self.new_layer(cfg, self.plan, self.built), cfg)

    def new_layer(self, *args: Any) -> nn.Module:
        return DiverseEncoderLayer(*args)

    def max_positions(self) -> int:
        return min(super().max_positions(), self.plan.longest("encoder"))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        source_trees: Tensor | None = None,
        request: ResolvedRequest = NOTHING,
    ) -> dict[str, Any]:
        """As fairseq's encoder; the result also has ``extras``, what ``request`` asks for.

        Args:
            source_trees: (B, T, 5) integers, see ``relate``; ignored by a model without syntax.

        Raises:
            UserError: the model needs trees but none are given.
        """
        relations = None
        if self.plan.trees:
            if source_trees is None:
                kinds = " and ".join(self.plan.trees)
                todo = "add --task translation_with_syntax; for new text use fairseq-diverse translate"
                raise UserError(f"this model needs {kinds} trees of its source sentences; {todo}")
            relations = relate(source_trees, self.plan.trees)
        padding = src_tokens.eq(self.padding_idx)  # (B, T)
        has_pads = padding.any()
        key_padding = padding if has_pads else None  # fairseq's loop waits for a GPU to know it, at every layer
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x * (1 - padding.unsqueeze(-1).type_as(x) * has_pads.type_as(x))
        x = x.transpose(0, 1)  # (T, B, C)
        states, extras = [x] if return_all_hiddens else [], Extras.none()
        masks = Masks(x.dtype, key_padding)
        for layer in self.layers:
            measurement, carried = request.at("encoder", layer.number), extras.carried["encoder"]
            x, attentions = layer(x, key_padding, measurement, relations, carried, masks)
            extras.add("encoder", layer.number, attentions["encoder"])
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],  # (B, T, C)
            "encoder_states": states,
            "fc_results": [None] * max(0, len(states) - 1),
            "src_tokens": [],
            "src_lengths": [(~padding).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()],
            "extras": extras,
        }


class DiverseDecoder(transformer.TransformerDecoderBase):
    """fairseq's decoder; its loop over the layers also collects the results of ``request``."""

    keeping: Sequence[Any] = ()  # the modules that keep something between steps, once the model only translates

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding, no_encoder_attn: bool = False) -> None:
        self.plan, self.built = AttentionPlan(cfg, components(cfg)), 0  # both sides check the whole plan
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.dropout_module.module_name = "TransformerDecoder"
        self.criterion_reads_map = True  # extra["attn"], which fairseq's decoder always computes

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        self.built += 1
        return wrap_layer(self.new_layer(cfg, self.plan, self.built, no_encoder_attn), cfg)

    def new_layer(self, *args: Any) -> nn.Module:
        return DiverseDecoderLayer(*args)

    def max_positions(self) -> int:
        return min(super().max_positions(), self.plan.longest("decoder"))

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
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's decoder; ``options`` as for ``extract_features``."""
        x, extra = self.extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            **options,
        )
        return (x if features_only else self.output_layer(x)), extra

    def make_generation_fast_(self, **kwargs: Any) -> None:
        self.keeping = [module for module in self.modules() if hasattr(module, "reorder_incremental_state")]

    def reorder_incremental_state_scripting(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """As in fairseq, which looks for these modules at every step."""
        for module in self.keeping or self.modules():
            if hasattr(module, "reorder_incremental_state"):
                module.reorder_incremental_state(incremental_state, new_order)

    def extract_features(
        self, *inputs: Any, alignment_layer: int | None = None, request: ResolvedRequest = NOTHING, **options: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq; the second result also has ``extras``, what ``request`` asks for."""
        read = request.alignment and (self.criterion_reads_map or not self.training)
        map_needed = read or alignment_layer is not None
        extras, shared = Extras.none(), dict[str, Masks]()

        def run(layer: Any, x: Tensor, encoder_out: Any, padding: Any, state: Any, **named: Any) -> tuple[Any, ...]:
            self_masks = {name: named[name] for name in ("self_attn_padding_mask", "self_attn_mask")}
            if not shared:
                shared["decoder"], shared["cross"] = Masks(x.dtype, *self_masks.values()), Masks(x.dtype, padding)
            wanted: dict[str, Measurement] = {}
            if request is not NOTHING:
                wanted = {component: request.at(component, layer.number) for component in ("decoder", "cross")}
            measurements = wanted
            if named["need_attn"] and map_needed:
                measurements = wanted | {"cross": wanted.get("cross", UNMEASURED)._replace(weights=True)}
            more = self_masks | {"measurements": measurements, "carried": extras.carried, "masks": shared}
            # the state by name: a decoding step is not compiled
            x, attentions = layer(x, encoder_out, padding, incremental_state=state, **more)
            for component, output in attentions.items():
                extras.add(component, layer.number, output, component in wanted and wanted[component].weights)
            alignment = attentions["cross"].weights if "cross" in attentions else None
            return x, None if alignment is None else alignment.transpose(0, 1), None

        features: Any = transformer.TransformerDecoderBase.extract_features_scriptable
        x, extra = features(Loop(self, run), *inputs, alignment_layer=alignment_layer, **options)
        return x, {**extra, "extras": extras}


class DiverseModel(BaseFairseqModel):
    """What fairseq's models with mechanisms share: flags, warm start and refusals; put it before fairseq's model."""

    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    ignored_by = ""  # the criterion, if it does not read ``extra["losses"]``

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super().add_args(parser)
        add_flags(parser)
        layers.add_layer_flags(parser)

    @classmethod
    def from_pretrained(cls, *args: Any, **flags: Any) -> Any:
        """As in fairseq; also in a program that imports this package before fairseq, and so has not registered it."""
        import_module("fairseq_diverse").register()
        return super().from_pretrained(*args, **flags)

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
        for side in cls.sides:
            heads, width = getattr(args, f"{side}_attention_heads"), getattr(args, f"{side}_embed_dim")
            if heads < 1 or (width % heads and not getattr(args, "head_width", 0)):
                raise UserError(f"--{side}-attention-heads {heads}: must divide the width --{side}-embed-dim {width}")
        keep_names(args)
        keep_layers(args)
        given = [bool(getattr(args, f"{side}_layers_to_keep", None)) for side in cls.sides]
        if any(given) and not all(given):
            missing = f"{cls.sides[given.index(False)]}_layers_to_keep"
            raise UserError(f"--model-overrides: without {missing}, fairseq drops all layers there; give it, too")
        layers.check_compile_layers(args)
        check_graph_steps(args)
        cfg = transformer.TransformerConfig.from_namespace(args)
        return AttentionPlan(cfg, components(cfg))

    @classmethod
    def checked_plan(cls, args: Namespace) -> AttentionPlan:
        """As ``prepare``; also makes the mechanisms of each component, once where layers have the same, to see that
        their stages go together.

        Raises:
            UserError: as ``prepare`` and ``build_mechanisms``.
        """
        plan = cls.prepare(args)
        for component, sizes in plan.components.items():
            for layer in {tuple(plan.at(component, layer)): layer for layer in range(1, sizes.layers + 1)}.values():
                build_mechanisms(plan.at(component, layer), plan.shape(component, layer))
        return plan

    def finish(self, args: Namespace) -> None:
        """What depends on flags and is not in fairseq's ``build_model``: compiling, and who reads loss terms."""
        layers.compile_layers(self, args)
        self.graph_steps = GraphSteps(args) if getattr(args, "graph_steps", False) else None
        name = getattr(args, "criterion", None) or ""
        module = getattr(CRITERION_REGISTRY.get(name), "__module__", "")
        self.ignored_by = name if module.startswith(("fairseq.", "fairseq_diverse.")) else ""

    def warn_of_ignored(self, losses: Mapping[tuple[str, int], Tensor]) -> None:
        """Say, once in training, that the criterion ignores what mechanisms gave to ``add_loss``."""
        if losses and self.training and self.ignored_by:
            todo = 'docs/adding-a-mechanism.md, "A loss term", has one that adds them'
            logger.warning(f"--criterion {self.ignored_by} ignores the loss terms of mechanisms (add_loss); {todo}")
            self.ignored_by = ""

    def __prepare_scriptable__(self) -> None:
        raise UserError(f"{type(self).__name__}: TorchScript is not supported; use the model without it")

    def _first_layer_parameters(self, whole: Mapping[str, Tensor], pruned: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the first layer of a side has for all, where that layer was pruned: for the first one that is left."""
        ends = tuple(f".{cls.key}.{name}" for cls in MECHANISMS.values() for name in cls.of_first)
        first: dict[str, Tensor] = {}
        for key in (key for key in self.state_dict() if key.endswith(ends) and key not in pruned):
            side, *_, mechanism, name = key.split(".")
            keys = [k for k in whole if k.startswith(f"{side}.") and k.endswith(f".{mechanism}.{name}")]
            first |= {key: whole[keys[0]]} if keys else {}
        return first

    def load_state_dict(self, state_dict: Any, strict: bool = True, model_cfg: Any = None, args: Any = None) -> Any:
        """As in fairseq, but layers are pruned before a warm start compares their names.

        A moving average (--store-ema) has no versions. fairseq would take it for a model of the time before versions,
        and drop its last layer norms.
        """
        pruned = prune_state_dict(state_dict, model_cfg if model_cfg is not None else args)
        if pruned is not state_dict:
            pruned |= self._first_layer_parameters(state_dict, pruned)
        if not strict:
            pruned = {key: value for key, value in self.state_dict().items() if key.endswith(".version")} | {**pruned}
        return super().load_state_dict(pruned, strict, model_cfg, args)


@register_model("diverse_transformer")
class DiverseTransformerModel(DiverseModel, transformer.TransformerModel):
    """fairseq's ``transformer`` with mechanisms at any attention and layer; with all off, it is fairseq's model."""

    encoder_class: ClassVar[type[DiverseEncoder]] = DiverseEncoder
    decoder_class: ClassVar[type[DiverseDecoder]] = DiverseDecoder

    @classmethod
    def prepare(cls, args: Namespace) -> AttentionPlan:
        replaced = ("base-layers", "cross-self-attention", "encoder-xformers-att-config", "decoder-xformers-att-config")
        for flag in replaced:
            if getattr(args, flag.replace("-", "_"), False):
                raise UserError(f"--{flag}: not supported by diverse_transformer; use --arch transformer")
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
        return cls.encoder_class(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> DiverseDecoder:
        return cls.decoder_class(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        *,
        source_trees: Tensor | None = None,
        attention_request: Requests = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's model, with ``source_trees`` as in ``DiverseEncoder``, and ``options`` as for the decoder.

        The second result, a dictionary, also has

        - ``redundant``: ``{layer: (B, H)}`` from the encoder, True at redundant heads;
        - ``losses``: ``{(component, layer): ()}``, the sum of ``add_loss`` values, for layers that ran;
        - ``inside``, on request: ``{(component, layer): (head outputs, plain weights)}``;
        - ``agreement``, on request: (K,) float32, one value per term: the mean over measured layers that ran, then over
          components (0 if LayerDrop dropped all);
        - ``maps``, on request: ``{(component, layer): (H, B, T, S)}``.
        """
        request = resolve(attention_request, components(self.cfg))
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens, None, source_trees, request)
        x, extra = self.decoder(
            prev_output_tokens,
            encoder_out,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            request=request,
            **options,
        )
        extra |= (extra.pop("extras") | encoder_out["extras"]).results(request, x)
        self.warn_of_ignored(extra["losses"])
        return x, extra
