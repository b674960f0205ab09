"""Parsing a text with a worker of ``fairseq-diverse parse``, and with the parser alone at its best speed.

The parser alone gets sentences as its own objects, created before the measurement, sorted by length, in batches of the
fastest size; its results are discarded. Ours starts from lines and ends with the text of the trees.
"""

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Sample, clock, timed
from benchmarks.sides import Size
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.syntax.parse import CHUNK, parse_lines
from fairseq_diverse.syntax.parsers import KINDS, load_parser
from fairseq_diverse.toy.corpus import write_corpus

BATCHES = {"spacy": (64, 256, 1024), "benepar": (250, 500, 1000, 2000)}  # sentences; words
MODELS: dict[str, str] = {}  # parser -> model, from the command line


@functools.cache
def lines(count: int) -> list[str]:
    """English sentences of the embedded corpus."""
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder), train=count, valid=1, test=1)
        return read_lines(Path(folder) / "train.en")


def parser(name: str) -> Any:
    return _loaded(name, MODELS[name])


@functools.cache
def _loaded(name: str, model: str) -> Any:
    return load_parser(_kind(name), name, model, "en")


def _kind(name: str) -> str:
    return next(kind for kind, parser in KINDS.items() if parser == name)


def ours(name: str, text: Sequence[str]) -> None:
    """As in a worker: chunk by chunk, to the text of the trees."""
    for start in range(0, len(text), CHUNK):
        json.dumps(parse_lines(parser(name), _kind(name), text[start : start + CHUNK]))


def alone(name: str, text: Sequence[str], batch: int) -> float:
    """Seconds of the parser's batch call."""
    sentences = sorted((line.split() for line in text), key=len)
    now = getattr(time, clock("cpu"))
    loaded = parser(name)
    if name == "spacy":
        from spacy.tokens import Doc

        docs = [
            Doc(loaded.nlp.vocab, words=words, sent_starts=[i == 0 for i in range(len(words))]) for words in sentences
        ]
        start = now()
        for _ in loaded.nlp.pipe(docs, batch_size=batch):
            pass
    else:
        inputs = [loaded.sentence(words=words, space_after=[True] * len(words)) for words in sentences]
        start = now()
        for _ in loaded.parser._parser.parse(inputs, return_compressed=True, subbatch_max_tokens=batch):
            pass
    return now() - start


@functools.cache
def best_batch(name: str, count: int) -> int:
    """The fastest of ``BATCHES``, each measured twice."""
    return min(BATCHES[name], key=lambda batch: min(alone(name, lines(count), batch) for _ in range(2)))


def parsing(name: str, size: Size, device: str) -> Sample:
    """Seconds for one text; ``spacy`` and ``benepar`` are ours, ``spacy alone`` and ``benepar alone`` the parsers."""
    parser_name, _, who = name.partition(" ")
    text = lines(size.lines)
    if who == "alone":
        batch = best_batch(parser_name, size.lines)
        return lambda: alone(parser_name, text, batch)
    return timed(lambda: ours(parser_name, text), device)
