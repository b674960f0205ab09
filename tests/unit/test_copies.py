"""`run --save`: which copies count as finished runs, which are refused, and what is said of others."""

from dataclasses import replace

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.experiments import logs
from fairseq_diverse.experiments.inputs import read_by, trees_read_by
from fairseq_diverse.experiments.kinds.kind import KINDS
from fairseq_diverse.experiments.runs import saved
from fairseq_diverse.experiments.runs.environment import AVX2
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import summarize
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.experiments.runs.saved import Copies, from_results, refuse_replacing, save
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.metrics import scores
from fairseq_diverse.preparation import pipeline
from fairseq_diverse.reports.sentences import record_path, save_records
from fairseq_diverse.reports.side_by_side import side_by_side
from tests.refusals import refused
from tests.unit.conftest import ROW, trained_with
from tests.unit.test_records import SUMMARY

TREES = ("  second:", "  trees: {task: translation_with_syntax}\n  second:")
MACHINE = {"cpu": "c", "cores": 2, "threads": 1, "capability": "AVX2", "device": "cpu", "variables": dict(AVX2)}
HERE = {"commit": "c" * 40, "dirty": False, "versions": {"torch": "2.7"}, "machine": MACHINE}


@pytest.fixture
def data(prepared, monkeypatch):
    """A prepared data set with trees, as it is known to runs."""
    monkeypatch.setattr(saved, "collect", lambda environment: HERE)
    (prepared / "train.en-de.en.syntax.json").write_text('{"digest": "1"}')
    return prepared


def copied(folder, name="first", row=ROW, **changed):
    """Write the copy of a row's first run."""
    content = SUMMARY | {"data": "multi30k_en_de", "row": row, **HERE, "starts": [], **changed}
    save(folder, {name: [content]})


def test_copies_of_other_data_or_trees_are_refused_whatever_their_row(data, table, tmp_path):
    rows = load_table(table(TREES)).rows
    runs = {name: find_runs([rows[name]], [2], cpu=True) for name in ("second", "trees")}
    copied(tmp_path / "a", data_hash="of other text")
    refused(r"a: the copy of first seed 1 is of other data than .*multi30k_en_", Copies, tmp_path / "a", runs["second"])
    flags = trained_with(task="translation_with_syntax")
    copied(tmp_path / "b", "trees", flags, trees="of another parser")
    refused(r"b: the copy of trees seed 1 is of other trees than ", Copies, tmp_path / "b", runs["trees"])
    assert Copies(tmp_path / "b", runs["second"]).finished == set()  # which reads none
    copied(tmp_path / "b", "trees", flags, trees=trees_read_by(rows["trees"], runs["trees"][0].data))
    (first,) = find_runs([rows["trees"]], [1], cpu=True)
    assert Copies(tmp_path / "b", [first, *runs["trees"]]).finished == {first.directory}
    assert not trees_read_by(rows["second"], runs["second"][0].data)


def test_copies_of_runs_with_another_file_are_refused(data, table, tmp_path):
    """Code of the user's own, or a file; where the file is not here, or the copy is older, nothing can be compared."""
    words = tmp_path / "words.txt"
    words.write_text("first")
    row = load_table(table(), settings=[f"encoder-embed-path={words}"]).rows["first"]
    (run,) = find_runs([row], [1], cpu=True)
    settings = trained_with(**{"encoder-embed-path": "words.txt"})
    copied(tmp_path / "a", row=settings, read=run.read)
    copied(tmp_path / "older", row=settings)
    for folder in ("a", "older"):
        assert Copies(tmp_path / folder, [run]).finished == {run.directory}
    words.write_text("second")
    own = SUMMARY | {"data": "multi30k_en_de", "read": read_by([row])["first"]}
    for asked in (
        lambda: from_results(tmp_path / "a", [row]),
        lambda: Copies(tmp_path / "a", find_runs([row], [1], cpu=True)),
        lambda: refuse_replacing(tmp_path / "a", [row], {"first": [own]}),
    ):
        refused(r"first-seed1.json: .*it was run with another encoder-embed-path", asked)
    assert from_results(tmp_path / "a", [row], named=False) == {"first": []}
    assert len(from_results(tmp_path / "older", [row])["first"]) == 1
    words.unlink()
    assert len(from_results(tmp_path / "a", [row])["first"]) == 1


def test_copies_do_not_go_through_links(data, table, tmp_path):
    """A folder of another person's results could have any file replaced."""
    (tmp_path / "mine").write_text("text")
    for path in (tmp_path / "results/first-seed1.json", record_path(tmp_path / "results", "d")):
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(tmp_path / "mine")
    for asked in (
        lambda: save(tmp_path / "results", {"first": [SUMMARY]}),
        lambda: save_records(tmp_path / "results", {"d": ({"tests": {}}, "")}),
    ):
        refused(r"results/.*\.json: a link; delete it, or save to another folder", asked)
    assert (tmp_path / "mine").read_text() == "text"
    runs = find_runs([load_table(table()).rows["first"]], [1], cpu=True)
    refused(r"first-seed1.json: a link; delete it, or give another --save", Copies, tmp_path / "results", runs)


def test_copies_of_another_pretraining_are_refused(data, table, tmp_path):
    """Whose data are known to the run alone."""
    (run,) = find_runs(list(load_table(table()).rows.values())[:1], [1], cpu=True)
    copied(tmp_path / "a", read={"pretrained": "a" * 64})
    assert Copies(tmp_path / "a", [replace(run, read={"pretrained": "a" * 64})]).finished
    with pytest.raises(ValueError, match="a: the copy of first seed 1 is of another pretrained than there is here"):
        Copies(tmp_path / "a", [replace(run, read={"pretrained": "b" * 64})])


def test_what_copies_were_made_with_is_compared_with_what_is_here(data, table, tmp_path):
    runs = find_runs(list(load_table(table()).rows.values()), [1], cpu=True)
    copied(tmp_path / "a")
    assert Copies(tmp_path / "a", runs).differences({}) == Copies(tmp_path / "none", runs).differences({}) == []
    copied(tmp_path / "a", commit="d" * 40, versions={"torch": "2.6"}, machine=MACHINE | {"variables": {}})
    commit, versions, machine = Copies(tmp_path / "a", runs).differences({})
    assert commit.endswith("another commit: dddddddddd; here: cccccccccc")
    assert versions.endswith("other versions: torch 2.6; here: torch 2.7")
    assert "another machine: c, 2 cores, 1 thread, AVX2; here: " in machine and machine.endswith("--same-arithmetic")


def test_a_metric_that_could_not_be_computed_trains_nothing_again(data, table, tmp_path):
    rows = load_table(table(("first:", "first: {metrics: meteor}"))).rows
    (run,) = find_runs([rows["first"]], [1], cpu=True)
    copied(tmp_path / "a", missing={"meteor": "needs java"})
    assert Copies(tmp_path / "a", [run]).finished == {run.directory}
    run.checkpoints.mkdir(parents=True)
    run.checkpoint.touch()  # it is scored again
    assert Copies(tmp_path / "a", [run]).lacking == {run.directory}
    copied(tmp_path / "b")
    run.checkpoint.unlink()
    assert Copies(tmp_path / "b", [run]).lacking == {run.directory}


@pytest.mark.parametrize("folder", ["linked", "."])
def test_a_copy_has_the_name_by_which_its_data_are_given(folder, data, table, tmp_path, monkeypatch):
    (tmp_path / "linked").symlink_to(data)
    monkeypatch.chdir(tmp_path if folder == "linked" else data)
    (run,) = find_runs([load_table(table(("multi30k_en_de", folder))).rows["first"]], [1], cpu=True)
    assert run.data.name == ("linked" if folder == "linked" else "multi30k_en_de")
    copied(tmp_path / "copies", data=run.data.name)
    assert Copies(tmp_path / "copies", [run]).finished == {run.directory}


def test_run_says_what_it_finds(data, table, tmp_path, capsys):
    name = table(("first:", "first: {heads: true}"))
    copied(tmp_path / "copies", commit="d" * 40)
    asked = ["run", name, "--rows", "first", "--dry-run", "--save", str(tmp_path / "copies")]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert "\n# first seed 1: new" in out and "first seed 1: its copy lacks a test set, a metric or " in err
    assert "has runs of another commit: dddddddddd; here: cccccccccc" in err
    (run,) = find_runs(list(load_table(name).rows.values())[:1], [1], cpu=True)
    run.checkpoints.mkdir(parents=True)  # a run that goes on
    assert main(asked) == 0 and "its copy lacks" not in capsys.readouterr().err
    run.checkpoint.touch()  # heads can be measured
    assert main(asked) == 0 and "its copy lacks" not in capsys.readouterr().err


def test_the_validation_split_alone(data, table, tmp_path, monkeypatch):
    """With `split: valid` no command reads a test set, and copies of the one are not those of the other."""
    row, tested = load_table(table(("rows:", "split: valid\nrows:"))).rows["first"], load_table(table()).rows["first"]
    run, other = find_runs([row, tested], [1], cpu=True)
    assert run.directory != other.directory
    assert list(steps_of(run, {})) == list(steps_of(other, {})) == ["train", "generate", "reference"]
    for step in ("generate", "reference"):
        command = steps_of(run, {})[step]
        assert command[command.index("--gen-subset") + 1] == "valid"
    (data / "text").mkdir()
    for language in ("en", "de"):  # there is no text/test.de
        (data / f"text/valid.{language}").write_text(f"{language} hat einen Satz .\n")
    monkeypatch.setattr(scores, "read_translations", lambda log, folder: ["de hat einen Satz ."])
    monkeypatch.setattr(logs, "reference_nll", lambda log: [1.5])
    monkeypatch.setattr(pipeline, "lowercased", lambda folder: False)
    trained = dict.fromkeys(("peak_memory", "parameters", "valid_nll")) | {"gb_free": 4.5}  # on a GPU
    state = {"train": trained, "generate": {"peak_memory": 1}}
    run.directory.mkdir(parents=True)
    found = summarize(run, state | {"starts": [HERE]})
    assert (found["test"], found["test_nll"], found["metrics"]["bleu"]) == ("valid", [1.5], pytest.approx(100))
    (run.directory / "summary.json").touch()
    assert side_by_side([run], 1).sentences[0].reference == "de hat einen Satz ."
    copied(tmp_path / "a", row=ROW | {"split": "valid"}, test="valid")
    assert len(from_results(tmp_path / "a", [row])["first"]) == 1
    assert KINDS["translation"].measures([row])[-1].scale == "nats a validation sentence"
    refused("it was evaluated on valid, not on test", from_results, tmp_path / "a", [tested])
    copied(tmp_path / "a")
    refused("it was evaluated on test, not on valid", from_results, tmp_path / "a", [row])


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("split: train", "split: train: test or valid expected"),
        ("split: valid\ntests: [test]", "tests: test: not with split: valid, which reads no test set"),
        ("split: valid\nflags: {task: logical_inference}", "split: not for rows of kind classification"),
    ],
)
def test_splits_that_cannot_be(lines, problem, table):
    replaced = [("rows:", f"{lines}\nrows:")] + [("flags: {dropout: 0.2}\n", "")] * ("flags" in lines)
    refused(problem, load_table, table(*replaced[::-1]))
