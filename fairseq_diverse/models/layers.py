"""fairseq's Transformer layers with ``StagedAttention``; every value that passes between layers is returned."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_diverse.attention.fairseq_attention import AttentionOutput, IncrementalState, StagedAttention
from fairseq_diverse.attention.plan import AttentionPlan
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.support.errors import UserError

RECOMPILE_LIMIT = 64  # of one kind of layer: by mechanisms, mode, padding, what is asked for


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Activation checkpointing and FSDP around a layer, as in fairseq."""
    if cfg.checkpoint_activations:
        layer.forward = functools.partial(_in_autocast, layer.forward)
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        layer.forward = functools.partial(_keeping_autocast, layer.forward)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def _keeping_autocast(forward: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A checkpointed layer, which fairseq recomputes without autocast: in float32, where kernels drop other weights."""
    kind = x.device.type
    autocast = (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    return forward(x, *args, autocast=autocast, **kwargs)


def _in_autocast(forward: Callable[..., Any], *args: Any, autocast: Any = None, **kwargs: Any) -> Any:
    if autocast is None:
        return forward(*args, **kwargs)
    with torch.autocast(*autocast):
        return forward(*args, **kwargs)


def add_layer_flags(parser: Any) -> None:
    """Add the flags of both kinds of layers."""
    parser.add_argument(
        "--compile-layers",
        action="store_true",
        help="compile every layer with torch.compile, except in decoding (default: no)",
    )


# On a CPU, inductor's layouts of convolutions (torch 2.13) fail on lengths that vary: "cannot determine truth value".
OPTIONS: dict[str, Any] = {"layout_optimization": False}


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` through torch.compile, for tensors of any length; equal layers share what is compiled."""
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT  # torch.compile's own argument came after torch 2.11
    return torch.compile(function, dynamic=True, options=OPTIONS)


def _contiguous(value: Any) -> Any:
    return value.contiguous() if isinstance(value, Tensor) else value


class CompiledLayer:
    """A layer whose ``run`` is compiled while ``compiles`` is set: with --compile-layers, until the model decodes.

    The module is not wrapped: its ``state_dict`` is the same, and activation checkpointing is around what is compiled.
    """

    compiles = False
    run: Callable[..., Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As ``run``; a step of incremental decoding is not compiled."""
        if not self.compiles or kwargs.get("incremental_state") is not None:
            return self.run(*args, **kwargs)
        # views, such as the first layer's transposed input, would be compiled for themselves
        named = {name: _contiguous(value) for name, value in kwargs.items()}
        return compiled(type(self).run)(self, *map(_contiguous, args), **named)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """As in fairseq, before translating."""
        self.compiles = False
        getattr(super(), "make_generation_fast_", lambda **kwargs: None)(**kwargs)


def check_compile_layers(args: Any) -> None:
    """Raise ``UserError`` where another flag does not work with --compile-layers."""
    on = getattr(args, "compile_layers", False)
    for flag in ("quant_noise_pq", "quant_noise_scalar"):
        if on and getattr(args, flag, 0):
            name = flag.replace("_", "-")
            raise UserError(f"--compile-layers: does not work with --{name}, which changes weights in a forward pass")
    if on and getattr(args, "ddp_backend", "") == "fully_sharded":
        raise UserError("--compile-layers: does not work with --ddp-backend fully_sharded; use legacy_ddp")


def compile_layers(model: nn.Module, args: Any) -> None:
    """Let the layers compile if ``args`` have --compile-layers, and stop them if not."""
    for layer in model.modules():
        if isinstance(layer, CompiledLayer):
            layer.compiles = getattr(args, "compile_layers", False)


def build_attention(cfg: Any, plan: AttentionPlan, component: str, layer: int) -> StagedAttention:
    """The attention of one component at one layer, with its mechanisms.

    Args:
        cfg: fairseq's ``TransformerConfig``.
        component: encoder, decoder or cross.
        layer: from 1 at the bottom.
    """
    side = cfg.encoder if component == "encoder" else cfg.decoder
    cross = component == "cross"
    return StagedAttention(
        side.embed_dim,
        side.attention_heads,
        placed=plan.at(component, layer),
        component=component,
        layer=layer,
        kdim=cfg.encoder.embed_dim if cross else None,
        vdim=cfg.encoder.embed_dim if cross else None,
        dropout=cfg.attention_dropout,
        self_attention=not cross,
        encoder_decoder_attention=cross,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
    )


def attend_to_itself(layer: Any, x: Tensor, padding: Tensor | None, **options: Any) -> tuple[Tensor, AttentionOutput]:
    """The first part of either layer: self-attention, residual connection and its layer norm."""
    residual = x
    if layer.normalize_before:
        x = layer.self_attn_layer_norm(x)
    attended = layer.self_attn.attend(
        x, x, x, key_padding_mask=padding, query_padding_mask=padding, need_weights=False, **options
    )
    x = layer.residual_connection(layer.dropout_module(attended.value), residual)
    return (x if layer.normalize_before else layer.self_attn_layer_norm(x)), attended


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """The last part of either layer: feed-forward network, residual connection and its layer norm."""
    residual = x
    if layer.normalize_before:
        x = layer.final_layer_norm(x)
    x = layer.fc2(layer.activation_dropout_module(layer.activation_fn(layer.fc1(x))))
    x = layer.residual_connection(layer.dropout_module(x), residual)
    return x if layer.normalize_before else layer.final_layer_norm(x)


class EncoderLayerOutput(NamedTuple):
    """Top-level tensors only: anything else has no gradient under activation checkpointing."""

    x: Tensor  # (T, B, C)
    weights: Tensor | None  # (H, B, T, T)
    agreement: Tensor | None  # (K,)
    redundant: Tensor | None  # (B, H)
    carry: Tensor | None  # of a mechanism, for the next layer
    heads: Tensor | None  # (B, H, T, D) head outputs, on request
    plain_weights: Tensor | None  # (B, H, T, T) weights without any mechanism, on request
    loss: Tensor | None  # () of the mechanisms


class DiverseEncoderLayer(CompiledLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer with a staged self-attention.

    Args:
        cfg: fairseq's ``TransformerConfig``.
        plan: placement of the mechanisms.
        number: index of this layer, from 1 at the bottom.
    """

    def __init__(self, cfg: Any, plan: AttentionPlan, number: int) -> None:
        self.plan, self.number = plan, number
        super().__init__(cfg)
        for dropout in (self.dropout_module, self.activation_dropout_module):
            dropout.module_name = "TransformerEncoderLayerBase"  # the name that --retain-dropout-modules expects

    def build_self_attention(self, embed_dim: int, cfg: Any) -> StagedAttention:
        return build_attention(cfg, self.plan, "encoder", self.number)

    def run(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        terms: tuple[str, ...] = (),
        need_head_weights: bool = False,
        relations: Relations | None = None,
        previous: Tensor | None = None,
        inside: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """One layer; ``terms`` and the later arguments as in ``StagedAttention.attend``."""
        x, attended = attend_to_itself(
            self,
            x,
            encoder_padding_mask,
            need_head_weights=need_head_weights,
            terms=terms,
            relations=relations,
            previous=previous,
            inside=inside,
        )
        return EncoderLayerOutput(feed_forward(self, x), *attended[1:])


class DecoderLayerOutput(NamedTuple):
    """Top-level tensors only: anything else has no gradient under activation checkpointing."""

    x: Tensor  # (T, B, C)
    cross_weights: Tensor | None  # (H, B, T, S), or (B, T, S) averaged over heads
    decoder_weights: Tensor | None  # (H, B, T, T)
    cross_agreement: Tensor | None  # (K,)
    decoder_agreement: Tensor | None  # (K,)
    cross_heads: Tensor | None  # (B, H, T, D) head outputs, where they were asked for
    cross_plain_weights: Tensor | None  # (B, H, T, S) weights without any mechanism, likewise
    decoder_heads: Tensor | None
    decoder_plain_weights: Tensor | None
    cross_loss: Tensor | None  # () of the mechanisms
    decoder_loss: Tensor | None
    cross_carry: Tensor | None  # of a mechanism, for the next layer
    decoder_carry: Tensor | None


class DiverseDecoderLayer(CompiledLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer with staged self- and cross-attention.

    Args:
        cfg, plan, number: as in ``DiverseEncoderLayer``.
        no_encoder_attn: leave the cross-attention out.
    """

    def __init__(self, cfg: Any, plan: AttentionPlan, number: int, no_encoder_attn: bool = False) -> None:
        self.plan, self.number = plan, number
        super().__init__(cfg, no_encoder_attn)
        for dropout in (self.dropout_module, self.activation_dropout_module):
            dropout.module_name = "TransformerDecoderLayerBase"

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
        need_attn: bool = False,
        map_needed: bool = True,
        cross_terms: tuple[str, ...] = (),
        decoder_terms: tuple[str, ...] = (),
        need_cross_weights: bool = False,
        need_decoder_weights: bool = False,
        inside_cross: bool = False,
        inside_decoder: bool = False,
        previous_cross: Tensor | None = None,
        previous_decoder: Tensor | None = None,
    ) -> tuple[Tensor | None, ...]:
        """One layer.

        Args:
            need_attn: return the weights of each head of the cross-attention, as in fairseq.
            map_needed: whether the caller reads them; if not, a cross-attention with a mechanism does not compute them.
            need_cross_weights, need_decoder_weights: always return these maps.
            cross_terms, decoder_terms: disagreement terms to measure.
            inside_cross, inside_decoder: return head outputs and plain weights.
            previous_cross, previous_decoder: what mechanisms of the layer before carry.
        """
        x, attended = attend_to_itself(
            self,
            x,
            self_attn_padding_mask,
            incremental_state=incremental_state,
            attn_mask=self_attn_mask,
            need_head_weights=need_decoder_weights,
            terms=decoder_terms,
            previous=previous_decoder,
            inside=inside_decoder,
        )
        cross_weights = cross_agreement = cross_heads = cross_plain_weights = cross_loss = cross_carry = None
        if self.encoder_attn is not None and encoder_out is not None:
            residual = x
            if self.normalize_before:
                x = self.encoder_attn_layer_norm(x)
            # in evaluation, fairseq requests a map of every layer and uses only the last
            plain = self.encoder_attn.is_plain and not cross_terms and not inside_cross
            crossed = self.encoder_attn.attend(
                x,
                encoder_out,
                encoder_out,
                key_padding_mask=encoder_padding_mask,
                query_padding_mask=self_attn_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=plain and not self.training and self.need_attn,
                need_head_weights=need_cross_weights or (need_attn and (plain or map_needed)),
                terms=cross_terms,
                previous=previous_cross,
                inside=inside_cross,
            )
            cross_weights, cross_agreement = crossed.weights, crossed.agreement
            cross_heads, cross_plain_weights = crossed.heads, crossed.plain_weights
            cross_loss, cross_carry = crossed.loss, crossed.carry
            x = self.residual_connection(self.dropout_module(crossed.value), residual)
            if not self.normalize_before:
                x = self.encoder_attn_layer_norm(x)

        return DecoderLayerOutput(
            feed_forward(self, x),
            cross_weights,
            attended.weights,
            cross_agreement,
            attended.agreement,
            cross_heads,
            cross_plain_weights,
            attended.heads,
            attended.plain_weights,
            cross_loss,
            attended.loss,
            cross_carry,
            attended.carry,
        )
