"""Differential attention (Ye et al., "Differential Transformer", ICLR 2025)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.differential import differential_attention, differential_ratio
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, placement
from fairseq_diverse.support.errors import UserError

NOT_DEFINED = "which is not defined for the difference of two maps"


@register_mechanism("differential")
class DifferentialAttention(Mechanism):
    """Each head is the difference of two attentions, normalized; see ``differential_attention``.

        lambda_init = 0.8 - 0.6 exp(-0.3 (l - 1)),  l the layer from 1

    Source: Ye et al. (2025), Eqs. 1-3. 2 Dk + D parameters: 192 at Base. The paper halves the number of heads and keeps
    their width; here the flag for the number of heads applies as it is, so set it to half.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of differential attention; empty = off")

    refuses = dict.fromkeys(("enliven", "relative", "localness", "talking", "evolving", "interacting"), NOT_DEFINED)

    @classmethod
    def project(cls, settings: Settings, where: AttentionShape) -> AttentionShape:
        return replace(where, maps=2)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        if where.key_width % 2:
            raise UserError(
                f"--differential-on {settings.on!r}: the width of each head's queries and keys, {where.key_width}, "
                "must be even"
            )
        self.register_buffer("layer", torch.tensor(where.layer))  # its number in training, whatever layers are kept
        self.initial_ratio = _initial_ratio(where.layer)
        self.scale = 2**0.5 if where.scaled else 1.0  # queries are divided by sqrt(Dk), the halves need sqrt(Dk / 2)
        self.query_1, self.key_1, self.query_2, self.key_2 = (
            nn.Parameter(torch.randn(where.key_width // 2) * 0.1) for _ in range(4)
        )
        self.gain = nn.Parameter(torch.ones(where.head_width))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        layer = state_dict.setdefault(f"{prefix}layer", self.layer)  # older checkpoints lack it
        self.initial_ratio = _initial_ratio(int(layer))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @classmethod
    def check_together(cls, settings: Settings, others: Mapping[str, Any], place: str) -> None:
        if "syntax" in others and others["syntax"].kind == "phrase":
            raise UserError(f"--differential-on {settings.on!r}: {place} also has --syntax phrase, {NOT_DEFINED}")

    def attention(self, context: AttentionContext, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """(B, H, T, D), and the difference of the maps (B, H, T, S)"""
        ratio = differential_ratio((self.query_1, self.key_1), (self.query_2, self.key_2), self.initial_ratio)
        return differential_attention(
            context.q,
            context.k,
            context.v,
            ratio,
            self.gain,
            self.initial_ratio,
            context.visible,
            context.dropout,
            scale=self.scale,
            need_weights=need_weights,
        )


def _initial_ratio(layer: int) -> float:
    return 0.8 - 0.6 * math.exp(-0.3 * (layer - 1))
