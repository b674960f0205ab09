"""Writing files whole or not at all, and reading text with errors that name the line."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` and rename it to ``path`` when the block ends well.

    Whatever stops the block (an error, a full disk, Ctrl-C) leaves ``path`` as it was.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file that can be written", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(
            temporary, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n"
        ) as f:
            yield f
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:  # a full disk does not say which file it was
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def refuse_foreign(directory: Path, names: Iterable[str], mark: str) -> None:
    """See that nothing is lost where files of these names are about to be written.

    Raises:
        ValueError: one is there, and not the file ``mark``, which whatever writes them leaves beside them.
    """
    found = [] if (directory / mark).exists() else [name for name in names if (directory / name).exists()]
    if found:
        raise ValueError(f"{directory / found[0]}: there already, and made by something else; give another --out")


def iterate_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file one by one, split at newlines only, without newline, carriage return, byte order mark.

    Raises:
        ValueError: the file cannot be read or is not UTF-8; names the file and the line.
    """
    try:
        f = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    with f:
        yield from decode_lines(f, str(path))


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """As ``iterate_lines``, of lines read elsewhere; errors call them ``name``."""
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
        except UnicodeDecodeError as error:
            problem = f"{name}, line {number}: not UTF-8 (byte {error.start + 1})"
            raise ValueError(f"{problem}; convert it, for example with iconv") from None


def read_lines(path: str | Path) -> list[str]:
    """All of ``iterate_lines``."""
    return list(iterate_lines(path))
