"""Rotary positions (Su et al., 2021)."""

from dataclasses import dataclass

from torch import Tensor

from fairseq_diverse.attention.functional.rotary import rotate, rotation
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, placement


@register_mechanism("rotary")
class RotaryPositions(Mechanism):
    """Queries and keys are rotated by their positions; see ``rotate``. No parameters.

    Source: Su et al. (2021), section 3.2; used with --no-token-positional-embeddings.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of rotary positions; empty = off")

    components = ("encoder", "decoder")
    from_last = True
    refuses = dict.fromkeys(
        ("relative", "localness"), "it reads queries, which rotary positions make depend on where a sentence begins"
    )
    examples = ({"rotary_on": "{on}"},)

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.maps = where.maps

    def qkv(self, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        angles = context.carry  # layers with heads of equal width share it
        if angles is None or angles.size(-1) != context.k.size(-1) // self.maps:
            angles = context.carry = rotation(context.k, self.maps)
        angles = angles.detach()  # activation checkpointing would differentiate what passes between layers
        return *rotate(context.q, context.k, self.maps, angles), context.v
