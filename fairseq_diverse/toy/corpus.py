"""The toy corpus: sentence pairs, their files, and word-by-word translation as a lower bound."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from fairseq_diverse.support.files import atomic_write, refuse_foreign
from fairseq_diverse.toy import english, german
from fairseq_diverse.toy.derivation import Derivation
from fairseq_diverse.toy.trees import Tree, conllu

SUFFIXES = ("en", "de", "en.conllu", "en.ptb")
RECORD = "toy.json"  # sizes and seed; marks files written by this program
ROUNDS = 8  # of EM


def sentence_pair(derivation: Derivation) -> tuple[Tree, str]:
    """One English tree of 3 to 40 words and its German translation."""
    while True:
        sentence = derivation.sentence()
        tree = english.sentence(sentence)
        if 3 <= sum(1 for _ in tree.leaves()) <= 40:
            return tree.capitalized(), german.sentence(sentence)


def write_corpus(out: Path, train: int, valid: int = 500, test: int = 500, seed: int = 1) -> None:
    """Write ``{train,valid,test}.{en,de,en.conllu,en.ptb}``: in each split, the same sentences in the same order.

    No source sentence of valid or test occurs in another split. With the same seed, a larger training split does not
    change valid and test, and begins with the sentences of a smaller one. Sizes and seed are in ``toy.json``.

    Raises:
        ValueError: a size below 1, a negative seed, or ``out`` is a file or has such files but no ``toy.json``.
    """
    sizes = {"valid": valid, "test": test, "train": train}
    for flag, size in {"sentences": train, "valid": valid, "test": test}.items():
        if size < 1:
            raise ValueError(f"--{flag} {size}: must be at least 1")
    if seed < 0:
        raise ValueError(f"--seed {seed}: must be 0 or more")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; give a folder")
    refuse_foreign(out, [f"{split}.{suffix}" for split in sizes for suffix in SUFFIXES], RECORD)
    derivation = Derivation(seed)
    held_out: set[str] = set()
    with ExitStack() as stack:  # all files are renamed into place at the end
        bar = stack.enter_context(tqdm(None, "toy corpus", sum(sizes.values()), unit=" sentences", disable=None))
        names = [(split, suffix) for split in sizes for suffix in SUFFIXES]
        files = {name: stack.enter_context(atomic_write(out / ".".join(name))) for name in names}
        json.dump({"sentences": sizes, "seed": seed}, stack.enter_context(atomic_write(out / RECORD)))
        for split, size in sizes.items():
            written = 0
            while written < size:
                tree, target = sentence_pair(derivation)
                source = " ".join(leaf.word for leaf in tree.leaves())
                if source in held_out:
                    continue
                if split != "train":
                    held_out.add(source)
                written += 1
                files[split, "en"].write(source + "\n")
                files[split, "de"].write(target + "\n")
                files[split, "en.conllu"].write(conllu(tree, f"{split}-{written}"))
                files[split, "en.ptb"].write(tree.brackets() + "\n")
                bar.update()


def word_by_word(sources: Iterable[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Replace each source word by its most probable translation, in the order of the source.

    The probabilities t(target word | source word) are those of IBM model 1 (Brown et al. 1993, with the empty source
    word), estimated on ``pairs`` of training sentences. Unlike in the paper, only t decides the translation. The first
    word of a sentence is lower-cased, on both sides. Unknown words are copied. The output has a capital first letter
    and no space before punctuation.
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
    import numpy as np  # here, since importing it takes longer than writing a small corpus

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
