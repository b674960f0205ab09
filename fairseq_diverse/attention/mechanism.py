"""Base class of mechanisms, their settings, and the data that their stages read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.support.errors import UserError

# In the order in which ``StagedBody`` runs them.
STAGES = {
    "project": "change the width of queries, keys or the output projection, or the number of heads of keys and values",
    "qkv": "change queries, keys and values after their projections",
    "bias": "add a finite term to the logits",
    "select": "choose, for each sentence, the heads that get the mechanisms in ``gates``",
    "visible": "forbid keys",
    "logits": "change the logits, before the mask",
    "normalize": "compute the weights from the masked logits, in place of the softmax",
    "weights": "change the weights, after the softmax",
    "output_bias": "add a term to the head outputs, computed from the weights",
    "attention": "replace the attention, from queries, keys and values to head outputs",
    "heads": "change the head outputs",
    "gate": "change the head outputs, after disagreement is measured",
    "combine": "replace the output projection",
}


def option(default: Any, help: str, **argparse_options: Any) -> Any:
    """A field of ``Settings`` that is also a flag; ``flag="--name"`` gives the flag another name."""
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

    def check(self, where: "AttentionShape") -> None:
        """Raise ``UserError``, naming the flag, for values that do not fit this attention."""


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

    @property
    def scale(self) -> float:
        """Factor of the queries: 1 / sqrt(Dk)."""
        return float((self.key_width or 1) ** -0.5)

    def projections(self, key_input: int, value_input: int) -> dict[str, tuple[int, int]]:
        """Widths of the input and the output of each projection, given those of the inputs of keys and values."""
        return {
            "q_proj": (self.query_width, self.heads * self.key_width),
            "k_proj": (key_input, self.key_heads * self.key_width),
            "v_proj": (value_input, self.key_heads * self.head_width),
            "out_proj": (self.out_width, self.width),
        }

    @classmethod
    def of(cls, component: str, layer: int, width: int, heads: int) -> Self:
        """The attention without mechanisms."""
        head_width = width // max(heads, 1)
        return cls(component, layer, width, heads, head_width, head_width, width, query_width=width, key_heads=heads)


@dataclass
class AttentionContext:
    """Input of the stages of one attention, during one call.

    Args:
        query: (B, T, query_width) the input of the query projection.
        q: (B, H, T, Dk) queries, times ``scale``.
        k, v: (B, H, S, Dk) and (B, H, S, D), with the cached positions in decoding.
        scale: factor of the queries, 1 / sqrt(Dk).
        dropout: probability of dropping an attention weight; 0 in evaluation.
        key_padding: (B, S), True at padding; None without padding.
        query_padding: (B, T), likewise.
        mask_bias: a finite term that the caller adds to the logits, broadcast to (B, H, T, S).
        allowed: (B or 1, 1, T or 1, S) bool, True where padding and causality let a query see a key; None = everywhere.
            A query without an allowed key sees all keys.
        relations: relations from the source trees, for settings with ``trees``.
        carried: by the name of a mechanism, what it carries from the same component of the layer below.
        memory: tensors (B, ...) by key that mechanisms keep between decoding steps, reordered with the beams; None in
            a full pass.

    Set by stages (assigning another field has no effect):
        selected: (B, H) bool, the heads that get the gated mechanisms; None = all.
        visible: ``allowed`` combined with the hard masks of mechanisms.
        carry: a tensor that the mechanism gives to itself in the next layer of the same component.
        loss: (), the sum of all ``add_loss`` values; the model returns it to the criterion.
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
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] | None = None
    mask_bias: Tensor | None = None
    selected: Tensor | None = None
    visible: Tensor | None = None
    loss: Tensor | None = None
    running: str = ""  # the mechanism whose stage runs

    def __post_init__(self) -> None:
        self.carries = dict(self.carried)  # for the next layer

    def of(self, mechanism: "Mechanism") -> Self:
        """The context for a stage of this mechanism."""
        self.running = mechanism.name
        return self

    @property
    def previous(self) -> Tensor | None:
        """The ``carry`` of this mechanism in the last layer that set it; None in the first one."""
        return self.carried.get(self.running)

    @property
    def carry(self) -> Tensor | None:
        return self.carries.get(self.running)

    @carry.setter
    def carry(self, value: Tensor) -> None:
        self.carries[self.running] = value

    def add_loss(self, value: Tensor) -> None:
        """Add a scalar loss term of this attention; a criterion can add it to its loss.

        Raises:
            UserError: it is not a single number.
        """
        if value.dim():
            raise UserError(f"add_loss: a tensor of shape {tuple(value.shape)}; give a sum or mean, a single number")
        self.loss = value if self.loss is None else self.loss + value

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
        """bool, broadcast to (B, 1, T, S): True where query and key are real and the key is not in the future; None =
        everywhere.
        """
        if self.query_padding is None:
            return self.allowed
        real = ~self.query_padding.bool()[:, None, :, None]
        return real if self.allowed is None else self.allowed & real


def _valid(padding: Tensor | None, like: Tensor) -> Tensor:
    if padding is None:
        return torch.ones(like.size(0), like.size(2), dtype=torch.bool, device=like.device)
    return ~padding.bool()


class Mechanism(nn.Module):
    """A modification of multi-head attention: its settings, parameters and stages.

    Register a subclass with ``register_mechanism``. It has a class ``Settings`` and one method for each stage that it
    uses. Logits and weights are (B, H, T, S), head outputs (B, H, T, D):

        project(cls, settings, where: AttentionShape) -> AttentionShape                        (a class method)
        qkv(self, context) -> q, k, v, shaped as in ``context``; the width of q and k may change
        select(self, logits, context) -> (B, H) bool
        bias(self, context) -> broadcast to (B, H, T, S)
        visible(self, context) -> bool, broadcast to (B, H, T, S)
        logits(self, logits, context), weights(self, weights, context) -> (B, H, T, S)
        normalize(self, logits, context) -> weights (B, H, T, S), 0 where a logit is masked (the least finite number)
        output_bias(self, weights, context) -> (B, H, T, D)
        attention(self, context, need_weights: bool) -> head outputs, weights or None
        heads(self, heads, context), gate(self, heads, context) -> (B, H, T, D)
        combine(self, concatenated (..., H D)) -> (..., C)

    A call must store nothing on ``self``. Keep what later decoding steps need in ``context.memory``.
    """

    name: ClassVar[str]
    key: ClassVar[str]  # attribute of the attention and prefix in the state_dict; by default the name, with _
    Settings: ClassVar[type[MechanismSettings]]
    components: ClassVar[tuple[str, ...]] = COMPONENTS
    refuses: ClassVar[Mapping[str, str]] = {}  # mechanism -> reason; "*": all but ``works_with``
    works_with: ClassVar[tuple[str, ...]] = ()
    gates: ClassVar[tuple[str, ...]] = ()  # mechanisms that act only on the heads of ``select``
    has_maps: ClassVar[bool] = True  # whether ``attention`` can return one map per head
    neutral: ClassVar[Mapping[str, Any] | None] = None  # flags with which it changes nothing, if there are any
    neutral_zeros: ClassVar[tuple[str, ...]] = ()  # parameters to set to 0 for ``neutral``
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()  # flags to check it with; "{on}" is the component

    def __init__(self, settings: Any, where: AttentionShape) -> None:
        super().__init__()

    @classmethod
    def build(cls, settings: Any, where: AttentionShape) -> "Mechanism | None":
        """The module for one attention; None if these settings need none."""
        return cls(settings, where) if cls.stages() - {"project"} else None

    @classmethod
    def check_together(cls, settings: Any, others: Mapping[str, Any], place: str) -> None:
        """Raise ``UserError`` if this mechanism cannot be combined with the others of the same attention.

        Args:
            others: name -> settings of the other mechanisms.
            place: the attention, for the message, such as encoder:1.
        """

    @classmethod
    def why_not_with(cls, other: str) -> str | None:
        """The reason why it refuses another mechanism on the same attention; None if it accepts it."""
        return cls.refuses.get(other) or (None if other in cls.works_with else cls.refuses.get("*"))

    @classmethod
    def stages(cls) -> frozenset[str]:
        """The stages for which it has a method."""
        return frozenset(stage for stage in STAGES if callable(getattr(cls, stage, None)))
