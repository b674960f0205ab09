"""Talking heads (Shazeer et al., 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.mixing import mix_heads
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement


@register_mechanism("talking")
class TalkingHeads(Mechanism):
    """Mix the heads' logits before the softmax, their weights after it, or both; initialized to the identity.

    Source: Li and Luo (2022), Eqs. 7-8. H^2 parameters for each: 128 at Base for both.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "none",
            "mix heads: their logits before the softmax, their weights after it, or both",
            choices=("none", "logits", "weights", "both"),
        )
        on: str = placement(",".join(COMPONENTS), "placement of talking heads")

    neutral = {"talking": "both", "talking_on": "{on}"}
    examples = ({"talking": "both", "talking_on": "{on}"},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.before = nn.Parameter(torch.eye(where.heads)) if settings.kind != "weights" else None
        self.after = nn.Parameter(torch.eye(where.heads)) if settings.kind != "logits" else None

    def logits(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)"""
        return logits if self.before is None else mix_heads(logits, self.before)

    def weights(self, weights: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)"""
        return weights if self.after is None else mix_heads(weights, self.after)
