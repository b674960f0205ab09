"""Dictionaries, binarized text and embeddings: what is damaged, or does not belong together, is one line."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fairseq_diverse.support.errors import UserError

LFS = b"version https://git-lfs"  # how a pointer begins that Git LFS leaves in place of a file


@contextmanager
def naming(*paths: str) -> Iterator[None]:
    """Every error inside names the first file; ``UserError`` also for a pointer of Git LFS in place of a file."""
    for path in paths:
        with open(path, "rb") as file:
            if file.read(len(LFS)) == LFS:
                raise UserError(f"{path}: a pointer of Git LFS, not the file: run git lfs pull")
    try:
        yield
    except (FileNotFoundError, MemoryError, UserError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{paths[0]}: damaged, or of another kind ({reason[:200]})") from error


def read_words(read: Any, self: Any, f: Any) -> None:
    """As ``Dictionary.add_from_file``; errors name the file."""
    with naming(f) if isinstance(f, str) else nullcontext():
        read(self, f)


def open_data(make: Any, path: str, impl: str, fix_lua_indexing: bool = False, dictionary: Any = None) -> Any:
    """As fairseq's ``make_dataset``; ``UserError`` if the text is damaged, or has words that the dictionary lacks."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    files = [f"{path}.idx", f"{path}.bin"]
    if not all(Path(file).is_file() for file in files):
        return make(path, impl, fix_lua_indexing, dictionary)
    with naming(*files):
        _check_sizes(*files)
        dataset = make(path, impl, fix_lua_indexing, dictionary)
        if isinstance(dataset, MMapIndexedDataset):
            _check_numbers(f"{path}.bin", dataset, dictionary)
    return dataset


def _check_sizes(index: str, data: str) -> None:
    """Raise ``UserError`` for an index of another length than it says, and for no data."""
    with open(index, "rb") as file:
        head = file.read(26)  # what it is, version, type and number of sentences; of each its length and place
    if head.startswith(b"MMIDIDX") and Path(index).stat().st_size != 26 + 12 * int.from_bytes(head[18:], "little"):
        raise UserError(f"{index}: cut off")
    if not Path(data).stat().st_size:
        raise UserError(f"{data}: empty file")


def _check_numbers(path: str, dataset: Any, dictionary: Any) -> None:
    import numpy as np

    index = dataset._index
    expected, actual = int(index.sizes.sum()), len(dataset._bin_buffer) // index._dtype_size
    if actual != expected:
        raise UserError(f"{path}: has {actual:,} words, but its .idx says {expected:,}: cut off, or of other data")
    highest = int(np.frombuffer(dataset._bin_buffer, index.dtype).max()) if actual and dictionary is not None else 0
    if dictionary is not None and highest >= len(dictionary):
        known = f"its dictionary (dict.*.txt) only {len(dictionary):,} words: it is not that of these data"
        raise UserError(f"{path}: has the word number {highest:,}, but {known}")


def pair_sides(
    init: Any, self: Any, src: Any, src_sizes: Any, src_dict: Any, tgt: Any = None, *args: Any, **flags: Any
) -> None:
    """As ``LanguagePairDataset.__init__``; ``UserError`` if the sides have other numbers of sentences.

    ``num_buckets`` (--num-batch-buckets) is for ``in_buckets``.
    """
    if tgt is not None and len(src) != len(tgt):
        raise UserError(f"{len(src):,} source and {len(tgt):,} target sentences: prepare both sides together, again")
    self.num_buckets = flags.pop("num_buckets", 0)
    init(self, src, src_sizes, src_dict, tgt, *args, **flags)


class Vectors(dict[str, Any]):
    """Embeddings by word, and the file that they are of."""

    def __init__(self, path: str, width: int) -> None:
        super().__init__()
        self.path, self.width = path, width


def read_embeddings(_: Any, embed_path: str) -> Vectors:
    """As fairseq's ``parse_embedding``: "N D", then a word and its D numbers a line. A word may have spaces.

    The first line may be missing, as in GloVe's files; fairseq would leave out the first word.

    Raises:
        UserError: there is no vector, or a line does not have D numbers.
    """
    from torch import tensor

    with naming(embed_path), open(embed_path, encoding="utf-8", errors="surrogateescape") as file:
        first = next(file, "")
        parts = first.rstrip().split(" ")
        header = len(parts) == 2 and all(part.isdecimal() for part in parts)
        vectors = Vectors(embed_path, int(parts[1]) if header else len(parts) - 1)
        for number, line in enumerate(itertools.chain([] if header or not first else [first], file), 1 + header):
            try:
                word, *numbers = line.rstrip().rsplit(" ", vectors.width)
                vectors[word] = tensor([float(text) for text in numbers])
            except ValueError:
                numbers = []
            if len(numbers) != vectors.width:
                raise UserError(f"{embed_path}: line {number}: a word and {vectors.width} numbers are needed")
        if not vectors or not vectors.width:
            raise UserError(f"{embed_path}: has no vectors")
    return vectors


def put_embeddings(put: Any, embed_dict: Any, vocab: Any, embedding: Any) -> Any:
    """As fairseq's ``load_embedding``; ``UserError`` for vectors of another width."""
    width = getattr(embed_dict, "width", embedding.embedding_dim)
    if width != embedding.embedding_dim:
        wanted = f"the model's embeddings have {embedding.embedding_dim} (--encoder-embed-dim, --decoder-embed-dim)"
        raise UserError(f"{embed_dict.path}: vectors of {width} numbers, but {wanted}")
    return put(embed_dict, vocab, embedding)
