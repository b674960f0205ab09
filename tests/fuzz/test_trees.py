"""Files of trees: either one error that names the line, or the trees in the file."""

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.syntax.trees import local_phrases, read_brackets, read_conllu
from tests.fuzz.budget import budget

PATH = Path("x")
WORDS = st.text(st.sampled_from("ab\\/*@&;-.'\"é\u0301\u200b#1_"), min_size=1, max_size=4)
TREES = st.recursive(WORDS, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=8)
LINES = st.text(st.one_of(st.sampled_from("()() \\ab\t"), st.characters(exclude_characters="\n")), max_size=30)


def bracketed(tree: Any, label: str = "X") -> str:
    return tree if isinstance(tree, str) else f"({label} {' '.join(map(bracketed, tree))})"


def leaves(tree: Any) -> list[str]:
    return [tree] if isinstance(tree, str) else [word for child in tree for word in leaves(child)]


def nested(line: str) -> list[Any]:
    """The brackets of a line as lists, with their labels; raises ValueError if they are not closed."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", line):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise ValueError
            stack[-2].append(stack.pop())
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise ValueError
    return stack[0]


def words_in(line: str) -> list[str] | None:
    """The words of the only tree, or None; the first word directly after a bracket is the node's label."""
    roots = nested(line)
    if any(isinstance(root, str) for root in roots):
        raise ValueError
    words: list[str] = []

    def walk(node: list[Any]) -> None:
        for number, child in enumerate(node):
            if not isinstance(child, str):
                walk(child)
            elif number:
                words.append(child)

    for root in roots[:1] if len(roots) == 1 else []:
        walk(root)
    return words or None


def checked(line: str) -> None:
    try:
        expected = words_in(line)
    except ValueError:
        expected = ["error"]
    try:
        (tree,) = read_brackets(PATH, [line])
    except ValueError as error:
        assert str(error).startswith("x:1: not one bracketed tree: ") and expected == ["error"]
        return
    assert (tree and tree.leaves()) == expected
    if tree:
        count = len(tree.leaves())
        for start, end, layer in zip(*local_phrases(tree), strict=True):
            assert 0 <= start < end <= count and layer >= 0


@given(LINES)
@budget(1)
def test_any_line(line: str) -> None:
    checked(line)


@given(TREES, st.integers(0, 40), LINES, st.booleans())
@budget(1)
def test_a_tree_with_other_text_in_it(tree: Any, place: int, other: str, keep: bool) -> None:
    line = bracketed(tree if isinstance(tree, list) else [tree])
    (read,) = read_brackets(PATH, [line])
    assert read.leaves() == leaves(tree)
    checked(line[:place] + other[:5] + line[place + (0 if keep else 3) :])


HEADS = st.one_of(st.integers(0, 5).map(str), st.sampled_from(("_", "", "00", "²", "٣", "-1", "9" * 5000, "1e3")))
CELLS = st.one_of(WORDS, st.sampled_from(("_", "1", "2", "1-2", "a-b", "1.1", "#", "")))


@given(st.lists(st.lists(st.tuples(WORDS, HEADS), max_size=5), min_size=1, max_size=3))
@budget(0.8)
def test_sentences_in_conllu(sentences: list[list[tuple[str, str]]]) -> None:
    lines = []
    for sentence in sentences:
        rows = [f"{i}\t{word}" + "\t_" * 4 + f"\t{head}\t_\t_\t_" for i, (word, head) in enumerate(sentence, 1)]
        lines += ["# sentence", *rows, ""]
    read = list(read_conllu(PATH, lines))
    assert [one.words for one in read] == [[word for word, _ in sentence] for sentence in sentences]
    for one, sentence in zip(read, sentences, strict=True):
        given_ = [head for _, head in sentence]
        if one.heads is None:
            assert not is_tree(given_)
        else:
            assert is_tree(given_)
            assert [0 if head == i else head + 1 for i, head in enumerate(one.heads)] == [*map(int, given_)]


def is_tree(heads: list[str]) -> bool:
    """From every word, n steps up end at the only root."""
    if heads.count("0") != 1 or not all(head in map(str, range(len(heads) + 1)) for head in heads):
        return False
    places = range(1, len(heads) + 1)
    for place in places:
        for _ in heads:
            place = int(heads[place - 1]) if place else 0
        if place:
            return False
    return True


@given(st.lists(st.lists(CELLS, min_size=8, max_size=11).map("\t".join), max_size=5), LINES)
@budget(0.8)
def test_lines_that_are_not_conllu(lines: list[str], other: str) -> None:
    for given_ in (lines, [*lines, other]):
        try:
            read = list(read_conllu(PATH, given_))
        except ValueError as error:
            assert re.match(r"x:\d+: ", str(error))
            continue
        assert all(line.count("\t") == 9 for line in given_ if line.strip() and not line.startswith("#"))
        assert sum(len(one.words) for one in read) == sum(line.split("\t")[0].isdigit() for line in given_)
