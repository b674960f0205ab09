"""Placements: the attentions of a model on which a mechanism is."""

from collections.abc import Mapping

from fairseq_diverse.support.errors import UserError

COMPONENTS = ("encoder", "decoder", "cross")

Layers = Mapping[str, int]
Placement = dict[str, frozenset[int]]


def parse_placement(flag: str, text: str) -> dict[str, frozenset[int] | None]:
    """Read ``component[:layers]`` joined by commas, for example ``encoder:1-2,cross`` or ``decoder:1+4-6``.

    Layers count from 1 at the bottom; None = every layer; an empty text selects nothing.

    Raises:
        UserError: unknown or repeated component, layers that are not numbers, ranges that are empty or reversed.
    """

    def refuse(problem: str) -> UserError:
        allowed = "component[:layers] joined by commas, components encoder, decoder, cross, layers like 2, 1-3 or 1+4-6"
        return UserError(f"{flag} {text!r}: {problem}; allowed: {allowed}")

    placement: dict[str, frozenset[int] | None] = {}
    for part in text.split(",") if text.strip() else []:
        component, colon, layers = part.strip().partition(":")
        if component not in COMPONENTS:
            raise refuse(f"unknown component {component!r}")
        if component in placement:
            raise refuse(f"component {component!r} is given twice")
        chosen: set[int] = set()
        for piece in layers.split("+") if colon else []:
            first, dash, last = piece.partition("-")
            if not (first.isdecimal() and (last.isdecimal() if dash else True)):
                raise refuse(f"{piece!r} is not a layer or a range of layers")
            low, high = int(first), int(last or first)
            if low < 1:
                raise refuse("layers count from 1")
            if low > high:
                raise refuse(f"the range {piece!r} is reversed")
            chosen.update(range(low, high + 1))
        placement[component] = frozenset(chosen) if colon else None
    return placement


def resolve_placement(flag: str, text: str, layers: Layers) -> Placement:
    """The layer numbers that a placement selects in each component of a model.

    Args:
        flag: for the message.
        text: the placement.
        layers: component -> number of layers.

    Raises:
        UserError: as ``parse_placement``, or a layer above the component's number of layers.
    """
    resolved = {}
    for component, chosen in parse_placement(flag, text).items():
        count = layers[component]
        if count == 0:
            raise UserError(f"{flag} {text!r}: this model has no {component} attention")
        if chosen is None:
            chosen = frozenset(range(1, count + 1))
        elif max(chosen) > count:
            raise UserError(
                f"{flag} {text!r}: layer {max(chosen)} of {component} is out of range; it has {count} layers"
            )
        resolved[component] = chosen
    return resolved
