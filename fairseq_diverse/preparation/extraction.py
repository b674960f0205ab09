"""Archives to raw parallel files: one line a sentence, all of a data set or nothing."""

import gzip
import json
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from tqdm import tqdm

from fairseq_diverse.files import atomic_write, decode_lines
from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.progress import INTERVAL
from fairseq_diverse.preparation.sources import Sources

STAMP = "sources.json"
ARCHIVES = (".tgz", ".tar.gz", ".tar", ".zip")
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)
SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)
ABOUT_THE_TALK = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")  # not its words
TITLE = re.compile(r"</?(title|description)>")


def is_extracted(config: DataConfig, archives: Path, raw: Path) -> bool:
    """Whether ``raw`` holds what ``extract`` makes; archives may have been deleted since, but not replaced."""
    try:
        stamp = json.loads((raw / STAMP).read_text(encoding="utf-8"))
        now = {name: _identity(archives / name) for name in stamp["archives"] if (archives / name).exists()}
        return (
            stamp["files"] == _wanted(config)
            and stamp["archives"] == stamp["archives"] | now
            and all((raw / name).stat().st_size == size for name, size in stamp["sizes"].items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def extract(config: DataConfig, archives: Path, raw: Path) -> None:
    """Write the raw files of ``config.sources`` into ``raw``.

    What came out of an archive stays in ``raw/parts`` until everything is there, so that a stopped extraction goes on
    with the next archive. Of .sgm and .xml files the segments are taken, of IWSLT's train.tags the sentences, titles
    and descriptions.

    Raises:
        ValueError: an archive is damaged or lacks a member, a text is not UTF-8, or two sides are unequally long.
    """
    sources = _sources(config)
    languages = config.languages
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
        "archives": {name: _identity(archives / name) for name in _used(sources)},
        "lines": lines,
        "sizes": {name: (raw / name).stat().st_size for name in names},
    }
    with atomic_write(raw / STAMP) as f:
        json.dump(stamp, f, indent=2)
    shutil.rmtree(raw / "parts")


def wrong_lines(config: DataConfig, raw: Path) -> list[str]:
    """What differs between the lines that were extracted and those that the configuration names, one text a part."""
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
    """The files as they are written down in the stamp, in terms of JSON."""
    return {
        prefix: [[part.archive, *part.members] for part in parts] for prefix, parts in _sources(config).files.items()
    }


def _identity(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


# --- out of one archive ---


def _unpack(config: DataConfig, archive: Path, folder: Path) -> Path:
    """A folder with the text of every wanted member, named by its quoted path; made anew only where it is absent."""
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
    work = folder / f".{key}.{os.getpid()}.tmp"
    work.mkdir(parents=True)
    try:
        with (
            open(archive, "rb") as opened,
            tqdm.wrapattr(
                opened, "read", archive.stat().st_size, desc=f"extract {archive.name}", mininterval=INTERVAL
            ) as f,
        ):
            for name, stream in _members(f, archive.name, patterns):
                with open(work / quote(name, safe=""), "w", encoding="utf-8", newline="\n") as out:
                    out.writelines(f"{line}\n" for line in _lines(stream, name, f"{archive}: {name}"))
        for pattern in patterns:
            if not _matching(work, pattern):
                raise ValueError(f"{archive}: no member {pattern}")
        work.replace(made)
    except DAMAGED as error:
        raise ValueError(f"{archive}: damaged ({error}); delete it and get it again") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return made


def _members(opened: IO[bytes], name: str, patterns: list[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Paths and contents of the members that a pattern fits, in the archive's order; read each before the next."""
    for path, content in _zip(opened) if name.endswith(".zip") else _tar(opened):
        path = path.removeprefix("./")
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            yield path, content()
        elif path.endswith(ARCHIVES):
            inside = [pattern.removeprefix(f"{path}/") for pattern in patterns if pattern.startswith(f"{path}/")]
            for inner, stream in _members(content(), path, inside) if inside else ():
                yield f"{path}/{inner}", stream


def _tar(opened: IO[bytes]) -> Iterator[tuple[str, Callable[[], Any]]]:
    with tarfile.open(fileobj=opened, mode="r|*") as archive:
        for member in archive:
            if member.isfile():
                yield member.name, partial(archive.extractfile, member)


def _zip(opened: IO[bytes]) -> Iterator[tuple[str, Callable[[], Any]]]:
    with zipfile.ZipFile(opened) as archive:
        for member in archive.infolist():
            yield member.filename, partial(archive.open, member)


def _lines(stream: IO[bytes], name: str, where: str) -> Iterator[str]:
    if name.endswith(".gz"):
        with gzip.open(stream) as plain:
            yield from _lines(cast(IO[bytes], plain), name.removesuffix(".gz"), where)
        return
    lines = decode_lines(stream, where)
    if name.endswith(".sgm"):
        yield from _segments(lines, where)
    elif name.endswith(".xml"):  # of IWSLT; the apostrophe as in fairseq's recipe
        yield from (line.replace("\u2019", "'") for line in _segments(lines, where))
    elif os.path.basename(name).startswith("train.tags."):
        yield from (TITLE.sub("", line).strip() for line in lines if not ABOUT_THE_TALK.match(line))
    else:
        yield from lines


def _segments(lines: Iterable[str], where: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        found = SEGMENT.search(line)
        if found:
            yield unescape(found[1].strip(), {"&quot;": '"', "&apos;": "'"})
        elif "<seg" in line.lower():
            raise ValueError(f"{where}, line {number}: a segment without end")


def _matching(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if fnmatchcase(unquote(path.name), pattern))


def _append(folder: Path, pattern: str, out: IO[bytes]) -> int:
    """Copy the members that ``pattern`` fits to ``out``; returns their lines."""
    count = 0
    for path in _matching(folder, pattern):
        with open(path, "rb") as f:
            for line in f:
                out.write(line)
                count += 1
    return count
