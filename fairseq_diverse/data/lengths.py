"""Mean length of training sentences, and the number of heads derived from it."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from fairseq import utils
from fairseq.data import data_utils, indexed_dataset

from fairseq_diverse.support.errors import UserError


class Lengths(NamedTuple):
    """Number of sentences of a training set, and mean tokens per sentence, without the end-of-sentence symbol."""

    sentences: int
    source: float
    target: float


def training_lengths(data: str, source: str | None = None, target: str | None = None) -> Lengths:
    """Mean lengths of the training split that ``fairseq-preprocess`` wrote, over all its shards.

    Args:
        data: one or several directories, joined by colons, as in fairseq.
        source, target: languages, in either direction of the files; by default inferred from the files.

    Raises:
        UserError: there is no training split.
    """
    sizes: dict[str, list[np.ndarray]] = {"source": [], "target": []}
    for directory in utils.split_paths(data):
        try:
            found = data_utils.infer_language_pair(directory)
        except OSError as error:
            raise UserError(f"--data {directory}: {error.strerror}") from None
        pair = (source, target) if source and target else found  # as in fairseq
        names = f"{pair[0]}-{pair[1]}", f"{pair[1]}-{pair[0]}"
        for side, language in zip(sizes, pair, strict=True):
            for shard in itertools.count():
                paths = [f"{directory}/train{shard or ''}.{name}.{language}" for name in names]
                kinds = {path: indexed_dataset.infer_dataset_impl(path) for path in paths}
                binarized = [path for path, kind in kinds.items() if kind not in (None, "raw", "fasta")]
                if not binarized:  # text has no sizes
                    break
                dataset = indexed_dataset.make_dataset(binarized[0], kinds[binarized[0]], fix_lua_indexing=True)
                sizes[side].append(np.array(dataset.sizes))  # a copy, since the original is memory-mapped
    if not all(sizes.values()):
        raise UserError(f"--data {data}: no training split; fairseq-preprocess --trainpref writes train.SRC-TGT.*.idx")
    lengths = [np.concatenate(of_side) - 1 for of_side in sizes.values()]
    return Lengths(len(lengths[0]), *(float(of_side.mean()) for of_side in lengths))


def most_heads(width: int, length: float) -> int:
    """The largest number of heads that are at least as wide as a sentence is long; 0 if even one head is too narrow.

        h_max = floor(d / n)

    Source: Li and Luo (2022), Eq. 13.

    Args:
        width: d, of the model.
        length: n, mean length of the training set's source sentences, in tokens.
    """
    return math.floor(width / length)
