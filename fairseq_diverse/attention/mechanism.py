"""What a mechanism is made of: settings, the attention it is put into, and what its stages may read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.relations import Relations

# In the order in which the body of an attention comes to them.
STAGES = {
    "project": "give queries, keys or the output projection another width",
    "bias": "add a finite term to the logits",
    "select": "choose the heads, sentence by sentence, that get what the mechanism ``gates``",
    "visible": "forbid keys",
    "logits": "change the logits, before the mask",
    "weights": "change the weights, after the softmax",
    "output_bias": "add a term to the head outputs that follows from the weights",
    "attention": "do all of it, from queries, keys and values to head outputs",
    "heads": "change the head outputs",
    "gate": "change the head outputs, after disagreement is measured",
    "combine": "take the place of the output projection",
}


def option(default: Any, help: str, **argparse_options: Any) -> Any:
    """A field of settings that is also a flag; ``flag="--name"`` gives it another name than the usual one."""
    return field(default=default, metadata={"help": help, **argparse_options})


def placement(default: str, help: str) -> Any:
    """The field ``on`` of settings, see ``parse_placement``; empty = off for a mechanism without ``kind``."""
    return option(default, help)


@dataclass(frozen=True)
class MechanismSettings:
    """The settings of a mechanism; every field is a flag.

    The field ``kind`` is the flag ``--<mechanism>``, every other one ``--<mechanism>-<field>``. The default of
    ``kind`` is off; without a ``kind`` an empty placement (``on``) is.
    """

    if TYPE_CHECKING:  # every mechanism declares it, after its kind
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
        """The kinds of source trees that it needs: dependency, constituency."""
        return ()

    def check(self, where: "AttentionShape") -> None:
        """Raise ``UserError``, naming the flag, for values that this attention cannot have."""


@dataclass(frozen=True)
class AttentionShape:
    """The attention that a mechanism is put into.

    Args:
        component: encoder, decoder or cross.
        layer: from 1 at the bottom.
        width: C, of the model.
        heads: H.
        key_width: of each head's queries and keys.
        head_width: D, of each head's values.
        out_width: of what the output projection reads.
        out_gain: factor of the output projection's initial weights.
    """

    component: str
    layer: int
    width: int
    heads: int
    key_width: int
    head_width: int
    out_width: int
    out_gain: float = 1.0

    @classmethod
    def of(cls, component: str, layer: int, width: int, heads: int) -> Self:
        """The attention before any mechanism is in it."""
        head_width = width // max(heads, 1)
        return cls(component, layer, width, heads, head_width, head_width, width)


@dataclass
class AttentionContext:
    """What the stages of one attention may read, during one call.

    Args:
        query: (B, T, C) the input of the query projection.
        q: (B, H, T, Dk) queries, times ``scale``.
        k, v: (B, H, S, Dk) and (B, H, S, D).
        scale: factor of the queries, 1 / sqrt(Dk).
        dropout: probability of dropping a weight now; 0 in evaluation.
        key_padding: (B, S), True at padding; None where there is none.
        query_padding: (B, T), likewise.
        mask_bias: a finite term of the logits that the caller gives, broadcast to (B, H, T, S).
        allowed: (B or 1, 1, T or 1, S) bool, True where padding and causality let a query see a key; None for
            everywhere. A query that may see no key sees all.
        relations: of the source's trees, for settings that need ``trees``.
        previous: (B, H, T, S) the ``carry`` of the layer before; None in the first.
        memory: what mechanisms keep between the steps of decoding, by key: tensors (B, ...), reordered with the beams.
            None where all positions are there at once.

    Set by stages:
        selected: (B, H) bool, the heads that get what is gated; None for all.
        visible: ``allowed`` and the hard masks of mechanisms.
        carry: (B, H, T, S) for the next layer of the encoder.
    """

    query: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    dropout: float = 0.0
    key_padding: Tensor | None = None
    query_padding: Tensor | None = None
    allowed: Tensor | None = None
    relations: Relations | None = None
    previous: Tensor | None = None
    memory: dict[str, Tensor] | None = None
    mask_bias: Tensor | None = None
    selected: Tensor | None = None
    visible: Tensor | None = None
    carry: Tensor | None = None

    @property
    def valid_queries(self) -> Tensor:
        """(B, T) bool, True at real queries."""
        return _valid(self.query_padding, self.q)

    @property
    def valid_keys(self) -> Tensor:
        """(B, S) bool, True at real keys."""
        return _valid(self.key_padding, self.k)

    @property
    def cells(self) -> Tensor | None:
        """bool, broadcast to (B, 1, T, S): both are real, the key is not in the future; None for everywhere."""
        if self.query_padding is None:
            return self.allowed
        real = ~self.query_padding.bool()[:, None, :, None]
        return real if self.allowed is None else self.allowed & real


def _valid(padding: Tensor | None, like: Tensor) -> Tensor:
    if padding is None:
        return torch.ones(like.size(0), like.size(2), dtype=torch.bool, device=like.device)
    return ~padding.bool()


class Mechanism(nn.Module):
    """A change of multi-head attention: settings, parameters, and the stages it takes part in.

    A subclass is registered by ``register_mechanism``. It has a class ``Settings`` and a method for each stage it
    takes part in, and no other; tensors are (B, H, T, S) for logits and weights, (B, H, T, D) for head outputs:

        project(cls, settings, where: AttentionShape) -> AttentionShape                        (a class method)
        select(self, logits, context) -> (B, H) bool
        bias(self, context) -> broadcast to (B, H, T, S)
        visible(self, context) -> bool, broadcast to (B, H, T, S)
        logits(self, logits, context), weights(self, weights, context) -> (B, H, T, S)
        output_bias(self, weights, context) -> (B, H, T, D)
        attention(self, context, need_weights: bool) -> head outputs, weights or None
        heads(self, heads, context), gate(self, heads, context) -> (B, H, T, D)
        combine(self, concatenated (..., H D)) -> (..., C)

    Nothing survives a call on ``self``; what decoding needs of earlier steps goes into ``context.memory``.
    """

    name: ClassVar[str]
    key: ClassVar[str]  # the attribute of the attention, and so the prefix in a state_dict; by default the name
    Settings: ClassVar[type[MechanismSettings]]
    components: ClassVar[tuple[str, ...]] = COMPONENTS
    refuses: ClassVar[Mapping[str, str]] = {}  # mechanism -> reason; "*": all that ``works_with`` does not name
    works_with: ClassVar[tuple[str, ...]] = ()
    gates: ClassVar[tuple[str, ...]] = ()  # mechanisms whose terms and masks only the heads of ``select`` get
    has_maps: ClassVar[bool] = True  # whether ``attention`` can give a map for each head
    neutral: ClassVar[Mapping[str, Any] | None] = None  # flags at which it changes nothing, where there are such flags
    neutral_zeros: ClassVar[tuple[str, ...]] = ()  # with these of its parameters set to 0
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()  # flags that the checks take; "{on}" is the component

    def __init__(self, settings: Any, where: AttentionShape) -> None:
        super().__init__()

    @classmethod
    def build(cls, settings: Any, where: AttentionShape) -> "Mechanism | None":
        """The module for one attention; None where these settings need none."""
        return cls(settings, where) if cls.stages() - {"project"} else None

    @classmethod
    def check_together(cls, settings: Any, others: Mapping[str, Any], place: str) -> None:
        """Raise ``UserError`` for what else is on at the same attention.

        Args:
            others: the settings of the other mechanisms, by name.
            place: such as encoder:1, for the message.
        """

    @classmethod
    def why_not_with(cls, other: str) -> str | None:
        """Why the mechanism refuses another one at the same attention; None where it does not."""
        return cls.refuses.get(other) or (None if other in cls.works_with else cls.refuses.get("*"))

    @classmethod
    def stages(cls) -> frozenset[str]:
        """The stages it takes part in."""
        return frozenset(stage for stage in STAGES if callable(getattr(cls, stage, None)))
