"""Configuration files: YAML with plain values."""

import math
import re
import reprlib
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_lines

SHORT = reprlib.Repr()
SHORT.maxlist = SHORT.maxdict = SHORT.maxstring = 60
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """YAML 1.2, where no, on and 1:30 are text; dates, 0123 and 0x1 are text, too, as are all keys, none twice."""

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
