"""The ``sources`` section of a data configuration: archives, their members, and numbers of lines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

KEYS = ("archives", "by-hand", "files", "hold-out", "counts")
ARCHIVE_KEYS = ("address", "bytes", "sha256")
PART_KEYS = ("archive", "member", "lines")


@dataclass(frozen=True)
class Part:
    """A part of a raw file.

    ``members``: for source and target, the path inside ``archive``, with * and ? as in a shell (several files are
    joined in alphabetical order); it may lead through an inner archive. ``lines``: number of lines of each side, None
    if unknown.
    """

    archive: str
    members: tuple[str, str]
    lines: int | None


@dataclass(frozen=True)
class Sources:
    """The sources of the raw files.

    ``archives``: addresses, and ``by_hand``: pages with instructions, both by file name; ``checks``: the known
    ``bytes`` and ``sha256`` of archives; ``files``: the parts of each raw file, by prefix. Every ``hold_out``-th
    training pair goes to the validation set (0 = none). ``counts``: a paper's numbers of pairs by split, after
    filtering.
    """

    archives: dict[str, str]
    by_hand: dict[str, str]
    checks: dict[str, dict[str, Any]]
    files: dict[str, list[Part]]
    hold_out: int
    counts: dict[str, int]

    @classmethod
    def from_mapping(cls, content: Any, languages: tuple[str, str], files: dict[str, str]) -> "Sources":
        """Check the section against the data set's ``languages`` and its raw ``files`` by split. Raises ``ValueError``:
        an unknown or missing key, a value of the wrong type, or a raw file or archive without source."""
        known_keys(content, KEYS, "sources: ")
        checks: dict[str, dict[str, Any]] = {}
        archives, by_hand = (_archives(content, key, checks) for key in ("archives", "by-hand"))
        parts = {
            prefix: [_part(part, f"sources: files: {prefix}", languages, {**archives, **by_hand}) for part in listed]
            for prefix, listed in _mapping(content, "files", list).items()
        }
        for prefix in parts:
            if PurePosixPath(prefix).is_absolute() or ".." in PurePosixPath(prefix).parts:
                raise ValueError(f"sources: files: {prefix!r} is outside the folder of the raw files")
        hold_out = content.get("hold-out", 0)
        if type(hold_out) is not int or hold_out < 0 or hold_out == 1:
            raise ValueError(f"sources: hold-out: must be 0 or above 1, not {hold_out!r}")
        if hold_out and files["valid"] in parts:
            raise ValueError("sources: a validation set is either held out or taken from archives")
        for split, prefix in files.items():
            if prefix not in parts and not (hold_out and split == "valid"):
                raise ValueError(f"sources: files: {prefix} is missing; {split} is made from it")
        counts = _mapping(content, "counts", int)
        known_keys(counts, tuple(files), "sources: counts: ")
        return cls(archives, by_hand, checks, parts, hold_out, counts)


def _archives(content: Mapping[str, Any], key: str, checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Addresses by file name; known sizes and checksums go into ``checks``."""
    addresses: dict[str, Any] = {}
    for name, value in _mapping(content, key, None).items():
        where = f"sources: {key}: {name}"
        if name != PurePosixPath(name).name:
            raise ValueError(f"{where}: must be a file name without folders")
        known = value if isinstance(value, Mapping) else {"address": value}
        known_keys(known, ARCHIVE_KEYS, f"{where}: ")
        addresses[name], size, digest = (known.get(field) for field in ARCHIVE_KEYS)
        if not isinstance(addresses[name], str):
            raise ValueError(f"{where}: must be an address, not {value!r}")
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"{where}: bytes: must be a number, not {size!r}")
        if digest is not None and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise ValueError(f"{where}: sha256: must be 64 digits of 0-9 and a-f in quotes, not {digest!r}")
        if check := {field: known[field] for field in ARCHIVE_KEYS[1:] if known.get(field) is not None}:
            checks[name] = check
    return addresses


def _part(content: Any, where: str, languages: tuple[str, str], archives: dict[str, str]) -> Part:
    known_keys(content, PART_KEYS, f"{where}: ")
    archive, member, lines = (content.get(key) for key in PART_KEYS)
    if archive not in archives:
        raise ValueError(f"{where}: archive {archive!r} is not one of {', '.join(archives)}")
    both = member if isinstance(member, Mapping) else {"source": member, "target": member}
    if set(both) != {"source", "target"} or not all(isinstance(name, str) for name in both.values()):
        raise ValueError(f"{where}: member: must be a path, or one for source and one for target, not {member!r}")
    if lines is not None and type(lines) is not int:
        raise ValueError(f"{where}: lines: must be a number, not {lines!r}")
    named = zip((both["source"], both["target"]), languages, ("src", "ref"), strict=True)
    source, target = (path.replace("{language}", code).replace("{role}", role) for path, code, role in named)
    return Part(archive, (source, target), lines)


def _mapping(content: Mapping[str, Any], key: str, wanted: type | None) -> dict[str, Any]:
    values = content.get(key, {})
    kinds = {type(value) for value in values.values()} if isinstance(values, Mapping) else {None}
    if not isinstance(values, Mapping) or (wanted and kinds - {wanted}):
        suffix = f" to {wanted.__name__}" if wanted else ""
        raise ValueError(f"sources: {key}: must be a mapping of names{suffix}, not {values!r}")
    return dict(values)


def known_keys(content: Any, keys: tuple[str, ...], where: str) -> None:
    """Raise ``ValueError`` if ``content`` is not a mapping or has unknown keys; ``where`` starts the message."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{where}must be a mapping, not {content!r}")
    if unknown := [str(key) for key in content if key not in keys]:
        raise ValueError(f"{where}unknown key {', '.join(unknown)}; known: {', '.join(keys)}")
