"""Mechanisms as dataclasses, the flags made from them, and the placement language.

A mechanism is one dataclass and one row in ``MECHANISMS``. Its field ``kind`` is the flag ``--<mechanism>``, every
other field the flag ``--<mechanism>-<field>`` unless it says another. Its field ``on`` is a placement; where there is
no kind, an empty one is off.
"""

import argparse
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fairseq_diverse.errors import UserError

COMPONENTS = ("encoder", "decoder", "cross")

Layers = Mapping[str, int]
Placement = dict[str, frozenset[int]]


def parse_placement(flag: str, text: str) -> dict[str, frozenset[int] | None]:
    """Read ``component[:layers]`` joined by commas, for example ``encoder:1-2,cross`` or ``decoder:1+4-6``.

    Layers count from 1 at the bottom; None stands for every layer; an empty text selects nothing.

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
            raise refuse(f"component {component!r} is named twice")
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


@functools.cache
def _resolve(flag: str, text: str, counts: tuple[tuple[str, int], ...]) -> Placement:
    layers = dict(counts)
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


def resolve_placement(flag: str, text: str, layers: Layers) -> Placement:
    """The layer numbers that a placement selects in each component of a model with ``layers`` layers.

    Raises:
        UserError: as ``parse_placement``, or a layer above the component's number of layers.
    """
    return _resolve(flag, text, tuple(sorted(layers.items())))


def option(default: Any, help: str, **argparse_options: Any) -> Any:
    """A dataclass field that is also a command-line flag."""
    return field(default=default, metadata={"help": help, **argparse_options})


@dataclass(frozen=True)
class Mechanism:
    """What all mechanisms have; a kind's default is off, and without a kind an empty placement is."""

    components: ClassVar[tuple[str, ...]] = COMPONENTS

    on: str

    @property
    def switch(self) -> str:
        """The field that switches it on."""
        return "kind" if hasattr(self, "kind") else "on"

    @property
    def active(self) -> bool:
        return self.kind != type(self).kind if hasattr(self, "kind") else bool(self.on.strip())

    def check(self, width: int, component: str) -> None:
        """Raise ``UserError`` for values that no attention of this width, or of this component, can have."""


@dataclass(frozen=True)
class Routing(Mechanism):
    """Routing-by-agreement aggregation of the heads (Li et al., 2021, section 3.2)."""

    kind: str = option("none", "aggregate heads by routing-by-agreement", choices=("none", "simple", "em"))
    on: str = option("encoder:1-2", "placement of the routed aggregation")
    iterations: int = option(3, "routing iterations, at least 1")
    capsules: int = option(
        0, "number of output capsules N, a divisor of the width; 0 = the width, as in the paper; fewer is experimental"
    )
    activation: str = option("learned", "activation probability of EM routing", choices=("learned", "none"))

    def check(self, width: int, component: str) -> None:
        if self.iterations < 1:
            raise UserError(f"--routing-iterations {self.iterations}: must be at least 1")
        if self.capsules < 0 or width % (self.capsules or width):
            raise UserError(
                f"--routing-capsules {self.capsules}: must divide the width {width} (or be 0 for the width)"
            )
        if self.capsules == 1 and self.kind == "em" and self.activation == "learned":
            raise UserError(
                "--routing-capsules 1: one capsule gets every share, its activation is 0 and nothing trains; "
                "take more, or --routing-activation none"
            )


@dataclass(frozen=True)
class Relative(Mechanism):
    """Relative positions (Shaw et al., 2018)."""

    components: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    on: str = option("", "placement of relative positions; empty = off")
    limit: int = option(16, "largest relative position that is told apart, at least 1")

    def check(self, width: int, component: str) -> None:
        if self.limit < 1:
            raise UserError(f"--relative-limit {self.limit}: must be at least 1")


@dataclass(frozen=True)
class Localness(Mechanism):
    """A learned Gaussian window (Yang et al., 2018)."""

    components: ClassVar[tuple[str, ...]] = ("encoder",)

    on: str = option("", "placement of localness; empty = off")


@dataclass(frozen=True)
class Syntax(Mechanism):
    """Attention along the source's trees (Zhang et al., 2021, section 4.1)."""

    components: ClassVar[tuple[str, ...]] = ("encoder",)

    kind: str = option(
        "none",
        "attend along dependencies, or in local phrases of constituents",
        choices=("none", "dependency", "phrase"),
    )
    on: str = option("encoder:1", "placement of syntax-enhanced attention")
    limit: int = option(6, "largest relative layer of a phrase that is told apart, at least 0", flag="--phrase-limit")

    def check(self, width: int, component: str) -> None:
        if self.limit < 0:
            raise UserError(f"--phrase-limit {self.limit}: must be at least 0")


@dataclass(frozen=True)
class Enliven(Mechanism):
    """Redundant heads, sentence by sentence, and only they, get syntax, relative positions and localness; or they are
    pruned (Zhang et al., 2021, section 4.2)."""

    components: ClassVar[tuple[str, ...]] = ("encoder",)

    kind: str = option(
        "off", "redundant heads alone get the mechanisms, or output zero", choices=("off", "enliven", "prune")
    )
    on: str = option("encoder:1", "placement of redundant head enlivening")
    gate: str = option("dynamic", "share of its weight that an important head gives to syntax: dynamic or in (0, 1]")

    @property
    def threshold(self) -> float | None:
        """The constant gate; None for the dynamic one."""
        return None if self.gate == "dynamic" else float(self.gate)

    def check(self, width: int, component: str) -> None:
        try:
            good = self.threshold is None or 0 < self.threshold <= 1
        except ValueError:
            good = False
        if not good:
            raise UserError(f"--enliven-gate {self.gate!r}: must be dynamic or a number in (0, 1]")


@dataclass(frozen=True)
class QueryKeyWidth(Mechanism):
    """Heads whose queries and keys have a width of their own (Bhojanapalli et al., 2020)."""

    kind: int = option(0, "width of each head's queries and keys, such as the mean source length; 0 = width / heads")
    on: str = option(",".join(COMPONENTS), "placement of --qk-head-dim")

    def check(self, width: int, component: str) -> None:
        if self.kind < 0:
            raise UserError(f"--qk-head-dim {self.kind}: must be at least 1 (or 0 for width / heads)")


@dataclass(frozen=True)
class Talking(Mechanism):
    """Talking heads (Shazeer et al., 2020)."""

    kind: str = option(
        "none",
        "mix the heads' logits before the softmax, their weights after it, or both",
        choices=("none", "logits", "weights", "both"),
    )
    on: str = option(",".join(COMPONENTS), "placement of talking heads")


@dataclass(frozen=True)
class Interacting(Mechanism):
    """Interacting heads (Li and Luo, 2022, section 3.3)."""

    kind: str = option(
        "none",
        "every head's queries attend to every head's keys; the outputs are concatenated or, without more "
        "parameters, summed",
        choices=("none", "concat", "sum"),
    )
    on: str = option(",".join(COMPONENTS), "placement of interacting heads")


@dataclass(frozen=True)
class Evolving(Mechanism):
    """Evolving attention (Wang et al., 2021, sections 3.3, 3.5 and 4.3)."""

    on: str = option("", "placement of evolving attention; empty = off")
    carry: float = option(0.5, "alpha, share of the logits of the layer below, in [0, 1]; encoder only; 0.1 in _lite")
    conv: str = option("0.1", "beta, share of the convolution, in [0, 1]: a number, or encoder:0,decoder:0.1,cross:0.1")
    kernel: int = option(3, "width of the convolution, odd")

    def conv_at(self, component: str) -> float:
        """beta"""
        return self._ratios()[component]

    def _ratios(self) -> dict[str, float]:
        try:
            if ":" not in self.conv:
                return dict.fromkeys(COMPONENTS, float(self.conv))
            pairs = [part.strip().split(":") for part in self.conv.split(",")]
            ratios = {component: float(ratio) for component, ratio in pairs}
        except ValueError:
            return {}
        return ratios if len(ratios) == len(pairs) and set(ratios) <= set(COMPONENTS) else {}

    def check(self, width: int, component: str) -> None:
        ratios = self._ratios()
        if not ratios or not all(0 <= ratio <= 1 for ratio in ratios.values()):
            raise UserError(
                f"--evolving-conv {self.conv!r}: must be a number in [0, 1], or one for each component, such as "
                "encoder:0,decoder:0.1,cross:0.1"
            )
        if component not in ratios:
            raise UserError(f"--evolving-conv {self.conv!r}: {component}, where --evolving-on places it, is missing")
        if not 0 <= self.carry <= 1:
            raise UserError(f"--evolving-carry {self.carry}: must be in [0, 1]")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise UserError(f"--evolving-kernel {self.kernel}: must be odd and at least 1")


MECHANISMS: dict[str, type[Mechanism]] = {
    "routing": Routing,
    "syntax": Syntax,
    "enliven": Enliven,
    "relative": Relative,
    "localness": Localness,
    "qk-head-dim": QueryKeyWidth,
    "talking": Talking,
    "interacting": Interacting,
    "evolving": Evolving,
}
ENLIVENED = ("syntax", "relative", "localness")


def flag_name(mechanism: str, field_name: str) -> str:
    """The command-line flag of a mechanism's field."""
    default = f"--{mechanism}" if field_name == "kind" else f"--{mechanism}-{field_name}"
    return MECHANISMS[mechanism].__dataclass_fields__[field_name].metadata.get("flag", default)


def add_flags(parser: Any) -> None:
    """Add the flags of every mechanism; absent flags stay absent, so that an architecture can set them."""
    for mechanism, kind in MECHANISMS.items():
        for f in dataclasses.fields(kind):
            options = {"type": type(f.default), "default": argparse.SUPPRESS, **f.metadata}
            options.pop("flag", None)
            options["help"] = f"{f.metadata['help']} (default: {f.default!r})"
            parser.add_argument(flag_name(mechanism, f.name), **options)


def _attribute(mechanism: str, field_name: str) -> str:
    return flag_name(mechanism, field_name).removeprefix("--").replace("-", "_")


def read_mechanism(args: Any, mechanism: str) -> Any:
    """A mechanism's settings in parsed arguments; flags that did not exist yet have their default."""
    kind: Any = MECHANISMS[mechanism]
    values = {}
    for f in dataclasses.fields(kind):
        given = getattr(args, _attribute(mechanism, f.name), f.default)
        value = values[f.name] = _typed(flag_name(mechanism, f.name), given, type(f.default))
        choices = f.metadata.get("choices", (value,))
        if value not in choices:  # from --model-overrides or Python; argparse checks the command line
            raise UserError(f"{flag_name(mechanism, f.name)} {value!r}: allowed are {', '.join(choices)}")
    return kind(**values)


def _typed(flag: str, value: Any, kind: type) -> Any:
    """A flag's value in its type; --model-overrides and Python may give a number for a text or the other way round."""
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = 0.0 if kind is str else float(value)
            if kind is not int or number.is_integer():
                return str(value) if kind is str else kind(number)
    except ValueError:
        pass
    needed = {str: "a text", int: "a whole number", float: "a number"}
    raise UserError(f"{flag} {value!r}: {needed[kind]} is needed")


def active(args: Any) -> list[str]:
    """The flags that switch on what ``args`` have on."""
    settings = {mechanism: read_mechanism(args, mechanism) for mechanism in MECHANISMS}
    return [flag_name(mechanism, its.switch) for mechanism, its in settings.items() if its.active]


def without_effect(args: Any, usual: Any) -> list[str]:
    """What ``args`` set otherwise than ``usual`` for mechanisms that are off, and how these are switched on."""
    lines = []
    for mechanism in MECHANISMS:
        settings, before = read_mechanism(args, mechanism), read_mechanism(usual, mechanism)
        for name, value in dataclasses.asdict(settings).items() if not settings.active else ():
            if name != settings.switch and value != getattr(before, name):
                lines.append(
                    f"{flag_name(mechanism, name)} {value} has no effect: {mechanism} is off, "
                    f"{flag_name(mechanism, settings.switch)} switches it on"
                )
    return lines


def fill_defaults(args: Any) -> None:
    """Write every mechanism's settings into the arguments, as fairseq's architecture functions do."""
    for mechanism in MECHANISMS:
        for name, value in dataclasses.asdict(read_mechanism(args, mechanism)).items():
            setattr(args, _attribute(mechanism, name), value)


def keep_layers(args: Any) -> None:
    """Renumber the placements in ``args`` for the layers that fairseq's ``--*-layers-to-keep`` (from 0) leaves; a
    mechanism that none of them has is switched off."""
    sides = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}
    texts = {component: getattr(args, f"{side}_layers_to_keep", None) or "" for component, side in sides.items()}
    for mechanism in MECHANISMS if any(texts.values()) else ():
        settings = read_mechanism(args, mechanism)
        parts = []
        for component, chosen in parse_placement(flag_name(mechanism, "on"), settings.on).items():
            if chosen is not None and texts[component]:
                kept = sorted(map(int, texts[component].split(",")))
                chosen = frozenset(new for new, old in enumerate(kept, 1) if old + 1 in chosen)
            if chosen is None:
                parts.append(component)
            elif chosen:
                parts.append(f"{component}:{'+'.join(map(str, sorted(chosen)))}")
        setattr(args, _attribute(mechanism, "on"), ",".join(parts))
        if hasattr(settings, "kind") and not parts:
            setattr(args, _attribute(mechanism, "kind"), type(settings).kind)


class AttentionPlan:
    """Which mechanisms are on at which attention of one model.

    Args:
        args: parsed arguments or fairseq's configuration of the model.
        layers: number of layers of each component.
        widths: width of each component's attentions.

    Raises:
        UserError: a placement or a value that this model cannot have.
    """

    def __init__(self, args: Any, layers: Layers, widths: Mapping[str, int]) -> None:
        self._settings: dict[str, Any] = {}
        self._placements: dict[str, Placement] = {}
        for mechanism in MECHANISMS:
            settings = read_mechanism(args, mechanism)
            flag = flag_name(mechanism, "on")
            parse_placement(flag, settings.on)  # a typing error shows even while the mechanism is off
            placement = resolve_placement(flag, settings.on, layers) if settings.active else {}
            if settings.active and not placement:
                raise UserError(f"{flag} '': names no attention; leave {flag_name(mechanism, 'kind')} off instead")
            for component in placement:
                if component not in settings.components:
                    known = " and ".join(settings.components)
                    raise UserError(f"{flag} {settings.on!r}: {mechanism} is defined for {known} self-attention only")
                settings.check(widths[component], component)
            self._settings[mechanism], self._placements[mechanism] = settings, placement
        self._check_enlivening()
        self._check_interacting()

    def at(self, mechanism: str, component: str, layer: int) -> Any:
        """The mechanism's settings where it is on, None where it is off."""
        return self._settings[mechanism] if layer in self._placements[mechanism].get(component, ()) else None

    def anywhere(self, mechanism: str, component: str) -> bool:
        """Whether the mechanism is on at any layer of the component."""
        return bool(self._placements[mechanism].get(component))

    @property
    def trees(self) -> tuple[str, ...]:
        """The kinds of source trees that the model needs: dependency, constituency."""
        syntax = self._settings["syntax"]
        dependency = self._settings["enliven"].active or syntax.kind == "dependency"
        return ("dependency",) * dependency + ("constituency",) * (syntax.kind == "phrase")

    def _check_enlivening(self) -> None:
        settings = self._settings["enliven"]
        for layer in sorted(self._placements["enliven"].get("encoder", ())):
            placed = [mechanism for mechanism in ENLIVENED if self.at(mechanism, "encoder", layer)]
            if settings.kind == "enliven" and not placed:
                raise UserError(
                    f"--enliven-on {settings.on!r}: encoder:{layer} has nothing to enliven its heads with; "
                    f"place one of {', '.join(ENLIVENED)} there"
                )
            if settings.kind == "prune" and placed:
                raise UserError(
                    f"--enliven prune: encoder:{layer} has {', '.join(placed)}, which important heads do not get and "
                    "redundant ones are pruned of; place it elsewhere or --enliven enliven"
                )

    def _check_interacting(self) -> None:
        others = [name for name in MECHANISMS if name not in ("interacting", "qk-head-dim")]
        for component, layers in self._placements["interacting"].items():
            for layer in sorted(layers):
                if placed := [name for name in others if self.at(name, component, layer)]:
                    raise UserError(
                        f"--interacting-on {self._settings['interacting'].on!r}: {component}:{layer} has "
                        f"{', '.join(placed)} too, which is not defined for pairs of heads; place them apart"
                    )
