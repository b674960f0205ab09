"""Lengths of training sentences, the number of heads derived from them, and the depth of their trees."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq import utils
from fairseq.data import Dictionary, data_utils, indexed_dataset

from fairseq_diverse.data.trees import ROW, SyntaxDataset, available_trees
from fairseq_diverse.support.errors import UserError


class Lengths(NamedTuple):
    """Number of sentences of a training set, and mean tokens per sentence, without the end-of-sentence symbol."""

    sentences: int
    source: float
    target: float


def training_lengths(data: str, source: str | None = None, target: str | None = None) -> Lengths:
    """Mean lengths of the training split, see ``sentence_lengths``."""
    sides = sentence_lengths(data, source, target)
    return Lengths(len(sides[0]), *(float(lengths.mean()) for lengths in sides))


def sentence_lengths(data: str, source: str | None = None, target: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Length of every source and target sentence of the training split that ``fairseq-preprocess`` wrote, over all its
    shards, in tokens without the end of the sentence. Raises ``UserError``: the training split is missing.

    Args:
        data: one or several directories, joined by colons, as in fairseq.
        source, target: languages, in either direction of the files; by default inferred from the files.
    """
    sizes: dict[str, list[np.ndarray]] = {"source": [], "target": []}
    for side, path in _shards(data, source, target):
        dataset = indexed_dataset.make_dataset(path, indexed_dataset.infer_dataset_impl(path), fix_lua_indexing=True)
        sizes[side].append(np.array(dataset.sizes))  # a copy, since the original is memory-mapped
    if not all(sizes.values()):
        raise UserError(f"--data {data}: no training split; fairseq-preprocess --trainpref writes train.SRC-TGT.*.idx")
    return np.concatenate(sizes["source"]) - 1, np.concatenate(sizes["target"]) - 1


def vocabularies(data: str, source: str | None = None, target: str | None = None) -> tuple[int, int]:
    """Symbols of the dictionaries of source and target, with fairseq's four; arguments as of ``sentence_lengths``.
    Raises ``UserError``: a dictionary is missing or damaged."""
    folder, counts = utils.split_paths(data)[0], []
    for language in _languages(folder, source, target):
        path = f"{folder}/dict.{language}.txt"
        try:
            counts.append(len(Dictionary.load(path)))
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"--data {path}: not a dictionary of fairseq-preprocess ({error})") from None
    return counts[0], counts[1]


def _languages(folder: str, source: str | None, target: str | None) -> tuple[str, str]:
    try:
        languages = data_utils.infer_language_pair(folder)
    except OSError as error:
        raise UserError(f"--data {folder}: {error.strerror}") from None
    return (source, target) if source and target else languages  # as in fairseq


def _shards(data: str, source: str | None, target: str | None) -> Iterator[tuple[str, str]]:
    """Side and prefix of every binarized part of the training split."""
    for directory in utils.split_paths(data):
        pair = _languages(directory, source, target)
        names = f"{pair[0]}-{pair[1]}", f"{pair[1]}-{pair[0]}"
        for side, language in zip(("source", "target"), pair, strict=True):
            for shard in itertools.count():
                paths = [f"{directory}/train{shard or ''}.{name}.{language}" for name in names]
                kinds = {path: indexed_dataset.infer_dataset_impl(path) for path in paths}
                binarized = [path for path, kind in kinds.items() if kind not in (None, "raw", "fasta")]
                if not binarized:  # text has no sizes
                    break
                yield side, binarized[0]


class PhraseLayers(NamedTuple):
    """Of the training sentences with a constituency tree: how many, and the mean of their largest phrase layers."""

    sentences: int
    mean: float

    @property
    def limit(self) -> int:
        """The smallest k whose 2k + 1 relative positions are at least the mean."""
        return math.ceil((self.mean - 1) / 2)


def phrase_layers(data: str, source: str | None = None, target: str | None = None) -> PhraseLayers | None:
    """The mean over sentences of the largest layer of a word, see ``local_phrases``; None where there are no trees.
    Arguments as of ``sentence_lengths``. Raises ``UserError``: the trees are damaged, or of another source.

    Source: Zhang et al. (2021), section 5.3.3, where it is 11.13 and speaks for k = 6."""
    layers: list[np.ndarray] = []
    for side, path in _shards(data, source, target):
        if side == "source" and "constituency" in available_trees(Path(path)):
            trees = SyntaxDataset(path, ("constituency",))  # keeps its memory-mapped sizes open
            words = trees.rows.sizes // len(ROW)
            rows = np.fromfile(f"{path}.syntax.bin", dtype=np.int32).reshape(-1, len(ROW))
            starts = (np.cumsum(words) - words)[words > 0]
            parsed = rows[starts, ROW.index("end")] > 0
            layers.append(np.maximum.reduceat(rows[:, ROW.index("layer")], starts)[parsed])
    count = sum(map(len, layers))
    return PhraseLayers(count, float(np.concatenate(layers).mean())) if count else None


def most_heads(width: int, length: float) -> int:
    """The largest number of heads that are at least as wide as a sentence is long; 0 if even one head is too narrow.

        h_max = floor(d / n),   d the model's width, n the mean length of the training set's source sentences, in tokens

    Source: Li and Luo (2022), Eq. 13."""
    return math.floor(width / length)
