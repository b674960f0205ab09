"""Value residual (Zhou et al., 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, placement


@register_mechanism("value-residual")
class ValueResidual(Mechanism):
    """The first layer's values are added to those of every layer: l_1 V_first + l_2 V, both l learned, at first 0.5.

    Source: Zhou et al. (2024), "Value residual learning", learnable ResFormer. V_first are the values of the
    component's lowest layer that has the mechanism. 2 parameters.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of value residuals; empty = off")

    examples = ({"value_residual_on": "{on}"},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.shares = nn.Parameter(torch.full((2,), 0.5))

    def qkv(self, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        first = context.v if context.previous is None else context.previous
        context.carry = first
        return context.q, context.k, self.shares[0] * first + self.shares[1] * context.v
