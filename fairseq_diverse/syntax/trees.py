"""Tree file formats, and the integers per word that the attention needs.

Dependencies are CoNLL-U, constituents PTB trees; sentence N belongs to line N of the text. One without a usable tree
keeps its place: in CoNLL-U its heads are ``_`` (or it has only comments), in PTB its line is empty."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_diverse.support.files import iterate_lines, refuse_pipe
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.syntax.escapes import comparable

if TYPE_CHECKING:
    from nltk import Tree
else:  # it may not be installed
    Tree = Any

RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
NOT_A_WORD = re.compile(r"[0-9]+(-|\.)[0-9]+")  # CoNLL-U's multiword ranges and empty nodes
HEAD = re.compile(r"[0-9]{1,9}")
EMPTY = "(-NONE-"
DEEPEST = 498  # levels of brackets; NLTK reads no more, and Python's stack is limited
ROOTS = ("", "TOP", "ROOT", "S1", "VROOT")  # labels that treebanks and parsers put above a sentence
BACKSLASH = "\udc5c"  # occurs in no text; NLTK would read a backslash at the end of a word as escaping the bracket

Phrases = tuple[list[int], list[int], list[int]]


class Dependencies(NamedTuple):
    """One sentence of a CoNLL-U file."""

    words: list[str]
    heads: list[int] | None  # index of each word's head, from 0; the root's is its own; None = no usable tree
    tags: Sequence[str] = ()  # universal part of speech of each word
    relations: Sequence[str] = ()  # of each word to its head
    ranges: Sequence[tuple[int, int, str]] = ()  # first word, last + 1 and form of each multiword token, unchecked


def read_conllu(path: Path, lines: Iterable[str] | None = None) -> Iterator[Dependencies]:
    """The sentences of a CoNLL-U file, or of its lines; multiword tokens become ``ranges``, empty nodes are skipped.

    Raises:
        ValueError: a line is not CoNLL-U; names file and line.
    """
    rows, ranges, inside = list[list[str]](), list[tuple[int, int, str]](), False
    for number, line in enumerate(itertools.chain(iterate_lines(path) if lines is None else lines, [""]), 1):
        if not line.strip():
            if inside:
                words, tags, heads, relations = ([row[column] for row in rows] for column in (1, 3, 6, 7))
                yield Dependencies(words, usable_heads(heads), tags, relations, ranges)
            rows, ranges, inside = [], [], False
            continue
        inside = True
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != 10:
            raise ValueError(f"{path}:{number}: a CoNLL-U word has 10 columns between tabs, not {len(columns)}")
        if NOT_A_WORD.fullmatch(columns[0]):
            if ends := RANGE.fullmatch(columns[0]):
                ranges.append((int(ends[1]) - 1, int(ends[2]), columns[1]))
            continue
        if columns[0] != str(len(rows) + 1):
            raise ValueError(f"{path}:{number}: word {len(rows) + 1} of the sentence is numbered {columns[0]!r}")
        rows.append(columns)


def fitted(sentence: Dependencies, words: Sequence[str]) -> Dependencies | None:
    """The dependencies between the words of a text; None if these are others.

    A multiword token, such as the German "im" of "in dem", may be one word of the text. Of its members, the first of
    those nearest to the root stands for it: head, tag and relation are those of this member, and words whose head is a
    member get it as their head. This gives a tree, since no word has a head farther from the root. A word with spaces
    ("20 000") is several words of the text, of which the first stands for it and is the head of the others.
    """
    if (units := _units(sentence, [*map(comparable, words)])) is None:
        return None
    place = {word: first for first, members, _ in units for word in members}  # in the text
    if (heads := sentence.heads) is None:
        return Dependencies([*words], None)
    numbers, tags, relations = list[str](), list[str](), list[str]()
    for first, members, width in units:
        chosen = min(members, key=lambda word: _above(word, heads))
        numbers += ["0" if heads[chosen] == chosen else str(place[heads[chosen]] + 1), *[str(first + 1)] * (width - 1)]
        tags += [sentence.tags[chosen]] * width
        relations += [sentence.relations[chosen], *["fixed"] * (width - 1)]
    return Dependencies([*words], usable_heads(numbers), tags, relations)


def _above(word: int, heads: Sequence[int]) -> int:
    """The number of words above a word in the tree."""
    count = 0
    while heads[word] != word:
        word, count = heads[word], count + 1
    return count


def _units(sentence: Dependencies, words: list[str]) -> list[tuple[int, range, int]] | None:
    """The words and multiword tokens that the text consists of: first word of the text, members, words of the text."""
    count = len(sentence.words)
    ranges = {first: (end, form) for first, end, form in sentence.ranges if first < end <= count}
    before: dict[tuple[int, int], tuple[int, int]] = {}
    todo = [(0, 0)]  # words of the sentence and of the text that are passed
    while todo and (count, len(words)) not in before:
        member, first = todo.pop()
        whole = [ranges[member]] if member in ranges else []
        for end, form in [*whole, *((member + 1, word) for word in sentence.words[member : member + 1])]:
            parts = [*map(comparable, form.split())]
            reached = end, first + len(parts)
            if parts and words[first : reached[1]] == parts and reached not in before:
                before[reached] = member, first
                todo.append(reached)
    place, units = (count, len(words)), list[tuple[int, range, int]]()
    while place != (0, 0):
        if place not in before:
            return None
        member, first = before[place]
        units.append((first, range(member, place[0]), place[1] - first))
        place = member, first
    return units[::-1]


def usable_heads(heads: list[str]) -> list[int] | None:
    """CoNLL-U's heads (from 1, 0 = root) as indices from 0 (root = itself); None if they do not form one tree."""
    if not all(HEAD.fullmatch(head) and int(head) <= len(heads) for head in heads) or heads.count("0") != 1:
        return None
    indices = [int(head) - 1 if int(head) else i for i, head in enumerate(heads)]
    above = indices
    for _ in range(len(indices).bit_length()):  # 1, 2, 4, ... words above each word
        above = [above[word] for word in above]
    return indices if set(above) == {heads.index("0")} else None


def read_brackets(path: Path, lines: Iterable[str] | None = None) -> Iterator[Tree | None]:
    """Read the trees of a PTB file, or of its lines: one per line, or each on several, as treebanks have them.

    Empty elements (``(-NONE- *)``) are left out. None stands for an empty line (in a file with trees on several lines
    it is only a space between trees), several roots, brackets without a word, which some parsers write on failure, or
    more than ``DEEPEST`` levels.

    Raises:
        ValueError: a tree's brackets are not closed, the file is a pipe, or NLTK is not installed; names the file.
    """
    if lines is None:
        refuse_pipe(path)
    nltk = needed("nltk", f"{path}: nltk reads brackets; install it: {install('syntax')}")
    several = lines is None and any(several for *_, several in _bracketed(iterate_lines(path)))
    for number, text, _ in _bracketed(iterate_lines(path) if lines is None else lines):
        if several and not text.strip():
            continue
        try:
            levels = itertools.accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in text)
            if text.count("(") == text.count(")") > DEEPEST and max(levels) > DEEPEST:
                yield None
                continue
            marked = f"(LINE {text})".replace("\\", BACKSLASH)
            roots = list(nltk.Tree.fromstring(marked, read_node=_unmarked, read_leaf=_unmarked))
            if words := [root for root in roots if isinstance(root, str)]:
                raise ValueError(f"{words[0]!r} stands outside the brackets")
        except ValueError as error:
            reason = " ".join(_unmarked(str(error)).split())
            raise ValueError(f"{path}:{number}: not one bracketed tree: {reason}") from None
        if EMPTY in text:
            roots = [tree for tree in map(_without_empty, roots) if tree is not None]
        yield roots[0] if len(roots) == 1 and roots[0].leaves() else None


def _bracketed(lines: Iterable[str]) -> Iterator[tuple[int, str, bool]]:
    """The number of the first line, the text and whether it is a tree on several lines, for each line and such tree.

    A tree that a line does not close goes on in the next lines, unless one is empty.
    """
    first, kept, missing = 0, list[str](), 0
    for number, line in enumerate(lines, 1):
        if kept and not line.strip():
            yield from ((first + n, part, False) for n, part in enumerate(kept))
            kept = []
        if not kept:
            first, missing = number, 0
        kept.append(line)
        missing += line.count("(") - line.count(")")
        if missing <= 0:
            yield first, " ".join(kept), len(kept) > 1
            kept = []
    yield from ((first + n, part, False) for n, part in enumerate(kept))


def _without_empty(node: Tree) -> Tree | None:
    """A tree without empty elements and the phrases that consist of them alone."""
    if node.label() == "-NONE-":
        return None
    kept: list[Tree | str] = []
    for child in node:  # no comprehension, which would need more of Python's stack
        if (part := child if isinstance(child, str) else _without_empty(child)) is not None:
            kept.append(part)
    return type(node)(node.label(), kept) if kept or not len(node) else None


def _unmarked(text: str) -> str:
    return text.replace(BACKSLASH, "\\")


def local_phrases(tree: Tree) -> Phrases:
    """The local phrase and the layer of every word.

    The local phrase is the span of the word's lowest ancestor that has more than one word; in a tree of one word it is
    the word. The layer is the number of phrases above the word. A preterminal (a node whose only child is a word) is
    not a phrase.

    Source: Zhang et al. (2021), section 4.1.2, rule 1.

    Returns:
        start, end, layer: one int per word, spans as [start, end).
    """
    rows: list[tuple[int, int, int]] = []

    def visit(node: Tree | str, depth: int, phrase: tuple[int, int] | None) -> None:
        first = len(rows)
        if isinstance(node, str):
            rows.append((*(phrase or (first, first + 1)), depth))
            return
        if (width := len(node.leaves())) > 1:
            phrase = (first, first + width)
        preterminal = len(node) == 1 and isinstance(node[0], str)
        for child in node:
            visit(child, depth + (not preterminal), phrase)

    visit(tree, 0, None)
    start, end, layer = ([row[column] for row in rows] for column in range(3))
    return start, end, layer
