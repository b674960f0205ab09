"""Extra results of a forward pass: agreement of the heads, maps of weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fairseq_diverse.attention.functional.agreement import CENTRED, OF_MAPS
from fairseq_diverse.attention.placements import Layers, Placement, resolve_placement
from fairseq_diverse.support.errors import UserError

TERMS = ("subspace", "position", "output", "difference")
MEASURED = (*TERMS, *(f"{CENTRED}{term}" for term in TERMS if term not in OF_MAPS))  # by an attention


def parse_terms(flag: str, text: str) -> tuple[str, ...]:
    """The disagreement terms of a comma-joined list.

    Raises:
        UserError: an unknown, repeated or missing term.
    """
    terms = tuple(part.strip() for part in text.split(","))
    if not set(terms) <= set(TERMS) or len(set(terms)) < len(terms):
        raise UserError(f"{flag} {text!r}: allowed are {', '.join(TERMS)}, each once, comma-joined")
    return terms


def check_terms(terms: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raise ``UserError`` for an unknown term."""
    if not all(term in known for term in terms):
        raise UserError(f"terms {terms!r}: give a tuple of {', '.join(known)}")


class Measurement(NamedTuple):
    """What one attention returns besides its output."""

    terms: tuple[str, ...] = ()  # disagreement terms, of ``MEASURED``
    weights: bool = False  # the map of each head
    inside: bool = False  # head outputs, and the weights without any mechanism

    @property
    def compares_maps(self) -> bool:
        return any(term in OF_MAPS for term in self.terms)


@dataclass(frozen=True)
class AttentionRequest:
    """Which attentions a model measures, and which maps it returns.

    Args:
        terms: disagreement terms, see ``TERMS``.
        on: placement of the attentions to measure.
        weights: placement of the attentions whose maps are returned; empty for none.
        inside: placement of the attentions whose head outputs and plain weights (without mechanisms and gradient) are
            returned; empty for none.
        centre: subtract each head's mean over the batch before computing cosines; not with terms of maps.
        shares: weights of the components in the mean over them; None: equal.
        alignment: whether the caller reads ``extra["attn"]``, the map of the last cross-attention. If False, an
            attention that is measured or has a mechanism does not compute it (fairseq's decoder always does).
        flag: name of the flag in error messages.

    Raises:
        UserError: an unknown term, or ``centre`` with a term that compares maps.
    """

    terms: tuple[str, ...] = ()
    on: str = ""
    weights: str = ""
    inside: str = ""
    centre: bool = False
    alignment: bool = True
    shares: Mapping[str, float] | None = None
    flag: str = "--disagreement-on"

    def __post_init__(self) -> None:
        check_terms(self.terms, TERMS)
        if self.centre and (map_terms := [term for term in self.terms if term in OF_MAPS]):
            raise UserError(
                f"--disagreement-centre: the {map_terms[0]} term compares weights, which are not centred; leave "
                f"{map_terms[0]} out of --disagreement"
            )

    def resolve(self, layers: Layers, heads: Mapping[str, int]) -> "ResolvedRequest":
        """Check the request against a model's layers and heads.

        Raises:
            UserError: an attention that the model does not have, or that has a single head.
        """
        on = resolve_placement(self.flag, self.on, layers)
        for component in on:
            if heads[component] < 2:
                raise UserError(f"{self.flag} {self.on!r}: {component} attention has one head; at least 2 are needed")
        weights, inside = (resolve_placement(self.flag, where, layers) for where in (self.weights, self.inside))
        terms = tuple(f"{CENTRED}{term}" for term in self.terms) if self.centre else self.terms
        return ResolvedRequest(terms, on, weights, inside, self.alignment, self.shares)


Requests = AttentionRequest | tuple[AttentionRequest, ...] | None


def as_tuple(requests: Requests) -> tuple[AttentionRequest, ...]:
    """None, one or several requests as a tuple."""
    return requests if isinstance(requests, tuple) else () if requests is None else (requests,)


@dataclass(frozen=True)
class ResolvedRequest:
    """A request resolved for one model; ``NOTHING`` is the empty request."""

    terms: tuple[str, ...]
    on: Placement
    weights: Placement
    inside: Placement
    alignment: bool = True
    shares: Mapping[str, float] | None = None

    def at(self, component: str, layer: int) -> Measurement:
        """The part of one attention."""
        if self is NOTHING:
            return UNMEASURED
        terms = self.terms if layer in self.on.get(component, ()) else ()
        return Measurement(terms, *(layer in where.get(component, ()) for where in (self.weights, self.inside)))

    def joined(self, other: "ResolvedRequest") -> "ResolvedRequest":
        """Both in one forward pass, such as disagreement's and that of another loss term.

        Raises:
            UserError: both ask for terms, for weights or for head outputs, which would be mixed.
        """
        for name in ("terms", "weights", "inside"):
            if getattr(self, name) and getattr(other, name):
                raise UserError(f"two losses ask for {name!r} in an AttentionRequest; let one of them ask for both")
        measuring = self if self.terms else other
        maps, inside = self.weights or other.weights, self.inside or other.inside
        alignment = self.alignment or other.alignment
        return ResolvedRequest(measuring.terms, measuring.on, maps, inside, alignment, measuring.shares)


NOTHING, UNMEASURED = ResolvedRequest((), {}, {}, {}), Measurement()
