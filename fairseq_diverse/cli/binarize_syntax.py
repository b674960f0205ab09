"""Add the trees of the source to binarized data, for --task translation_with_syntax.

Trees are CoNLL-U (dependencies) or PTB brackets (constituents); sentence N belongs to line N of the binarized text. The
words of the text, its subwords joined, must equal those of the trees, except for escapes of Moses and the Penn
Treebank; otherwise the command stops and names the first sentence that differs. A multiword token of CoNLL-U (3-4 im)
may be one word of the text, and a word with spaces several. A sentence without a usable tree (several roots, a cycle,
an empty line) is kept and counted; in it every token is related to every other.
The name of the parser is recorded, as `parse` wrote it beside its files or as --parser gives it; a table's row can
require a parser. The dependency trees of all splits but train are also copied, for `report --by attachment`.
"""

import argparse
import filecmp
import json
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from fairseq_diverse.cli import first_lines
from fairseq_diverse.preparation.config import SEGMENTERS
from fairseq_diverse.preparation.pipeline import FILE, entry, read_record
from fairseq_diverse.support.errors import UserError, warn
from fairseq_diverse.support.files import copy_file, link_or_copy, read_json, refuse_pipe, write_text
from fairseq_diverse.support.paths import source_prefix
from fairseq_diverse.syntax.attachment import kept_trees
from fairseq_diverse.syntax.makers import named_makers
from fairseq_diverse.syntax.parse import record_path
from fairseq_diverse.syntax.parsers import recorded_parsers

EXAMPLE = "fairseq-diverse binarize-syntax --data data-bin --dependency '{split}.conllu' --constituency '{split}.ptb'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", required=True, type=Path, metavar="DIR", help="binarized data")
    add("--dependency", metavar="FILES", help="CoNLL-U files; {split} stands for each of --splits")
    add("--constituency", metavar="FILES", help="PTB files, one tree a line or as treebanks have them; {split}, too")
    add("--parser", metavar="NAME", help="who made trees that `parse` did not make: NAME, or KIND=NAME,KIND=NAME")
    add("--copy", type=Path, metavar="DIR", help="leave DATA as it is, and make DIR: the same data with these trees")
    add("--text", metavar="FILES", help="the source text in subwords (default: DIR/text/bpe.{split}.SOURCE)")
    add("--splits", default="train,valid,test", help="comma-separated (default: %(default)s)")
    add("--source-lang", help="source language (default: that of DIR/preprocess.json)")
    add("--target-lang", help="target language (default: that of DIR/preprocess.json)")
    add("--subwords", choices=(*SEGMENTERS, "none"), help="kind of subwords (default: that of DIR/preprocess.json)")


def main(args: argparse.Namespace) -> None:
    if not args.dependency and not args.constituency:
        raise ValueError("--dependency or --constituency FILES are needed")
    splits = [split for split in args.splits.split(",") if split]
    if not splits:
        raise ValueError(f"--splits {args.splits!r}: names none")
    for flag in ("dependency", "constituency", "text"):
        pattern = getattr(args, flag)
        if pattern and "{split}" not in pattern and len(splits) > 1:
            raise ValueError(f"--{flag} {pattern}: must contain {{split}}, which becomes each of {args.splits}")
    from fairseq_diverse.data.trees import available_trees, binarize

    if not (args.source_lang and args.target_lang and args.text and args.subwords):
        record = read_record(args.data)
        args.source_lang = args.source_lang or entry(args.data, record, "source")
        args.target_lang = args.target_lang or entry(args.data, record, "target")
        args.subwords = args.subwords or entry(args.data, record, "bpe", "kind")
        args.text = args.text or str(args.data / "text" / f"bpe.{{split}}.{args.source_lang}")
    folder: Path = args.copy or args.data
    links = _links(args.data, args.copy) if args.copy else {}
    named = named_makers("--parser", args.parser) if args.parser is not None else {}
    patterns = {kind: pattern for kind in ("dependency", "constituency") if (pattern := getattr(args, kind))}
    for split, pattern in product(splits, patterns.values()):
        refuse_pipe(pattern.replace("{split}", split))
    for link, path in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link_or_copy(path, link)
    parsers: dict[str, dict[str, Any]] = {}
    for split in splits:
        files = {kind: Path(pattern.replace("{split}", split)) for kind, pattern in patterns.items()}
        prefix = source_prefix(folder, split, args.source_lang, args.target_lang)
        existing: list[str] = []
        with suppress(UserError):  # a damaged description is replaced
            existing = available_trees(prefix)
        makers = {kind: _maker(record_path(path), kind, named.get(kind, "")) for kind, path in files.items()}
        if unused := sorted({*named.values()} - {how["parser"] for how in makers.values()}):
            raise ValueError(f"--parser {args.parser}: by what `parse` recorded, {unused[0]} made no trees of {split}")
        text, dependency = Path(args.text.replace("{split}", split)), files.get("dependency")
        counts = binarize(prefix, text, dependency, files.get("constituency"), args.subwords, makers)
        for kind in existing:
            if kind not in files:
                warn(f"{split}: its {kind} trees are gone; give --{kind} FILES as well to have both")
        if dependency and split != "train":
            copy_file(dependency, kept_trees(folder, split, args.source_lang, args.target_lang))
        parsers |= makers
        for kind, lines in counts.unparsed.items():
            where = f": lines {first_lines(lines)}" if lines else ""
            print(f"{split}: {counts.sentences} sentences, {len(lines)} without a usable {kind} tree{where}")
    record = read_record(args.data) if (args.data / FILE).exists() else {}
    if on_source := record.get("source") == args.source_lang:  # so that new text can be parsed alike
        parsers = parsers if args.copy else recorded_parsers(record, str(args.data / FILE)) | parsers
        record |= {"parsers": {kind: how for kind, how in parsers.items() if "model" in how}}
    if on_source or args.copy:
        write_text(folder / FILE, json.dumps(record, indent=2, ensure_ascii=False))


def _links(data: Path, copy: Path) -> dict[Path, Path]:
    """The files of a copy of prepared data, and those that they are linked to: all but trees and the record, without
    which the copy is not data yet. Raises ValueError: the folder is that of the data or in it, or not a copy of them.
    """
    digest = entry(data, read_record(data), "hash")
    is_copy = (copy / FILE).is_file()
    other_data = is_copy and entry(copy, read_record(copy), "hash") != digest
    if other_data or data.resolve() in (copy.resolve(), *copy.resolve().parents):
        what = "has other data" if other_data else "is --data" if copy.resolve() == data.resolve() else "is in --data"
        raise ValueError(f"--copy {copy}: {what}; name another folder")
    links = {}
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        name = path.relative_to(data)
        if name.parts[0] != "trees" and ".syntax." not in name.name and not name.name.endswith((".conllu", FILE)):
            links[link := copy / name] = path
            if link.exists() and not (is_copy or link.samefile(path) or filecmp.cmp(path, link, shallow=False)):
                raise ValueError(f"--copy {copy}: its {name} is not that of --data; name another folder")
    return links


def _maker(record: Path, kind: str, named: str) -> dict[str, Any]:
    """The parser that ``parse`` recorded beside its trees, else the one that is named."""
    if (content := read_json(record, "parse again, or delete it")) is None:
        return {"parser": named}
    parser = recorded_parsers({"parsers": {kind: content}}, str(record))[kind]
    return {key: value for key, value in parser.items() if key != "text"}
