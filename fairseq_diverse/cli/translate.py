"""Translate raw text: one line in, one detokenized line out, in the same order.

The steps are those recorded with the prepared data (preprocess.json): cleaning, tokenization, parsing if the model
needs trees, subword segmentation, beam search, detokenization. Hypotheses equal those of fairseq-generate for the same
sentences. With --nbest or --scores each hypothesis is a separate line: number of the sentence, score, text. The score
is the log2 probability per subword with the length penalty, as in fairseq-generate. --model is a folder that
`fairseq-diverse export --to safetensors` wrote, or the name of one on the Hugging Face hub.
"""

import argparse
import io
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from tqdm import tqdm

from fairseq_diverse import register
from fairseq_diverse.cli import first_lines
from fairseq_diverse.preparation.pipeline import read_record
from fairseq_diverse.support.files import atomic_write, decode_lines, iterate_lines

TREES = {"dependency": "CoNLL-U", "constituency": "PTB"}
SEARCH = ("beam", "lenpen", "nbest", "max_len_a", "max_len_b")
EXAMPLE = "fairseq-diverse translate --checkpoint average.pt --data data/multi30k_en_de --input new.en --out new.de"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="DIR", help="shared model, or USER/NAME of the Hugging Face hub; with its data")
    add("--checkpoint", metavar="FILES", help="one checkpoint, or several for an ensemble: A:B")
    add("--data", help="prepared data set that it was trained on")
    add("--input", metavar="FILE", help="raw text; - is stdin (default: stdin)")
    add("--out", metavar="FILE", help="file for the translations (default: stdout)")
    add("--beam", type=int, default=5, help="beam size (default: 5)")
    longest = "at most A times as many subwords as the longest source, plus B (default: 0)"
    add("--max-len-a", type=float, default=0.0, help=longest)
    add("--max-len-b", type=int, default=200, help="see --max-len-a (default: %(default)s)")
    add("--lenpen", type=float, default=1.0, help="length penalty; higher = longer translations (default: 1)")
    add("--nbest", type=int, default=1, metavar="N", help="hypotheses per sentence (default: 1)")
    add("--scores", action="store_true", help="print sentence number and score, also with --nbest 1")
    add("--batch-size", type=int, default=64, help="sentences per batch (default: %(default)s)")
    add("--buffer-size", type=int, help="lines read at a time (default: 1024; 1 if you type into a terminal)")
    add("--cpu", action="store_true", help="do not use a GPU")
    add("--fp16", action="store_true", help="half precision")
    for kind, files in TREES.items():
        add(f"--{kind}", type=Path, metavar="FILE", help=f"{kind} trees of the input ({files})")
        add(f"--{kind}-model", metavar="MODEL", help="parser model (default: that of the data's trees)")


def main(args: argparse.Namespace) -> None:
    args.input = None if args.input == "-" else args.input
    if args.buffer_size is None:
        args.buffer_size = 1 if not args.input and sys.stdin.isatty() else 1024
    for name in ("beam", "nbest", "batch_size", "buffer_size"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1 is needed")
    if args.nbest > args.beam:
        raise ValueError(f"--nbest {args.nbest}: at most the beam, {args.beam}")
    if args.input and args.out and Path(args.input).resolve() == Path(args.out).resolve():
        raise ValueError(f"--out {args.out}: is --input; name another file")
    if args.model and (args.checkpoint or args.data):
        raise ValueError(f"--model {args.model}: has its data; leave out --checkpoint and --data")
    if not args.model and not (args.checkpoint and args.data):
        raise ValueError("what is to translate? Give --model DIR, or --checkpoint FILE and --data DIR")
    register()
    from fairseq_diverse.models.loading import load_models, require_translation
    from fairseq_diverse.models.sharing import shared_folder
    from fairseq_diverse.models.translating import Translator

    if args.model:
        args.checkpoint = args.data = str(shared_folder(args.model))
    read_record(args.data)
    models, _, task = load_models(args.checkpoint.split(os.pathsep), args.data)
    require_translation(args.checkpoint, task)
    translator = Translator(
        models,
        task,
        args.data,
        files={kind: file for kind in TREES if (file := getattr(args, kind))},
        parsers={kind: model for kind in TREES if (model := getattr(args, f"{kind}_model"))},
        **{name: getattr(args, name) for name in (*SEARCH, "batch_size", "cpu", "fp16")},
    )
    for kind, parser in translator.trees.parsers.items() if translator.trees else ():
        how = translator.parsers[kind]
        print(f"{kind} trees: {how['parser']} {parser.path} ({how['given']})", file=sys.stderr)
    lines = iterate_lines(args.input) if args.input else decode_lines(sys.stdin.buffer, "stdin")
    number = 0
    with _output(args.out) as out, tqdm(unit=" lines", disable=None if args.out else True) as bar:
        while block := list(itertools.islice(lines, args.buffer_size)):
            for hypotheses in translator(block):
                number += 1
                for score, text in hypotheses:
                    out.write(f"{number}\t{score:.4f}\t{text}\n" if args.scores or args.nbest > 1 else f"{text}\n")
            out.flush()
            bar.update(len(block))
    for problem, numbers in translator.noticed.items():
        if numbers:
            print(f"{len(numbers)} lines {problem}: {first_lines(numbers)}", file=sys.stderr)


@contextmanager
def _output(path: str | None) -> Iterator[IO[str]]:
    """A file, or stdout; UTF-8 in every locale, like the input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    with atomic_write(path) if path else nullcontext(sys.stdout) as out:
        yield out
