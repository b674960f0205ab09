"""One line instead of a stack trace for a user's mistake."""

import re
import sys
from types import TracebackType


class UserError(ValueError):
    """A flag, file or value that the user can mend; its text says what to do."""


def show_user_errors_in_one_line() -> None:
    """Let a process that dies of a ``UserError`` print that one line; every other exception is shown as before."""
    shown_before = sys.excepthook
    if hasattr(shown_before, "shows_user_errors"):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, UserError):
            print(f"error: {error}", file=sys.stderr)
        elif found := re.search(r"^fairseq_diverse\.errors\.UserError: (.*)$", str(error), re.MULTILINE):
            print(f"error: {found[1]}", file=sys.stderr)  # of a process that torch spawned for one of several GPUs
        else:
            shown_before(kind, error, trace)

    show.shows_user_errors = True  # type: ignore[attr-defined]

    sys.excepthook = show
