"""Parse tokenized text: dependencies with spaCy to CoNLL-U, constituents with benepar to one PTB bracketing a line.

Tokens are kept, except for Moses' escapes (&apos; @-@), which are undone for the parser; give the text before
subwords. Sentence N of the output is line N of the text: an empty line and a sentence on which the parser fails stay in
their place without a tree, are counted, and are listed with their lines in OUT.unparsed. Stopped, the same command goes
on. The output of shards is joined with cat.
"""

import argparse
import collections
import os
from pathlib import Path

from fairseq_diverse.cli import first_lines

EXAMPLE = (
    "fairseq-diverse parse --kind dependency --input 'data/multi30k_en_de/text/tok.{split}.en' "
    "--out 'parses/{split}.en.conllu'"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=("dependency", "constituency"), required=True)
    parser.add_argument("--parser", choices=("spacy", "benepar"), help="default: the one that makes such trees")
    parser.add_argument("--model", help="name or folder (default: the parser's small model of the language)")
    parser.add_argument("--language", default="en", help="of the text (default: en)")
    parser.add_argument("--input", required=True, metavar="FILES", help="tokenized text; {split}: --splits")
    parser.add_argument("--out", required=True, metavar="FILES", help="{split} as in --input")
    parser.add_argument("--splits", default="train,valid,test", help="comma-joined (default: %(default)s)")
    parser.add_argument("--workers", type=int, help="single-threaded processes (default: one a core)")
    parser.add_argument("--shard", metavar="I/N", help="only the I-th of N equal parts; OUT gets .I-of-N at its end")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.syntax.parse import parse_file
    from fairseq_diverse.syntax.parsers import KINDS, MODELS, located

    name = args.parser or KINDS[args.kind]
    if name != KINDS[args.kind]:
        raise ValueError(f"--parser {name}: makes no {args.kind} trees; take {KINDS[args.kind]}")
    model = located(args.model) if args.model else MODELS.get((name, args.language))
    if not model:
        raise ValueError(f"--language {args.language}: no default model of {name} for it; give --model NAME_OR_FOLDER")
    workers = args.workers if args.workers is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise ValueError(f"--workers {workers}: at least 1 is needed")
    shard = _shard(args.shard)
    if ("{split}" in args.input) != ("{split}" in args.out):
        raise ValueError("--input and --out: {split} must be in both or in neither")
    splits = [split for split in args.splits.split(",") if split]
    if not splits:
        raise ValueError(f"--splits {args.splits!r}: names none")
    for split in splits if "{split}" in args.input else [""]:
        text, out = (Path(pattern.replace("{split}", split)) for pattern in (args.input, args.out))
        if args.shard:
            out = out.with_name(f"{out.name}.{shard[0]}-of-{shard[1]}")
        if out.exists():
            print(f"{out}: there already")
            continue
        count, unparsed = parse_file(text, out, args.kind, name, model, args.language, workers, shard)
        reasons = collections.Counter(one.reason for one in unparsed)
        print(f"{out}: {count} lines, {len(unparsed)} without a tree")
        for reason, times in reasons.most_common():
            lines = [one.line for one in unparsed if one.reason == reason]
            print(f"  {times} x {reason}: line {first_lines(lines)}")


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise ValueError(f"--shard {text}: I/N with 1 <= I <= N is needed, for example 2/8")
    return int(first), int(count)
