"""A mechanism in one file: the logits of each head are divided by a learned temperature."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention import (
    AttentionContext,
    AttentionShape,
    Mechanism,
    MechanismSettings,
    UserError,
    option,
    placement,
    register_mechanism,
)


@register_mechanism("temperature")
class Temperature(Mechanism):
    """logits[h] / exp(t_h), t_h learned; H parameters."""

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of learned temperatures; empty = off")
        initial: float = option(1.0, "first temperature, above 0")

        def check(self, where: AttentionShape) -> None:
            if self.initial <= 0:
                raise UserError(f"--temperature-initial {self.initial}: must be above 0")

    neutral = {"temperature_on": "{on}"}

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.log_temperature = nn.Parameter(torch.tensor(settings.initial).log().expand(where.heads).clone())

    def logits(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)"""
        return logits * torch.exp(-self.log_temperature).view(-1, 1, 1)
