"""Dictionaries, datasets and batches of fairseq, for rooms that do not import it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # preparing data does not need it
    from numpy import ndarray


def numbered_words(size: int) -> Any:
    """A dictionary of ``size`` symbols: fairseq's four, and made-up words."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    dictionary.pad_to_multiple_(size)
    return dictionary


def write_dictionary(texts: Iterable[Path], out: Path) -> None:
    """Write the dictionary of the words of several files as fairseq-preprocess does."""
    from fairseq.data import Dictionary
    from fairseq.tokenizer import tokenize_line

    words = Dictionary()
    for text in texts:
        Dictionary.add_file_to_dictionary(str(text), words, tokenize_line, 1)
    words.finalize(padding_factor=8)
    words.save(str(out))


def gpt2_encoder(encoder: Path, merges: Path) -> Any:
    """GPT-2's byte-level BPE of the files ``encoder.json`` and ``vocab.bpe``."""
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    return get_encoder(str(encoder), str(merges))


def sentences_in_order(dataset: Any) -> "ndarray":
    """The numbers of all sentences in the order of ``task.get_batch_iterator``, by length."""
    from fairseq.data.data_utils import numpy_seed

    with numpy_seed(2):
        return dataset.ordered_indices()


def longest_allowed(task: Any, model: Any) -> Any:
    """The number of positions of task and model, of each side."""
    from fairseq.utils import resolve_max_positions

    return resolve_max_positions(task.max_positions(), model.max_positions())


def data_folders(data: str | Path) -> list[str]:
    """The folders of ``DATA:DATA``; fairseq reads dictionaries, validation and test sets from the first."""
    from fairseq.utils import split_paths

    return split_paths(str(data))


def to_device(sample: dict[str, Any], cuda: bool) -> dict[str, Any]:
    from fairseq.utils import move_to_cuda

    return move_to_cuda(sample) if cuda else sample
