"""The registry of mechanisms, and the flags made from their settings."""

import argparse
import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fairseq_diverse.attention.mechanism import STAGES, Mechanism
from fairseq_diverse.attention.placements import COMPONENTS, parse_placement
from fairseq_diverse.attention.settings import MechanismSettings
from fairseq_diverse.support.errors import UserError

MECHANISMS: dict[str, type[Mechanism]] = {}  # in the order in which they run in a stage
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MOVED_BY_FAIRSEQ = ("--encoder-", "--decoder-", "--quant-noise-")  # into its nested configuration
M = TypeVar("M", bound=type[Mechanism])


def register_mechanism(name: str, before: str | None = None) -> Callable[[M], M]:
    """Decorator for a ``Mechanism``: its settings become flags, and it can be placed on any attention.

    Args:
        name: lower-case words joined by ``-``; the flags are ``--<name>`` (its ``kind``) and ``--<name>-<field>``.
        before: the mechanism that it precedes in every stage; by default it runs last.

    Registering a class again (a file imported twice, a notebook cell run twice) replaces the earlier one.

    Raises:
        UserError: a name or flag that is taken, an unknown stage, or settings that are not a dataclass.
    """

    def register(cls: M) -> M:
        def refuse(problem: str | None) -> None:
            if problem:
                raise UserError(f"mechanism {name!r}: {problem}")

        if not NAME.fullmatch(name):
            refuse("a name is lower-case words joined by '-', such as my-mechanism")
        known = MECHANISMS.get(name)
        if known is not None and not _same_class(known, cls):
            refuse(f"the name is taken by {known.__module__}.{known.__qualname__}")
        if before is not None and (before == name or before not in MECHANISMS):
            refuse(f"before={before!r} is not a mechanism; known are {_list(MECHANISMS)}")
        refuse(_problem(name, cls))
        cls.name, cls.key = name, cls.__dict__.get("key", name.replace("-", "_"))
        for other in MECHANISMS.values():
            if other.name != name and (shared := {*_flags(other)} & {*_flags(cls)}):
                refuse(f"{_list(shared)} is a flag of the mechanism {other.name!r}")
            if other.name != name and other.key == cls.key:
                refuse(f"its key {cls.key!r} is used by the mechanism {other.name!r}")
        names, rest = [*MECHANISMS], {}
        if before is not None and name not in names[: names.index(before)]:
            rest = {later: MECHANISMS.pop(later) for later in names[names.index(before) :]}
            rest.pop(name, None)
        MECHANISMS[name] = cls  # in its place, if it has one
        MECHANISMS.update(rest)
        flag_name.cache_clear()
        return cls

    return register


def _list(names: Any) -> str:
    return ", ".join(sorted(names))


def _same_class(known: type, new: type) -> bool:
    """Whether both are the same class of the same file or notebook, run twice."""
    return known.__qualname__ == new.__qualname__ and _source(known) == _source(new)


def _source(cls: type) -> str:
    """The file of a class; its module in a notebook or an interpreter, where it has none."""
    try:
        return inspect.getfile(cls)
    except (OSError, TypeError):
        return cls.__module__


def _problem(name: str, cls: Any) -> str | None:
    """What is wrong with the class of a mechanism."""
    settings = getattr(cls, "Settings", None)
    if not (isinstance(cls, type) and issubclass(cls, Mechanism)):
        return f"{cls!r} is not a subclass of Mechanism"
    if not (isinstance(settings, type) and issubclass(settings, MechanismSettings)):
        return "its class Settings must be a dataclass derived from MechanismSettings"
    if "__dataclass_params__" not in vars(settings) or "on" not in _fields(settings):
        return "Settings needs the decorator @dataclass(frozen=True) and a field `on`"
    for f in dataclasses.fields(settings):
        if f.default is dataclasses.MISSING or type(f.default) not in (str, int, float) or "help" not in f.metadata:
            return f"Settings.{f.name}: give option(default, help); the default is a text, an integer or a float"
        if f.default not in (choices := f.metadata.get("choices", (f.default,))):
            allowed = ", ".join(map(str, choices))
            return f"Settings.{f.name}: its default {f.default!r} is not among the choices {allowed}"
        if (flag := _flag(name, f)).startswith(MOVED_BY_FAIRSEQ):
            return f"{flag}: fairseq reserves flags with this prefix; choose another name"
    for attribute, value in vars(settings).items():
        if type(value) in (str, int, float) and attribute not in settings.__dataclass_fields__ and attribute[0] != "_":
            return f"Settings.{attribute}: give its type, {attribute}: float = option(...)"
    for attribute, value in vars(cls).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if attribute in STAGES or attribute.startswith("_") or not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        if "context" in parameters:
            return f"{attribute} is not a stage; stages are {', '.join(STAGES)}"
        likely = difflib.get_close_matches(attribute, STAGES, 1, 0.85) if len(parameters) > 2 else []
        if likely and not hasattr(Mechanism, attribute):
            return f"{attribute} is not a stage; rename it to {likely[0]} or _{attribute}"
    if not cls.components or not set(cls.components) <= set(COMPONENTS):
        return f"components {cls.components!r}: give a tuple of {', '.join(COMPONENTS)}"
    if not str(cls.__dict__.get("key", "key")).isidentifier():
        return f"key {cls.__dict__['key']!r}: give the name of an attribute"
    if not isinstance(cls.examples, list | tuple) or not all(isinstance(flags, Mapping) for flags in cls.examples):
        return f"examples {cls.examples!r}: give a list of dictionaries, flag -> value"
    if not isinstance(cls.refuses, Mapping):
        return f"refuses {cls.refuses!r}: give a dictionary, mechanism -> reason"
    return None if cls.stages() else f"it has no method for a stage; stages are {', '.join(STAGES)}"


def _fields(settings: Any) -> dict[str, dataclasses.Field]:
    return {f.name: f for f in dataclasses.fields(settings)} if dataclasses.is_dataclass(settings) else {}


def _flag(mechanism: str, f: dataclasses.Field) -> str:
    return f.metadata.get("flag", f"--{mechanism}" if f.name == "kind" else f"--{mechanism}-{f.name.replace('_', '-')}")


def _flags(cls: type[Mechanism]) -> Iterator[str]:
    return (_flag(cls.name, f) for f in dataclasses.fields(cls.Settings))


@functools.cache  # tables with thousands of runs ask a million times
def flag_name(mechanism: str, field_name: str) -> str:
    """The command-line flag of a field of a mechanism's settings."""
    return _flag(mechanism, _fields(MECHANISMS[mechanism].Settings)[field_name])


def attribute_name(mechanism: str, field_name: str) -> str:
    """The attribute of that flag in parsed arguments."""
    return flag_name(mechanism, field_name).removeprefix("--").replace("-", "_")


def add_flags(parser: Any) -> None:
    """Add the flags of every mechanism; flags that are not given stay absent, so that an architecture can set them.

    Raises:
        UserError: the parser already has a flag of this name.
    """
    for name, cls in MECHANISMS.items():
        for f in dataclasses.fields(cls.Settings):
            options = {"type": _kind(f), "default": argparse.SUPPRESS, **f.metadata}
            for name_of_ours in ("flag", "older"):
                options.pop(name_of_ours, None)
            options["help"] = f"{f.metadata['help']} (default: {f.default!r})".replace("%", "%%")
            try:
                parser.add_argument(flag_name(name, f.name), **options)
            except argparse.ArgumentError as error:
                raise UserError(
                    f"mechanism {name!r}: {flag_name(name, f.name)} is a flag of fairseq; rename the field, or "
                    'give option(..., flag="--other-name")'
                ) from error


def read_settings(args: Any, mechanism: str) -> Any:
    """A mechanism's settings in parsed arguments; absent flags get their default.

    Raises:
        UserError: a value of another type, or not one of the flag's choices.
    """
    kind: Any = MECHANISMS[mechanism].Settings
    values = {}
    for f in dataclasses.fields(kind):
        raw = getattr(args, attribute_name(mechanism, f.name), f.default)
        value = values[f.name] = _typed(flag_name(mechanism, f.name), raw, _kind(f))
        choices = f.metadata.get("choices", (value,))
        if value not in choices:  # from --model-overrides or Python; argparse checks the command line
            raise UserError(f"{flag_name(mechanism, f.name)} {value!r}: allowed are {', '.join(map(str, choices))}")
    return kind(**values)


def value_where_on(flag: str, flags: Mapping[str, Any]) -> Any:
    """The value of a flag in a row of flags; if not given, its default where its mechanism is on, else None."""
    if flag in flags:
        return flags[flag]
    args = argparse.Namespace(**{name.replace("-", "_"): value for name, value in flags.items()})
    for mechanism, cls in MECHANISMS.items():
        for name in _fields(cls.Settings):
            if flag_name(mechanism, name) == f"--{flag}" and (settings := read_settings(args, mechanism)).active:
                return getattr(settings, name)
    return None


def fill_older(settings: dict[str, Any]) -> None:
    """Add to the settings of an older checkpoint those that its mechanisms got later: ``older``, what they did then."""
    for mechanism, cls in MECHANISMS.items():
        unset = read_settings(argparse.Namespace(), mechanism)
        is_on = settings.get(attribute_name(mechanism, unset.switch), "") not in ("", getattr(unset, unset.switch))
        for f in dataclasses.fields(cls.Settings) if is_on else ():
            if "older" in f.metadata:
                settings.setdefault(attribute_name(mechanism, f.name), f.metadata["older"])


def _kind(field: dataclasses.Field[Any]) -> type:
    """The type of a flag: of its default, but float for a float whose default is written as an integer."""
    return float if field.type in (float, "float") else type(field.default)


def _typed(flag: str, value: Any, kind: type) -> Any:
    """A flag's value, converted to its type; --model-overrides and Python may mix up texts and numbers."""
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = 0.0 if kind is str else float(value)
            if kind is not int or number.is_integer():
                return str(value) if kind is str else kind(number)
    except ValueError:
        pass
    needed = {str: "a text", int: "an integer", float: "a number"}
    raise UserError(f"{flag} {value!r}: must be {needed[kind]}")


def active(args: Any) -> list[str]:
    """The flags of the mechanisms that ``args`` switch on."""
    settings = {mechanism: read_settings(args, mechanism) for mechanism in MECHANISMS}
    return [flag_name(mechanism, values.switch) for mechanism, values in settings.items() if values.active]


def without_effect(args: Any, default: Any) -> list[str]:
    """Warnings about settings in ``args`` that differ from ``default`` but belong to a mechanism that is off, or that
    its other settings leave unused."""
    lines = []
    for mechanism in MECHANISMS:
        settings, before = read_settings(args, mechanism), read_settings(default, mechanism)
        switch = flag_name(mechanism, settings.switch)
        why = f"with {switch} {getattr(settings, settings.switch)}"
        why = why if settings.active else f"{mechanism} is off, {switch} switches it on"
        for name, value in dataclasses.asdict(settings).items():
            unread = name in settings.unused if settings.active else name != settings.switch
            if unread and value != getattr(before, name):
                lines.append(f"{flag_name(mechanism, name)} {value} has no effect: {why}")
    return lines


def fill_defaults(args: Any) -> None:
    """Write every mechanism's settings into the arguments, as fairseq's architecture functions do."""
    for mechanism in MECHANISMS:
        for name, value in dataclasses.asdict(read_settings(args, mechanism)).items():
            setattr(args, attribute_name(mechanism, name), value)


def place_by_default(args: Any, component: str) -> None:
    """Place mechanisms whose default placement has several components on this component only."""
    for mechanism, cls in MECHANISMS.items():
        name = attribute_name(mechanism, "on")
        if not hasattr(args, name) and len(parse_placement(name, str(_fields(cls.Settings)["on"].default))) > 1:
            setattr(args, name, component)


def own_names(recorded: str | None) -> list[str]:
    """The mechanisms that ``own_mechanisms`` of a model's settings names."""
    return [name for name in (recorded or "").split(",") if name]


def keep_names(args: Any) -> None:
    """Record the active mechanisms that are not the package's in ``args.own_mechanisms``, which checkpoints keep.

    Without its --user-dir, a checkpoint of a mechanism that has no parameters would be loaded without it.

    Raises:
        UserError: one is recorded, but not registered.
    """
    before = own_names(getattr(args, "own_mechanisms", None))
    names = [name for name, cls in MECHANISMS.items() if not cls.__module__.startswith(f"{__name__.split('.')[0]}.")]
    if missing := [name for name in before if name not in MECHANISMS]:
        registered = f"; the one given registers {_list(names)}" if names else ""
        raise UserError(
            f"the model has the mechanism {missing[0]!r}, which is not registered; give its --user-dir{registered}"
        )
    names = [name for name in names if read_settings(args, name).active]
    if names or before:
        args.own_mechanisms = ",".join(names)


def keep_layers(args: Any) -> None:
    """Renumber the placements in ``args`` for the layers that fairseq's ``--*-layers-to-keep`` (from 0) keeps; a
    mechanism without a kept layer is switched off.

    Raises:
        UserError: layers to keep in training, which fairseq does not do.
    """
    sides = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}
    texts = {component: getattr(args, f"{side}_layers_to_keep", None) or "" for component, side in sides.items()}
    for component, text in texts.items():
        if not isinstance(text, str):  # as fairseq parses it, which then fails to keep layers
            raise UserError(
                f"--{sides[component]}-layers-to-keep: fairseq takes it for a trained model only, by --model-overrides"
            )
    for mechanism in MECHANISMS if any(texts.values()) else ():
        settings = read_settings(args, mechanism)
        parts = []
        for component, chosen in parse_placement(flag_name(mechanism, "on"), settings.on).items():
            if chosen is not None and texts[component]:
                kept = sorted(map(int, texts[component].split(",")))
                chosen = frozenset(new for new, old in enumerate(kept, 1) if old + 1 in chosen)
            if chosen is None:
                parts.append(component)
            elif chosen:
                parts.append(f"{component}:{'+'.join(map(str, sorted(chosen)))}")
        setattr(args, attribute_name(mechanism, "on"), ",".join(parts))
        if hasattr(settings, "kind") and not parts:
            setattr(args, attribute_name(mechanism, "kind"), type(settings).kind)
