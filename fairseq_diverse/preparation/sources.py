"""The ``sources`` section of a data configuration: archives, what is in them, and how many lines that should give."""

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
    """A piece of a raw file.

    ``members`` holds, for source and target, the path inside ``archive``, with * and ? as in a shell (several are
    joined in alphabetical order); a path leads through an archive inside the archive. ``lines`` is how many lines
    each side has, None where that is not known.
    """

    archive: str
    members: tuple[str, str]
    lines: int | None


@dataclass(frozen=True)
class Sources:
    """Where raw files come from.

    ``archives`` holds addresses and ``by_hand`` pages that say how to get an archive, both by file name; ``checks``
    what is known of an archive, its ``bytes`` and ``sha256``; ``files`` the parts of each raw file by its prefix.
    Every ``hold_out``-th training pair goes to the validation set (0: none).
    ``counts`` are a paper's numbers of pairs by split, after everything that drops pairs.
    """

    archives: dict[str, str]
    by_hand: dict[str, str]
    checks: dict[str, dict[str, Any]]
    files: dict[str, list[Part]]
    hold_out: int
    counts: dict[str, int]

    @classmethod
    def from_mapping(cls, given: Any, languages: tuple[str, str], files: dict[str, str]) -> "Sources":
        """Check the section against the data set's ``languages`` and its raw ``files`` by split.

        Raises:
            ValueError: an unknown or missing key, a value of the wrong type, a raw file or an archive without source.
        """
        known_keys(given, KEYS, "sources: ")
        checks: dict[str, dict[str, Any]] = {}
        archives, by_hand = (_archives(given, key, checks) for key in ("archives", "by-hand"))
        parts = {
            prefix: [_part(part, f"sources: files: {prefix}", languages, {**archives, **by_hand}) for part in listed]
            for prefix, listed in _mapping(given, "files", list).items()
        }
        for prefix in parts:
            if PurePosixPath(prefix).is_absolute() or ".." in PurePosixPath(prefix).parts:
                raise ValueError(f"sources: files: {prefix!r} is not in the folder of the raw files")
        hold_out = given.get("hold-out", 0)
        if type(hold_out) is not int or hold_out < 0 or hold_out == 1:
            raise ValueError(f"sources: hold-out: 0 or a number above 1 expected, got {hold_out!r}")
        made = {split for split, prefix in files.items() if prefix in parts} | ({"valid"} if hold_out else set())
        if hold_out and files["valid"] in parts:
            raise ValueError("sources: a validation set is either held out or taken from archives")
        for split, prefix in files.items():
            if split not in made:
                raise ValueError(f"sources: files: {prefix} is missing, which {split} is made from")
        counts = _mapping(given, "counts", int)
        known_keys(counts, tuple(files), "sources: counts: ")
        return cls(archives, by_hand, checks, parts, hold_out, counts)


def _archives(given: Mapping[str, Any], key: str, checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Addresses by file name; what is known of an archive goes into ``checks``."""
    addresses: dict[str, Any] = {}
    for name, value in _mapping(given, key, None).items():
        where = f"sources: {key}: {name}"
        if name != PurePosixPath(name).name:
            raise ValueError(f"{where}: the name of a file expected, without folders")
        known = value if isinstance(value, Mapping) else {"address": value}
        known_keys(known, ARCHIVE_KEYS, f"{where}: ")
        addresses[name], size, digest = (known.get(one) for one in ARCHIVE_KEYS)
        if not isinstance(addresses[name], str):
            raise ValueError(f"{where}: an address expected, got {value!r}")
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"{where}: bytes: a number expected, got {size!r}")
        if digest is not None and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise ValueError(f"{where}: sha256: 64 digits of 0-9 and a-f in quotes expected, got {digest!r}")
        if check := {one: known[one] for one in ARCHIVE_KEYS[1:] if known.get(one) is not None}:
            checks[name] = check
    return addresses


def _part(given: Any, where: str, languages: tuple[str, str], archives: dict[str, str]) -> Part:
    known_keys(given, PART_KEYS, f"{where}: ")
    archive, member, lines = (given.get(key) for key in PART_KEYS)
    if archive not in archives:
        raise ValueError(f"{where}: archive {archive!r} is none of {', '.join(archives)}")
    both = member if isinstance(member, Mapping) else {"source": member, "target": member}
    if set(both) != {"source", "target"} or not all(isinstance(name, str) for name in both.values()):
        raise ValueError(f"{where}: member: a path, or one for source and one for target expected, got {member!r}")
    if lines is not None and type(lines) is not int:
        raise ValueError(f"{where}: lines: a number expected, got {lines!r}")
    source, target = (
        both[side].replace("{language}", language).replace("{role}", role)
        for side, language, role in zip(("source", "target"), languages, ("src", "ref"), strict=True)
    )
    return Part(archive, (source, target), lines)


def _mapping(given: Mapping[str, Any], key: str, wanted: type | None) -> dict[str, Any]:
    values = given.get(key, {})
    if (
        not isinstance(values, Mapping)
        or not all(isinstance(name, str) for name in values)
        or (wanted and any(type(value) is not wanted for value in values.values()))
    ):
        of = f" to {wanted.__name__}" if wanted else ""
        raise ValueError(f"sources: {key}: a mapping of names{of} expected, got {values!r}")
    return dict(values)


def known_keys(given: Any, keys: tuple[str, ...], where: str) -> None:
    """Refuse what is not a mapping or has other keys; ``where`` opens the message."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}a mapping is expected, not {given!r}")
    unknown = [str(key) for key in given if key not in keys]
    if unknown:
        raise ValueError(f"{where}unknown key {', '.join(unknown)}; known: {', '.join(keys)}")
