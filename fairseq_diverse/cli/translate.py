"""Translate raw text: one line in, one detokenized line out, in the same order.

The steps are those recorded with the prepared data (preprocess.json): cleaning, tokenization, parsing if the model
needs trees, subword segmentation, beam search, detokenization. Hypotheses equal those of fairseq-generate for the same
sentences. With --nbest or --scores each hypothesis is a separate line: number of the sentence, score, text. The score
is the log2 probability per subword with the length penalty, as in fairseq-generate.
"""

import argparse
import io
import itertools
import math
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from fairseq_diverse.cli import first_lines
from fairseq_diverse.support.files import atomic_write, decode_lines, iterate_lines

PATHS = ("checkpoint", "data")
EXAMPLE = "fairseq-diverse translate --checkpoint average.pt --data data/multi30k_en_de --input new.en --out new.de"

CHARACTERS = 20  # per subword; longer lines are not segmented, since the time is quadratic in the length of a word


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILES", help="one checkpoint, or several for an ensemble: A:B")
    add("--data", required=True, help="prepared data set that it was trained on")
    add("--input", metavar="FILE", help="raw text; - is stdin (default: stdin)")
    add("--out", metavar="FILE", help="file for the translations (default: stdout)")
    add("--beam", type=int, default=5, help="beam size (default: 5)")
    add(
        "--max-len-a",
        type=float,
        default=0.0,
        help="at most A times as many subwords as the longest source, plus B (default: 0)",
    )
    add("--max-len-b", type=int, default=200, help="see --max-len-a (default: %(default)s)")
    add("--lenpen", type=float, default=1.0, help="length penalty; higher = longer translations (default: 1)")
    add("--nbest", type=int, default=1, metavar="N", help="hypotheses per sentence (default: 1)")
    add("--scores", action="store_true", help="print sentence number and score, also with --nbest 1")
    add("--batch-size", type=int, default=64, help="sentences per batch (default: %(default)s)")
    add("--buffer-size", type=int, help="lines read at a time (default: 1024; 1 if you type into a terminal)")
    add("--cpu", action="store_true", help="do not use a GPU")
    add("--fp16", action="store_true", help="half precision")
    for kind, files in (("dependency", "CoNLL-U"), ("constituency", "PTB")):
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
    from tqdm import tqdm

    from fairseq_diverse import register

    register()
    translator = Translator(args)
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
    for what, numbers in translator.noticed.items():
        if numbers:
            print(f"{len(numbers)} lines {what}: {first_lines(numbers)}", file=sys.stderr)


class Translator:
    """From lines of raw text to hypotheses: (score, text), best first."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from fairseq_diverse.host.programs import generation_settings
        from fairseq_diverse.models.loading import load_models, require_translation
        from fairseq_diverse.preparation import Preprocessing

        self.args = args
        self.preprocessing = Preprocessing.load(args.data)
        self.models, _, self.task = load_models(args.checkpoint.split(os.pathsep), args.data)
        require_translation(args.checkpoint, self.task)
        self.preprocessing = self.preprocessing.of_model(self.task)
        self.cuda = torch.cuda.is_available() and not args.cpu
        for model in self.models:
            model.make_generation_fast_(beamable_mm_beam_size=args.beam, need_attn=False)
            if args.fp16:
                model.half()
            if self.cuda:
                model.cuda()
        self.generator = self.task.build_generator(
            self.models,
            generation_settings(
                beam=args.beam, lenpen=args.lenpen, nbest=args.nbest, max_len_a=args.max_len_a, max_len_b=args.max_len_b
            ),
        )
        needed = dict.fromkeys(
            kind for m in self.models for kind in getattr(getattr(m.encoder, "plan", None), "trees", ())
        )
        files, parsers = self._given_trees(needed)
        self.trees = None
        if needed:
            from fairseq_diverse.data.live_trees import LiveTrees

            self.trees = LiveTrees(list(needed), parsers, files, self.preprocessing.record["bpe"]["kind"])
            for kind, parser in self.trees.parsers.items():
                how = parsers[kind]
                print(f"{kind} trees: {how['parser']} {parser.path} ({how['given']})", file=sys.stderr)
        self.count = 0
        self.noticed: dict[str, list[int]] = {"too long, not translated": [], "without a usable tree": []}

    def _given_trees(self, needed: Collection[str]) -> tuple[dict[str, Path], dict[str, dict[str, str]]]:
        """By kind, the files of trees and the parsers that the flags name, or the data's record."""
        from fairseq_diverse.preparation.pipeline import FILE
        from fairseq_diverse.syntax.parsers import KINDS, located, parser_of, recorded_parsers

        files: dict[str, Path] = {}
        parsers: dict[str, dict[str, str]] = {}
        source = self.preprocessing.source
        if needed and source == self.preprocessing.record["source"]:  # else the recorded parsers are of the other side
            where = f"{Path(self.args.data) / FILE}"
            recorded = recorded_parsers(self.preprocessing.record, where)
            parsers = {kind: how | {"given": f"{where}: model"} for kind, how in recorded.items()}
        for kind in KINDS:
            file, model = getattr(self.args, kind), getattr(self.args, f"{kind}_model")
            if (file or model) and kind not in needed:
                flag = f"--{kind} {file}" if file else f"--{kind}-model {model}"
                raise ValueError(f"{flag}: this model uses no {kind} trees; leave it out")
            if file and model:
                raise ValueError(f"--{kind} and --{kind}-model: give one, the trees or a parser")
            files |= {kind: file} if file else {}
            if model:
                how = {"parser": parser_of(kind, model), "model": located(model), "language": source}
                parsers[kind] = how | {"given": f"--{kind}-model"}
        return files, parsers

    def __call__(self, lines: Sequence[str]) -> list[list[tuple[float, str]]]:
        import torch

        from fairseq_diverse.data.pairs import PairsWithTrees
        from fairseq_diverse.host.data import source_sentences, to_device

        longest = min(model.max_positions()[0] for model in self.models)
        endless = {n for n, line in enumerate(lines) if len("".join(line.split())) > CHARACTERS * longest}
        lines = ["" if n in endless else line for n, line in enumerate(lines)]
        side = self.preprocessing.tokens["source"], self.preprocessing.subwords["source"]
        tokenized = [side[0].tokenize(line) for line in lines]
        pieces = [side[1].segment(line) for line in tokenized]
        trees: list[Any] = []
        if self.trees:
            trees, unparsed = self.trees(tokenized, pieces, endless)
            self.noticed["without a usable tree"] += [self.count + n + 1 for n in unparsed if tokenized[n]]
        words = self.task.source_dictionary
        ids = [words.encode_line(line, add_if_not_exist=False).long() for line in pieces]  # ends with </s>
        results: list[list[tuple[float, str]]] = [[(0.0, "")] for _ in lines]
        todo = []
        for n, one in enumerate(ids):
            if n in endless or len(one) > longest:
                self.noticed["too long, not translated"].append(self.count + n + 1)
            elif len(one) > 1:
                todo.append(n)
        todo.sort(key=lambda n: len(ids[n]))
        pairs = source_sentences(ids, words)
        if self.trees:
            pairs = PairsWithTrees(pairs, trees)
        for start in range(0, len(todo), self.args.batch_size):
            sample = pairs.collater([pairs[n] for n in todo[start : start + self.args.batch_size]])
            sample["net_input"].pop("prev_output_tokens", None)
            sample = to_device(sample, self.cuda)
            with torch.no_grad():
                found = self.task.inference_step(self.generator, self.models, sample)
            for n, hypotheses in zip(sample["id"].tolist(), found, strict=True):
                results[n] = [self._read(one) for one in hypotheses[: self.args.nbest]]
        self.count += len(lines)
        return results

    def _read(self, hypothesis: Any) -> tuple[float, str]:
        dictionary = self.task.target_dictionary
        text = dictionary.string(hypothesis["tokens"].int().cpu(), extra_symbols_to_ignore={dictionary.eos()})
        return float(hypothesis["score"]) / math.log(2), self.preprocessing.decode(text)


@contextmanager
def _output(path: str | None) -> Iterator[IO[str]]:
    """A file, or stdout; UTF-8 in every locale, like the input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    with atomic_write(path) if path else nullcontext(sys.stdout) as out:
        yield out
