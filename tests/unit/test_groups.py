"""Groups of test sentences: a partition, figures as in loops, gold trees, runs and their saved copies, refusals."""

import dataclasses
import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import dunnett

from fairseq_diverse.cli import main
from fairseq_diverse.cli.run import copy_sentences
from fairseq_diverse.experiments.runs.find import find_data, find_runs
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.reports import groups
from fairseq_diverse.reports.columns import cells_of
from fairseq_diverse.reports.groups import draw_groups, group_columns, group_entries, group_notes
from fairseq_diverse.reports.sentences import BY, TREES, describe, group
from fairseq_diverse.syntax.attachment import attachments, subordinate
from fairseq_diverse.syntax.trees import Dependencies, read_conllu
from fairseq_diverse.toy import english, german
from fairseq_diverse.toy.abstract_syntax import Clause, Common, Duration, Gap, Relative, Year
from fairseq_diverse.toy.derivation import Derivation
from fairseq_diverse.toy.lexicon import FixedTime
from fairseq_diverse.toy.trees import conllu
from tests.reference import groups as reference
from tests.unit.conftest import ROW, trained_with
from tests.unit.test_records import SUMMARY
from tests.unit.views import runs_of

COUNT = 24
THIRD = ("  second:", "  third: {dropout: 0.4}\n  second:")


def record(lengths, longest=40, **more):
    """What is known of test sentences that have these lengths."""
    count = len(lengths)
    numbers = random.Random(count)
    of_test = {"length": list(lengths), "rarest": [numbers.choice((0, 1, 9, 10, 99, 100, 5000)) for _ in lengths]}
    of_test |= {k: "".join(str(numbers.randrange(len(names))) for _ in range(count)) for k, names in TREES.items()}
    return {"data_hash": "h", "longest": longest, "tests": {"test": of_test | more}}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 40), st.sampled_from(list(BY)))
def test_groups_are_a_partition(lengths, longest, by):
    found = record(lengths, longest)
    groups = group(found, "test", by, "here")
    assert len(groups.of) == len(lengths) and len(set(groups.names)) == len(groups.names)
    assert set(groups.of) == set(range(len(groups.names)))  # each sentence is in one group and no group is empty
    of_test = found["tests"]["test"]
    if by == "length":
        members = [sorted(n for n, at in zip(lengths, groups.of, strict=True) if at == i) for i in set(groups.of)]
        bounds = [(of_group[0], of_group[-1]) for of_group in members]
        assert all(high < low for (_, high), (low, _) in itertools.pairwise(bounds))  # in order, none shared
        assert all(high <= longest or low > longest for low, high in bounds)  # longer than in training: apart
        assert [name.split()[0] for name in groups.names] == [str(low) for low, _ in bounds]
    elif by == "rare-words":
        for count, at in zip(of_test["rarest"], groups.of, strict=True):
            words = groups.names[at].split()
            low, high = {"never": (0, 0), "1": (1, 9), "10": (10, 99), "100": (100, 10**9)}[words[0]]
            assert low <= count <= high
    else:
        assert [groups.names[at] for at in groups.of] == [TREES[by][int(digit)] for digit in of_test[by]]


def test_quartiles_have_a_quarter_of_the_sentences_each():
    groups = group(record(range(1, 41), longest=99), "test", "length", "here")
    assert groups.names == ["1 to 10 words", "11 to 20 words", "21 to 30 words", "31 to 40 words"]
    assert np.bincount(groups.of).tolist() == [10] * 4
    groups = group(record(range(1, 41), longest=35), "test", "length", "here")
    assert groups.names[3:] == ["31 to 35 words", "36 to 40 words"]


def run(row, seed, nll, words, **more):
    settings = {"first": ROW, "second": trained_with(dropout="0.3", fp16=True)}.get(row, trained_with(dropout="0.4"))
    content = {"system": row, "seed": seed, "data": "multi30k_en_de", "row": settings, "starts": [], "test_nll": nll}
    return SUMMARY | content | {"bleu_counts": [[3, count, 2, 1, 0, 0] for count in words], **more}


@pytest.fixture
def runs():
    """Three, four and two seeds of three rows, and the words of the references."""
    numbers = random.Random(1)
    words = [numbers.randint(1, 12) for _ in range(COUNT)]

    def nll(shift):
        return [round(count * (1.5 + shift) + numbers.random(), 3) for count in words]

    return {
        name: [run(name, seed, nll(shift + 0.02 * seed), words) for seed in range(1, seeds + 1)]
        for name, shift, seeds in (("first", 0, 3), ("third", -0.3, 2), ("second", 0.1, 4))
    }


def compare_groups(rows, runs, records, by, hidden=()):
    lines = groups.compare_groups(runs_of(rows, runs, hidden), records, by, "test")
    return lines, list(map(group_entries, lines))


@pytest.mark.parametrize("by", BY)
def test_figures_are_those_of_loops(table, runs, by):
    rows = list(load_table(table(THIRD)).rows.values())
    found = record([1 + n % 9 for n in range(COUNT)])
    shown, lines = compare_groups(rows, runs, {"multi30k_en_de": (found, "here")}, by)
    groups = group(found, "test", by, "here")
    assert [line["group"] for line in lines] == groups.names * 3 and {line["row"] for line in lines} == set(runs)
    p_values = {"nll_": {}, "rest_": {}}
    words = [counts[1] for counts in runs["first"][0]["bleu_counts"]]
    for line in lines:
        inside = [at for at in range(COUNT) if groups.names[groups.of[at]] == line["group"]]
        outside = [at for at in range(COUNT) if at not in inside]
        of_row, of_first = ([s["test_nll"] for s in runs[name]] for name in (line["row"], "first"))
        assert line["sentences"] == len(inside) and line["words"] == sum(words[at] for at in inside)
        assert line["nll"] == pytest.approx(reference.nll(of_row, inside))
        a_word = [reference.nll_word(values, words, inside) for values in of_row]
        assert line["nll_word"] == pytest.approx(np.mean(a_word)) and line["seeds"] == len(of_row)
        if line["row"] == "first":
            assert "nll_delta" not in line
            continue
        assert line["nll_delta"] == pytest.approx(line["nll"] - reference.nll(of_first, inside))
        first_word = [reference.nll_word(values, words, inside) for values in of_first]
        assert line["word_delta"] == pytest.approx(np.mean(a_word) - np.mean(first_word))

        def scores(prefix, name, inside=inside, outside=outside):
            if prefix == "nll_":
                return [reference.nll([s["test_nll"]], inside) for s in runs[name]]
            of_words = ((reference.nll_word(s["test_nll"], words, at) for at in (inside, outside)) for s in runs[name])
            return [first - second for first, second in of_words]

        means = [np.mean(scores("rest_", name)) for name in (line["row"], "first")]
        assert line["rest_delta"] == pytest.approx(means[0] - means[1])
        for prefix in p_values:
            both = [scores(prefix, name) for name in ("third", "second")]
            expected = dunnett(*both, control=scores(prefix, "first"), rng=np.random.default_rng(1)).pvalue
            assert line[f"{prefix}seed_p"] == pytest.approx(expected[int(line["row"] == "second")], abs=1e-3)
            of_rows = [scores(prefix, name) for name in ("first", "second", "third")]
            p_values[prefix][line["row"], line["group"]] = reference.t_test(scores(prefix, line["row"]), of_rows)
    for prefix, of_tests in p_values.items():
        corrected = reference.holm(of_tests)
        for line in (line for line in lines if "baseline" in line):
            assert line[f"{prefix}holm_p"] == pytest.approx(corrected[line["row"], line["group"]])
            assert line[f"{prefix}holm_of"] == 2 * len(groups.names)
    header, *cells = cells_of(group_columns(), shown)
    assert len(cells) == len(lines) and header[:3] == ["row", "group", "sentences"]
    notes = group_notes(shown, by, {"multi30k_en_de": (found, "here")})
    family = f"(2 rows), then Holm's correction over all groups and rows ({2 * len(groups.names)} p-values)"
    assert any(family in note for note in notes) and any(note.endswith(BY[by]) for note in notes)
    panels = draw_groups(shown, "title").axes
    assert [axis.get_title().split("\n")[0] for axis in panels] == groups.names
    for axis, name in zip(panels, groups.names, strict=True):
        drawn = [container[2][0].get_segments()[0][:, 0] for container in axis.containers]
        expected = [line["word_interval"] for line in lines if line["group"] == name and "word_interval" in line]
        np.testing.assert_allclose(drawn, expected)


def test_groups_of_two_data_sets_have_panels_of_their_own(table, runs):
    rows = list(load_table(table()).rows.values())
    elsewhere = [dataclasses.replace(row, name=f"{row.name}-2", baseline="first-2", data="other") for row in rows]
    found = record([1 + n % 9 for n in range(COUNT)])
    summaries = runs | {f"{name}-2": of for name, of in runs.items()}
    records = dict.fromkeys(["multi30k_en_de", "other"], (found, "here"))
    lines, _ = compare_groups(rows + elsewhere, summaries, records, "length")
    titles = [axis.get_title() for axis in draw_groups(lines, "").axes]
    half = len(titles) // 2
    assert all(title.startswith("multi30k_en_de, ") for title in titles[:half])
    assert [title.replace("multi30k_en_de", "other") for title in titles[:half]] == titles[half:]


def test_rows_that_are_not_shown_are_tested_with_those_that_are_and_one_seed_is_not(table, runs):
    rows = list(load_table(table(THIRD)).rows.values())
    records = {"multi30k_en_de": (record([1 + n % 9 for n in range(COUNT)]), "here")}
    _, every = compare_groups(rows, runs, records, "length")
    chosen, hidden = ([row for row in rows if (row.name == "third") == third] for third in (False, True))
    lines, values = compare_groups(chosen, runs, records, "length", hidden)
    assert values == [line for line in every if line["row"] != "third"]
    assert any("(2 rows, 1 of them shown), then Holm" in note for note in group_notes(lines, "length", records))
    lines, values = compare_groups(rows, runs | {"third": runs["third"][:1], "second": []}, records, "length")
    assert [line for line in values if line["row"] == "second"] == [{"row": "second", "seeds": 0}]
    assert all(line["nll_untested"] == "one seed" and "nll_holm_p" not in line for line in values if "baseline" in line)
    assert any("nothing can be tested over seeds" in note for note in group_notes(lines, "length", records))
    cells = str(cells_of(group_columns(), lines))
    assert "(one seed)" in cells and "not run" in cells
    assert len(draw_groups(lines, "").axes) == len({line["group"] for line in values if "group" in line})


# -- gold trees ------------------------------------------------------------------------------------------------------


def parts(item):
    """The item and everything inside it."""
    yield item
    if dataclasses.is_dataclass(item):
        inner = [getattr(item, field.name) for field in dataclasses.fields(item)]
    else:
        inner = list(item) if isinstance(item, list | tuple) and not hasattr(item, "_fields") else []
    for part in inner:
        yield from parts(part)


def meant(sentence):
    """What the derivation attaches prepositional phrases to in English."""
    found = set()
    for part in parts(sentence):
        match part:
            case Common():
                found |= {"noun"} if part.attachments or part.content else set()
            case Relative():
                slot = part.clause.verb.objects[0] if part.of_object else None
                found |= {"predicate"} if slot and slot.english else set()
            case Clause():
                spoken = [slot.english for slot, item in zip(part.verb.objects, part.objects, strict=False)
                          if slot.english and not isinstance(item, Gap)] if part.verb else []  # fmt: skip
                is_place = part.copular and part.frame in ("go", "put", "at")
                of_label = isinstance(part.time, FixedTime) and part.time.label == "PP"
                timed = isinstance(part.time, Duration | Year) or of_label
                to_receiver = len(part.objects) == 2 and part.receiver_last
                complement = part.predicate and part.predicate.complement
                bound = [*spoken, part.means, part.place and not is_place, timed, to_receiver, complement]
                found |= {"predicate"} if any(bound) else set()
    return found


def test_gold_trees_give_what_the_generator_meant(tmp_path, monkeypatch):
    """Attachment as the abstract syntax has it; verb-final clauses as often as German puts a verb last."""
    derivation, last = Derivation(7), []
    original = german.subordinate
    monkeypatch.setattr(german, "subordinate", lambda *args, **named: last.append(1) or original(*args, **named))
    seen = set()
    for number in range(400):
        sentence = derivation.sentence()
        (tmp_path / "x").write_text(conllu(english.sentence(sentence), str(number)))
        (tree,) = read_conllu(tmp_path / "x")
        last.clear()
        text = german.sentence(sentence)
        assert attachments(tree) == meant(sentence), " ".join(tree.words)
        assert subordinate(tree) == bool(last), text
        seen.add((tuple(sorted(attachments(tree))), bool(last)))
    assert len(seen) == 8  # every combination occurs


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["saw VERB 0 root", "man NOUN 1 obj", "with ADP 4 case", "hat NOUN 2 nmod"], {"noun"}),
        (["saw VERB 0 root", "man NOUN 1 obj", "with ADP 4 case", "eye NOUN 1 obl"], {"predicate"}),
        (["seen VERB 0 root", "by ADP 3 case", "man NOUN 1 obl:agent"], {"predicate"}),
        (["is AUX 3 cop", "in ADP 3 case", "garden NOUN 0 root"], set()),
        (["dog NOUN 3 nmod:poss", "'s PART 1 case", "eye NOUN 0 root"], set()),
        (["saw _ 0 root", "man _ 1 obj", "with _ 4 case", "hat _ 2 nmod", "in _ 6 case", "May _ 1 obl:tmod"],
         {"noun", "predicate"}),  # of a parser without universal parts of speech
        (["dog _ 3 nmod:poss", "'s _ 1 case", "eye _ 0 root"], set()),
        (["saw VERB 0 ROOT", "man NOUN 1 dobj", "with ADP 2 prep", "hat NOUN 3 pobj", "in ADP 1 prep"],
         {"noun", "predicate"}),
    ],
)  # fmt: skip
def test_attachment_in_universal_dependencies_and_in_spacys_labels(rows, expected, tmp_path):
    words = (row.split() for row in rows)
    lines = [f"{n}\t{w}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t_" for n, (w, tag, head, label) in enumerate(words, 1)]
    (tmp_path / "x").write_text("\n".join(lines))
    (tree,) = read_conllu(tmp_path / "x")
    assert attachments(tree) == expected and not subordinate(tree)


@pytest.mark.parametrize("relation", ["ccomp", "advcl", "acl:relcl", "relcl", "xcomp", "acl"])
def test_clauses_in_universal_dependencies_and_in_spacys_labels(relation):
    assert subordinate(Dependencies(["he", "said"], [1, 1], (), (relation, "root"))) == (
        relation not in ("xcomp", "acl")
    )


# -- runs and saved copies -------------------------------------------------------------------------------------------


@pytest.fixture
def finished(table, prepared, runs):
    """A table with finished runs on a prepared data set with trees; the table's name."""
    (prepared / "text").mkdir()
    lines = [" ".join(["A", "dog", *[f"w{n}"] * (n % 7), "."]) for n in range(COUNT)]
    (prepared / "text/tok.test.en").write_text("".join(f"{line}\n" for line in lines))
    (prepared / "text/tok.train.en").write_text("a dog .\n" * 200 + "w1 w1 w2\n" * 6 + "w3 a dog\n")
    tree = english.sentence(Derivation(3).sentence())
    trees = "".join(conllu(tree, str(n)) for n in range(COUNT - 1))
    (prepared / "test.en-de.en.conllu").write_text(trees + "1\tx" + "\t_" * 8)
    name = table(THIRD)
    for row in load_table(name).rows.values():
        for summary, place in zip(runs[row.name], find_runs([row], [1, 2, 3, 4], cpu=True), strict=False):
            place.directory.mkdir(parents=True)
            (place.directory / "summary.json").write_text(json.dumps(summary))
    return name


def test_repeated_words_are_counted_and_an_empty_sentence_has_frequent_ones(prepared):
    (prepared / "text").mkdir()
    (prepared / "text/tok.train.en").write_text("a a a a\na dog\n")
    (prepared / "text/tok.test.en").write_text("a dog\n\n")
    known = describe(find_data(str(prepared)), ["test"])
    assert known["longest"] == 4 and known["tests"]["test"]["rarest"] == [1, 5]


def shown(capsys, *words):
    code = main(["report", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_saved_copies_show_the_same_groups_as_runs(finished, tmp_path, capsys):
    by = ["--by", ",".join(BY)]
    for form in (["--format", "json"], ["--format", "markdown"], ["--rows", "second", "--test", "test"]):
        code, of_runs, err = shown(capsys, finished, *by, *form, "--save", tmp_path / "saved")
        assert code == 0 and not err
        shutil.move(tmp_path / "runs", tmp_path / "away")
        code, again, _ = shown(capsys, finished, *by, *form, "--results", tmp_path / "saved")
        shutil.move(tmp_path / "away", tmp_path / "runs")
        assert code == 0 and again.replace("saved", "runs") == of_runs.replace("saved", "runs")
    (copy,) = (tmp_path / "saved/sentences").iterdir()
    known = json.loads(copy.read_text())
    of_test = known["tests"]["test"]
    assert known["longest"] == 3 and of_test["length"] == [3 + n % 7 for n in range(COUNT)]
    counts = {1: 12, 2: 6, 3: 1}
    assert of_test["rarest"] == [counts.get(n, 0) if n % 7 else 200 for n in range(COUNT)]
    assert of_test["attachment"].endswith("4") and of_test["verb-final"].endswith("2")  # the last has no tree
    assert copy.stat().st_size < 1000
    code, out, _ = shown(capsys, finished, "--by", "length", "--columns", "row,group", "--no-notes", "--rows", "first")
    assert code == 0 and out.split("group\n")[1].split("first")[1].strip() == "3 words"
    out = tmp_path / "by.pdf"
    assert main(["plot", "rows", finished, "--by", "attachment", "--rows", "second", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"%PDF")
    code, page, _ = shown(capsys, finished, "--by", "length", "--format", "html", "--translations", 0)
    assert code == 0 and "by length" in page and page.count("<table") > 1
    chain = Path(finished).read_text().replace("  second: {", "  second: {baseline: third, ")
    Path(finished).write_text(f"{chain}x: clip-norm\n")  # which no row has
    assert main(["plot", "rows", finished, "--by", "length", "--rows", "second", "--out", str(out)]) == 0
    code, page, _ = shown(capsys, finished, "--rows", "second", "--format", "html", "--translations", 0)
    assert code == 0 and "Against --clip-norm" not in page


def test_a_copy_without_a_test_set_that_was_added_is_written_again(finished, tmp_path):
    (run,) = find_runs([load_table(finished).rows["first"]], [1], cpu=True)
    copy_sentences(tmp_path / "saved", run)
    (copy,) = (tmp_path / "saved/sentences").iterdir()
    whole = json.loads(copy.read_text())
    copy.write_text(json.dumps(whole | {"tests": {"earlier": whole["tests"]["test"]}}))
    copy_sentences(tmp_path / "saved", run)
    assert json.loads(copy.read_text()) == whole


def test_summaries_without_sentences_are_refused_in_one_line(finished, tmp_path, capsys):
    results = tmp_path / "saved"
    assert shown(capsys, finished, "--save", results)[0] == 0
    shutil.rmtree(results / "sentences")
    before = shown(capsys, finished, "--by", "length")[1]
    assert shown(capsys, finished, "--by", "length", "--results", results)[1] == before  # the data are here
    shutil.move(tmp_path / "runs", tmp_path / "away")
    code, out, err = shown(capsys, finished, "--by", "length", "--results", results)
    assert code == 2 and not out and err.count("\n") == 1
    assert f"{results}: saved without what is known of the test sentences of multi30k_en_de" in err
    code, _, err = shown(capsys, finished, "--results", results, "--save", tmp_path / "again")
    assert code == 0 and "without what --by needs" in err and (tmp_path / "again/first-seed1.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda known, of_test: known | {"data_hash": "of other data"}, "not the test sentences of row first seed 1"),
        (lambda known, of_test: known | {"tests": {}}, "0 sentences of test; row first seed 1 was scored on 24"),
        (lambda known, of_test: {"data_hash": "h", "longest": 3, "tests": {"test": {key: [] for key in of_test}}},
         "0 sentences of test; row first seed 1 was scored on 24"),
        (lambda known, of_test: of_test.pop("attachment") and known, "has no dependency trees of test"),
        (lambda known, of_test: of_test.update({"rarest": [-1] * COUNT}) or known, "not what `fairseq-diverse"),
        (lambda known, of_test: of_test.update({"attachment": "9" * COUNT}) or known, "not what `fairseq-diverse"),
        (lambda known, of_test: {}, "not what `fairseq-diverse report"),
    ],
    ids=["data", "no tests", "no sentences", "no trees", "below 0", "no group", "nothing"],
)  # fmt: skip
def test_sentences_of_others_are_refused(change, words, finished, tmp_path, error_of):
    results = tmp_path / "saved"
    assert main(["report", finished, "--save", str(results)]) == 0
    copy = results / "sentences/multi30k_en_de.json"
    known = json.loads(copy.read_text())
    copy.write_text(json.dumps(change(known, known["tests"]["test"])))
    said = error_of("report", finished, "--by", "attachment", "--results", results)
    assert words in said and str(copy) in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["lenght"], "--by lenght: not known; known are length, rare-words, attachment, verb-final"),
        (["length", "--verdict"], "--verdict and --by: one of them"),
        (["length", "--test", "other"], "--test other: no run was scored on it; there are: test"),
        (["length", "--heads"], "--by and --heads: one of them"),
    ],
)
def test_wrong_properties_are_refused(flags, words, finished, error_of):
    assert words in error_of("report", finished, "--by", *flags)


def test_data_that_lost_their_text_or_have_other_trees_are_named(finished, tmp_path, error_of):
    data = tmp_path / "runs/data/multi30k_en_de"
    trees = data / "test.en-de.en.conllu"
    trees.write_text(trees.read_text() + "\n\n1\tx" + "\t_" * 8)
    assert f"{trees}: 25 trees of 24 sentences" in error_of("report", finished, "--by", "length")
    trees.unlink()
    said = error_of("report", finished, "--by", "attachment")
    assert f"{data} has no dependency trees of test" in said and "binarize-syntax" in said
    (data / "text/tok.test.en").unlink()
    assert "tok.test.en: cannot be read" in error_of("report", finished, "--by", "length")
    assert main(["report", finished]) == 0
