"""Settings of a ``config.json`` of transformers."""

from collections.abc import Mapping
from typing import Any

from fairseq_diverse.support.errors import UserError


def check_fixed(config: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raise ``UserError`` for a setting that is given with another value than its ``fixed`` one."""
    for name, value in fixed.items():
        if (actual := config.get(name, value)) != value:
            raise UserError(f"config.json: {name} {actual}: not supported, only {value}")


def whole_number(name: str, value: Any) -> int:
    """The value; ``UserError`` if it is not a whole number above 0."""
    if type(value) is not int or value < 1:
        raise UserError(f"config.json: {name} {value!r}: must be a whole number above 0")
    return value
