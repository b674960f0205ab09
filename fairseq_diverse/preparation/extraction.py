"""Archives to raw parallel files, one sentence per line; a data set is extracted completely or not at all.

Archives are read to the end, with the checksums of gzip, bzip2, xz and of every extracted member of a zip. A plain .tar
has none.
"""

import bz2
import errno
import gzip
import io
import itertools
import json
import lzma
import os
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from tqdm import tqdm

from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.progress import INTERVAL
from fairseq_diverse.preparation.sources import Sources
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, decode_lines, temporary_path

STAMP = "sources.json"
ARCHIVES = (".tgz", ".tar.gz", ".tar", ".zip")
COMPRESSED: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, ValueError, OverflowError, LookupError, MemoryError),
)
RATIO = 100  # only highly repetitive text is compressed to less than a hundredth
ALWAYS = 1 << 28  # bytes that every archive may contain
LONGEST = 1 << 24  # bytes per line
CHUNK = 1 << 20
ZIP_END = 22 + (1 << 16)  # bytes of a zip's last record and its comment
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
    and descriptions.

    Raises:
        ValueError: an archive is damaged, lacks a member, differs from the configuration, or contains far more than its
            size allows; a text is not UTF-8; or the two sides have different numbers of lines.
    """
    sources = _sources(config)
    languages = config.languages
    for name in _used(sources):
        refuse_other(archives / name, **sources.checks.get(name, {}))
    unpacked = {name: _unpack(config, archives / name, raw / "parts") for name in _used(sources)}
    lines: dict[str, list[int]] = {}
    for prefix, parts in sources.files.items():
        lines[prefix] = []
        with (
            atomic_write(raw / f"{prefix}.{languages[0]}", "wb") as source,
            atomic_write(raw / f"{prefix}.{languages[1]}", "wb") as target,
        ):
            for part in parts:
                counts = [
                    _append(unpacked[part.archive], member, file)
                    for member, file in zip(part.members, (source, target), strict=True)
                ]
                if counts[0] != counts[1]:
                    (one, two), (a, b) = part.members, counts
                    raise ValueError(f"{archives / part.archive}: {one} has {a:,} lines and {two} {b:,}")
                lines[prefix].append(counts[0])
    names = [f"{prefix}.{language}" for prefix in sources.files for language in languages]
    stamp = {
        "files": _wanted(config),
        "checks": sources.checks,
        "archives": {name: _identity(archives / name) for name in _used(sources)},
        "lines": lines,
        "sizes": {name: (raw / name).stat().st_size for name in names},
    }
    with atomic_write(raw / STAMP) as f:
        json.dump(stamp, f, indent=2)
    shutil.rmtree(raw / "parts")


def wrong_lines(config: DataConfig, raw: Path) -> list[str]:
    """Differences between the numbers of extracted lines and those in the configuration, one text per part."""
    measured = json.loads((raw / STAMP).read_text(encoding="utf-8"))["lines"]
    return [
        f"{part.archive}: {part.members[0]} has {found:,} lines, {part.lines:,} are expected"
        for prefix, parts in _sources(config).files.items()
        for part, found in zip(parts, measured[prefix], strict=True)
        if part.lines is not None and part.lines != found
    ]


def _sources(config: DataConfig) -> Sources:
    assert config.sources is not None
    return config.sources


def _used(sources: Sources) -> list[str]:
    return sorted({part.archive for parts in sources.files.values() for part in parts})


def _wanted(config: DataConfig) -> dict[str, list[Any]]:
    """The files for the stamp, as JSON values."""
    return {
        prefix: [[part.archive, *part.members] for part in parts] for prefix, parts in _sources(config).files.items()
    }


def _identity(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def refuse_other(archive: Path, bytes: int | None = None, sha256: str | None = None) -> None:
    """Raise ``ValueError`` where a file has not its known size and checksum."""
    if archive.suffix == ".tar" and sha256 is None:
        print(f"{archive}: a plain .tar has no checksum; sources can name its sha256", file=sys.stderr)
    size = archive.stat().st_size
    if bytes is not None and size != bytes:
        raise UserError(f"{archive}: {size:,} bytes, {bytes:,} are expected; delete it and download it again")
    if sha256 is not None:
        with open(archive, "rb") as f:
            found = file_digest(f, "sha256").hexdigest()
        if found != sha256:
            raise UserError(f"{archive}: its SHA-256 is {found}, {sha256} is expected; delete it and download it again")


# --- out of one archive ---


class _Limited(io.RawIOBase):
    """A stream with a limit: all streams with the same ``room`` may give at most that many bytes."""

    def __init__(self, stream: Any, room: list[int]) -> None:
        self.stream, self.room = stream, room

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(len(buffer))
        buffer[: len(data)] = data
        self.room[0] -= len(data)
        if self.room[0] < 0:
            raise Bomb
        return len(data)


class Bomb(Exception):
    """An archive contains more than its limit."""


class _Header(tarfile.TarInfo):
    """A member's header; tarfile would read a damaged one as the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def _unpack(config: DataConfig, archive: Path, folder: Path) -> Path:
    """A folder with the text of every wanted member, named by its quoted path; created only if it is missing."""
    patterns = sorted(
        {
            member
            for parts in _sources(config).files.values()
            for part in parts
            if part.archive == archive.name
            for member in part.members
        }
    )
    key = sha256(json.dumps([archive.name, *_identity(archive), *patterns]).encode()).hexdigest()[:16]
    made = folder / key
    if made.exists():
        return made
    work = temporary_path(made)
    work.mkdir(parents=True)
    size = archive.stat().st_size
    limit = max(ALWAYS, RATIO * size)
    other = "unpack it yourself and use --raw"
    try:
        with (
            open(archive, "rb") as opened,
            tqdm.wrapattr(opened, "read", size, desc=f"extract {archive.name}", mininterval=INTERVAL) as f,
        ):
            for name, stream in _members(f, archive.name, patterns, [limit], work):
                with open(work / _quoted(name), "w", encoding="utf-8", newline="\n") as out:
                    out.writelines(f"{line}\n" for line in _lines(stream, name, f"{archive}: {name}"))
        for pattern in patterns:
            if not _matching(work, pattern):
                raise UserError(f"{archive}: has no member {pattern}")
        work.replace(made)
    except UserError:
        raise
    except Bomb:
        raise UserError(
            f"{archive}: contains more than {limit:,} bytes, the limit for its {size:,} bytes; if right, {other}"
        ) from None
    except RuntimeError as error:  # encrypted, or an unknown compression
        raise UserError(f"{archive}: cannot be read ({error}); {other}") from None
    except (OSError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise UserError(f"{archive}: damaged ({error}); delete it and download it again") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return made


def _quoted(name: str) -> str:
    """A member's path as a file name."""
    return quote(name, safe="", errors="surrogateescape").replace(".", "%2E")


def _members(opened: Any, name: str, patterns: list[str], room: list[int], folder: Path) -> Iterator[tuple[str, Any]]:
    """Paths and contents of the members that match a pattern, in the archive's order; read each before the next.

    Args:
        opened: the archive.
        name: its path.
        patterns: of the members to extract.
        room: number of bytes that may still be read.
        folder: for temporary copies of inner archives.
    """
    for path, content in _zip(opened, room) if name.endswith(".zip") else _tar(opened, room):
        path = path.removeprefix("./")
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            yield path, _limited(gzip.GzipFile(fileobj=content()), room) if path.endswith(".gz") else content()
        elif path.endswith(ARCHIVES):
            inside = [pattern.removeprefix(f"{path}/") for pattern in patterns if pattern.startswith(f"{path}/")]
            if inside:
                within = _held(content(), folder) if path.endswith(".zip") else content()
                for inner, stream in _members(within, path, inside, room, folder):
                    yield f"{path}/{inner}", stream


def _held(stream: Any, folder: Path) -> IO[bytes]:
    """A copy in an unnamed file, since zipfile needs random access."""
    held = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    shutil.copyfileobj(stream, held)
    held.seek(0)
    return held


def _limited(stream: Any, room: list[int]) -> Any:
    return io.BufferedReader(_Limited(stream, room), CHUNK)


def _plain(stream: Any, room: list[int]) -> Any:
    """The decompressed stream, or the stream itself if it is not compressed."""
    start = stream.peek(6)
    for magic, opener in COMPRESSED.items():
        if start.startswith(magic):
            return _limited(opener(stream), room)
    return stream


def _tar(opened: Any, room: list[int]) -> Iterator[tuple[str, Callable[[], Any]]]:
    plain = _plain(opened, room)
    with tarfile.open(fileobj=plain, mode="r|", tarinfo=_Header) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, partial(archive.extractfile, member)
    while plain.read(CHUNK):  # the checksum is at the end
        pass


def _zip(opened: Any, room: list[int]) -> Iterator[tuple[str, Callable[[], Any]]]:
    with zipfile.ZipFile(opened) as archive:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - ZIP_END))
        end = opened.read()
        (count,) = struct.unpack_from("<H", end, end.rfind(b"PK\5\6") + 10)  # as stored; zipfile does not compare it
        if count not in (0xFFFF, len(archive.infolist()) & 0xFFFF):
            raise zipfile.BadZipFile(f"{len(archive.infolist())} members, {count} are expected")
        for member in archive.infolist():
            with suppress(RuntimeError):  # of members that are not extracted
                archive.open(member).close()  # compares the name in the directory with the name at the member
            yield member.filename, lambda member=member: _limited(archive.open(member), room)


def _lines(stream: Any, name: str, where: str) -> Iterator[str]:
    name = name.removesuffix(".gz")
    lines = _decoded(stream, where)
    if name.endswith(".sgm"):
        yield from _segments(lines, where)
    elif name.endswith(".xml"):  # of IWSLT; the apostrophe is treated as in fairseq's recipe
        yield from (line.replace("\u2019", "'") for line in _segments(lines, where))
    elif os.path.basename(name).startswith("train.tags."):
        yield from (TITLE.sub("", line).strip() for line in lines if not ABOUT_THE_TALK.match(line))
    else:
        yield from lines


def _decoded(stream: Any, where: str) -> Iterator[str]:
    """The lines of a text."""
    try:
        yield from decode_lines(_raw_lines(stream, where), where)
    except ValueError as error:  # names the line
        raise UserError(str(error)) from None


def _raw_lines(stream: Any, where: str) -> Iterator[bytes]:
    for number in itertools.count(1):
        line = stream.readline(LONGEST + 1)
        if len(line) > LONGEST:
            raise UserError(f"{where}, line {number}: longer than {LONGEST:,} bytes; this is not text")
        if not line:
            return
        yield line


def _segments(lines: Iterable[str], where: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        found = SEGMENT.search(line)
        if found:
            yield unescape(found[1].strip(), {"&quot;": '"', "&apos;": "'"})
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
