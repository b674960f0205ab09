"""Configuration files: YAML with plain values, and limits far above any hand-written file."""

import math
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from fairseq_diverse.support.files import read_lines

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 100_000  # an alias counts each time
MAX_INTEGER = 10**30
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Loader(get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's loader, which reads 1e-4 as a number; duplicate keys are found as text, before ``<<`` is merged."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        texts: set[str] = set()
        values: dict[Any, str] = {}  # 1, 1.0 and yes are equal
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            number = key.tag.rpartition(":")[2] in ("int", "float", "bool")
            value = self.construct_object(key) if number else key.value
            if key.value in texts or value in values:
                twice = key.value if key.value in texts else f"{key.value}, which is equal to {values[value]}"
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {twice}", key.start_mark)
            texts.add(key.value)
            values[value] = key.value
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        return yaml.SafeLoader.construct_mapping(self, node, deep=deep)

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"<<: merges more than {MAX_VALUES:,} keys", node.start_mark
            )


def read_yaml(path: Path) -> Any:
    """The plain values in a YAML file: dictionaries, lists, text, finite numbers, true, false, null.

    ``${...}`` is refused, since OmegaConf would insert environment variables.

    Raises:
        ValueError: the file cannot be read, is not valid, or exceeds a limit; names the file and the problem.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    if size > MAX_BYTES:
        raise ValueError(f"{path}: {size:,} bytes; a configuration has at most {MAX_BYTES:,}")
    try:
        content = yaml.load("\n".join(read_lines(path)), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not understood"
        raise ValueError(f"{path}{where}: not valid YAML ({problem})") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply; a configuration has at most {MAX_DEPTH} levels") from None
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of PyYAML
        raise ValueError(f"{path}: not valid YAML (a value does not fit its tag: {error})") from None
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(path)) else f"{path}: not valid YAML ({text})") from None
    try:
        _check(content, "", 0, [MAX_VALUES])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return content


def parse_value(text: str) -> Any:
    """A command-line value, parsed as YAML; text that is not YAML stays text."""
    try:
        return yaml.load(text, _Loader)
    except Exception:  # PyYAML's constructors raise many types
        return text


def check_text(text: str, where: str) -> None:
    """Raise ``ValueError`` for text with control characters or with ``${...}``."""
    if CONTROL.search(text):
        raise ValueError(f"{where}{shown(text)}: has a control character or half of a surrogate pair")
    if "${" in text:
        raise ValueError(f"{where}{shown(text)}: ${{...}} is not supported; write the value itself")


def shown(value: object) -> str:
    """A value from a file, shortened to one line."""
    text = str(value)
    line = ascii(text)[1:-1] if CONTROL.search(text) else " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:60]}..."


def _check(value: Any, where: str, depth: int, left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"more than {MAX_VALUES:,} values, counting what aliases repeat")
    if depth > MAX_DEPTH:
        raise ValueError(f"nested too deeply; a configuration has at most {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | None):
                raise ValueError(f"{where}{shown(key)}: a key is text or a number")
            _check(key, where, depth, left)
            check_text(str(key), where)
            _check(item, f"{where}{shown(key)}: ", depth + 1, left)
    elif isinstance(value, list):
        for item in value:
            _check(item, where, depth + 1, left)
    elif isinstance(value, str):
        check_text(value, where)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError(f"{where}must be an integer of at most 30 digits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}{value}: must be a finite number")
    elif not isinstance(value, int | float | None):
        raise ValueError(f"{where}{shown(value)}: text, a number, true, false, null, a list or keys expected")
