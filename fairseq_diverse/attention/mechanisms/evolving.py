"""Evolving attention (Wang et al., 2021)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_diverse.attention.functional.evolving import evolve_logits
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("evolving")
class EvolvingAttention(Mechanism):
    """A residual connection from the logits of the layer before, then a convolution over the map; see
    ``evolve_logits``.

    Source: Wang et al. (2021), sections 3.3, 3.5 and 4.3. H^2 k^2 + H parameters (584 at Base with k = 3), none with
    beta 0. Their initial values are those of ``torch.nn.Conv2d``.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of evolving attention; empty = off")
        carry: float = option(
            0.5, "alpha: share of the logits of the layer below, in [0, 1]; encoder only; 0.1 in _lite architectures"
        )
        conv: str = option(
            "0.1", "beta: share of the convolution, in [0, 1]; a number, or encoder:0,decoder:0.1,cross:0.1"
        )
        kernel: int = option(3, "kernel width of the convolution, an odd number")

        def ratios_at(self, component: str) -> tuple[float, float]:
            """alpha (0 outside the encoder) and beta"""
            return (self.carry if component == "encoder" else 0.0), self._conv_ratios()[component]

        def _conv_ratios(self) -> dict[str, float]:
            try:
                if ":" not in self.conv:
                    return dict.fromkeys(COMPONENTS, float(self.conv))
                pairs = [part.strip().split(":") for part in self.conv.split(",")]
                ratios = {component: float(ratio) for component, ratio in pairs}
            except ValueError:
                return {}
            return ratios if len(ratios) == len(pairs) and set(ratios) <= set(COMPONENTS) else {}

        def check(self, where: AttentionShape) -> None:
            ratios = self._conv_ratios()
            if not ratios or not all(0 <= ratio <= 1 for ratio in ratios.values()):
                raise UserError(
                    f"--evolving-conv {self.conv!r}: must be a number in [0, 1], or one for each component, such as "
                    "encoder:0,decoder:0.1,cross:0.1"
                )
            if where.component not in ratios:
                raise UserError(
                    f"--evolving-conv {self.conv!r}: {where.component} is missing, and --evolving-on places it there"
                )
            if not 0 <= self.carry <= 1:
                raise UserError(f"--evolving-carry {self.carry}: must be in [0, 1]")
            if self.kernel < 1 or self.kernel % 2 == 0:
                raise UserError(f"--evolving-kernel {self.kernel}: must be odd and at least 1")

    neutral = {"evolving_on": "{on}", "evolving_carry": 0.0, "evolving_conv": "0"}
    examples = (
        {"evolving_on": "{on}", "evolving_conv": "0.4"},
        {"evolving_on": "{on}", "evolving_conv": "0.4", "evolving_kernel": 5, "talking": "logits"},
    )

    @classmethod
    def build(cls, settings: Settings, where: AttentionShape) -> Mechanism | None:
        return cls(settings, where) if any(settings.ratios_at(where.component)) else None

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.component, self.kernel = where.component, settings.kernel
        self.carry_ratio, self.conv_ratio = settings.ratios_at(where.component)
        self.conv = nn.Conv2d(where.heads, where.heads, self.kernel) if self.conv_ratio > 0 else None

    def logits(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S); decoding keeps the last k - 1 rows for the next steps."""
        weight, bias = (None, None) if self.conv is None else (self.conv.weight, self.conv.bias)
        above, cells = 0, context.cells
        if context.memory is not None and weight is not None and self.component != "encoder" and self.kernel > 1:
            above, rows = self.kernel - 1, logits if cells is None else torch.where(cells, logits, 0)
            earlier = context.memory.get(self.key)
            earlier = rows.new_zeros(*rows.shape[:2], above, 0) if earlier is None else earlier
            earlier = F.pad(earlier, (0, rows.size(3) - earlier.size(3)))  # they had fewer keys
            logits, cells = torch.cat([earlier, rows], 2), None
            context.memory[self.key] = logits[:, :, -above:]
        evolved = evolve_logits(
            logits, context.previous, weight, bias, self.component, self.carry_ratio, self.conv_ratio, cells, above
        )
        if self.carry_ratio:
            context.carry = evolved
        return evolved
