"""Formulae, relations and corpora of logical inference."""

import random
from collections import Counter

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data.logic import (
    OPERATORS,
    RELATIONS,
    TAUTOLOGY,
    VARIABLES,
    random_formula,
    read_pairs,
    relation,
    truth_table,
    write_corpus,
)
from fairseq_diverse.support.errors import UserError
from tests.integration.commands import shared_data
from tests.reference import logic as reference


def operators(formula):
    return sum(symbol in OPERATORS for symbol in formula)


def test_truth_tables_equal_trying_every_assignment():
    numbers = random.Random(1)
    for count in range(13):
        formula = random_formula(count, VARIABLES, numbers)
        assert operators(formula) == count
        worlds = [bool(truth_table(formula) >> number & 1) for number in range(64)]
        truths = reference.truths(" ".join(formula))  # there the first variable changes slowest
        assert [worlds[int(f"{number:06b}"[::-1], 2)] for number in range(64)] == truths


@pytest.mark.parametrize(
    "text", ["", "( a", "a b", "( a and b )", "( not )", "( a ( and b ) ) )", "g", "( and b )", ")"]
)
def test_what_is_not_a_formula_is_refused(text):
    with pytest.raises(ValueError, match="not a formula"):
        truth_table(text.split())


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a", "( not ( not a ) )", "="),
        ("a", "( not a )", "^"),
        ("( a ( and b ) )", "a", "<"),
        ("a", "( a ( and b ) )", ">"),
        ("( a ( and b ) )", "( not a )", "|"),
        ("( a ( or b ) )", "( not a )", "v"),
        ("a", "b", "#"),
    ],
)
def test_relations(left, right, expected):
    assert (
        relation(truth_table(left.split()), truth_table(right.split())) == expected == reference.relation(left, right)
    )


def test_a_corpus_matches_its_description(tmp_path):
    mix = write_corpus(tmp_path / "a", 40, seed=3)
    write_corpus(tmp_path / "b", 40, seed=3)
    write_corpus(tmp_path / "c", 40, seed=4)
    seen = Counter()
    for count in range(13):
        found = Counter()
        for split in ("train", "test"):
            text = (tmp_path / "a" / f"{split}{count}").read_text()
            assert text == (tmp_path / "b" / f"{split}{count}").read_text()
            assert count == 0 or text != (tmp_path / "c" / f"{split}{count}").read_text()
            for pair in read_pairs(tmp_path / "a" / f"{split}{count}"):
                tables = [truth_table(side) for side in pair[1:]]
                assert not {0, TAUTOLOGY} & set(tables) and relation(*tables) == pair.relation
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


def test_the_command(tmp_path, capsys, output_of):
    lines = output_of("logic", "--out", tmp_path / "data", "--pairs", "20").splitlines()
    assert lines[0].split() == ["operators", "pairs", *RELATIONS] and len(lines) == 15
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted(
        ["logic.json", *(f"{split}{count}" for split in ("train", "test") for count in range(13))]
    )
    assert main(["logic", "--out", str(tmp_path), "--pairs", "0"]) == 2
    assert "--pairs 0: at least 2, one to train on and one to test" in capsys.readouterr().err


def test_files_of_another_program_are_kept(tmp_path):
    (tmp_path / "test3").write_text("original")
    with pytest.raises(ValueError, match="test3: exists, and another program wrote it; give another --out"):
        write_corpus(tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["test3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((line, "RELATION<TAB>FORMULA<TAB>FORMULA expected") for line in ("#\ta", "x\ta\tb")),
        *((f"#\ta\t{text}", ": not a formula; ") for text in ("", "g", "( a (", "a b c", "( a ( not b ) )")),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    (tmp_path / "train0").write_text(f"=\ta\ta\n{line}\n")
    with pytest.raises(UserError) as error:
        read_pairs(tmp_path / "train0")
    assert f"{tmp_path}/train0, line 2: " in str(error.value) and message in str(error.value)


def test_an_empty_file_is_named_and_never_written(tmp_path):
    write_corpus(tmp_path / "data", 2)
    assert all(read_pairs(tmp_path / "data" / f"{split}{n}") for split in ("train", "test") for n in range(13))
    (tmp_path / "test1").write_text("")
    with pytest.raises(UserError, match="test1: empty; create it with `fairseq-diverse logic"):
        read_pairs(tmp_path / "test1")


@pytest.mark.integration
@pytest.mark.slow
def test_every_relation_of_the_original_files_is_ours():
    data = shared_data("propositional_logic")
    counts = Counter()
    for split in ("train", "test"):
        for count in range(13):
            for pair in read_pairs(data / f"{split}{count}"):
                tables = [truth_table(side) for side in pair[1:]]
                assert relation(*tables) == pair.relation and not {0, TAUTOLOGY} & set(tables)
                assert min(12, max(operators(pair.left), operators(pair.right))) == count
                counts[split, pair.relation == "#"] += 1
    assert sum(counts.values()) == 249_069
    assert (counts["train", True] + counts["test", True]) / 249_069 == pytest.approx(0.53, abs=0.005)
