"""Interacting heads (Li and Luo, 2022, section 3.3)."""

from dataclasses import dataclass, replace

from torch import Tensor

from fairseq_diverse.attention.functional.interacting import interacting_attention, interacting_weights
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("interacting")
class InteractingHeads(Mechanism):
    """Every head's queries attend to every head's keys; see ``interacting_attention``.

    W_o of Eq. 12 (``concat``, (H - 1) C^2 more parameters) is stored as H W_o, and its input is divided by H: the same
    function with the same initial values. Reason: O_1j, ..., O_Hj are nearly equal at first, so the H blocks of W_o
    that read them get nearly equal updates. Adam's step does not depend on the size of the gradient, so the output
    would change H times too much.

    Source: Li and Luo (2022), Eqs. 11-12.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "none",
            "every head's queries attend to every head's keys; outputs are concatenated, or summed (no added weights)",
            choices=("none", "concat", "sum"),
        )
        on: str = placement(",".join(COMPONENTS), "placement of interacting heads")

    refuses = {"*": "which is not defined for pairs of heads"}
    works_with = ("qk-head-dim", "qk-norm", "rotary")
    has_maps = False
    examples = (
        {"interacting": "concat", "interacting_on": "{on}"},
        {"interacting": "sum", "interacting_on": "{on}", "qk_head_dim": 5, "qk_head_dim_on": "{on}"},
    )

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.combine_pairs = settings.kind

    @classmethod
    def project(cls, settings: Settings, where: AttentionShape) -> AttentionShape:
        if settings.kind == "sum":
            return where
        return replace(where, out_width=where.heads * where.out_width, out_gain=where.heads)

    def attention(self, context: AttentionContext, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """(B, H, T, H D) or (B, H, T, D), and the mean over the keys' heads of the maps (B, H, T, S)."""
        q, k, v = context.q, context.k, context.v
        if context.allowed is not None and context.allowed.size(1) > 1:
            raise UserError("attn_mask: interacting heads share one mask; give (T, S) or (B, T, S)")
        heads = q.size(1)
        if self.combine_pairs == "concat":
            v = v / heads
        value = interacting_attention(q, k, v, context.allowed, self.combine_pairs, context.dropout, scale=1.0)
        weights = interacting_weights(q, k, context.allowed, scale=1.0) if need_weights else None
        return value.unflatten(-1, (heads, -1)).transpose(1, 2), weights
