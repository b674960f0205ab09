"""Brackets that a parser's trees share with gold trees."""

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax.escapes import comparable
from fairseq_diverse.syntax.trees import ROOTS, Tree, read_brackets

PUNCTUATION = (",", ":", "``", "''", ".")


class Brackets(NamedTuple):
    matched: int
    gold: int
    parsed: int

    @property
    def precision(self) -> float:
        """Percent of the parser's brackets that are gold; 0 if it has none."""
        return 100 * self.matched / max(self.parsed, 1)

    @property
    def recall(self) -> float:
        """Percent of the gold brackets that the parser found; 0 if there are none."""
        return 100 * self.matched / max(self.gold, 1)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        return 200 * self.matched / max(self.gold + self.parsed, 1)


def compare(gold: Tree, parsed: Tree) -> Brackets:
    """Brackets of a parsed tree that are gold, with equal label, first and last word.

    As evalb with COLLINS.prm: without the label above the sentence (TOP, ROOT, S1), tags, functions (NP-SBJ is NP) and
    words of the tags ``PUNCTUATION``; a bracket without another word does not count, ADVP and PRT are the same, and of
    equal brackets each has its own partner. Unlike in evalb, the gold tags alone decide what is punctuation: evalb
    compares the tags of both trees, and corrects a difference. Raises ``ValueError``: the trees have different words,
    except for escapes of the Penn Treebank.
    """
    ours, theirs = ([*map(comparable, tree.leaves())] for tree in (gold, parsed))
    if ours != theirs:
        gold_word, parsed_word = next(pair for pair in zip_longest(ours, theirs) if pair[0] != pair[1])
        raise ValueError(f"{gold_word or 'end'!r} in the gold tree, {parsed_word or 'end'!r} in the other")
    kept = [tag not in PUNCTUATION for _, tag in gold.pos()]
    places = [sum(kept[:n]) for n in range(len(kept) + 1)]
    sides = [Counter(_brackets(tree, places)) for tree in (gold, parsed)]
    return Brackets((sides[0] & sides[1]).total(), sides[0].total(), sides[1].total())


def _brackets(tree: Tree, places: list[int]) -> Iterable[tuple[str, int, int]]:
    """Label, first word and last + 1 of every phrase; ``places``: words that count before each word."""
    todo: list[tuple[Tree, int]] = [(tree, 0)]
    while todo:
        node, start = todo.pop()
        if len(node) == 1 and isinstance(node[0], str):
            continue
        end = start
        for child in node:
            if isinstance(child, str):
                end += 1
            else:
                todo.append((child, end))
                end += len(child.leaves())
        label = node.label()[:1] + node.label()[1:].split("-")[0].split("=")[0]
        if label not in (*ROOTS, *PUNCTUATION) and places[start] < places[end]:
            yield "ADVP" if label == "PRT" else label, places[start], places[end]


def compare_files(gold: Path, parsed: Path) -> tuple[list[Brackets], list[int]]:
    """The brackets of every sentence, and the numbers of those that lack a tree in either file, which do not count.
    Raises ``UserError``: the files have other words or numbers of trees; names the file and the tree."""
    counts, lacking = list[Brackets](), list[int]()
    for number, (ours, theirs) in enumerate(zip_longest(read_brackets(gold), read_brackets(parsed), fillvalue=0), 1):
        if ours == 0 or theirs == 0:
            raise UserError(f"{gold if ours == 0 else parsed}: ends before tree {number}, which the other file has")
        if ours is None or theirs is None:
            lacking.append(number)
            continue
        try:
            counts.append(compare(ours, theirs))
        except ValueError as error:
            raise UserError(f"{parsed}:{number}: other words than {gold}:{number}: {error}") from None
    return counts, lacking
