"""Gated attention (Qiu et al., "Gated attention for large language models", NeurIPS 2025)."""

from dataclasses import dataclass

from torch import Tensor, nn

from fairseq_diverse.attention.functional.gating import gate_heads
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement


@register_mechanism("gated")
class GatedAttention(Mechanism):
    """Head outputs times sigmoid(X W_g), X the input of the query projection; see ``gate_heads``.

    Source: Qiu et al. (2025), section 2.2. C H parameters (``head``: 4,096 at Base) or C^2 (``element``: 262,144).
    W_g starts with Xavier's values (uniform), as the other projections.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "none",
            "gate the head outputs: one gate per head, or one per channel (element)",
            choices=("none", "head", "element"),
        )
        on: str = placement(",".join(COMPONENTS), "placement of the gates")

    examples = ({"gated": "head", "gated_on": "{on}"}, {"gated": "element", "gated_on": "{on}"})

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        gates = where.heads * (where.head_width if settings.kind == "element" else 1)
        self.projection = nn.Linear(where.query_width, gates, bias=False)
        nn.init.xavier_uniform_(self.projection.weight)

    def gate(self, heads: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)"""
        return gate_heads(heads, context.query, self.projection.weight)
