"""User errors: one line instead of a stack trace."""

import logging
import re
import sys
import traceback
from pathlib import Path
from typing import NoReturn

# what steers a terminal or ends a line; lines of a list that a message has begin with two spaces
CONTROL = re.compile("\n(?!  )|[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
FORGOTTEN = "; a mechanism of your own? give its --user-dir"  # after an unknown flag that places one


class UserError(ValueError):
    """An error in a flag, file or value; the message says how to fix it.

    One line, also from a process of torch's DataLoader, which adds the stack trace of that process.
    """

    def __str__(self) -> str:
        text = super().__str__()
        added = text.startswith(f"Caught {type(self).__name__} in ")
        return text.strip().splitlines()[-1].partition(": ")[2] if added else text


def with_place(error: BaseException, folder: str | Path) -> str:
    """An error in one line: where it was raised, in the folder's code if it passed that, its kind and its message."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(Path(folder).resolve())]
    frame = (inside or frames)[-1]
    return f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {' '.join(str(error).split())}"


def first_line(error: BaseException) -> str:
    """The kind of an error, and its first line that has words, cut to 150 characters."""
    text = next((line for line in str(error).splitlines() if line.strip(" *")), "no message")
    return f"{type(error).__name__}: {' '.join(text.split())[:150]}"


def printable(message: object) -> str:
    """A message that stays on its line, whatever the names of files in it are."""
    return CONTROL.sub(" ", str(message))


def warn(message: object) -> None:
    """Print a warning, unless ``--quiet`` is given."""
    if logging.root.level <= logging.WARNING:
        print(f"warning: {printable(message)}", file=sys.stderr)


def exit_with(message: str) -> NoReturn:
    """Exit with one line, in programs that would print their own stack trace for a ``UserError``."""
    raise SystemExit(f"error: {printable(message)}")
