"""What a user's mistake gets."""

import re
from collections.abc import Callable
from typing import Any

import pytest


def refusal(call: Callable[..., Any], *given: Any, **options: Any) -> str:
    """The one line of the error of a user with which the call ends."""
    with pytest.raises(ValueError) as error:
        call(*given, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def refused(said: str, call: Callable[..., Any], *given: Any, **options: Any) -> None:
    """The pattern ``said`` is in that line."""
    assert re.search(said, line := refusal(call, *given, **options)), line
