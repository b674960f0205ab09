"""Plain values: read from YAML files, and checked against types, with errors in one line."""

import difflib
import math
import re
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import yaml

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_lines

SHORT = reprlib.Repr()
SHORT.maxlist = SHORT.maxdict = SHORT.maxstring = 60
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """YAML 1.2, where no, on and 1:30 are text; dates, 0123 and 0x1 are text, too, as are all keys, each of which comes
    once."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        texts: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in texts:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
            texts.add(key.value)
            if not key.tag.endswith(":merge"):
                key.tag = "tag:yaml.org,2002:str"
        return node


for kind, pattern, first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", ("~", "n", "N", "")),
    ("int", "[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+|[-+]?[0-9][0-9_]*\.[0-9_]*", "-+0123456789"),
    ("float", r"\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"({pattern})$"), [*first])


def read_yaml(path: Path) -> Any:
    """The plain values in a YAML file: dictionaries, lists, text, finite numbers, true, false, null.

    ``${...}`` is refused, since OmegaConf would insert environment variables. Raises ValueError: the file cannot be
    read, is not valid, or has other values; names the file and the problem."""
    text = "\n".join(read_lines(path))
    try:
        content = yaml.load(text, _Loader)
        _check(content, "", {})
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not understood"
        raise ValueError(f"{path}{where}: not valid YAML ({problem})") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except UserError as error:
        raise ValueError(f"{path}: {error}") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of PyYAML
        raise ValueError(f"{path}: not valid YAML (a value does not fit its tag: {error})") from None
    return content


def parse_value(text: str) -> Any:
    """A command-line value, parsed as YAML; text that is not YAML stays text."""
    try:
        return yaml.load(text, _Loader)
    except Exception:  # PyYAML's constructors raise many types
        return text


def check_text(text: str, where: str) -> None:
    """Raise ``UserError`` for text with control characters or with ``${...}``."""
    if CONTROL.search(text):
        raise UserError(f"{where}{shown(text)}: has a control character or half of a surrogate pair")
    if "${" in text:
        raise UserError(f"{where}{shown(text)}: ${{...}} is not supported; write the value itself")


def shown(value: object) -> str:
    """A value from a file, shortened to one line."""
    text = SHORT.repr(value) if isinstance(value, dict | list) else str(value)
    line = ascii(text)[1:-1] if CONTROL.search(text) else " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:60]}..."


def _check(value: Any, where: str, open_by_id: dict[int, bool]) -> None:
    """Check values, and those of each dictionary and list once, however often ``*anchor`` names it."""
    if isinstance(value, str):
        check_text(value, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where}{value}: must be a finite number")
    elif isinstance(value, dict | list) and id(value) not in open_by_id:
        open_by_id[id(value)] = True
        for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
            _check(key, where, open_by_id)
            _check(item, where if key is None else f"{where}{shown(key)}: ", open_by_id)
        open_by_id[id(value)] = False
    elif open_by_id.get(id(value)):  # within itself
        raise RecursionError
    elif not isinstance(value, dict | list | int | float | None):
        raise UserError(f"{where}{shown(value)}: text, a number, true, false, null, a list or keys expected")


T = TypeVar("T")
STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")  # of msgspec's paths: a field, a place in a list, any key
NAMES = {
    **{"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"},
    **{"array": "a list", "object": "a list of `key: value`"},
}


def typed(content: Any, kind: type[T], where: str) -> T:
    """The plain values as a ``kind``; keys that it does not know are left out. Raises ValueError: the values are
    others; names ``where``, the key and the value."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        keys, value = _place(content, kind, path.strip("`"), str(error))
    if expected := re.match("Expected `(.*)`, got", text):
        kinds = [kind for kind in expected[1].split(" | ") if kind != "null"]
        if "str" in kinds:  # 4 is text, too
            kinds = [kind for kind in kinds if kind not in ("int", "float")]
        text = f"{' or '.join(NAMES.get(kind, kind) for kind in kinds)} expected, not {shown(value)}"
    elif bounded := re.match("Expected `(.*)` (.*)", text):
        text = f"{NAMES.get(bounded[1], bounded[1])} {bounded[2]} expected, not {shown(value)}"
    elif missing := re.match("Object missing required field `(.*)`", text):
        text = f"no `{missing[1]}`"
    raise ValueError(": ".join([*([where] if where else []), *keys, text]))


def _place(content: Any, kind: Any, path: str, error: str) -> tuple[list[str], Any]:
    """The keys to what is wrong, and its value. msgspec names no keys of dictionaries: a key is the one with which
    alone the error is the same."""
    keys: list[str] = []
    value = content
    for step in STEP.finditer(path):
        if step[0] == "[...]":
            whole = dict(value)
            for key in whole:
                value.clear()
                value[key] = whole[key]
                try:
                    msgspec.convert(content, kind)
                except msgspec.ValidationError as again:
                    if str(again) == error:
                        break
            value.clear()
            value.update(whole)
        else:
            key = int(step[2]) if step[2] else step[1]
        if isinstance(value, Mapping | list):
            value = value[key]
        keys.append(f"{key}")
    return keys, value


def refuse_unknown(content: Collection[Any], known: Collection[str], where: str) -> None:
    """Raise ``ValueError`` for keys that are not known; names them, and the nearest known ones first."""
    if unknown := [str(key) for key in content if key not in known]:
        listed = ", ".join(dict.fromkeys([*difflib.get_close_matches(unknown[0], known, n=1), *known]))
        raise ValueError(f"{where}: unknown key {', '.join(map(shown, unknown))}; known: {listed}")
