"""Plain values of files against types: what is wrong, in one line."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from fairseq_diverse.support.yaml_files import shown

T = TypeVar("T")
STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")  # of msgspec's paths: a field, a place in a list, any key
NAMES = {
    **{"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"},
    **{"array": "a list", "object": "a list of `key: value`"},
}


def typed(content: Any, kind: type[T], where: str) -> T:
    """Plain values as a ``kind``, without keys it does not know. Raises ValueError: names ``where``, key and value."""
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
    """The keys to what is wrong, and its value. A key of a dictionary is that with which alone the error is the
    same."""
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
