"""JoeyNMT's encoder, decoder and model with ``StandaloneAttention`` in every attention.

JoeyNMT's layers stay as they are: they hand the mask to their attention, and what the attention needs besides
(``Call``) travels with it. Decoding is JoeyNMT's, which computes the whole prefix at each step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import joeynmt.model
import torch
from joeynmt.config import ConfigurationError
from joeynmt.decoders import TransformerDecoder
from joeynmt.encoders import TransformerEncoder
from joeynmt.model import Model
from joeynmt.transformer_layers import TransformerDecoderLayer
from torch import Tensor, nn

from fairseq_diverse.attention import MECHANISMS, StandaloneAttention
from fairseq_diverse.attention.placements import resolve_placement
from fairseq_diverse.attention.request import TERMS

Settings = Mapping[str, Mapping[str, Any]]  # mechanism -> its settings, and ``on``


@dataclass
class Call:
    """What one forward pass hands from attention to attention.

    Args:
        mask: JoeyNMT's, True where a query sees a key: (B, 1, S) without causality, else (B or 1, T, S).
        causal: which of the two it is.
        query_padding: (B, T), True at padding.
        measured: component -> values of disagreement, a (K,) tensor of each attention; None = not measured.
        carry: what mechanisms hand to the next layer, by name; such as evolving attention's (B, H, T, S).
    """

    mask: Tensor
    causal: bool = False
    query_padding: Tensor | None = None
    measured: dict[str, list[Tensor]] | None = None
    carry: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


class DiverseAttention(nn.Module):
    """``StandaloneAttention`` in place of JoeyNMT's ``MultiHeadedAttention``."""

    def __init__(
        self, size: int, num_heads: int, dropout: float, component: str, layer: int, mechanisms: Settings, terms: Any
    ) -> None:
        super().__init__()
        self.num_heads, self.component, self.terms = num_heads, component, tuple(terms)
        self.attention = StandaloneAttention(
            size, num_heads, dropout, mechanisms=mechanisms, component=component, layer=layer
        )
        if self.attention.trees:
            raise ConfigurationError(f"mechanisms: {', '.join(mechanisms)}: needs trees, which JoeyNMT does not read")

    def forward(
        self, k: Tensor, v: Tensor, q: Tensor, mask: Call, return_weights: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, C), and on request the weights (B, T, S), averaged over the heads."""
        call, hidden = mask, ~mask.mask.expand(len(q), -1, -1)  # in beam search, masks of the target have B = 1
        output = self.attention.attend(
            q,
            k,
            v,
            key_padding_mask=None if call.causal else hidden.squeeze(1),
            need_weights=bool(return_weights),
            attn_mask=hidden if call.causal else None,
            query_padding_mask=call.query_padding,
            terms=self.terms if call.measured is not None else (),
            previous=call.carry,
        )
        if output.agreement is not None and call.measured is not None:
            call.measured.setdefault(self.component, []).append(output.agreement)
        call.carry = output.carry
        return output.value, output.weights.mean(1) if return_weights and output.weights is not None else None


class Side:
    """What encoder and decoder share: their attentions by configuration."""

    def read(self, components: Sequence[str], layers: int, options: Mapping[str, Any]) -> None:
        """Keep the keys ``mechanisms`` and ``disagreement`` of a section of the configuration.

        Raises:
            ConfigurationError: an unknown name; UserError: a placement or value that does not fit.
        """
        self.mechanisms: Settings = options.get("mechanisms") or {}
        disagreement = options.get("disagreement") or {}
        self.terms, self.weight = disagreement.get("terms", []), float(disagreement.get("weight", 1.0))
        for names, known in ((self.mechanisms, MECHANISMS), (self.terms, TERMS)):
            if unknown := [name for name in names if name not in known]:
                raise ConfigurationError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        self.placements = {}
        for name, settings in self.mechanisms.items():
            default = ",".join(each for each in components if each in MECHANISMS[name].components)
            text = str(settings.get("on", default))
            self.placements[name] = resolve_placement(
                f"mechanisms: {name}: on", text, dict.fromkeys(components, layers)
            )

    def attention(self, component: str, layer: int, size: int, num_heads: int, dropout: float) -> DiverseAttention:
        """The attention of a layer, counted from 1."""
        here = {
            name: {key: value for key, value in settings.items() if key != "on"}
            for name, settings in self.mechanisms.items()
            if layer in self.placements[name].get(component, ())
        }
        return DiverseAttention(size, num_heads, dropout, component, layer, here, self.terms)


class DiverseEncoder(Side, TransformerEncoder):
    """JoeyNMT's encoder with mechanisms."""

    def __init__(self, *, hidden_size: int = 512, num_layers: int = 8, num_heads: int = 4, **options: Any) -> None:
        super().__init__(hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, **options)
        self.read(("encoder",), num_layers, options)
        for number, layer in enumerate(self.layers, 1):
            layer.src_src_att = self.attention("encoder", number, hidden_size, num_heads, layer.dropout.p)

    def forward(self, src_embed: Tensor, src_length: Tensor, mask: Any = None, **options: Any) -> Any:
        call = Call(mask, False, ~mask.squeeze(1), options.get("measured") if self.terms else None)
        return super().forward(src_embed, src_length, call, **options)


class DiverseDecoderLayer(TransformerDecoderLayer):
    """JoeyNMT's layer; its two attentions get a ``Call`` each."""

    def forward(self, x: Tensor, memory: Tensor, src_mask: Any, trg_mask: Tensor, *flags: Any, **options: Any) -> Any:
        padding = ~trg_mask.diagonal(dim1=1, dim2=2).expand(len(x), -1)  # (B, T): a real target token sees itself
        own = Call(trg_mask, True, padding, src_mask.measured)
        return super().forward(x, memory, replace(src_mask, query_padding=padding), own, *flags, **options)


class DiverseDecoder(Side, TransformerDecoder):
    """JoeyNMT's decoder with mechanisms on its own (``decoder``) and source (``cross``) attentions."""

    def __init__(self, *, hidden_size: int = 512, num_layers: int = 4, num_heads: int = 8, **options: Any) -> None:
        super().__init__(hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, **options)
        self.read(("decoder", "cross"), num_layers, options)
        for number, layer in enumerate(self.layers, 1):
            layer.__class__ = DiverseDecoderLayer  # the same parts
            for name, component in (("trg_trg_att", "decoder"), ("src_trg_att", "cross")):
                setattr(layer, name, self.attention(component, number, hidden_size, num_heads, layer.dropout.p))

    def forward(self, *inputs: Any, src_mask: Any = None, **options: Any) -> Any:
        call = Call(src_mask, measured=options.get("measured") if self.terms else None)
        return super().forward(*inputs, src_mask=call, **options)


class DiverseModel(Model):
    """JoeyNMT's model; in training its loss has the disagreement of the heads (Li et al., 2021, section 3.1).

        loss = cross-entropy + target tokens * sum over encoder and decoder of weight * mean over their attentions

    The mean is over layers, then over components; the terms are summed.
    """

    def forward(self, return_type: str | None = None, **inputs: Any) -> Any:
        sides = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.decoder}
        if return_type != "loss" or not self.training or not (self.encoder.terms or self.decoder.terms):
            return super().forward(return_type, **inputs)
        measured: dict[str, list[Tensor]] = {}
        loss, *rest = super().forward(return_type, measured=measured, **inputs)
        for component, values in measured.items():
            share = sides[component].weight / sum(sides[other] is sides[component] for other in measured)
            loss = loss + share * inputs["trg_mask"].sum() * torch.stack(values).mean(0).sum()
        return (loss, *rest)


def initialize_model(model: nn.Module, *options: Any) -> None:
    """JoeyNMT's initial values, except in attentions: mechanisms have their own."""
    kept = [
        (parameter, parameter.detach().clone())
        for module in model.modules()
        if isinstance(module, StandaloneAttention)
        for parameter in module.parameters()
    ]
    JOEYS(model, *options)
    for parameter, value in kept:
        parameter.data.copy_(value)


JOEYS = joeynmt.model.initialize_model
REPLACED = {
    "TransformerEncoder": DiverseEncoder,
    "TransformerDecoder": DiverseDecoder,
    "Model": DiverseModel,
    "initialize_model": initialize_model,
}


def install() -> None:
    """Let JoeyNMT's ``build_model`` build models with mechanisms. Idempotent."""
    for name, ours in REPLACED.items():
        setattr(joeynmt.model, name, ours)
