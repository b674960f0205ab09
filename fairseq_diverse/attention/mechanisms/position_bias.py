"""Position bias of T5 (Raffel et al., 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.position import bucket_starts, position_bias
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.placements import parse_placement
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError

MOST = 1024


@register_mechanism("position-bias")
class PositionBias(Mechanism):
    """A learned number for each head and bucket of distances is added to the logits; see ``position_bias``.

    Source: Raffel et al. (2020), section 2.1. The first layer of the placement has the table, n H parameters (384 in
    T5-Base), and its bias is carried to the others; if LayerDrop drops the first, they have none. In the encoder one
    half of the buckets is of keys after the query.
    """

    starts: Tensor

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of T5's position bias; empty = off")
        buckets: int = option(32, f"number of buckets of distances, even, from 4 to {MOST:,}")
        distance: int = option(128, "distances from here on share a bucket; above half the number of buckets")

        def check(self, where: AttentionShape) -> None:
            if not 4 <= self.buckets <= MOST or self.buckets % 2:
                raise UserError(f"--position-bias-buckets {self.buckets}: must be even, from 4 to {MOST:,}")
            if self.distance <= self.buckets // 2:
                raise UserError(
                    f"--position-bias-distance {self.distance}: must be above half of the {self.buckets} buckets"
                )

    components = ("encoder", "decoder")
    from_last = True
    neutral = {"position_bias_on": "{on}"}
    neutral_zeros = of_first = ("table",)
    examples = ({"position_bias_on": "{on}", "position_bias_buckets": 8, "position_bias_distance": 12},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.both = where.component == "encoder"
        layers = parse_placement("--position-bias-on", settings.on)[where.component]
        self.table = None
        if where.layer == min(layers or (1,)):
            self.table = nn.Parameter(torch.randn(settings.buckets, where.heads) * where.width**-0.5)
            starts = bucket_starts(settings.buckets // (1 + self.both), settings.distance)
            self.register_buffer("starts", torch.tensor(starts), persistent=False)

    def bias(self, context: AttentionContext) -> Tensor:
        """(1, H, T, S)"""
        if self.table is not None:
            context.carry = position_bias(self.table, self.starts, context.q.size(2), context.k.size(2), self.both)
        bias = context.previous if self.table is None else context.carry
        return context.q.new_zeros(1, 1, 1, 1) if bias is None else bias
