"""Whether a model may have mechanisms that its checkpoint lacks: in training it starts with their initial values."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_trained_only = ContextVar("trained_only", default=False)
trained_only = _trained_only.get


class NotTrained(RuntimeError):
    """A checkpoint lacks the parameters of a mechanism; names the first."""


@contextmanager
def only_trained() -> Iterator[None]:
    """Models that are loaded meanwhile are not for training: what a checkpoint lacks raises ``NotTrained``."""
    token = _trained_only.set(True)
    try:
        yield
    finally:
        _trained_only.reset(token)
