"""Formulae, relations and corpora of logical inference."""

import random
from collections import Counter

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data import logic
from tests.integration.commands import shared_data
from tests.reference import logic as reference
from tests.refusals import refusal, refused


def operators(formula):
    return sum(symbol in logic.OPERATORS for symbol in formula)


def test_truth_tables_equal_trying_every_assignment():
    numbers = random.Random(1)
    for count in range(13):
        formula = logic.random_formula(count, logic.VARIABLES, numbers)
        assert operators(formula) == count
        worlds = [bool(logic.truth_table(formula) >> number & 1) for number in range(64)]
        truths = reference.truths(" ".join(formula))  # there the first variable changes slowest
        assert [worlds[int(f"{number:06b}"[::-1], 2)] for number in range(64)] == truths


@pytest.mark.parametrize("text", ["", "( a", "a b", "( a and b )", "( not )", "( a ( and b ) ) )", "g", "( and b )"])
def test_what_is_not_a_formula_is_refused(text):
    refused("not a formula", logic.truth_table, text.split())


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a", "( not ( not a ) )", "="), ("a", "( not a )", "^"), ("( a ( and b ) )", "a", "<"),
        ("a", "( a ( and b ) )", ">"), ("( a ( and b ) )", "( not a )", "|"), ("( a ( or b ) )", "( not a )", "v"),
        ("a", "b", "#"),
    ],
)  # fmt: skip
def test_relations(left, right, expected):
    found = logic.relation(logic.truth_table(left.split()), logic.truth_table(right.split()))
    assert found == expected == reference.relation(left, right)


def test_a_corpus_matches_its_description(tmp_path):
    mix = logic.write_corpus(tmp_path / "a", 40, seed=3)
    logic.write_corpus(tmp_path / "b", 40, seed=3)
    logic.write_corpus(tmp_path / "c", 40, seed=4)
    seen = Counter()
    for count in range(13):
        found = Counter()
        for split in ("train", "test"):
            text = (tmp_path / "a" / f"{split}{count}").read_text()
            assert text == (tmp_path / "b" / f"{split}{count}").read_text()
            assert count == 0 or text != (tmp_path / "c" / f"{split}{count}").read_text()
            for pair in logic.read_pairs(tmp_path / "a" / f"{split}{count}"):
                tables = [logic.truth_table(side) for side in pair[1:]]
                assert not {0, logic.TAUTOLOGY} & set(tables) and logic.relation(*tables) == pair.relation
                assert max(operators(pair.left), operators(pair.right)) == count
                assert pair.relation == reference.relation(" ".join(pair.left), " ".join(pair.right))
                found[pair.relation] += 1
                seen[pair] += 1
            share = len(text.splitlines()) / mix[count].total()
            assert share == pytest.approx(0.15 if split == "test" else 0.85, abs=0.02)
        assert found == mix[count]
    assert max(seen.values()) == 1 and mix[5].total() == 40 and 0 < mix[0].total() <= 36
    assert 0.4 < sum(of["#"] for of in mix.values()) / sum(of.total() for of in mix.values()) < 0.65


def test_balance(tmp_path, capsys):
    assert main(["logic", "--out", str(tmp_path / "data"), "--pairs", "35", "--balance"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(lines[count + 1] == [str(count), "35", *["14.3%"] * 7] for count in (2, 6, 12))


def test_the_command(tmp_path, output_of, error_of):
    lines = output_of("logic", "--out", tmp_path / "data", "--pairs", "20").splitlines()
    assert lines[0].split() == ["operators", "pairs", *logic.RELATIONS] and len(lines) == 15
    names = [f"{split}{count}" for split in ("train", "test") for count in range(13)]
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"logic.json", *names}
    assert "--pairs 0: at least 2, one to train on and one to" in error_of("logic", "--out", tmp_path, "--pairs", "0")


def test_files_of_another_program_are_kept(tmp_path):
    (tmp_path / "test3").write_text("original")
    refused("test3: exists, and another program wrote it; give another --out", logic.write_corpus, tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["test3"]


def test_an_interrupted_command_changes_no_file(tmp_path):
    logic.write_corpus(tmp_path, 20)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ZeroDivisionError):
        logic.write_corpus(tmp_path, 30, done=lambda: 1 / 0)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((line, "RELATION<TAB>FORMULA<TAB>FORMULA expected") for line in ("#\ta", "x\ta\tb")),
        *((f"#\ta\t{text}", ": not a formula; ") for text in ("", "g", "( a (", "a b c", "( a ( not b ) )")),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    (tmp_path / "train0").write_text(f"=\ta\ta\n{line}\n")
    error = refusal(logic.read_pairs, tmp_path / "train0")
    assert f"{tmp_path}/train0, line 2: " in error and message in error


def test_an_empty_file_is_named_and_never_written(tmp_path):
    logic.write_corpus(tmp_path / "data", 2)
    assert all(logic.read_pairs(tmp_path / "data" / f"{split}{n}") for split in ("train", "test") for n in range(13))
    (tmp_path / "test1").write_text("")
    refused("test1: empty; create it with `fairseq-diverse logic", logic.read_pairs, tmp_path / "test1")


@pytest.mark.integration
@pytest.mark.slow
def test_every_relation_of_the_original_files_is_ours():
    data = shared_data("propositional_logic")
    counts = Counter()
    for split in ("train", "test"):
        for count in range(13):
            for pair in logic.read_pairs(data / f"{split}{count}"):
                tables = [logic.truth_table(side) for side in pair[1:]]
                assert logic.relation(*tables) == pair.relation and not {0, logic.TAUTOLOGY} & set(tables)
                assert min(12, max(operators(pair.left), operators(pair.right))) == count
                counts[split, pair.relation == "#"] += 1
    assert sum(counts.values()) == 249_069
    assert (counts["train", True] + counts["test", True]) / 249_069 == pytest.approx(0.53, abs=0.005)
