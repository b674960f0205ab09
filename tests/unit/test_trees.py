"""Readers of trees, and local phrases compared with a recursive version of the rule."""

import random
import sys
import time
from pathlib import Path

import pytest

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax.trees import fitted, local_phrases, read_brackets, read_conllu, usable_heads
from tests.refusals import refused

Tree = pytest.importorskip("nltk", reason="needs nltk (extra syntax)").Tree

FIGURE_3 = "(S (NP (NNP Bush)) (VP (VBD held) (NP (DT a) (NN talk)) (PP (IN with) (NP (NNP Sharon)))))"


def test_the_example_of_figure_3_one_word_and_a_phrase_without_one():
    start, end, layer = local_phrases(Tree.fromstring(FIGURE_3))
    words = ["Bush", "held", "a", "talk", "with", "Sharon"]
    phrases = {word: words[s:e] for word, s, e in zip(words, start, end, strict=True)}
    assert phrases == {
        "Bush": words, "held": words[1:], "a": ["a", "talk"], "talk": ["a", "talk"], "with": ["with", "Sharon"],
        "Sharon": ["with", "Sharon"]
    }  # fmt: skip
    assert layer == [2, 2, 3, 3, 3, 4] and layer[3] - layer[1] == 1
    assert local_phrases(Tree.fromstring("(S (NP (NN x)))")) == ([0], [1], [2])
    assert local_phrases(Tree.fromstring("(S (NP (NN x) (Y )) (NN z))")) == ([0, 0], [2, 2], [2, 1])  # Y has no word


def by_the_rule(tree):
    """Rule 1, directly: walk up from each leaf."""
    rows = []
    for position in range(len(tree.leaves())):
        path = tree.leaf_treeposition(position)
        ancestors = [tree[path[:depth]] for depth in range(len(path) - 1, -1, -1)]
        phrases = [node for node in ancestors if not (len(node) == 1 and isinstance(node[0], str))]
        span = (position, position + 1)
        for depth in range(len(path) - 1, -1, -1):
            node = tree[path[:depth]]
            if len(node.leaves()) > 1:
                before = sum(tree.leaf_treeposition(i) < path[:depth] for i in range(len(tree.leaves())))
                span = (before, before + len(node.leaves()))
                break
        rows.append((*span, len(phrases)))
    return tuple(list(column) for column in zip(*rows, strict=True))


def random_tree(numbers, depth=0):
    if depth > 5 or numbers.random() < 0.25:
        return Tree("X", [f"w{numbers.randrange(9)}"])
    children = [random_tree(numbers, depth + 1) for _ in range(numbers.choice((1, 1, 2, 3)))]
    return Tree("P", [child[0] if numbers.random() < 0.1 and len(child) == 1 else child for child in children])


@pytest.mark.parametrize("seed", range(20))
def test_local_phrases_follow_the_rule(seed):
    tree = random_tree(random.Random(seed))
    assert local_phrases(tree) == by_the_rule(tree)


def test_conllu(tmp_path):
    path = tmp_path / "x.conllu"
    row = "{}\t{}\t_\t_\t_\t_\t{}\t_\t_\t_\n"
    path.write_text(
        "# sent_id = 1\n" + row.format(1, "a", 2) + "1-2\tab" + "\t_" * 8 + "\n" + row.format(2, "b", 0) + "\n\n"
        "# sent_id = 2\n# unparsed = empty\n\n" + row.format(1, "c", "_") + "\n" + row.format(1, "#", 0)
    )
    expected = [(["a", "b"], [1, 1]), ([], None), (["c"], None), (["#"], [0])]
    assert [sentence[:2] for sentence in read_conllu(path)] == expected


@pytest.mark.parametrize(
    ("rows", "words", "heads", "relations"),
    [
        ("1 Ich 5 nsubj, 2 bin 5 cop, 3-4 im _ _, 3 in 5 case, 4 dem 5 det, 5 Park 0 root", "Ich bin im Park",
         [3, 3, 3, 3], "nsubj cop case root"),
        # one member has a head outside; a word has the first member as head, another the last
        ("1-2 auquel _ _, 1 à 2 case, 2 lequel 5 obl, 3 dès 1 a, 4 tu 2 b, 5 penses 0 root, 5.1 e _ _",
         "auquel dès tu penses", [3, 0, 0, 3], "obl a b root"),
        # the root is a member, and not the first
        ("1 si 3 a, 2-3 s'agit _ _, 2 se 4 expl, 3 agit 0 root, 4 là 3 b, 5-6 du _ _, 5 de 7 d, 6 le 7 e, 7 cas 3 c",
         "si s'agit là du cas", [1, 1, 1, 4, 1], "a root b d c"),
        # the head of the first member is below the other
        ("1-2 ab _ _, 1 a 3 x, 2 b 4 y, 3 c 2 z, 4 d 0 root", "ab c d", [2, 0, 2], "y z root"),
        ("1-2 ab _ _, 1 a _ x, 2 b 0 y", "ab", None, ""),
        # one of two multiword tokens is a word of the text
        ("1-2 im _ _, 1 in 3 case, 2 dem 3 det, 3 Park 6 obl, 4-5 zum _ _, 4 zu 6 a, 5 dem 6 b, 6 See 0 root",
         "in dem Park zum See", [2, 2, 4, 4, 4], "case det obl a root"),
        ("1 20~000 2 num, 2 dogs 3 subj, 3 run~off 0 root", "20 000 dogs run off", [2, 0, 3, 3, 3],
         "num fixed subj root fixed"),
        ("1-2 a~c _ _, 1 a 2 x, 2 c 0 y", "a c", [0, 0], "y fixed"),
        ("2-1 x _ _, 1 a 0 root, 2-3 y _ _, 2 b 1 s", "a b", [0, 0], "root s"),  # no such words
    ],
)  # fmt: skip
@pytest.mark.parametrize("space", [" ", "\xa0"])
def test_words_of_a_text_that_are_other_units(rows, words, heads, relations, space, tmp_path):
    row = "{}\t{}\t_\t_\t_\t_\t{}\t{}\t_\t_\n"
    (tmp_path / "x").write_text("".join(row.format(*one.split()) for one in rows.split(", ")).replace("~", space))
    (sentence,) = read_conllu(tmp_path / "x")
    one = fitted(sentence, words.split())
    assert (" ".join(one.words), one.heads, " ".join(one.relations)) == (words, heads, relations)
    assert fitted(sentence, [*words.split(), "more"]) is None


@pytest.mark.parametrize(
    ("heads", "usable"),
    [
        ("2 0 2", [1, 1, 1]),
        ("0 0", None),  # two roots
        ("2 1 0", None),  # a cycle
        ("1 0", None),  # its own head
        ("2 4 0", None),
        ("_ _", None),
        ("", None),
        ("0 " + "9" * 5000, None),
        ("0 \u0661", None),
    ],
)
def test_only_one_whole_tree_is_usable(heads, usable):
    assert usable_heads(heads.split()) == usable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\n", ":1: a CoNLL-U word has 10 columns between tabs, not 2"),
        ("2" + "\t_" * 9, ":1: word 1 of the .* '2'"),
        ("a-b" + "\t_" * 9, ":1: word 1 of the .* 'a-b'"),
    ],
)
def test_what_is_not_conllu_is_named(tmp_path, text, message):
    (tmp_path / "x").write_text(text)
    refused(f"{tmp_path / 'x'}{message}", list, read_conllu(tmp_path / "x"))


def test_brackets_and_a_backslash_at_the_end_of_a_word(tmp_path):
    path = tmp_path / "x.ptb"
    none = ["", "(())", "()", "(TOP )", "(S)", "(S (NN a)) (S (NN b))"]  # written by parsers after a failure; two roots
    path.write_text("\n".join([FIGURE_3, *none, "( (X y))", "(S (X y)"]) + "\n")
    trees = read_brackets(path)
    assert [tree and tree.leaves() for tree in (next(trees) for _ in range(8))][1:] == [None] * 6 + [["y"]]
    refused(r"x.ptb:9: not one bracketed tree", next, trees)
    refused(r"x.ptb:1: not one bracketed tree: 'a' stands outside the", next, read_brackets(path, ["a dog runs"]))
    # NLTK reads \) as a part of the word
    (tree,) = read_brackets(Path("x"), ["(S (X C:\\) (X \\) (X 1\\/2))"])
    assert tree.leaves() == ["C:\\", "\\", "1\\/2"]


TREEBANK = """
( (S
    (NP-SBJ-1 (NNS Cats) )
    (VP (VBP want)
      (S
        (NP-SBJ (-NONE- *-1) )
        (VP (TO to) (VP (VB sleep) ))))
    (. .) ))

( (SBAR (-NONE- 0) (S (NP (PRP it) ) (VP (VBZ costs) (NP ($ $) (CD 2) (-NONE- *U*) )))) )
( (X (-NONE- *) ) )
((S(NP(NNP Manfred))
(VP(VB likes))))
"""


def test_trees_as_treebanks_have_them(tmp_path):
    """On several lines, with spaces between them, and with empty elements."""
    (tmp_path / "x.mrg").write_text(TREEBANK)
    trees = list(read_brackets(tmp_path / "x.mrg"))
    leaves = [tree and " ".join(tree.leaves()) for tree in trees]
    assert leaves == ["Cats want to sleep .", "it costs $ 2", None, "Manfred likes"]
    assert local_phrases(trees[0])[1] == [5, 4, 4, 4, 5] and len(trees[1][0]) == 1
    (tmp_path / "x.mrg").write_text(TREEBANK.replace("sleep) ))))", "sleep) )))"))
    refused(r"x.mrg:2: not one bracketed tree", list, read_brackets(tmp_path / "x.mrg"))


@pytest.mark.parametrize("levels", [498, 499, 100_000])
def test_a_tree_deeper_than_the_stack_is_not_usable(levels):
    deep = "(X " * (levels - 1) + "(-NONE- *) w" + ")" * (levels - 1)
    tree, other = read_brackets(Path("x"), [deep, "(S (X y))"])
    assert other.leaves() == ["y"] and (tree is None) == (levels > 498)
    assert tree is None or local_phrases(tree) == ([0], [1], [levels - 2])


def test_a_chain_of_many_words_takes_linear_time():
    count = 30_000
    began = time.process_time()
    assert usable_heads([*map(str, range(2, count + 1)), "0"]) == [*range(1, count), count - 1]
    assert time.process_time() - began < 2


def test_without_nltk_brackets_are_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(UserError, match=r"^x\.ptb: nltk reads brackets; install it: pip install .*\[syntax\]"):
        list(read_brackets(Path("x.ptb"), ["(S x)"]))
