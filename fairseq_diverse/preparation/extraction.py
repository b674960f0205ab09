"""Archives to raw parallel files, one sentence per line; a data set is extracted completely or not at all.

Archives are read to the end, with the checksums of gzip, bzip2, xz and of every extracted member of a zip."""

import errno
import gzip
import json
import lzma
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from tqdm import tqdm

from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.progress import INTERVAL
from fairseq_diverse.preparation.sources import Sources
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, decode_lines, new_folder, sha256_of, write_text

STAMP = "sources.json"
ARCHIVES = (".tgz", ".tar.gz", ".tar", ".zip")
UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, ValueError, OverflowError, LookupError, MemoryError, RuntimeError, OSError),
)
RATIO = 100  # only highly repetitive text is compressed to less than a hundredth
ALWAYS = 1 << 28  # bytes that every archive may contain
CHUNK = 1 << 20
SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)
ABOUT_THE_TALK = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")  # tags without sentences
TITLE = re.compile(r"</?(title|description)>")


def is_extracted(config: DataConfig, archives: Path, raw: Path) -> bool:
    """Whether ``raw`` has the files of ``extract``; archives may have been deleted since, but not replaced."""
    try:
        stamp = json.loads((raw / STAMP).read_text(encoding="utf-8"))
        now = {name: _identity(archives / name) for name in stamp["archives"] if (archives / name).exists()}
        return (
            stamp["files"] == _wanted(config)
            and stamp.get("checks", {}) == _sources(config).checks
            and stamp["archives"] == stamp["archives"] | now
            and all((raw / name).stat().st_size == size for name, size in stamp["sizes"].items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def extract(config: DataConfig, archives: Path, raw: Path) -> None:
    """Write the raw files of ``config.sources`` into ``raw``.

    The text of each archive is kept in ``raw/parts`` until all are extracted, so an interrupted extraction resumes with
    the next archive. From .sgm and .xml files the segments are extracted, from IWSLT's train.tags the sentences, titles
    and descriptions. Raises ``ValueError``: an archive is damaged, lacks a member, differs from the configuration, or
    contains far more than its size allows; a text is not UTF-8; or the two sides have different numbers of lines.
    """
    sources = _sources(config)
    used = sorted({part.archive for parts in sources.files.values() for part in parts})
    for name in used:
        refuse_other(archives / name, **sources.checks.get(name, {}))
    unpacked = {name: _unpack(config, archives / name, raw / "parts") for name in used}
    names, lines = list[str](), dict[str, list[int]]()
    for prefix, parts in sources.files.items():
        names += (both := [f"{prefix}.{language}" for language in config.endings])
        lines[prefix] = []
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_write(raw / name, "wb")) for name in both]
            for part in parts:
                a, b = map(_append, [unpacked[part.archive]] * 2, part.members, files)
                if a != b:
                    first, second = part.members
                    raise ValueError(f"{archives / part.archive}: {first} has {a:,} lines and {second} {b:,}")
                lines[prefix].append(a)
    stamp: dict[str, Any] = {"files": _wanted(config), "checks": sources.checks}
    stamp |= {"archives": {name: _identity(archives / name) for name in used}, "lines": lines}
    stamp |= {"sizes": {name: (raw / name).stat().st_size for name in names}}
    write_text(raw / STAMP, json.dumps(stamp, indent=2))
    shutil.rmtree(raw / "parts")


def wrong_lines(config: DataConfig, raw: Path) -> list[str]:
    """Differences between the numbers of extracted lines and those in the configuration, one text per part."""
    measured = json.loads((raw / STAMP).read_text(encoding="utf-8"))["lines"]
    return [
        f"{part.archive}: {part.members[0]} has {count:,} lines, {part.lines:,} are expected"
        for prefix, parts in _sources(config).files.items()
        for part, count in zip(parts, measured[prefix], strict=True)
        if part.lines is not None and part.lines != count
    ]


def _sources(config: DataConfig) -> Sources:
    assert config.sources is not None
    return config.sources


def _wanted(config: DataConfig) -> dict[str, list[Any]]:
    """The files for the stamp, as JSON values."""
    files = _sources(config).files.items()
    return {prefix: [[part.archive, *part.members] for part in parts] for prefix, parts in files}


def _identity(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def refuse_other(archive: Path, bytes: int | None = None, sha256: str | None = None) -> None:
    """Raise ``ValueError`` where a file has not its known size and checksum."""
    size = archive.stat().st_size
    if bytes is not None and size != bytes:
        raise UserError(f"{archive}: {size:,} bytes, {bytes:,} are expected; delete it and download it again")
    if sha256 is not None and (digest := sha256_of(archive)) != sha256:
        raise UserError(f"{archive}: its SHA-256 is {digest}, {sha256} is expected; delete it and download it again")


# --- out of one archive ---


def _unpack(config: DataConfig, archive: Path, folder: Path) -> Path:
    """A folder with the text of every wanted member, named by its quoted path; created only if it is missing."""
    parts = [part for part in chain(*_sources(config).files.values()) if part.archive == archive.name]
    patterns = sorted({member for part in parts for member in part.members})
    unpacked = folder / sha256(json.dumps([archive.name, *_identity(archive), *patterns]).encode()).hexdigest()[:16]
    if unpacked.exists():
        return unpacked
    size = archive.stat().st_size
    limit = left = max(ALWAYS, RATIO * size)

    def spend(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            more = f"contains more than {limit:,} bytes, the limit for its {size:,} bytes"
            raise UserError(f"{archive}: {more}; if right, unpack it yourself and use --raw")

    try:
        with (
            new_folder(unpacked) as work,
            open(archive, "rb") as opened,
            tqdm.wrapattr(opened, "read", size, desc=f"extract {archive.name}", mininterval=INTERVAL) as f,
        ):
            for name, stream in _members(f, archive.name, patterns, spend):
                quoted = quote(name, safe="", errors="surrogateescape").replace(".", "%2E")
                with open(work / quoted, "w", encoding="utf-8", newline="\n") as out:
                    for line in _lines(stream, name, f"{archive}: {name}"):
                        spend(len(line))
                        out.write(f"{line}\n")
            for pattern in patterns:
                if not _matching(work, pattern):
                    raise UserError(f"{archive}: has no member {pattern}")
            work.replace(unpacked)
    except UserError:
        raise
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = " ".join(str(error).split())
        todo = "delete it and download it again, or unpack it yourself and use --raw"
        raise UserError(f"{archive}: cannot be read ({reason}); {todo}") from None
    return unpacked


def _members(opened: Any, name: str, patterns: list[str], spend: Callable[[int], None]) -> Iterator[tuple[str, Any]]:
    """Paths and contents of the members that match a pattern, in the archive's order; read each before the next.

    ``spend`` is called with the size of every member.
    """
    for path, size, content in _zip(opened) if name.endswith(".zip") else _tar(opened):
        path = path.removeprefix("./")
        spend(size)
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            yield path, gzip.GzipFile(fileobj=content()) if path.endswith(".gz") else content()
        elif path.endswith(ARCHIVES):
            inside = [pattern.removeprefix(f"{path}/") for pattern in patterns if pattern.startswith(f"{path}/")]
            for inner, stream in _members(content(), path, inside, spend) if inside else ():
                yield f"{path}/{inner}", stream


def _tar(opened: Any) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    with tarfile.open(fileobj=opened) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, member.size, partial(archive.extractfile, member)
        while archive.fileobj.read(CHUNK):  # type: ignore[union-attr]  # the checksum is at the end
            pass


def _zip(opened: Any) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    with zipfile.ZipFile(opened) as archive:
        for member in archive.infolist():
            yield member.filename, member.file_size, partial(archive.open, member)


def _lines(stream: Any, name: str, where: str) -> Iterator[str]:
    name = name.removesuffix(".gz")
    lines = decode_lines(stream, where)
    if name.endswith(".sgm"):
        yield from _segments(lines, where)
    elif name.endswith(".xml"):  # of IWSLT; the apostrophe is treated as in fairseq's recipe
        yield from (line.replace("\u2019", "'") for line in _segments(lines, where))
    elif os.path.basename(name).startswith("train.tags."):
        yield from (TITLE.sub("", line).strip() for line in lines if not ABOUT_THE_TALK.match(line))
    else:
        yield from lines


def _segments(lines: Iterable[str], where: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if match := SEGMENT.search(line):
            yield unescape(match[1].strip(), {"&quot;": '"', "&apos;": "'"})
        elif "<seg" in line.lower():
            raise UserError(f"{where}, line {number}: a segment has no end")


def _matching(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if fnmatchcase(unquote(path.name), pattern))


def _append(folder: Path, pattern: str, out: IO[bytes]) -> int:
    """Copy the members that match ``pattern`` to ``out``; returns their number of lines."""
    count = 0
    for path in _matching(folder, pattern):
        with open(path, "rb") as f:
            for line in f:
                out.write(line)
                count += 1
    return count
