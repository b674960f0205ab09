"""fairseq's Transformer layers with ``StagedAttention``; every value that passes between layers is returned."""

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from fairseq_diverse.attention.body import AttentionOutput
from fairseq_diverse.attention.plan import AttentionPlan
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.attention.request import UNMEASURED, Measurement
from fairseq_diverse.models.attention import NO_CARRY, IncrementalState, Masks, StagedAttention
from fairseq_diverse.support.errors import UserError

RECOMPILE_LIMIT = 64  # of one kind of layer: by mechanisms, mode, padding, what is measured


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Activation checkpointing and FSDP around a layer, as in fairseq."""
    if cfg.checkpoint_activations:
        layer.forward = functools.partial(_recomputed, layer.forward)
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        layer.forward = functools.partial(_checkpointed, layer, layer.forward)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def _checkpointed(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A checkpointed layer. fairseq keeps the gradients of single tensors only, not of those in a tuple or dictionary,
    and none of parameters where no input has one; it recomputes without autocast: in float32, where kernels drop other
    weights."""
    state, kind = kwargs.get("incremental_state"), args[0].device.type  # the state is changed in place
    leaves, structure = tree_flatten((args, kwargs), is_leaf=lambda part: part is state)
    autocast = (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    above_frozen = not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
    if torch.is_grad_enabled() and above_frozen and any(weight.requires_grad for weight in layer.parameters()):
        leaves[0] = args[0].detach().requires_grad_()
    *results, result_structure = forward(*leaves, structure=structure, autocast=autocast)
    return tree_unflatten(results, result_structure)


def _recomputed(forward: Callable[..., Any], *leaves: Any, structure: Any, autocast: Any) -> tuple[Any, ...]:
    args, kwargs = tree_unflatten(leaves, structure)
    with nullcontext() if autocast is None else torch.autocast(*autocast):
        results, result_structure = tree_flatten(forward(*args, **kwargs))
    return *results, result_structure


FLAGS = {
    "--compile-layers": "compile every layer with torch.compile, except in decoding",
    "--recompute-maps": "compute the maps of attentions again in the backward pass, instead of keeping them",
    "--graph-steps": "on a GPU, capture each training step as a CUDA graph; with --num-batch-buckets",
    "--gated-feed-forward": "a gate in every feed-forward network: W_2 (f(W_1 x) * V x), f the --activation-fn",
}


def add_layer_flags(parser: Any) -> None:
    for flag, text in FLAGS.items():
        parser.add_argument(flag, action="store_true", help=f"{text} (default: no)")


# On a CPU, inductor's layouts of convolutions (torch 2.13) fail on lengths that vary: "cannot determine truth value".
OPTIONS: dict[str, Any] = {"layout_optimization": False}


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` through torch.compile, for tensors of any length; equal layers share what is compiled."""
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT  # torch.compile's own argument came after torch 2.11
    return torch.compile(function, dynamic=True, options=OPTIONS)


class DiverseLayer:
    """What both kinds of layers share; put it before fairseq's layer.

    ``run`` is compiled while ``compiles`` is set: with --compile-layers, until the model decodes. The module is not
    wrapped: its ``state_dict`` is the same, and activation checkpointing is around what is compiled.

    Args:
        cfg: fairseq's ``TransformerConfig``.
        plan: placement of the mechanisms.
        number: index of this layer, from 1 at the bottom.
        more: as in fairseq's layer.
    """

    compiles = False
    run: Callable[..., Any]
    base: str  # fairseq's class, the name that --retain-dropout-modules expects
    dropout_module: Any
    activation_dropout_module: Any

    def __init__(self, cfg: Any, plan: AttentionPlan, number: int, *more: Any) -> None:
        self.plan, self.number = plan, number
        self.gated_feed_forward = getattr(cfg, "gated_feed_forward", False)
        super().__init__(cfg, *more)  # type: ignore[call-arg]
        self.dropout_module.module_name = self.activation_dropout_module.module_name = self.base

    def build_fc1(self, input_dim: int, output_dim: int, *more: Any) -> nn.Module:
        """As in fairseq; W_1 and V are one matrix."""
        return super().build_fc1(input_dim, output_dim * (1 + self.gated_feed_forward), *more)  # type: ignore[misc]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As ``run``; a step of incremental decoding is not compiled."""
        if not self.compiles or kwargs.get("incremental_state") is not None:
            return self.run(*args, **kwargs)
        # views, such as the first layer's transposed input, would be compiled for themselves
        args, kwargs = tree_map_only(Tensor, Tensor.contiguous, (args, kwargs))
        return compiled(type(self).run)(self, *args, **kwargs)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        self.compiles = False
        getattr(super(), "make_generation_fast_", lambda **kwargs: None)(**kwargs)


def check_compile_layers(args: Any) -> None:
    """Raise ``UserError`` where another flag does not work with --compile-layers."""
    on = getattr(args, "compile_layers", False)
    for flag in ("quant_noise_pq", "quant_noise_scalar"):
        if on and getattr(args, flag, 0):
            name = flag.replace("_", "-")
            raise UserError(f"--compile-layers: does not work with --{name}, which changes weights in a forward pass")
    if on and getattr(args, "recompute_maps", False):
        raise UserError("--compile-layers: does not work with --recompute-maps; leave one of them out")
    if on and getattr(args, "ddp_backend", "") == "fully_sharded":
        raise UserError("--compile-layers: does not work with --ddp-backend fully_sharded; use legacy_ddp")


def compile_layers(model: nn.Module, args: Any) -> None:
    """Let the layers compile if ``args`` have --compile-layers, and stop them if not; likewise --recompute-maps."""
    for layer in model.modules():
        if isinstance(layer, DiverseLayer):
            layer.compiles = getattr(args, "compile_layers", False)
        elif isinstance(layer, StagedAttention):
            layer.recomputes_maps = getattr(args, "recompute_maps", False)


def build_attention(cfg: Any, plan: AttentionPlan, component: str, layer: int) -> StagedAttention:
    """The attention of one component at one layer, with its mechanisms.

    Args:
        cfg: fairseq's ``TransformerConfig``.
        component: encoder, decoder or cross.
        layer: from 1 at the bottom.
    """
    side = cfg.encoder if component == "encoder" else cfg.decoder
    size, cross = (side.embed_dim, side.attention_heads), component == "cross"
    placed, shape = plan.at(component, layer), plan.shape(component, layer)
    options: dict[str, Any] = {"self_attention": not cross, "encoder_decoder_attention": cross}
    options |= dict.fromkeys(("kdim", "vdim"), cfg.encoder.embed_dim if cross else None)
    options |= {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
    return StagedAttention(*size, placed=placed, shape=shape, dropout=cfg.attention_dropout, **options)


def attend(
    layer: Any, attention: StagedAttention, norm: nn.Module, x: Tensor, source: Tensor | None, *options: Any
) -> tuple[Tensor, AttentionOutput]:
    """An attention of a layer, with its layer norm and residual connection; without a source, to itself."""
    query = norm(x) if layer.normalize_before else x
    source = query if source is None else source
    attended = attention.attend(query, source, source, *options)
    x = layer.residual_connection(layer.dropout_module(attended.value), x)
    return (x if layer.normalize_before else norm(x)), AttentionOutput(None, *attended[1:])


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """The feed-forward network of a layer, likewise; with --gated-feed-forward W_2 (f(W_1 x) * V x), f the activation.

    Source: Shazeer (2020), "GLU variants improve Transformer", Eq. 6.
    """
    inner = layer.fc1(layer.final_layer_norm(x) if layer.normalize_before else x)
    if layer.gated_feed_forward:
        gate, inner = inner.chunk(2, -1)
        inner = layer.activation_fn(gate) * inner
    else:
        inner = layer.activation_fn(inner)
    inner = layer.fc2(layer.activation_dropout_module(inner))
    x = layer.residual_connection(layer.dropout_module(inner), x)
    return x if layer.normalize_before else layer.final_layer_norm(x)


# (T, B, C), and by component what its attention returned, without ``value``
LayerOutput = tuple[Tensor, dict[str, AttentionOutput]]


class DiverseEncoderLayer(DiverseLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer with a staged self-attention."""

    base = "TransformerEncoderLayerBase"

    def build_self_attention(self, embed_dim: int, cfg: Any) -> StagedAttention:
        return build_attention(cfg, self.plan, "encoder", self.number)

    def run(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        measurement: Measurement = UNMEASURED,
        relations: Relations | None = None,
        carried: Mapping[str, Tensor] = NO_CARRY,
        masks: Masks | None = None,
    ) -> LayerOutput:
        """One layer; ``measurement`` and the later arguments as in ``StagedAttention.attend``."""
        pads, measuring = encoder_padding_mask, (measurement, relations, carried, masks)
        arguments = x, None, pads, None, None, pads, *measuring
        x, attended = attend(self, self.self_attn, self.self_attn_layer_norm, *arguments)
        return feed_forward(self, x), {"encoder": attended}


class DiverseDecoderLayer(DiverseLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer with staged self- and cross-attention; the last argument, ``no_encoder_attn``, leaves the
    cross-attention out."""

    base = "TransformerDecoderLayerBase"

    def build_self_attention(self, embed_dim: int, cfg: Any, **unused: bool) -> StagedAttention:
        return build_attention(cfg, self.plan, "decoder", self.number)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> StagedAttention:
        return build_attention(cfg, self.plan, "cross", self.number)

    def run(
        self,
        x: Tensor,
        encoder_out: Tensor | None,
        encoder_padding_mask: Tensor | None,
        incremental_state: IncrementalState | None,
        self_attn_mask: Tensor | None,
        self_attn_padding_mask: Tensor | None,
        measurements: Mapping[str, Measurement] = {},
        carried: Mapping[str, Mapping[str, Tensor]] = {},
        masks: Mapping[str, Masks] = {},
    ) -> LayerOutput:
        """One layer; measurements, masks and what is carried by component, else as in fairseq."""
        pads, state = self_attn_padding_mask, incremental_state
        itself, source = (
            (measurements.get(name, UNMEASURED), None, carried.get(name, NO_CARRY), masks.get(name))
            for name in ("decoder", "cross")
        )
        arguments: Any = x, None, pads, state, self_attn_mask, pads, *itself
        x, attended = attend(self, self.self_attn, self.self_attn_layer_norm, *arguments)
        attentions = {"decoder": attended}
        if self.encoder_attn is not None and encoder_out is not None:
            arguments = x, encoder_out, encoder_padding_mask, state, None, pads, *source
            x, attentions["cross"] = attend(self, self.encoder_attn, self.encoder_attn_layer_norm, *arguments)
        return feed_forward(self, x), attentions
