"""Functions of fairseq that the plugin changes."""

import functools
from collections.abc import Callable
from typing import Any


def patch(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    """Make a function of a class or module call ``changed``, which gets the function as it was, and then its arguments.

    Idempotent.
    """
    before = layer = getattr(owner, name)
    while layer is not None:  # one function may have several changes
        if getattr(layer, "changed", None) is changed:
            return
        layer = getattr(layer, "__wrapped__", None)

    @functools.wraps(before)
    def patched(*args: Any, **flags: Any) -> Any:
        return changed(before, *args, **flags)

    patched.changed = changed  # type: ignore[attr-defined]
    setattr(owner, name, patched)
