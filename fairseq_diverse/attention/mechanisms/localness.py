"""Localness: a learned Gaussian window (Yang et al., 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.position import localness_bias
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, placement


@register_mechanism("localness")
class Localness(Mechanism):
    """A Gaussian window around a position predicted from each query; parameters are shared over heads.

    Source: Yang et al. (2018), section 3. D^2 + 2 D parameters.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of localness; empty = off")

    components = ("encoder",)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.hidden = nn.Parameter(torch.empty(where.key_width, where.key_width))
        self.centre = nn.Parameter(torch.empty(1, where.key_width))
        self.window = nn.Parameter(torch.empty(1, where.key_width))
        for parameter in self.parameters():
            nn.init.xavier_uniform_(parameter)

    def bias(self, context: AttentionContext) -> Tensor:
        """(B, H, T, T)"""
        query = context.q / context.scale
        return localness_bias(query, self.hidden, self.centre[0], self.window[0], context.valid_keys)
