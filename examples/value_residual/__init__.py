"""Value residual (Zhou et al., 2024, "Value residual learning"): every layer's values get those of the first layer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention import (
    AttentionContext,
    AttentionShape,
    Mechanism,
    MechanismSettings,
    placement,
    register_mechanism,
)


@register_mechanism("value-residual")
class ValueResidual(Mechanism):
    """v = l_1 v_first + l_2 v, both l learned, first 0.5; v_first are the values of the lowest layer that has it."""

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of value residuals; empty = off")

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.shares = nn.Parameter(torch.full((2,), 0.5))

    def qkv(self, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, T, D), (B, H, S, D), (B, H, S, D)"""
        first = context.v if context.previous is None else context.previous
        context.carry = first
        return context.q, context.k, self.shares[0] * first + self.shares[1] * context.v
