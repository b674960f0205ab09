"""The PCFG parser against loops over its rules, and labelled brackets against loops and evalb's own example."""

import json
import math
import random
import re

import msgspec
import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax import parsers, pcfg
from fairseq_diverse.syntax.brackets import Brackets, compare, compare_files
from fairseq_diverse.syntax.parse import parse_lines
from fairseq_diverse.toy.corpus import write_corpus
from tests.reference import constituents
from tests.refusals import refused

Tree = pytest.importorskip("nltk", reason="needs nltk (extra syntax)").Tree

FISH = "(TOP (S (NP-SBJ (PRP I)) (VP (VBP see) (NP (NN fish)) (NP=1 (NN today)) (ADVP|PRT (RB now)))))"


def as_tuples(tree):
    return (tree.label(), *(child if isinstance(child, str) else as_tuples(child) for child in tree))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, train=250, valid=1, test=40)
    return folder


@pytest.fixture(scope="module")
def grammar(corpus):
    path = corpus / "grammar"
    trees = ["--train-pcfg", f"{corpus}/train.en.ptb"]
    assert main(["parse", "--kind", "constituency", *trees, "--out", str(path)]) == 0
    return path


def test_the_rules_of_trees():
    """Labels have one parent and one sister; functions and the label above the sentence are gone; chains are one."""
    trees = [FISH, "(ROOT (S (VP (VB Run) (-LRB- -LRB-))))", "(S (VP (VB Run)))"]
    assert msgspec.to_builtins(pcfg.grammar_of(map(Tree.fromstring, trees))) == {
        "roots": {"S": 1, "S+VP": 2},
        "binary": [
            ("S", "NP^<S>", "VP^<S>", 1), ("S+VP", "/VB", "/-LRB-", 1), ("VP^<S>", "/VBP", "VP|<NP>^<S>", 1),
            ("VP|<NP>^<S>", "NP^<VP>", "ADVP^<VP>", 1), ("VP|<NP>^<S>", "NP^<VP>", "VP|<NP>^<S>", 1)
        ],
        "unary": [("ADVP^<VP>", "/RB", 1), ("NP^<S>", "/PRP", 1), ("NP^<VP>", "/NN", 2), ("S+VP", "/VB", 1)],
        "words": {"(": {"/-LRB-": 1}, "I": {"/PRP": 1}, "Run": {"/VB": 2}, "fish": {"/NN": 1}, "now": {"/RB": 1},
                  "see": {"/VBP": 1}, "today": {"/NN": 1}},
    }  # fmt: skip


def test_the_tree_found_is_the_most_probable(grammar, corpus, monkeypatch):
    """By loops over all splits and rules; known, rare and unknown words. No tree is found where there is none."""
    monkeypatch.setattr(pcfg, "BEAM", math.inf)
    reference, parser = constituents.Pcfg(json.loads(grammar.read_text())), pcfg.Pcfg(str(grammar))
    lines = (corpus / "test.en").read_text().split("\n")
    sentences = [words for line in lines if 0 < len(words := line.split()) < 12][:9]
    sentences += [["Unseen", "co-words", "ran", "99", "."], ["of", "of", "."], ["Stop"], ["the"]]
    found = 0
    for words in sentences:
        best = reference.best(words)
        text = parser.best(tuple(words))
        assert (text == "") == (best == -math.inf)
        if text:
            tree = Tree.fromstring(text)
            assert tree.leaves() == words
            for node in tree.subtrees(lambda node: isinstance(node[0], str)):
                node.set_label(f"/{node.label()}")
            tree.collapse_unary(collapseRoot=True)
            tree.chomsky_normal_form(horzMarkov=1, vertMarkov=1)
            assert reference.of_tree(as_tuples(tree)) == pytest.approx(best, abs=1e-3)
            found += 1
    assert 8 <= found < len(sentences)


def test_the_probability_of_words(grammar):
    reference, parser = constituents.Pcfg(json.loads(grammar.read_text())), pcfg.Pcfg(str(grammar))
    rare = next(word for word, tags in parser.words.items() if sum(tags.values()) == 1)
    for word in ("the", "The", rare, "Unseen-99", "xyzzing"):
        scores = parser.emissions(word)
        for symbol, score in zip(parser.symbols, scores, strict=True):
            expected = reference.emission(symbol, word) if symbol.startswith("/") else -math.inf
            assert score == pytest.approx(expected, abs=1e-5)


def test_a_grammar_parses_what_it_was_not_trained_on(grammar, corpus, tmp_path, capsys, monkeypatch):
    """`parse` in this process; the table of F1 by loops; sentences without a tree keep their line."""
    parser = parsers.load_parser("constituency", parsers.parser_of("constituency", str(grammar)), str(grammar), "en")
    lines = [*(corpus / "test.en").read_text().split("\n")[:-1], "", "of of of", "a " * 101, "( a [ dog"]
    results = parse_lines(parser, "constituency", lines)
    assert [reason for _, reason in results[40:]] == [
        "empty line", "ValueError: the grammar has no tree for it", "ValueError: more than 100 words",
        "ValueError: the grammar has no tree for it"
    ]  # fmt: skip
    parsed = [tree for tree, _ in results[:40]]
    parsed[6] = "\n"  # as where there is no tree
    (tmp_path / "parsed").write_text("".join(parsed))
    command = ["score-trees", "--gold", f"{corpus}/test.en.ptb", f"grammar={tmp_path}/parsed"]
    assert main(command) == 0
    in_both = gold = ours = same = trees = 0
    files = tmp_path / "parsed", corpus / "test.en.ptb"
    for tree, line in zip(*(path.read_text().split("\n") for path in files), strict=True):
        if tree:
            sides = [Tree.fromstring(text) for text in (line, tree)]
            tags = [tag for _, tag in sides[0].pos()]
            one, other = (constituents.brackets(as_tuples(side), tags) for side in sides)
            common = constituents.matched(one, other)
            assert compare(*sides) == Brackets(common, len(one), len(other))
            in_both, gold, ours, trees = in_both + common, gold + len(one), ours + len(other), trees + 1
            same += sorted(one) == sorted(other)
    precision, recall, f1 = 100 * in_both / ours, 100 * in_both / gold, 200 * in_both / (gold + ours)
    said = capsys.readouterr().out.splitlines()
    figures = precision, recall, f1, 100 * same / trees
    assert said[-1].split() == ["grammar", f"{trees}", *(f"{x:.2f}" for x in figures)]
    assert f1 > 75 and trees > 30
    unparsed = [n for n, tree in enumerate(parsed, 1) if tree == "\n"]
    assert said[0].endswith(f"left out: sentence {', '.join(map(str, unparsed))}")


EVALB = """(S (A (P this)) (B (Q is) (A (R a) (T test))))|100.00 100.00 4 4
(S (A (P this)) (B (Q is) (C (R a) (T test))))|75.00 75.00 3 4
(S (A (P this)) (B (Q is) (A (R a) (U test))))|100.00 100.00 4 4
(S (C (P this)) (B (Q is) (A (R a) (U test))))|75.00 75.00 3 4
(S (A (P this)) (B (Q is) (R a) (A (T test))))|75.00 75.00 3 4
(S (A (P this) (Q is)) (A (R a) (T test)))|50.00 66.67 2 3
(S (P this) (Q is) (R a) (T test))|25.00 100.00 1 1
(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))|100.00 80.00 4 5
(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))|100.00 50.00 4 8
(TOP (S (A (P this)) (B (Q is) (A (R a) (T test)))))|100.00 100.00 4 4
(S (A (P this)) (B (Q is) (A (R a) (TT test))))|100.00 100.00 4 4
(S (A-SBJ-1 (P this)) (B-WHATEVER (Q is) (A (R a) (T test))))|100.00 100.00 4 4"""


def test_evalbs_own_example(tmp_path, output_of):
    """Recall, precision, matched and parsed brackets that evalb prints for its sample.tst (lines 1 to 7, 9, 10, 15, 18;
    sample.gld, line 21)."""
    gold, lines = "(S (A (P this)) (B (Q is) (A (R a) (T test))))", [line.split("|") for line in EVALB.split("\n")]
    for text, expected in lines:
        found = compare(Tree.fromstring(gold), Tree.fromstring(text))
        assert f"{found.recall:.2f} {found.precision:.2f} {found.matched} {found.parsed}" == expected
        assert found.gold == 4
    texts = [text for text, _ in lines]
    (tmp_path / "gold").write_text(f"{gold}\n" * 13)
    (tmp_path / "parsed").write_text("\n".join([*texts[:5], "", *texts[5:], ""]))
    left_out, _, total = output_of("score-trees", "--gold", f"{tmp_path}/gold", f"p={tmp_path}/parsed").splitlines()
    assert left_out == "p: 1 without a tree, left out: sentence 6"
    assert total.split() == ["p", "12", f"{4000 / 49:.2f}", f"{4000 / 48:.2f}", f"{8000 / 97:.2f}", "41.67"]


@pytest.mark.parametrize(
    ("gold", "parsed", "counts"),
    [
        # punctuation has no place, by the gold tags alone; a bracket of it alone does not count
        ("(S (NP (N a)) (, ,) (VP (V b)))", "(S (NP (N a) (N ,)) (VP (V b)))", (3, 3, 3)),
        ("(S (NP (N a) (N b)) (X (: --)))", "(S (NP (N a) (N b) (: --)))", (2, 2, 2)),
        ("(S (PRT (RP up)) (ADVP (RB so)))", "(S (ADVP (RP up)) (PRT (RB so)))", (3, 3, 3)),
        ("(S (NP (N -LRB-) (N ``)))", '(S (NP (N \\() (N ")))', (2, 2, 2)),
        ("( (S (NP (N a)) (VP (V b))))", "(VROOT (S (NP (N a)) (VP (V b))))", (3, 3, 3)),
        ("(NP (NP (N a) (N b)))", "(NP (N a) (N b))", (1, 2, 1)),
    ],
)
def test_brackets_that_count(gold, parsed, counts):
    trees = [Tree.fromstring(gold), Tree.fromstring(parsed.replace("\\(", "-LRB-"))]
    tags = [tag for _, tag in trees[0].pos()]
    sides = [constituents.brackets(as_tuples(tree), tags) for tree in trees]
    assert compare(*trees) == (constituents.matched(*sides), *map(len, sides)) == counts


def test_brackets_of_random_trees():
    draw = random.Random(1)

    def tree(words):
        if len(words) == 1 and draw.random() < 0.7:
            return f"({draw.choice(['N', 'V', ',', '.'])} {words[0]})"
        cut = sorted(draw.sample(range(1, len(words)), min(len(words) - 1, draw.randint(0, 3))))
        parts = [words[a:b] for a, b in zip([0, *cut], [*cut, len(words)], strict=True)]
        return f"({draw.choice(['NP', 'VP-X', 'PRT', 'ADVP=1'])} {' '.join(map(tree, parts))})"

    for _ in range(200):
        words = [*"abcdefg"[: draw.randint(1, 7)]]
        trees = [Tree.fromstring(tree(words)) for _ in range(2)]
        sides = [constituents.brackets(as_tuples(one), [tag for _, tag in trees[0].pos()]) for one in trees]
        assert compare(*trees) == (constituents.matched(*sides), *map(len, sides))


def test_other_words_and_other_files_are_named(tmp_path):
    gold, parsed = tmp_path / "gold", tmp_path / "parsed"
    gold.write_text("(S (N a))\n(S (N a) (N b))\n")
    for content, says in (
        ("(S (N a))\n(S (N a) (N c))\n", f"{parsed}:2: other words than {gold}:2: 'b' in the gold tree, 'c' in"),
        ("(S (N a))\n(S (N a))\n", f"{parsed}:2: other words than {gold}:2: 'b' in the gold tree, 'end' in the other"),
        ("(S (N a))\n", f"{parsed}: ends before tree 2, which the other file has"),
        ("(S (N a))\n" * 3, f"{parsed}:2: other words than"),
        ("(S (N a))\n(S (N a) (N b))\n\n", f"{gold}: ends before tree 3, which the other file has"),
    ):
        parsed.write_text(content)
        refused(f"^{re.escape(says)}", compare_files, gold, parsed)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("\n()\n", "no usable tree; bracketed trees are needed, such as"),
        ("(S (N a))\n(S a (N b))\n", "tree 2: (S ...): every word needs a tag of its own"),
        (f"(S {'(N a)' * 600})\n", "/trees: tree 1: too wide: "),
        ("(S (N a)", ":1: not one bracketed tree"),
    ],
)
def test_trees_that_give_no_grammar(content, says, tmp_path, error_of):
    (tmp_path / "trees").write_text(content)
    flags = ["--kind", "constituency", "--train-pcfg", f"{tmp_path}/trees", "--out", f"{tmp_path}/out"]
    said = error_of("parse", *flags)
    assert f"{tmp_path}/trees" in said and says in said and not (tmp_path / "out").exists()


GRAMMAR = {"roots": {"S": 1}, "binary": [["S", "/N", "/V", 1]], "unary": [], "words": {"a": {"/N": 1}, "b": {"/V": 1}}}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"roots": {}}, "at `$.roots`"), ({"roots": {"S": 0}}, "at `$.roots[...]`"),
        ({"binary": [["S", "/N", 1]]}, "at `$.binary[0][2]`"),
        ({"unary": [["S", "/N", "many"]]}, "at `$.unary[0][2]`"), ({"words": {}}, "at `$.words`"),
        ({"words": {"a": {"N": 1}}}, "KeyError: 'N'"), ({"more": 1}, "unknown field `more`"), (None, "malformed")
    ],
)  # fmt: skip
def test_a_damaged_grammar_is_one_line(changed, says, tmp_path):
    path = tmp_path / "grammar"
    path.write_text("(S (N a))" if changed is None else json.dumps(GRAMMAR | changed))
    with pytest.raises(UserError, match=f"^--model {path}: pcfg cannot load it [^\n]*; it holds another") as caught:
        parsers.load_parser("constituency", "pcfg", str(path), "en")
    assert says in str(caught.value)
    path.write_text(json.dumps(GRAMMAR))
    parser = parsers.load_parser("constituency", "pcfg", str(path), "en")
    assert parser.parse([["a", "b"]]) == ["(S (N a) (V b))\n"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--train-pcfg t --kind dependency --out o", "--train-pcfg: goes with --kind constituency"),
        ("--train-pcfg t --kind constituency --out o --parser stanza", "--train-pcfg: goes with --kind constituency"),
        ("--train-pcfg t --kind constituency --out o --shard 1/2", "--shard: is for parsing, not for --train-pcfg"),
        ("--input t --kind constituency --out o --parser pcfg", "--language en: no default model of pcfg for it"),
        ("--input t --kind constituency --out o --parser pcfg --model no", "make it with: fairseq-diverse parse --tr"),
    ],
)
def test_flags_of_grammars(flags, says, tmp_path, monkeypatch, error_of):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("a\n")
    assert says in error_of("parse", *flags.split()) and not (tmp_path / "o").exists()
