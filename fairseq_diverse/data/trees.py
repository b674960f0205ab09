"""Trees for fairseq's binarized data: five integers per word, memory-mapped, aligned with the source's subwords.

``<split>.<src>-<tgt>.<src>.syntax.{bin,idx}`` is a memory-mapped data set of fairseq whose sequences are rows of
``ROW``; ``.syntax.json`` says which kinds of trees it has and which source they belong to. This file is removed before
the other two are replaced and is written last, so an interrupted run never leaves a wrong description."""

import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder, _code_to_dtype
from torch import Tensor
from tqdm import tqdm

from fairseq_diverse.attention.relations import EVERYTHING_RELATED, place_trees
from fairseq_diverse.preparation.subwords import OF_PIECES, SPACE_MARK
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import iterate_lines, sha256_of, write_text
from fairseq_diverse.support.processes import locked
from fairseq_diverse.syntax.escapes import comparable
from fairseq_diverse.syntax.trees import Dependencies, Tree, fitted, local_phrases, read_brackets, read_conllu

ROW = ("pieces", "head", "start", "end", "layer")  # head -1: no dependency tree; end 0: no constituency tree
KINDS = ("dependency", "constituency")
READERS: dict[str, Callable[..., Iterator[Any]]] = {"dependency": read_conllu, "constituency": read_brackets}
END = object()


class Counts(NamedTuple):
    """The number of sentences of a split, and the lines without a usable tree, by kind."""

    sentences: int
    unparsed: dict[str, list[int]]  # kind -> line numbers


def words_of(pieces: Sequence[str], subwords: str) -> tuple[list[str], list[int]]:
    """The words that the subwords form, and the number of subwords of each; ``subwords``: subword-nmt (``@@`` at the
    end of all pieces of a word but the last), sentencepiece or t5 (``▁`` at the beginning of a word), or none."""
    words: list[str] = []
    counts: list[int] = []
    continued = False
    for piece in pieces:
        if subwords in OF_PIECES:
            continued = bool(words) and (not piece.startswith(SPACE_MARK) or words[-1] == "")
            text = piece.removeprefix(SPACE_MARK)
        else:
            text = piece.removesuffix("@@") if subwords == "subword-nmt" else piece
        if continued:
            words[-1] += text
            counts[-1] += 1
        else:
            words.append(text)
            counts.append(1)
        continued = subwords == "subword-nmt" and piece.endswith("@@")
    return words, counts


def binarize(
    prefix: Path,
    text: Path,
    dependency: Path | None,
    constituency: Path | None,
    subwords: str,
    parsers: dict[str, dict[str, Any]] | None = None,
) -> Counts:
    """Write the trees of a split next to its binarized source.

    Args:
        prefix: path of the binarized source without its ending, such as ``DATA/train.en-de.en``.
        text: the binarized source text, in subwords.
        dependency, constituency: CoNLL-U and PTB files, one sentence per line of the text; None = no trees of that
            kind.
        subwords: subword-nmt, sentencepiece, t5 or none, see ``words_of``.
        parsers: kind -> description of the parser that made the trees: ``parser`` (its name) and further entries.

    Raises:
        ValueError: the trees do not match the text, or the text does not match the data (names file and line); or
            another process is writing the trees.
    """
    trees = {kind: path for kind, path in zip(KINDS, (dependency, constituency), strict=True) if path}
    unparsed: dict[str, list[int]] = {kind: [] for kind in trees}
    sizes = _sizes(prefix)
    lengths, digest = [], hashlib.sha256()
    work = prefix.with_name(f".{prefix.name}.syntax.part")
    with locked(work):
        try:
            builder = MMapIndexedDatasetBuilder(str(work / "bin"), dtype=np.int32)
            sentences = _rows(text, trees, subwords)
            for line, rows in enumerate(tqdm(sentences, prefix.name, len(sizes), unit=" sentences", disable=None), 1):
                lengths.append(int(rows[:, 0].sum()) + 1)
                digest.update(rows.tobytes())
                if [lengths[-1]] != [*sizes[line - 1 : line]]:
                    expected = sizes[line - 1] - 1 if line <= len(sizes) else "no more lines"
                    where = f"{text}:{line}: {lengths[-1] - 1} subwords"
                    raise ValueError(f"{where}, but {prefix}.bin has {expected} there")
                for kind, column, missing in (("dependency", 1, -1), ("constituency", 3, 0)):
                    if kind in unparsed and (not len(rows) or rows[0, column] == missing):
                        unparsed[kind].append(line)
                builder.add_item(torch.from_numpy(rows.reshape(-1)))
            if len(lengths) != len(sizes):
                raise ValueError(f"{text}: {len(lengths)} lines, but {prefix}.bin has {len(sizes)} sentences")
            builder.finalize(str(work / "idx"))
            description = Path(f"{prefix}.syntax.json")
            description.unlink(missing_ok=True)
            for ending in ("bin", "idx"):
                os.replace(work / ending, f"{prefix}.syntax.{ending}")
            record = {"kinds": [*trees], "sentences": len(lengths), "lengths": _fingerprint(lengths)}
            record |= {"unparsed": unparsed, "digest": digest.hexdigest(), "parsers": parsers or {}}
            write_text(description, json.dumps(record))
        except OSError as error:  # for example a full disk, for which Python names no file
            raise OSError(f"{prefix}.syntax: not written: {error}") from None
        finally:
            shutil.rmtree(work)
    return Counts(len(lengths), unparsed)


def _rows(text: Path, trees: dict[str, Path], subwords: str) -> Iterator[np.ndarray]:
    sentences: dict[str, Iterator[Any]] = {kind: READERS[kind](path) for kind, path in trees.items()}
    number = 0
    for number, line in enumerate(iterate_lines(text), 1):
        parsed: dict[str, Any] = {kind: next(items, END) for kind, items in sentences.items()}
        for kind, item in parsed.items():
            if item is END:
                raise ValueError(f"{trees[kind]}: {number - 1} sentences, but {text} has more lines")
        try:
            yield sentence_rows(line.split(), subwords, parsed.get("dependency"), parsed.get("constituency"))
        except Mismatch as mismatch:
            where = f"{trees[mismatch.kind]}: sentence {number}"
            raise ValueError(f"{where} is not line {number} of {text}: {mismatch}") from None
    for kind, items in sentences.items():
        if next(items, END) is not END:
            raise ValueError(f"{trees[kind]}: more than the {number} sentences of {text}")


class Mismatch(Exception):
    """The words of a tree differ from those of the subwords; the message shows both from the first that differs."""

    def __init__(self, kind: str, parsed: Sequence[str], words: Sequence[str]) -> None:
        both = [" ".join(side).split() for side in (parsed, words)]
        pairs = enumerate(zip(*both, strict=False))
        same = next((n for n, (one, other) in pairs if comparable(one) != comparable(other)), min(map(len, both)))
        super().__init__(", ".join(repr("... " * (same > 0) + " ".join(side[same:])) for side in both))
        self.kind = kind


def sentence_rows(pieces: Sequence[str], subwords: str, graph: Dependencies | None, tree: Tree | None) -> np.ndarray:
    """(words, 5) int32, the ``ROW`` of each word of a sentence, of its subwords (see ``words_of``) and its trees, or
    None; see ``fitted`` for the graph. Raises ``Mismatch``: a tree has other words."""
    words, counts = words_of(pieces, subwords)
    rows = np.zeros((len(words), len(ROW)), dtype=np.int32)
    rows[:, 0], rows[:, 1] = counts, -1
    if graph is not None and graph.words:
        if (between := fitted(graph, words)) is None:
            raise Mismatch("dependency", graph.words, words)
        rows[:, 1] = -1 if between.heads is None else between.heads
    if tree is not None:
        if [*map(comparable, tree.leaves())] != [*map(comparable, words)]:
            raise Mismatch("constituency", tree.leaves(), words)
        rows[:, 2:] = np.array(local_phrases(tree)).T
    return rows


def _sizes(prefix: Path | str, dtype: type | None = None) -> np.ndarray:
    """The lengths of the sequences of a memory-mapped data set; for a source, the subwords of each sentence with </s>.
    Raises ``UserError``: a file is missing, damaged, in another format, or has not numbers of that ``dtype``, if it is
    given.
    """
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    magic = MMapIndexedDataset.Index._HDR_MAGIC
    if not (index.exists() and data.exists()) or (content := index.read_bytes())[: len(magic)] != magic:
        raise UserError(f"{index}: missing or not memory-mapped; run fairseq-preprocess (--dataset-impl mmap) first")
    try:
        version, code, count = struct.unpack_from("<QBQ", content, len(magic))
        numbers = _code_to_dtype[code]
        start = len(magic) + struct.calcsize("<QBQ")
        sizes = np.frombuffer(content, np.int32, count, start)
        pointers = np.frombuffer(content, np.int64, count, start + sizes.nbytes)
    except (struct.error, KeyError, ValueError, OverflowError):
        raise UserError(f"{index}: damaged; make it again") from None
    ends = np.append(0, np.cumsum(sizes, dtype=np.int64) * np.dtype(numbers).itemsize)
    complete = version == 1 and len(content) == start + sizes.nbytes + pointers.nbytes
    if not complete or (sizes < 0).any() or (pointers != ends[:-1]).any() or (dtype and numbers is not dtype):
        raise UserError(f"{index}: damaged; make it again")
    if data.stat().st_size != ends[-1]:
        raise UserError(f"{data}: {data.stat().st_size:,} bytes, {ends[-1]:,} in {index.name}; create both again")
    return sizes


def _fingerprint(lengths: Sequence[int] | np.ndarray) -> int:
    return zlib.crc32(np.asarray(lengths, dtype=np.int32).tobytes())


def _description(prefix: Path | str) -> dict[str, Any]:
    """The contents of ``.syntax.json`` for a source; every invalid file gives the same error."""
    try:
        record = json.loads(Path(f"{prefix}.syntax.json").read_text(encoding="utf-8"))
        kinds, lengths, digest = record["kinds"], record["lengths"], record.get("digest")
    except FileNotFoundError:
        return {"kinds": []}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        kinds = lengths = digest = None
    known = isinstance(kinds, list) and kinds and all(kind in KINDS for kind in kinds)
    if not known or type(lengths) is not int or not isinstance(digest, str | None):
        problem = "damaged, or not written by fairseq-diverse binarize-syntax; run it again"
        raise UserError(f"{prefix}.syntax.json: {problem}")
    return record


def available_trees(prefix: Path) -> list[str]:
    """The kinds of trees available for a binarized source.

    Raises:
        UserError: their description is damaged.
    """
    return _description(prefix)["kinds"]


class PairsWithTrees(BaseWrapperDataset):
    """Adds ``source_trees`` (B, T, 5) to the batches of a ``LanguagePairDataset``, aligned by sentence id."""

    def __init__(self, pairs: Any, trees: Any) -> None:
        super().__init__(pairs)
        self.trees = trees

    def collater(self, samples: Sequence[Any], **options: Any) -> dict[str, Any]:
        batch = self.dataset.collater(samples, **options)
        if batch:
            batch["net_input"]["source_trees"] = place_trees(batch, self.trees, self.dataset.src_dict.pad())
        return batch


class SyntaxDataset(torch.utils.data.Dataset):
    """The trees of a split, projected to subwords.

    Args:
        prefix: path of the binarized source without its ending, such as ``DATA/train.en-de.en``.
        needed: the kinds of trees that the model needs. If a sentence lacks one, all its tokens are related.

    Raises:
        UserError: the trees are missing, damaged, of another source, or not of the needed kinds.
    """

    def __init__(self, prefix: str, needed: Sequence[str]) -> None:
        self.prefix, self.needed = prefix, tuple(needed)
        path = Path(f"{prefix}.syntax.json")
        command = f"fairseq-diverse binarize-syntax --data {path.parent}"
        split, pair, source = path.name.split(".")[:3]
        if split not in ("train", "valid", "test"):
            command += f" --splits {split}"
        if not pair.startswith(f"{source}-"):  # trained in the other direction
            command += f" --source-lang {source} --target-lang {pair.removesuffix(f'-{source}')}"
        record = _description(prefix)
        if missing := [kind for kind in needed if kind not in record["kinds"]]:
            has = f"has {' and '.join(record['kinds'])} trees only;" if record["kinds"] else "missing, and"
            flags = " ".join(f"--{kind} FILES" for kind in missing)
            raise UserError(f"{path}: {has} this model needs {' and '.join(needed)} trees: {command} {flags}")
        if record["lengths"] != _fingerprint(_sizes(prefix)):
            raise UserError(f"{path}: belongs to another source than {prefix}.bin; run {command} on the current text")
        _sizes(f"{prefix}.syntax", np.int32)
        digest = record.get("digest")  # data sets of the first versions have none
        if digest is not None and digest != sha256_of(f"{prefix}.syntax.bin"):
            raise UserError(f"{prefix}.syntax.bin: damaged, or not the trees of {path.name}; run {command} again")
        self.rows = MMapIndexedDataset(f"{prefix}.syntax")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        """(T, 5) integers for the subwords of a sentence and </s>: word, head, start, end, layer."""
        return project(self.rows[index].view(-1, len(ROW)).long(), self.needed)


def project(rows: Tensor, needed: Sequence[str]) -> Tensor:
    """(words, 5) ``ROW`` per word -> (T, 5) word, head, start, end, layer per subword, </s> last.

    A subword has the relations of its word; </s> is a separate word, related only to itself. Without a usable tree of a
    needed kind, every token gets ``EVERYTHING_RELATED``. The paper does not describe subwords."""
    words, length = len(rows), int(rows[:, 0].sum()) + 1
    if not words or ("dependency" in needed and rows[0, 1] < 0) or ("constituency" in needed and not rows[0, 3]):
        return torch.tensor(EVERYTHING_RELATED).repeat(length, 1)
    rows = torch.cat([rows, torch.tensor([[1, words, words, words + 1, 0]])])
    word = torch.arange(words + 1).repeat_interleave(rows[:, 0])
    return torch.cat([word.unsqueeze(1), rows[word, 1:]], 1)
