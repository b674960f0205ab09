"""Base class of mechanisms, and the data that their stages read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings
from fairseq_diverse.support.errors import UserError

# in the order in which ``StagedBody`` runs them
STAGES = (
    *("project", "qkv", "bias", "select", "visible", "logits", "normalize", "weights"),
    *("output_bias", "attention", "heads", "gate", "combine"),
)


@dataclass
class AttentionContext:
    """Input of the stages of one attention, during one call.

    Args:
        query: (B, T, query_width) the input of the query projection.
        q: (B, H, T, Dk) queries, times ``scale``.
        k, v: (B, H, S, Dk) and (B, H, S, D), with the cached positions in decoding.
        scale: factor of the queries, 1 / sqrt(Dk), or 1 where they are not scaled.
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
        bias: the sum of all biases, which the stage ``logits`` gets with its logits; None = 0.
        carry: a tensor that the mechanism gives to itself in the next layer of the same component.
        loss: (), the sum of all ``add_loss`` values; the model returns it to the criterion.
        plain_weights: (B, H, T, S) softmax(mask(q k)) after the stage ``qkv``; set by the attention, for diagnostics.
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
    bias: Tensor | None = None
    loss: Tensor | None = None
    plain_weights: Tensor | None = None
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

        project(cls, settings, where: AttentionShape) -> AttentionShape, with other widths (a class method)
        qkv(self, context) -> q, k, v, shaped as in ``context``; the width of q and k may change
        select(self, logits, context) -> (B, H) bool, the heads that get the mechanisms in ``gates``
        bias(self, context) -> a finite term of the logits, broadcast to (B, H, T, S)
        visible(self, context) -> bool, broadcast to (B, H, T, S), False at forbidden keys
        logits(self, logits, context) -> (B, H, T, S), before the mask
        normalize(self, logits, context) -> weights, in place of the softmax; 0 where a logit is the least finite number
        weights(self, weights, context) -> (B, H, T, S), after the softmax
        output_bias(self, weights, context) -> a term of the head outputs
        attention(self, context, need_weights: bool) -> head outputs, weights or None, in place of all that
        heads(self, heads, context) -> (B, H, T, D)
        gate(self, heads, context) -> (B, H, T, D), after disagreement is measured
        combine(self, concatenated (..., H D)) -> (..., C), in place of the output projection

    A call must store nothing on ``self``. Keep what later decoding steps need in ``context.memory``.
    """

    name: ClassVar[str]
    key: ClassVar[str]  # attribute of the attention and prefix in the state_dict; by default the name, with _
    Settings: ClassVar[type[MechanismSettings]]
    components: ClassVar[tuple[str, ...]] = COMPONENTS
    refuses: ClassVar[Mapping[str, str]] = {}  # mechanism -> reason; "*": all but ``works_with``
    works_with: ClassVar[tuple[str, ...]] = ()
    gates: ClassVar[tuple[str, ...]] = ()  # mechanisms that act only on the heads of ``select``
    from_last: ClassVar[bool] = False  # whether queries are the last ones of the keys, by which it counts distances
    has_maps: ClassVar[bool] = True  # whether ``attention`` can return one map per head
    neutral: ClassVar[Mapping[str, Any] | None] = None  # flags with which it changes nothing, if there are any
    neutral_zeros: ClassVar[tuple[str, ...]] = ()  # parameters to set to 0 for ``neutral``
    of_first: ClassVar[tuple[str, ...]] = ()  # parameters that only the first layer of the placement has
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
