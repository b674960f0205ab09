"""Redundant head enlivening and pruning (Zhang et al., 2021, section 4.2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention.functional.enlivening import redundant_heads
from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("enliven")
class Enlivening(Mechanism):
    """Only the redundant heads of a sentence get the gated mechanisms (their terms and masks); or they are pruned:
    their output is 0.

    Source: Zhang et al. (2021), Eqs. 3, 9, 10; see ``redundant_heads``. No parameters; no gradient through the choice.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "off",
            "enliven: only redundant heads get syntax, relative positions and localness; prune: they output zero",
            choices=("off", "enliven", "prune"),
        )
        on: str = placement("encoder:1", "placement of redundant head enlivening")
        gate: str = option(
            "dynamic", "a head is redundant if its weight on syntax does not exceed this: dynamic, or in (0, 1]"
        )

        @property
        def threshold(self) -> float | None:
            """The constant gate; None = the dynamic one."""
            return None if self.gate == "dynamic" else float(self.gate)

        @property
        def trees(self) -> tuple[str, ...]:
            return ("dependency",)

        def check(self, where: AttentionShape | None = None) -> None:
            try:
                good = self.threshold is None or 0 < self.threshold <= 1
            except ValueError:
                good = False
            if not good:
                raise UserError(f"--enliven-gate {self.gate!r}: must be dynamic or a number in (0, 1]")

    components = ("encoder",)
    gates = ("syntax", "relative", "localness")
    examples = (
        {
            **{"enliven": "enliven", "enliven_on": "{on}", "enliven_gate": "0.5"},
            **{"syntax": "phrase", "syntax_on": "{on}", "relative_on": "{on}", "localness_on": "{on}"},
        },
        {"enliven": "enliven", "enliven_on": "{on}", "syntax": "dependency", "syntax_on": "{on}"},
        {"enliven": "prune", "enliven_on": "{on}", "enliven_gate": "0.5"},
    )

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.prune, self.threshold = settings.kind == "prune", settings.threshold

    @classmethod
    def check_together(cls, settings: Settings, others: Mapping[str, Any], place: str) -> None:
        placed = [name for name in cls.gates if name in others]
        if settings.kind == "enliven" and not placed:
            raise UserError(
                f"--enliven-on {settings.on!r}: {place} has no mechanism to enliven its heads with; "
                f"place one of {', '.join(cls.gates)} there"
            )
        if settings.kind == "prune" and placed:
            raise UserError(
                f"--enliven prune: {place} has {', '.join(placed)}, which would have no effect: important heads do "
                "not get it and redundant ones are pruned; place it elsewhere or give --enliven enliven"
            )

    @torch.no_grad()
    def select(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H) True at redundant heads"""
        assert context.relations is not None and context.relations.dependency is not None
        weights = masked_softmax(logits, context.allowed)
        return redundant_heads(weights, context.relations.dependency, context.valid_keys, self.threshold)

    def heads(self, heads: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)"""
        assert context.selected is not None
        return heads.masked_fill(context.selected[..., None, None], 0) if self.prune else heads
