"""One line instead of a stack trace for a user's mistake."""

import sys
from types import TracebackType


class UserError(ValueError):
    """A flag, file or value that the user can mend; its text says what to do."""


def show_user_errors_in_one_line() -> None:
    """Let a process that dies of a ``UserError`` print that one line; every other exception is shown as before."""
    shown_before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, UserError):
            print(f"error: {error}", file=sys.stderr)
        else:
            shown_before(kind, error, trace)

    sys.excepthook = show
