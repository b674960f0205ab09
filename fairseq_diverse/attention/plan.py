"""Which mechanisms are on which attentions of a model."""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.placements import Placement, parse_placement, resolve_placement
from fairseq_diverse.attention.registry import MECHANISMS, flag_name, read_settings
from fairseq_diverse.attention.settings import AttentionShape
from fairseq_diverse.support.errors import UserError

Placed = tuple[type[Mechanism], Any]  # a mechanism and its settings


class Component(NamedTuple):
    """Sizes of one component of a model."""

    layers: int
    width: int
    heads: int
    head_width: int = 0  # of each head's queries, keys and values; 0: width / heads
    scaled: bool = True  # see ``AttentionShape``


class AttentionPlan:
    """The mechanisms of each attention of a model.

    Args:
        args: parsed arguments or fairseq's configuration of the model.
        components: by name: encoder, decoder, cross.

    ``trees`` has the kinds of source trees that the model needs: dependency, constituency.

    Raises:
        UserError: a placement, a value or a combination that does not fit the model.
    """

    def __init__(self, args: Any, components: Mapping[str, Component]) -> None:
        self.components = components
        self._settings: dict[str, Any] = {}
        self._placements: dict[str, Placement] = {}
        layers = {name: component.layers for name, component in components.items()}
        for name, mechanism in MECHANISMS.items():
            settings, flag = read_settings(args, name), flag_name(name, "on")
            parse_placement(flag, settings.on)  # checked even while the mechanism is off
            placement = resolve_placement(flag, settings.on, layers) if settings.active else {}
            if settings.active and not placement:
                raise UserError(f"{flag} '': selects no attention; leave {flag_name(name, 'kind')} off instead")
            for component in placement:
                if component not in mechanism.components:
                    known = " and ".join(mechanism.components)
                    raise UserError(f"{flag} {settings.on!r}: {name} is defined on {known} only")
                settings.check(self.shape(component, min(placement[component])))
            self._settings[name], self._placements[name] = settings, placement
        needed = {kind for settings in self._settings.values() if settings.active for kind in settings.trees}
        self.trees = tuple(kind for kind in ("dependency", "constituency") if kind in needed)
        for component, count in layers.items():
            for layer in range(1, count + 1):
                self._check_together(component, layer)

    def shape(self, component: str, layer: int) -> AttentionShape:
        """An attention of the model, without mechanisms."""
        return AttentionShape.of(component, layer, *self.components[component][1:])

    def at(self, component: str, layer: int) -> list[Placed]:
        """The mechanisms of one attention with their settings, in the order in which they run."""
        return [
            (MECHANISMS[name], self._settings[name])
            for name, placement in self._placements.items()
            if layer in placement.get(component, ())
        ]

    def anywhere(self, mechanism: str, component: str) -> bool:
        """Whether the mechanism is on at any layer of the component."""
        return bool(self._placements[mechanism].get(component))

    def longest(self, component: str) -> int:
        """The tokens of the longest sentence that the mechanisms of a component take."""
        placed = [self._settings[name] for name, placement in self._placements.items() if placement.get(component)]
        return min([settings.longest for settings in placed], default=sys.maxsize)

    def _check_together(self, component: str, layer: int) -> None:
        placed, place = self.at(component, layer), f"{component}:{layer}"
        for mechanism, settings in placed:
            others = {other.name: values for other, values in placed if other is not mechanism}
            mechanism.check_together(settings, others, place)
            reasons = {name: reason for name in others if (reason := mechanism.why_not_with(name))}
            for reason in dict.fromkeys(reasons.values()):
                names = ", ".join(name for name, why in reasons.items() if why == reason)
                flag, switch = (flag_name(mechanism.name, field) for field in ("on", settings.switch))
                todo = f"place them apart, or leave out {switch} (in a table, {switch[2:]}: null) or its --arch"
                raise UserError(f"{flag} {settings.on!r}: {place} also has {names}, {reason}; {todo}")
