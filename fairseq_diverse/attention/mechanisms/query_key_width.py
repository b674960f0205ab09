"""A separate width for queries and keys (Bhojanapalli et al., 2020)."""

from dataclasses import dataclass, replace

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("qk-head-dim")
class QueryKeyWidth(Mechanism):
    """Queries and keys have Dk channels per head, values keep C / H; the scale is 1 / sqrt(Dk).

    Source: Bhojanapalli et al. (2020), section 4.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: int = option(
            0, "width of each head's queries and keys, such as the mean source length; 0 = model width / heads"
        )
        on: str = placement(",".join(COMPONENTS), "placement of --qk-head-dim")

        def check(self, where: AttentionShape) -> None:
            if self.kind < 0:
                raise UserError(f"--qk-head-dim {self.kind}: must be at least 1 (or 0 for width / heads)")

    examples = ({"qk_head_dim": 5, "qk_head_dim_on": "{on}"},)

    @classmethod
    def project(cls, settings: Settings, where: AttentionShape) -> AttentionShape:
        return replace(where, key_width=settings.kind)
