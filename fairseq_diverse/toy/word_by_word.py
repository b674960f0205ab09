"""Translation by substitution of every word: what the toy corpus must not be solvable by."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

ROUNDS = 8  # of EM


def word_by_word(sources: Iterable[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Each source word replaced by its most probable translation, in the source's order.

    The probabilities t(target word | source word) are those of IBM model 1 (Brown et al. 1993, with the empty source
    word) estimated on ``pairs`` of training sentences. Unlike the paper, a source word is translated by the maximum of
    t alone. The first word of a sentence is in lower case, on both sides. Unknown words are copied; punctuation is
    attached and the first letter made a capital.
    """
    lexicon = translation_table([split(source) for source, _ in pairs], [split(target) for _, target in pairs])
    return [join([lexicon.get(word, word) for word in split(source)]) for source in sources]


def split(line: str) -> list[str]:
    """Words (Mr. with its full stop) and punctuation marks, the first in lower case."""
    words = re.findall(r"[.,?!]|[^\s.,?!]+\.?(?=\s\S)|[^\s.,?!]+", line)
    return [words[0].lower(), *words[1:]] if words else []


def join(words: list[str]) -> str:
    text = re.sub(r" ([.,?!])", r"\1", " ".join(words))
    return text[:1].upper() + text[1:]


def translation_table(sources: Sequence[list[str]], targets: Sequence[list[str]]) -> dict[str, str]:
    """The most probable target word of each source word."""
    source_ids: dict[str, int] = {"": 0}
    target_ids: dict[str, int] = {}
    cells: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    tokens = 0
    for source, target in zip(sources, targets, strict=True):
        s = np.array([0, *(source_ids.setdefault(word, len(source_ids)) for word in source)])
        t = np.array([target_ids.setdefault(word, len(target_ids)) for word in target])
        cells.append(((s[None, :] << 32) | t[:, None]).ravel())
        positions.append(np.repeat(np.arange(tokens, tokens + len(t)), len(s)))
        tokens += len(t)
    cell, index = np.unique(np.concatenate(cells), return_inverse=True)
    position = np.concatenate(positions)
    source_of = cell >> 32
    probability = np.ones(len(cell))
    for _ in range(ROUNDS):
        share = probability[index]
        share /= np.bincount(position, share)[position]
        counts = np.bincount(index, share)
        probability = counts / np.bincount(source_of, counts)[source_of]
    order = np.lexsort((cell, -probability, source_of))
    best = order[np.unique(source_of[order], return_index=True)[1]]
    source_words, target_words = list(source_ids), list(target_ids)
    return {source_words[cell[i] >> 32]: target_words[cell[i] & 0xFFFFFFFF] for i in best}
