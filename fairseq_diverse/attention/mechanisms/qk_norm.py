"""Normalized queries and keys (Henry et al., 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.key_norm import normalize_queries_and_keys
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, placement


@register_mechanism("qk-norm")
class QueryKeyNorm(Mechanism):
    """RMSNorm of queries and keys, and a learned temperature of each head; see ``normalize_queries_and_keys``.

    Source: Henry et al. (2020), with RMSNorm. 2 Dk + H parameters (136 at Base). The gains start with 1, the
    temperatures with 1/sqrt(Dk); in T5, which has no such factor, with 1.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of normalized queries and keys; empty = off")

    examples = ({"qk_norm_on": "{on}"},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.query_gain = nn.Parameter(torch.ones(where.key_width))
        self.key_gain = nn.Parameter(torch.ones(where.key_width))
        self.temperature = nn.Parameter(torch.full((where.heads,), where.scale))

    def qkv(self, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        gains = self.query_gain, self.key_gain, self.temperature
        return *normalize_queries_and_keys(context.q, context.k, *gains, context.scale), context.v
