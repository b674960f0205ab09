"""Relative positions (Shaw et al., 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.position import relative_index, relative_logits, relative_values
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("relative")
class RelativePositions(Mechanism):
    """For each relative position, one vector is added to the keys and one to the values; shared over heads.

    Source: Shaw et al. (2018), Eqs. 3-4. (2k+1) (Dk + D) parameters: 4,224 at Base with k = 16.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of relative positions; empty = off")
        limit: int = option(16, "relative positions are clipped to this distance, at least 1")

        def check(self, where: AttentionShape) -> None:
            if self.limit < 1:
                raise UserError(f"--relative-limit {self.limit}: must be at least 1")

    components = ("encoder", "decoder")
    from_last = True
    neutral = {"relative_on": "{on}"}
    neutral_zeros = ("keys", "values")
    examples = ({"relative_on": "{on}", "relative_limit": 3},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.keys = nn.Parameter(torch.empty(2 * settings.limit + 1, where.key_width))
        self.values = nn.Parameter(torch.empty(2 * settings.limit + 1, where.head_width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def bias(self, context: AttentionContext) -> Tensor:
        """(B, H, T, S)"""
        keys = context.k.size(2)
        index = relative_index(context.q, self.keys, keys) if context.carry is None else context.carry
        if index is not None:
            context.carry = index  # the layers share it
        return relative_logits(context.q, self.keys, keys, index)

    def output_bias(self, weights: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, D)"""
        return relative_values(weights, self.values, context.carry)
