"""Atomic writes, and reading text with errors that name the line."""

import errno
import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.processes import alive

RUN_AGAIN = "delete this file and start the run again, which keeps what its other files hold"
_given: set[str] = set()  # by this process; other names with its number are from an earlier process


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file next to ``path`` and rename it to ``path`` when the block succeeds.

    If the block fails (an error, a full disk, Ctrl-C), ``path`` does not change. For a link, its target is written.
    Devices and pipes are written directly.
    """
    path = Path(path)
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file that can be written", str(path))
    target = _named_file(path) if stat.S_ISREG(kind) else None
    options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    temporary = None
    try:
        if target is None:
            with open(path, mode.replace("w", "a"), **options) as f:
                yield f
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(target)
        with open(temporary, mode.replace("w", "x"), **options) as f:
            with suppress(OSError):  # there is none, or the file system has no modes
                shutil.copymode(path, temporary)
            yield f
        os.replace(temporary, target)
    except OSError as error:  # the error of a full disk does not name the file
        if error.errno is not None and error.filename in (None, temporary and str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def _named_file(path: Path) -> Path | None:
    """The end of a chain of links, which may not exist; None for an open file (/dev/stdout)."""
    while path.is_symlink():
        if path.parent.resolve().parts[1:2] == ("proc",):
            return None
        path = path.parent / path.readlink()
    return path


def temporary_path(path: Path) -> Path:
    """A hidden name next to ``path`` for a file or folder that will be renamed to it: ``.NAME.HOST.PROCESS.tmp``.

    Such files of killed processes of this machine are deleted. A name ending in .old is the previous version: if
    ``path`` is missing, it is restored.
    """
    prefix = f".{path.name}.{socket.gethostname().partition('.')[0]}."
    mine = path.with_name(f"{prefix}{os.getpid()}.tmp")
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        process, _, kind = left.name.removeprefix(prefix).partition(".")
        if not process.isdecimal() or kind not in ("tmp", "old"):
            continue
        if os.path.abspath(mine) in _given if int(process) == os.getpid() else alive(int(process)):
            continue
        if kind == "old" and not path.exists():
            os.replace(left, path)
        else:
            remove(left)
    _given.add(os.path.abspath(mine))
    return mine


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder next to ``path`` to work in, which may be renamed to it; else it is removed at the end."""
    work = temporary_path(path)
    try:
        work.mkdir(parents=True)
        yield work
    finally:
        remove(work)


def copy_file(source: Path, target: Path) -> None:
    """`atomic_write` of a copy; never a link."""
    with open(source, "rb") as file, atomic_write(target, "wb") as copy:
        shutil.copyfileobj(file, copy)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Another name for a file, or a copy where the file system has no hard links or is another one."""
    try:
        os.link(source, target)
    except OSError:
        copy_file(Path(source), Path(target))


def remove(path: Path) -> None:
    """Delete a file or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def refuse_foreign(directory: Path, names: Iterable[str], mark: str) -> None:
    """Check that writing these files overwrites nothing that another program wrote. Raises ValueError: one of them
    exists, without the file ``mark`` that marks the folder as ours."""
    existing = [] if (directory / mark).exists() else [name for name in names if (directory / name).exists()]
    if existing:
        raise ValueError(f"{directory / existing[0]}: exists, and another program wrote it; give another --out")


def refuse_folder(path: Path, flag: str) -> None:
    """Check where a file is to be written. Raises UserError: it is a folder; names the flag."""
    if path.is_dir():
        raise UserError(f"{flag} {path}: a folder; name a file")


def refuse_pipe(path: str | Path) -> None:
    """Check a file that is read more than once. Raises UserError: it cannot be read, or is a pipe or a device."""
    try:
        kind = os.stat(path).st_mode
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # reading a folder is refused in any case
        raise UserError(f"{path}: a pipe or device, which can be read only once; write it to a file first")


def iterate_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, split at newlines only, without newline, carriage return and byte order mark. Raises
    UserError: the file cannot be read or is not UTF-8; names the file and the line."""
    try:
        f = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    with f:
        yield from decode_lines(f, str(path))


def sha256_of(path: str | Path) -> str:
    """Of the contents of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: str | Path, text: str) -> None:
    """``atomic_write`` of a whole text."""
    with atomic_write(path) as f:
        f.write(text)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a UTF-8 file with a newline after each line, on every system."""
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(line + "\n" for line in lines)


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """As ``iterate_lines``, for lines that were already read; errors name the source ``name``."""
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
        except UnicodeDecodeError as error:
            problem = f"{name}, line {number}: not UTF-8 (byte {error.start + 1})"
            raise UserError(f"{problem}; convert it, for example with iconv") from None


def rewrite_blocks(path: Path, marker: str, block: Callable[[re.Match[str]], str]) -> int:
    """Replace the text between each ``<!-- MARKER -->`` and ``<!-- end -->`` of a Markdown file, which begin lines.

    Nothing else changes; a block has the line ends of its marker.

    Args:
        marker: a regular expression, its groups with names.
        block: makes the new text, which ends with a newline, from a match.

    Returns:
        The number of blocks.

    Raises:
        ValueError: the file cannot be read or is not UTF-8, or a block has no end.
    """
    read_lines(path)  # which names a line that is not UTF-8
    old = path.read_bytes().decode("utf-8")
    start, end = rf"(?m)^(?P<start>\ufeff?[ \t]*<!-- {marker} -->\r?\n)", r"^[ \t]*<!-- end -->"
    for span, after in itertools.pairwise([*(x.span() for x in re.finditer(start, old)), (len(old), len(old))]):
        if not re.search(end, old[span[1] : after[0]], re.MULTILINE):
            raise ValueError(f"{path}: {old[span[0] : span[1]].strip()}: has no <!-- end --> before the next one")

    def rewritten(match: re.Match[str]) -> str:
        return match["start"] + block(match).replace("\n", "\r\n" if match["start"].endswith("\r\n") else "\n")

    text, count = re.subn(rf"{start}(?s:.*?)(?={end})", rewritten, old)
    if count:
        write_text(path, text)
    return count


def read_lines(path: str | Path) -> list[str]:
    """``iterate_lines`` as a list."""
    return list(iterate_lines(path))


def read_json(
    path: Path, hint: str = RUN_AGAIN, not_finite: Callable[[str], Any] | None = None
) -> dict[str, Any] | None:
    """The object that a JSON file holds, None where there is none; ``not_finite`` makes a value of NaN and infinity.
    Raises UserError: the file cannot be read, or holds something else; names it, and ``hint`` says what to do."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=not_finite)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged, not whole JSON; {hint}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged, not a JSON object; {hint}")
    return content
