"""Raw files: plain text, one sentence a line. Other files are refused in one line that says what is wanted."""

import glob
import hashlib
import re
from pathlib import Path

from fairseq_diverse.support.files import iterate_lines

WANTED = "plain text, a file for each language with one sentence a line, is wanted"
STARTS = {  # of a file: what it is, what to do
    rb"\x1f\x8b": "compressed; unpack it with gunzip",
    rb"BZh\d": "compressed; unpack it with bunzip2",
    rb"\xfd7zXZ": "compressed; unpack it with unxz",
    rb"PK\x03\x04": "an archive; unpack it with unzip",
    rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|tmx|!DOCTYPE)": "XML, such as TMX; write the sentences of each language to a file",
    rb"(?s:[^\0]\0){4}|(?s:\0[^\0]){4}": "UTF-16; convert it to UTF-8, for example with iconv",
    rb"version https://git-lfs": "the pointer of a file that Git LFS keeps; get the file with git lfs pull",
}
OTHERS = (".gz", ".bz2", ".xz", ".zip", ".tgz", ".tsv", ".csv", ".tmx", ".xml", ".json", ".jsonl")


def file_hash(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        ValueError: it cannot be read; names a file of another kind that is there in its place.
    """
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as error:
        beside = sorted(path.parent.glob(f"{glob.escape(path.stem)}.*"))
        there = [other for other in (path.with_suffix(""), *beside) if other.suffix in OTHERS and other.is_file()]
        hint = f"{there[0]} is there, but {WANTED}" if there else "are the raw files there?"
        raise ValueError(f"{path}: cannot be read ({error.strerror}); {hint}") from None


def equal_lines(*paths: Path) -> int:
    """The number of lines of one file, or of two that are sides of one text.

    Raises:
        ValueError: they differ, or a file is not ``WANTED``.
    """
    lines = [_count(path) for path in paths]
    if lines[0] != lines[-1]:
        raise ValueError(
            f"{paths[0]} has {lines[0]:,} lines and {paths[1]} {lines[1]:,}; they are not two sides of one text"
        )
    return lines[0]


def _count(path: Path) -> int:
    with open(path, "rb") as f:
        start = f.read(200)
    for pattern, text in STARTS.items():
        if re.match(pattern, start, re.IGNORECASE):
            raise ValueError(f"{path}: {text}; {WANTED}")
    lines = tabs = returns = 0
    for line in iterate_lines(path):
        lines += 1
        tabs += "\t" in line.strip()
        returns += line.rstrip("\r").count("\r")
    if returns >= lines > 0:
        raise ValueError(f"{path}: its lines end with a carriage return alone; write newlines with tr '\\r' '\\n'")
    if tabs == lines > 0:
        raise ValueError(f"{path}: every line has columns between tabs; {WANTED}: take one with cut -f")
    return lines
