"""Which parser made the trees of prepared data."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_diverse.support import installed
from fairseq_diverse.support.files import read_json, sha256_of
from fairseq_diverse.syntax.parsers import KINDS, NAME, PARSERS


def versions(parser: str, model: str) -> dict[str, str]:
    """Versions of a parser's package and of its model, a name or a folder, as far as they are known."""
    known = installed.versions((parser, model))
    with suppress(OSError, ValueError, KeyError, TypeError):
        known[model] = str(json.loads((Path(model) / "meta.json").read_text(encoding="utf-8"))["version"])
    return known


def named_makers(where: str, text: str) -> dict[str, str]:
    """The parsers that a list of NAME and KIND=NAME names, by kind of tree; NAME is for all kinds. Raises
    ``ValueError``: a kind or a name that is none."""
    makers: dict[str, str] = {}
    for part in text.split(","):
        kind, _, name = part.rpartition("=")
        if kind not in ("", *KINDS) or not NAME.fullmatch(name):
            raise ValueError(f"{where} {text!r}: NAME or KIND=NAME expected, of the kinds {', '.join(KINDS)}")
        makers |= {kind: name} if kind else dict.fromkeys(KINDS, name)
    return makers


def recorded_makers(path: Path) -> dict[str, str]:
    """By kind of the trees that a ``.syntax.json`` describes, the parser that made them; empty where none is recorded.

    Of sets that earlier versions wrote, ``preprocess.json`` has the parsers.
    """
    record = _read_object(path)
    parsers = record.get("parsers", _read_object(path.with_name("preprocess.json")).get("parsers"))
    kinds = record.get("kinds")
    known = [kind for kind in KINDS if kind in kinds] if isinstance(kinds, list) else []
    entries = {kind: parsers.get(kind) if isinstance(parsers, dict) else None for kind in known}
    return {kind: str(how.get("parser", "")) if isinstance(how, dict) else "" for kind, how in entries.items()}


def other_trees(folder: Path, source: str, wanted: dict[str, str]) -> str:
    """Why the trees of prepared data, with that source language, are not by the parsers that are wanted for each kind;
    empty if they are, or if there are no trees yet and ``fairseq-diverse parse`` can make them."""
    command = "fairseq-diverse binarize-syntax --data {} {} --parser {}"
    paths = sorted(folder.glob(f"*.{source}.syntax.json"))
    if not paths and (makers := other_makers(wanted)):
        kind, name = next(iter(makers.items()))
        todo = command.format(folder, " ".join(f"--{kind} FILES" for kind in wanted), _joined(wanted))
        todo = "`run --prepare` makes a copy with them" if name in PARSERS[kind] else f"once it is prepared: {todo}"
        return f"{folder}: has no {kind} trees by {name}; {todo}"
    for path in paths:
        recorded = recorded_makers(path)
        files = " ".join(f"--{kind} FILES" for kind in recorded)
        wrong = {kind: wanted[kind] for kind in recorded if recorded[kind] != wanted.get(kind, recorded[kind])}
        for kind, name in wrong.items():
            if recorded[kind]:
                todo = command.format("COPY", files, _joined(wrong))
                return f"{path}: {recorded[kind]} made its {kind} trees, not {name}; in a copy for --data: {todo}"
            todo = command.format(folder, files, _joined(wrong))
            return f"{path}: does not say that {name} made its {kind} trees; if so: {todo}"
    return ""


def other_grammar(folder: Path, source: str) -> str:
    """Why the trees of prepared data are not by the grammar ``PCFG_MODEL``; empty if they are, as far as was recorded,
    or if there are none or no grammar."""
    grammar = os.environ.get("PCFG_MODEL", "")
    digest = sha256_of(grammar) if Path(grammar).is_file() else None
    for path in sorted(folder.glob(f"*.{source}.syntax.json")) if digest else []:
        how = _read_object(path).get("parsers", {}).get("constituency", {})
        if how.get("grammar", digest) != digest:
            return f"{path}: made by another grammar than PCFG_MODEL={grammar}; delete {folder} to parse again"
    return ""


def copy_for(folder: Path, makers: dict[str, str]) -> Path:
    """Where ``run --prepare`` copies prepared data for the trees of other parsers than the usual ones: FOLDER-NAME."""
    return folder.with_name("-".join([folder.name, *dict.fromkeys(other_makers(makers).values())]))


def other_makers(makers: dict[str, str]) -> dict[str, str]:
    """Those that are not the usual parsers, spaCy and benepar."""
    return {kind: name for kind, name in makers.items() if name != KINDS[kind]}


def _joined(makers: dict[str, str]) -> str:
    return ",".join(f"{kind}={name}" for kind, name in makers.items())


def _read_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it is absent or damaged."""
    try:
        return read_json(path) or {}
    except ValueError:
        return {}
