"""Settings of mechanisms, and the place and sizes of an attention, which they are checked against."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self


@dataclass(frozen=True)
class AttentionShape:
    """Place and sizes of the attention that a mechanism is added to.

    Args:
        component: encoder, decoder or cross.
        layer: number of the layer, from 1 at the bottom. ``--*-layers-to-keep`` renumbers the remaining layers, so a
            mechanism that computes with the number keeps it in a buffer, as differential attention does.
        width: C, width of the model.
        heads: H.
        key_width: Dk, width of each head's queries and keys; 0: there are none, and the logits are 0 before the stages.
        head_width: D, width of each head's values.
        out_width: input width of the output projection.
        out_gain: factor on the initial weights of the output projection.
        query_width: input width of the query projection.
        key_heads: number of heads of keys and values, a divisor of H; each serves H / key_heads consecutive heads.
            The stages see H heads; the cache of decoding has key_heads.
        scaled: whether queries are multiplied by 1 / sqrt(Dk); T5's are not.
        maps: number of maps that a head computes, from equal parts of the channels of its queries and keys.
    """

    component: str
    layer: int
    width: int
    heads: int
    key_width: int
    head_width: int
    out_width: int
    out_gain: float = 1.0
    query_width: int = 0
    key_heads: int = 0
    scaled: bool = True
    maps: int = field(default=1, compare=False)  # changes no projection

    @property
    def scale(self) -> float:
        """Factor of the queries: 1 / sqrt(Dk), or 1."""
        return float((self.key_width or 1) ** -0.5) if self.scaled else 1.0

    def projections(self, key_input: int, value_input: int) -> dict[str, tuple[int, int]]:
        """Widths of the input and the output of each projection, given those of the inputs of keys and values."""
        return {
            "q_proj": (self.query_width, self.heads * self.key_width),
            "k_proj": (key_input, self.key_heads * self.key_width),
            "v_proj": (value_input, self.key_heads * self.head_width),
            "out_proj": (self.out_width, self.width),
        }

    @classmethod
    def of(cls, component: str, layer: int, width: int, heads: int, head_width: int = 0, scaled: bool = True) -> Self:
        """The attention without mechanisms; ``head_width`` is C / H by default."""
        each = head_width or width // max(heads, 1)
        out = head_width * heads or width
        return cls(component, layer, width, heads, each, each, out, query_width=width, key_heads=heads, scaled=scaled)


def option(default: Any, help: str, **argparse_options: Any) -> Any:
    """A field of ``Settings`` that is also a flag.

    ``flag="--name"`` gives the flag another name; ``older=value`` is the value in checkpoints that lack the setting.
    """
    return field(default=default, metadata={"help": help, **argparse_options})


def placement(default: str, help: str) -> Any:
    """The field ``on``: where the mechanism is, see ``parse_placement``. Without a field ``kind``, empty = off."""
    return option(default, help)


@dataclass(frozen=True)
class MechanismSettings:
    """The settings of a mechanism; every field is a flag.

    The field ``kind`` is the flag ``--<mechanism>``, every other field ``--<mechanism>-<field>``. The mechanism is off
    if ``kind`` has its default or, without a field ``kind``, if its placement (``on``) is empty.
    """

    if TYPE_CHECKING:  # every mechanism declares it, after ``kind``
        on: str

    @property
    def switch(self) -> str:
        """The field that switches the mechanism on."""
        return "kind" if hasattr(self, "kind") else "on"

    @property
    def active(self) -> bool:
        return self.kind != type(self).kind if hasattr(self, "kind") else bool(self.on.strip())

    @property
    def trees(self) -> tuple[str, ...]:
        """The kinds of source trees needed: dependency, constituency."""
        return ()

    @property
    def unused(self) -> tuple[str, ...]:
        """The fields that the others leave without effect."""
        return ()

    @property
    def longest(self) -> int:
        """The tokens of the longest sentence that it takes."""
        return sys.maxsize

    def check(self, where: AttentionShape) -> None:
        """Raise ``UserError``, naming the flag, for values that do not fit this attention."""
