"""BERT's subwords (Devlin et al., 2019): WordPiece from its ``vocab.txt``, and fairseq's dictionary of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_diverse.support.installed import install, needed

VOCABULARY = "vocab.txt"
SPECIAL = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>", "[MASK]": "<mask>"}  # in fairseq


def read_vocabulary(path: Path) -> list[str]:
    """The subwords in the order of their numbers. Raises ``ValueError``: cannot be read, not UTF-8, one comes twice or
    is empty, or a special one is missing."""
    try:
        subwords = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); the vocabulary of a BERT is needed") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8; the vocabulary of a BERT is needed") from None
    known = set(SPECIAL.values())
    for number, subword in enumerate(subwords, start=1):
        if not subword or subword in known:
            problem = f"{subword!r} is there already" if subword else "empty"
            raise ValueError(f"{path}, line {number}: {problem}; the vocabulary of a BERT has a subword in every line")
        known.add(subword)
    if missing := [name for name in SPECIAL if name not in known]:
        raise ValueError(f"{path}: lacks {', '.join(missing)}; not the vocabulary of a BERT")
    return subwords


def symbols(vocabulary: Sequence[str]) -> list[str]:
    """All symbols of fairseq's dictionary: its four in the place of BERT's, the subwords, and <mask>, which fairseq's
    tasks add at the end."""
    first, mask = ["<s>", "<pad>", "</s>", "<unk>"], SPECIAL["[MASK]"]
    return [*first, *(subword for subword in vocabulary if subword not in SPECIAL), mask]


def tokenizer(path: Path) -> Any:
    """The tokenizer of a vocabulary, of the library ``tokenizers``. It lower-cases and removes accents if no subword
    has an upper-case letter; symbols such as <S> do not count. Raises ``ValueError``: as `read_vocabulary`, or the
    library is missing."""
    tokenizers = needed("tokenizers", f"WordPiece needs tokenizers; install it: {install('bert')}")
    vocabulary = read_vocabulary(path)
    uncased = all(subword == subword.lower() for subword in vocabulary if not re.fullmatch(r"\[.+\]|<.+>", subword))
    numbers = {subword: number for number, subword in enumerate(vocabulary)}
    return tokenizers.BertWordPieceTokenizer(numbers, lowercase=uncased)
