"""Data sets in the layout of ERASER (DeYoung et al., 2020): texts with a class, and the words that show it."""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fairseq_diverse.preparation.config import BPE_DEFAULTS, FILTER_DEFAULTS, SIDE_DEFAULTS, DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.prepare import Say, prepare
from fairseq_diverse.support.files import iterate_lines, new_folder, write_lines
from fairseq_diverse.support.typed import typed

ORIGIN = "https://www.eraserbenchmark.com"
BY_HAND = f"download a data set of ERASER by hand from {ORIGIN}"
PREFIX = "eraser-"  # of the name of a prepared data set
NAME = re.compile(r"eraser-(\w[\w.-]*)(?:@(.+))?")
FILES = {"train": "train.jsonl", "valid": "val.jsonl", "test": "test.jsonl"}
# training examples of the benchmark's data sets that Wang et al. (2021), Table 8, have
EXAMPLES = {"movies": 1600, "fever": 97957, "multirc": 24029, "cose": 8733, "esnli": 911928}
SEPARATOR = "[sep]"  # a word of queries that stands between the answers of CoS-E
BPE_SIZE = 8000  # of subwords that are learned on the data's own text


class Evidence(msgspec.Struct):
    """Words ``start_token`` to ``end_token`` - 1 of a document."""

    docid: str | int
    start_token: int
    end_token: int


class _Line(msgspec.Struct):
    annotation_id: str | int
    classification: str
    evidences: list[list[Evidence]]
    query: str | None
    docids: list[str | int] | None = None


class _Document(msgspec.Struct):
    docid: str | int
    document: str


class Annotation(NamedTuple):
    """An example: the words of its documents, one after the other, with 1 for those that are evidence, else 0.

    ``places`` has for each document its name and its number of words.
    """

    name: str
    label: str
    query: list[str]
    words: list[str]
    evidence: list[int]
    places: list[tuple[str, int]]


def split_name(name: str) -> tuple[str, str] | None:
    """``movies`` and ``bert`` of ``eraser-movies@bert``, where the second is the data set whose dictionary it has, ""
    for none; None for other names."""
    return (match[1], match[2] or "") if (match := NAME.fullmatch(name)) else None


def read_eraser(folder: Path) -> dict[str, list[Annotation]]:
    """The examples of train, valid and test.

    All groups of evidence count. Where a line names no documents, they are those of its evidence, or the one called as
    the line itself. Raises ``ValueError``: a file is missing or empty; a line is not JSON, lacks a key or has another
    type there; a document is missing, or evidence is outside it; a class does not occur in training. Names file, line
    and key.
    """
    if missing := [name for name in FILES.values() if not (folder / name).is_file()]:
        raise ValueError(f"{folder}: lacks {', '.join(missing)}; {BY_HAND}")
    documents = _Documents(folder)
    examples = {split: list(_read_split(folder / name, documents)) for split, name in FILES.items()}
    known = {annotation.label for annotation in examples["train"]}
    if len(known) < 2:
        raise ValueError(f"{folder / FILES['train']}: classification: one class only, {', '.join(known)}")
    classes = f"not a class of {FILES['train']}: {', '.join(sorted(known))}"
    for split, annotations in examples.items():
        for number, annotation in enumerate(annotations, start=1):
            if annotation.label not in known:
                where = f"{folder / FILES[split]}, line {number}"
                raise ValueError(f"{where}: classification: {annotation.label!r} is {classes}")
    return examples


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """The place and the object of each line."""
    number = 0
    for number, line in enumerate(iterate_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            content = json.loads(line)
            if "\\u" in line:  # half of a character cannot be written again
                json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        if not isinstance(content, dict):
            raise ValueError(f"{where}: a JSON object expected")
        yield where, content
    if not number:
        raise ValueError(f"{path}: empty")


class _Documents:
    """The words of documents: those of ``docs.jsonl``, or files in ``docs/``, which are read when they are named.

    As in ERASER's program, lines are split at single spaces, not at other white space; in ``docs.jsonl``, what is
    between two spaces is a word, too, since evidence is counted in such words.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.words = folder / "docs", dict[str, list[str]]()
        path = folder / "docs.jsonl"
        if not path.is_file():
            if not self.folder.is_dir():
                raise ValueError(f"{folder}: has neither docs.jsonl nor docs/, the documents ({ORIGIN})")
            return
        for where, content in _objects(path):
            document = typed(content, _Document, where)
            if (name := str(document.docid)) in self.words:
                raise ValueError(f"{where}: docid: {name!r} twice")
            self.words[name] = [word for line in document.document.split("\n") for word in line.strip().split(" ")]

    def of(self, name: str, where: str) -> list[str]:
        path = self.folder / name
        if name not in self.words:
            if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
                raise ValueError(f"{where}: docid: {name!r} is not a document of {self.folder}(.jsonl)")
            self.words[name] = [word for line in iterate_lines(path) for word in line.strip().split(" ") if word]
        if not any(self.words[name]):
            raise ValueError(f"{where}: docid: {name!r} has no words")
        return self.words[name]


def _read_split(path: Path, documents: _Documents) -> Iterator[Annotation]:
    seen: set[str] = set()
    for where, content in _objects(path):
        line = typed(content, _Line, where)
        if (annotation_id := str(line.annotation_id)) in seen:
            raise ValueError(f"{where}: annotation_id: {annotation_id!r} twice")
        seen.add(annotation_id)
        evidence = [(str(part.docid), part) for group in line.evidences for part in group]
        names = list(dict.fromkeys(map(str, line.docids or [docid for docid, _ in evidence] or [annotation_id])))
        texts = {name: documents.of(name, where) for name in names}
        marks = {name: [0] * len(words) for name, words in texts.items()}
        for docid, part in evidence:
            if docid not in texts:
                raise ValueError(f"{where}: evidences: docid: {docid!r} is not in docids, {', '.join(names)}")
            if not 0 <= part.start_token < part.end_token <= len(texts[docid]):
                span = f"start_token {part.start_token}, end_token {part.end_token}"
                outside = f"outside document {docid!r}, which has {len(texts[docid])} words"
                raise ValueError(f"{where}: evidences: {span}: {outside}")
            marks[docid][part.start_token : part.end_token] = [1] * (part.end_token - part.start_token)
        words, marked = [*chain(*texts.values())], [*chain(*marks.values())]
        places = [(name, len(texts[name])) for name in names]
        yield Annotation(annotation_id, line.classification, (line.query or "").split(), words, marked, places)


def prepare_eraser(
    name: str, raw: Path, out: Path, encoding: Encoding | None = None, *, say: Say = print, **options: Any
) -> bool:
    """Write a data set with its dictionary and subwords into ``out``: ``text/`` has its files, all documents in
    ``docs.jsonl``; arguments, result and errors as of `prepare` and `read_eraser`. ``raw`` has the files, or a folder
    ``name`` that has them. By default the subwords are learned on the documents and queries of training."""
    folder = raw / name if (raw / name).is_dir() else raw
    if folder == raw and not any((raw / file).is_file() for file in FILES.values()):
        data_sets = sorted(path.parent.name for path in raw.glob(f"*/{FILES['train']}"))
        todo = "; ".join(f"it has {data_set}: prepare {PREFIX}{data_set}" for data_set in data_sets) or BY_HAND
        raise ValueError(f"{raw}: has neither {', '.join(FILES.values())} nor a folder {name} that has them; {todo}")
    examples = read_eraser(folder)
    sides, bpe = {"source": {**SIDE_DEFAULTS, "language": "en"}}, {**BPE_DEFAULTS, "size": BPE_SIZE}
    config = DataConfig(name, sides, {"train": "train", "valid": "valid"}, FILTER_DEFAULTS, bpe, True)
    config = encoding.applied(config) if encoding else config
    with new_folder(out.with_name(f"{out.name}.raw")) as work:
        written: dict[str, list[str]] = {}
        for split, annotations in examples.items():
            shutil.copyfile(folder / FILES[split], work / FILES[split])
            texts: dict[str, None] = {}
            for annotation in annotations:
                query = " ".join(word for word in annotation.query if word != SEPARATOR)
                texts |= dict.fromkeys([" ".join(annotation.words), *filter(None, [query])])
                start = 0
                for docid, length in annotation.places:
                    written[docid] = annotation.words[start : start + length]
                    start += length
            write_lines(work / f"{split}.en", texts)
        objects = ({"docid": docid, "document": "\n".join(words)} for docid, words in written.items())
        write_lines(work / "docs.jsonl", (json.dumps(document, ensure_ascii=False) for document in objects))
        beside = (*FILES.values(), "docs.jsonl")
        if not prepare(config, work, out, encoding=encoding, beside=beside, say=lambda line: None, **options):
            return False
        counts = ", ".join(f"{split} {len(annotations):,}" for split, annotations in examples.items())
        say(f"prepared {out}: {counts} examples, {len(written):,} documents")
        return True
