"""ALiBi, attention with linear biases (Press et al., 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_diverse.attention.functional.rotary import alibi_bias, alibi_slopes
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, placement


@register_mechanism("alibi")
class Alibi(Mechanism):
    """Logits are lowered by the distance times a slope, fixed for each head; see ``alibi_bias``. No parameters.

    Source: Press et al. (2022), section 3; used with --no-token-positional-embeddings.
    """

    slopes: Tensor

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of ALiBi; empty = off")

    components = ("encoder", "decoder")
    from_last = True
    examples = ({"alibi_on": "{on}"},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(where.heads)), persistent=False)

    def bias(self, context: AttentionContext) -> Tensor:
        """(1, H, T, S)"""
        bias = context.carry
        if bias is None:
            bias = context.carry = alibi_bias(self.slopes, context.q.size(2), context.k.size(2))  # the layers share it
        return bias.detach()  # activation checkpointing would differentiate what passes between layers
