"""Writing files whole or not at all, and reading text with errors that name the line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` and rename it to ``path`` when the block ends well.

    Whatever stops the block (an error, a full disk, Ctrl-C) leaves ``path`` as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(
            temporary, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n"
        ) as f:
            yield f
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file, split at newlines only, without their newline.

    Raises:
        ValueError: the file does not exist or is not UTF-8; names the file and the line.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: not UTF-8 (byte {error.start + 1}); convert the file, for example with iconv"
            ) from None
    return decoded
