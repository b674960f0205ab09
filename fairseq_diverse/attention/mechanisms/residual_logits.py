"""Residual attention of RealFormer (He et al., 2020)."""

from dataclasses import dataclass

from torch import Tensor

from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import MechanismSettings, placement


@register_mechanism("residual-logits")
class ResidualLogits(Mechanism):
    """The logits of the layer below are added, each component for itself: L + L_below. No parameters.

    Source: He et al. (2020), "RealFormer: Transformer likes residual attention". L_below is the sum that the layer
    below has made, before its mask. Evolving attention with beta = 0 computes (1 - alpha) L + alpha L_below instead.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of residual logits (RealFormer); empty = off")

    examples = ({"residual_logits_on": "{on}"},)

    def logits(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)"""
        total = logits if context.previous is None else logits + context.previous
        context.carry = total
        return total
