"""A damaged or hostile record of prepared data, its models, or a run's summary: one line that names the file."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.kinds.lines import Line
from fairseq_diverse.experiments.runs import schedule
from fairseq_diverse.experiments.runs.environment import ALLOCATION, AVX2
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import folders_by_seed, read_summary, starts
from fairseq_diverse.experiments.runs.provenance import commits_of, machine
from fairseq_diverse.experiments.runs.saved import from_runs
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.config import SIDE_DEFAULTS
from fairseq_diverse.preparation.pipeline import FILE, FORMAT, lowercased
from fairseq_diverse.reports.lines import comparable, no_speed
from fairseq_diverse.reports.notes import machines, machines_note
from tests.refusals import refusal, refused
from tests.unit.conftest import ROW, trained_with
from tests.unit.views import runs_of

SIDE = SIDE_DEFAULTS | {"normalize": False}
RECORD = {
    "format": FORMAT, "schema": 1, "source": "en", "target": "de", "hash": "h",
    "config": {"sides": {"source": SIDE | {"language": "en"}, "target": SIDE | {"language": "de"}}},
    "truecaser": {"source": "text/truecase.en", "target": None},
    "bpe": {"kind": "subword-nmt", "model": {"source": "text/bpe.codes", "target": "text/bpe.codes"},
            "vocabulary": {"source": "text/bpe.vocab.en", "target": None}, "threshold": 1}
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/bpe.codes").write_text("#version: 0.2\na b</w>\n")
    (tmp_path / "text/bpe.vocab.en").write_text("ab 5\n")
    (tmp_path / "text/truecase.en").write_text("ab (5/5)\n")
    (tmp_path / FILE).write_text(json.dumps(RECORD))
    return tmp_path


def change(path: Path, value: object, *keys: str | int) -> None:
    """Of a part of a JSON file."""
    content = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("bpe.codes", text) for text in ("", "?", "#version: 0.9\na b\n", "a b c\n", "\xff\xfe", "#version: x\n")),
        *(("bpe.vocab.en", text) for text in ("?", "a b c\n", "a b\n", "\xff\xfe")),
        ("truecase.en", "\xff\xfe"),
    ],
)
def test_damaged_models_are_named(name, content, data, capsys):
    assert Preprocessing.load(data).encode("ab") == "ab"
    path = data / "text" / name
    path.write_text(content, encoding="latin-1")
    assert refusal(Preprocessing.load, data).startswith(f"{path}: damaged, or not a ")
    assert capsys.readouterr().err == ""


def test_a_damaged_sentencepiece_model_is_named(data):
    change(data / FILE, "sentencepiece", "bpe", "kind")
    assert refusal(Preprocessing.load, data) == f"{data}/text/bpe.codes: damaged, or not a model of sentencepiece"


@pytest.mark.parametrize(
    ("value", "keys", "words"),
    [
        ("../../x", ("bpe", "model", "source"), "'../../x' is outside the directory"),
        ("/dev/zero", ("bpe", "model", "target"), "'/dev/zero' is outside the directory"),
        ("/etc/passwd", ("truecaser", "source"), "'/etc/passwd' is outside the directory"),
        ("../x", ("source",), "source: '../x' is not a language"), (5, ("target",), "target: 5 is not a language"),
        ([], ("bpe",), "incomplete"), ("x", ("config",), "incomplete"), ({}, ("truecaser",), "incomplete ('source')")
    ],
)  # fmt: skip
def test_a_record_that_is_wrong_names_itself(value, keys, words, data):
    change(data / FILE, value, *keys)
    said = refusal(Preprocessing.load, data)
    assert said.startswith(f"{data / FILE}: ") and words in said


def test_lowercased_of_an_incomplete_record(data):
    assert lowercased(data) is False
    change(data / FILE, [], "config")
    refused(f"{FILE}: incomplete \\(sides\\); prepare the data again", lowercased, data)


@pytest.mark.parametrize(
    ("record", "flags", "words"),
    [
        ({"source": "../x"}, [], f"{FILE}: source: '../x' is not a language"),
        ({"target": ""}, [], f"{FILE}: the data are of one language; data with a target are needed"),
        ({"bpe": []}, [], f"{FILE}: incomplete (kind)"),
        ({}, ["--splits", ","], "--splits ',': names none"),
        ({}, [], "x.conllu.json: damaged, not a JSON object; parse again"),
    ],
)
def test_binarize_syntax_checks_the_record(record, flags, words, data, error_of):
    (data / FILE).write_text(json.dumps(RECORD | record))
    (data / "x.conllu.json").write_text("[]")
    (data / "x.conllu").touch()
    common = ["binarize-syntax", "--data", str(data), "--dependency", str(data / "x.conllu"), "--splits", "test"]
    assert words in error_of(*common, *flags)


NAN, INFINITY = float("nan"), float("inf")
START = {"commit": "c", "dirty": False, "machine": {"cpu": "EPYC", "cores": 2, "threads": 1, "capability": "AVX2"}}
START["machine"] |= {"device": "cpu", "variables": {"OMP_NUM_THREADS": "1"}}
SUMMARY = {
    "schema": 2, "kind": "translation", "row": ROW, "system": "first", "data": "d", "seed": 1,
    "commands": ["fairseq-train d"], "words_per_second": {"train": 100.0, "generate": None}, "parameters": 5,
    "data_hash": "h", "valid_nll": {"last": 1.5}, **START, "starts": [START, START],
    "metrics": {"bleu": 20.0, "chrf": 40.0, "ter": 60.0, "length_ratio": 1.0, "signatures": {"bleu": "s"}},
    "language": "de", "test_nll": [1.0, 2.0], "bleu_counts": [[3, 3, 2, 1, 0, 0], [4, 3, 2, 1, 0, 0]]
}  # fmt: skip
HEAD = {"cosine": 0.1, "constant share": 0.1, "effective rank": 2.0, "width": 128}


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("metrics", "bleu"), NAN, "metrics: bleu: a number or a list of `key: value` expected, not NaN"),
        (("metrics", "bleu"), "x", "metrics: bleu: a number or"),
        (("metrics",), {}, "metrics: no bleu"),
        (("metrics", "chrf"), INFINITY, "chrf: a number"),
        (("metrics", "length_ratio"), True, "length_ratio: a number or a list of `key: value` expected, not True"),
        (("metrics", "ter"), 10**400, "metrics: ter: Number out of range"),
        (("test_nll",), [1.0, NAN], "test_nll: 1: a number expected, not NaN"),
        (("test_nll",), [1.0, -INFINITY], "test_nll: 1: a number expected, not -Infinity"),
        (("test_nll",), [1.0], "bleu_counts"),
        (("test_nll",), ["x"] * 2, "test_nll: 0: a number expected, not x"),
        (("valid_nll", "last"), NAN, "valid_nll: last: a number"),
        (("valid_nll", "last"), "x", "valid_nll: last: a number"),
        (("words_per_second", "train"), NAN, "words_per_second: train: a number"),
        (("words_per_second",), 3, "words_per_second: a list of `key: value` expected, not 3"),
        (("updates_per_second",), {"train": "x"}, "updates_per_second: train: a number"),
        (("epoch_minutes",), "x", "epoch_minutes: a number"),
        (("updates",), "13", "updates: a whole number"),
        (("bleu_counts",), [[1, 2]], "bleu_counts"),
        (("bleu_counts", 0, 2), -5, "bleu_counts: 0: 2: "),
        (("bleu_counts", 0, 2), 1.5, "bleu_counts: 0: 2: a whole number expected, not 1.5"),
        (("bleu_counts", 0, 2), True, "bleu_counts"),
        (("seed",), True, "seed"),
        (("seed",), "1", "seed"),
        (("commands",), [], "commands: a list of length >= 1 expected"),
        (("commands",), [None], "commands: 0: text expected"),
        (("language",), None, "language: text expected"),
        (("test",), 3, "test: text expected"),
        (("dirty",), 1, "dirty: true or false expected, not 1"),
        (("machine",), "EPYC", "machine: a list of `key: value` expected"),
        (("machine", "cpu"), ["a"], "machine: cpu"),
        (("machine", "cores"), None, "machine: cores"),
        (("machine", "threads"), True, "machine: threads"),
        (("machine", "variables"), ["OMP_NUM_THREADS"], "machine: variables"),
        (("machine", "variables", "OMP_NUM_THREADS"), 1, "machine: variables: OMP_NUM_THREADS: text expected, not 1"),
        (("starts", 1, "machine", "cpu"), 3, "starts: 1: machine: cpu: text expected, not 3"),
        (("starts", 0), {}, "starts: 0: no `commit`"),
        (("starts",), [3], "starts: 0: a list of `key: value` expected, not 3"),
        (("row", "train"), ["lr"], "row: train: a list of `key: value` expected"),
        (("kind",), "pictures", "kind pictures; known: "),
        (("schema",), 3, "schema 3, and this version reads up to 2"),
        (("tests",), {"valid": SUMMARY | {"test_nll": [NAN, 1.0]}}, "tests: valid: test_nll: 0: a number"),
        (("tests",), {"newstest": {"metrics": {}}}, "tests: newstest: no `language`"),
        (("heads",), [1], "heads: a list of `key: value` expected, not [1]"),
        (("heads",), {"encoder:1": 3}, "heads: encoder:1: a list of `key: value` expected, not 3"),
        (("heads",), {"encoder:1": {"cosine": 0.1}}, "heads: encoder:1: no width"),
        (("heads",), {"encoder:1": HEAD | {"cosine": NAN}}, "heads: encoder:1: cosine: a number expected, not NaN"),
    ],
)
def test_a_damaged_summary_names_the_file_and_the_figure(keys, value, words, tmp_path):
    path = tmp_path / "first-seed1.json"
    path.write_text(json.dumps(SUMMARY))
    assert read_summary(path, "save it again") == SUMMARY
    change(path, value, *keys)
    said = rf"^{path}: not a summary of a run \(.*{re.escape(words)}.*; save it again$"
    refused(said, read_summary, path, "save it again")


@pytest.mark.parametrize("part", [{"classes": [1], "hits": ""}, {"classes": [1, 1], "hits": "1"}])
def test_a_summary_of_classification_has_an_answer_for_each_example(part, tmp_path):
    path = tmp_path / "first-seed1.json"
    path.write_text(json.dumps(SUMMARY | {"kind": "classification", "accuracy": {"all": part}}))
    refused(r"not a summary of a run \(accuracy: all: ", read_summary, path, "save it again")


@pytest.mark.parametrize("part", ["", "RTE-m accuracy", "RTE f1", "MNLI-m accuracy"])
def test_a_summary_of_glue_has_the_figures_of_its_task(part, tmp_path):
    """Not none, of no dev set, of another metric, or of one dev set of two."""
    path = tmp_path / "first-seed1.json"
    shared = {key: value for key, value in SUMMARY.items() if key not in ("metrics", "test_nll", "bleu_counts")}
    glue = {part.split()[0]: {"metrics": {part.split()[1]: 60.0}, "examples": 5}} if part else {}
    shared |= {"kind": "glue", "glue": {"RTE": {"metrics": {"accuracy": 60.0}, "examples": 5}}}
    path.write_text(json.dumps(shared))
    assert read_summary(path, "")["glue"]
    path.write_text(json.dumps(shared | {"glue": glue}))
    refused(r"not a summary of a run \(glue\); save it again", read_summary, path, "save it again")


RESULTS = Path(__file__).parents[2] / "results"
NLU = RESULTS / "nlu-small"


@pytest.mark.parametrize("chosen", ["evolving", "evolving-pretraining,plain-pretraining"])
def test_rows_of_glue_have_the_figures_that_they_have_in_the_whole_table(chosen, output_of):
    """Also those of pre-training, which the table has, too."""

    def shown(*flags):
        content = json.loads(output_of("report", "nlu-small", "--results", NLU, "--format", "json", *flags))
        return [*content["rows"], *content.get("pretraining", [])]

    every = shown()
    found = shown("--rows", chosen)
    assert found and all(line in every for line in found if "delta" in line) and any("delta" in line for line in found)


def test_finished_rows_of_glue_without_their_baseline_are_shown(tmp_path, output_of):
    folder = shutil.copytree(NLU, tmp_path / "nlu")
    for path in folder.glob("plain-data*RTE*"):
        path.unlink()
    asked = ["report", "nlu-small", "--results", str(folder), "--finished", "--format", "json"]
    lines = [line for line in json.loads(output_of(*asked))["rows"] if line["figure"] == "RTE accuracy"]
    assert len(lines) == 2 and not any("delta" in line for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        *("comparison/main/em", "multi30k/lpea-rhe", "li2021-figure4/both"),
        *("nlu-small/evolving-data=glue-RTE@nlu_small", "nlu-small/plain-pretraining"),
    ],
)
def test_a_summary_of_an_earlier_version_is_converted(name, tmp_path):
    """Without a schema, its command lines say what its row was."""
    new = json.loads((RESULTS / f"{name}-seed1.json").read_text())
    old = {key: value for key, value in new.items() if key not in ("schema", "kind", "row")}
    old |= {key: new["row"][key] for key in ("average", "pretrained") if key in new["row"]}
    old |= {"pretraining": {}} if new["kind"] == "pretraining" else {}
    old["commands"] = [f"OMP_NUM_THREADS=1 python -m {a}" if n == 0 else a for n, a in enumerate(old["commands"])]
    (tmp_path / "summary.json").write_text(json.dumps(old))
    assert read_summary(tmp_path / "summary.json", "") == new


def test_a_summary_from_before_machines_were_recorded_is_read(tmp_path):
    path = tmp_path / "first-seed1.json"
    path.write_text(json.dumps({key: value for key, value in SUMMARY.items() if key not in ("machine", "starts")}))
    assert "machine" not in read_summary(path, "")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("hh", "hhx", "row second: seeds 1, 2 and seed 3 were run on different data"),
        ("hx", "h", "row first: seed 1 and seed 2 were run on different data"),
        ("hx", "", "row first: seed 1 and seed 2 were run on different data"),
        ("hh", "x", r"rows second \(seed 1\) and first \(seeds 1, 2\) were run on different data; choose another"),
        ("h", "h-", "test examples they have: second seed 1 2, second seed 2 1, first seed 1 2;"),
    ],
)
def test_seeds_of_other_data_or_fewer_sentences_are_named(first, second, words, rows):
    def runs(digests):
        short = {"data_hash": "h", "test_nll": [1.0], "bleu_counts": SUMMARY["bleu_counts"][:1]}
        changes = (short if digest == "-" else {"data_hash": digest} for digest in digests)
        return [SUMMARY | {"seed": seed} | change for seed, change in enumerate(changes, 1)]

    def compare(first, second):
        comparable(runs_of(rows, {"first": runs(first), "second": runs(second)}), kind_of(rows[0]).measures(rows))

    refused(words, compare, first, second)
    compare("h" * len(first), "h" * len(second))


def started(commit="c", **machine):
    return START | {"commit": commit, "machine": START["machine"] | machine}


def test_every_start_that_differs_is_kept():
    one, other = started(capability="AVX512"), started(capability="AVX2")
    assert starts({"starts": [one, other, one, one]}) == one | {"starts": [one, other]}
    assert starts({"starts": [one, one]}) == one and starts({}) == {}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"capability": "AVX512"}, "different machines"),
        ({"cpu": "Xeon"}, "different machines"),
        ({"threads": 2, "variables": {"OMP_NUM_THREADS": "2"}}, "different machines"),
        *(({"variables": more}, "different settings of one machine") for more in (ALLOCATION, AVX2)),
        ({"variables": {"GLIBC_TUNABLES": "x"}}, "different settings of one machine"),
        ({"variables": {"MKL_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"}}, ""),
    ],
)
def test_speeds_of_other_settings_and_of_resumed_runs_are_not_compared(second, reason):
    """Whether two seeds or the two starts of one differ."""
    starts_of_one = [started(), started("d" * 40, **second)]
    runs = [SUMMARY | start | {"seed": seed, "starts": []} for seed, start in enumerate(starts_of_one)]
    resumed = SUMMARY | starts({"starts": starts_of_one})
    assert no_speed(runs) == no_speed([resumed]) == reason
    places = machines([resumed])
    assert list(places) == list(machines(runs)) and len(places) == (2 if reason else 1)
    assert commits_of([resumed]) == commits_of(runs) == ["c", "d" * 10]
    (note,) = machines_note([Line(row=SimpleNamespace(name="first"), seeds=1, runs=[resumed])])
    same = "ran on: EPYC, 2 cores, 1 thread, AVX2"
    assert note.startswith("runs of different machines or settings" if reason else same)


def test_settings_are_shown_in_words():
    variables = ALLOCATION | AVX2 | {"OMP_NUM_THREADS": "1", "OMP_PLACES": "cores"}
    expected = "EPYC, 2 cores, 1 thread, AVX2, keeps freed memory, --same-arithmetic, OMP_PLACES=cores"
    assert machine(started(variables=variables)) == expected
    assert machine(started()) == "EPYC, 2 cores, 1 thread, AVX2"
    assert machine(started(variables=ALLOCATION | {"MALLOC_TOP_PAD_": "1"})).count("MALLOC_") == 3


@pytest.mark.parametrize(
    ("found", "warned"),
    [
        ([started(variables=AVX2)], False), ([started(variables=AVX2), started()], True),
        ([started(variables=AVX2, threads=2)], True), ([started()], True), ([{}], True)
    ],
)  # fmt: skip
def test_runs_of_other_arithmetic_are_named(found, warned, monkeypatch):
    monkeypatch.setattr(schedule, "outcome", lambda run: "BLEU 1")
    monkeypatch.setattr(schedule, "execute", lambda run, environment: iter(()))
    monkeypatch.setattr(schedule, "stage", lambda run: "new")
    monkeypatch.setattr(schedule, "summary_of", lambda run: found[-1] | {"starts": found})
    monkeypatch.setattr(schedule, "read_state", lambda run: {"starts": found})
    run = SimpleNamespace(name="first", directory="a")
    for finished, words in ((True, "NOT with --same-arithmetic"), (False, "training began without --same-arithmetic")):
        monkeypatch.setattr(schedule, "is_finished", lambda run, finished=finished: finished)
        for environment, expected in ((AVX2, warned), ({}, False)):
            said = []
            list(schedule.start(run, environment, said.append))
            assert (words in said[0]) == expected


def results(folder, table_name, scores):
    """Saved summaries of rows by name, one NLL a seed."""
    folder.mkdir()
    rows = {"first": ROW, "second": trained_with(dropout="0.3", fp16=True)}
    for name, values in scores.items():
        row = rows.get(name, trained_with(dropout="0.4"))
        for seed, nll in enumerate(values, 1):
            content = SUMMARY | {"system": name, "data": "multi30k_en_de", "seed": seed, "row": row}
            content |= {"starts": [], "test_nll": [nll, nll + 1]}
            (folder / f"{name}-seed{seed}.json").write_text(json.dumps(content))
    return ["report", table_name, "--results", str(folder), "--format", "json"]


NLL = {"first": [5.0, 5.2], "second": [4.8, 4.7], "third": [4.9, 5.5]}
THIRD = ("  second:", "  third: {dropout: 0.4}\n  second:")


def reported(capsys, asked, *flags):
    assert main([*asked, *flags]) == 0
    content = json.loads(capsys.readouterr().out)
    return {line["row"]: line for line in content["rows"]}, content["notes"]


@pytest.mark.parametrize("flags", [[], ["--finished"], ["--baseline", "first"], ["--best"]], ids=str)
def test_rows_that_are_not_shown_are_tested_together_with_those_that_are(flags, table, tmp_path, capsys):
    asked = results(tmp_path / "results", table(THIRD), NLL)
    every, notes = reported(capsys, asked, *flags)
    assert any("(2 rows)" in note for note in notes) and every["second"]["nll_seed_rows"] == 2
    found, notes = reported(capsys, asked, *flags, "--rows", "second")
    assert list(found) == ["first", "second"] and any("(2 rows, 1 of them shown)" in note for note in notes)
    for key in ("nll_seed_p", "nll_seed_interval", "nll_smallest"):
        assert found["second"][key] == pytest.approx(every["second"][key])
    for path in (tmp_path / "results").glob("third*"):
        path.unlink()
    alone, notes = reported(capsys, asked, *flags, "--rows", "second")
    assert any("(1 row)" in note for note in notes)
    assert alone["second"]["nll_seed_p"] != found["second"]["nll_seed_p"]


@pytest.mark.parametrize(
    "change",
    [{"data_hash": "x"}, {"row": trained_with(lr="7")}, {"test_nll": [4.9], "bleu_counts": SUMMARY["bleu_counts"][:1]}],
    ids=str,
)
def test_rows_that_are_not_shown_and_cannot_be_compared_are_left_out(change, table, tmp_path, capsys):
    asked = results(tmp_path / "results", table(THIRD), NLL)
    for path in (tmp_path / "results").glob("third*"):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found, notes = reported(capsys, asked, "--rows", "second")
    assert found["second"]["nll_seed_rows"] == 1 and any("(1 row)" in note for note in notes)
    assert main(asked) == 2 and "third" in capsys.readouterr().err


def test_saved_copies_are_of_the_rows_that_are_shown(table, tmp_path, capsys):
    asked = results(tmp_path / "results", table(THIRD), NLL)
    found, _ = reported(capsys, asked, "--rows", "second,first", "--save", str(tmp_path / "copies"))
    assert list(found) == ["second", "first"]
    assert {path.name.partition("-")[0] for path in (tmp_path / "copies").iterdir()} == {"first", "second"}


def test_copies_of_other_settings_or_data_are_not_replaced(table, tmp_path, capsys):
    asked = results(tmp_path / "results", table(), {row: NLL[row] for row in ("first", "second")})
    save = ["--save", str(tmp_path / "copies")]
    reported(capsys, asked, *save)
    before = {path.name: path.read_text() for path in (tmp_path / "copies").iterdir()}
    path = tmp_path / "copies/second-seed1.json"
    for change, problem in (
        ({"row": trained_with(lr="7")}, "second-seed1.json: it was trained with --lr 7, not --lr 0.005"),
        ({"data_hash": "x"}, "second-seed1.json: its data are others of this name; "),
    ):
        path.write_text(json.dumps(json.loads(before[path.name]) | change))
        kept = path.read_text()
        assert main([*asked, *save]) == 2 and path.read_text() == kept
        said = capsys.readouterr().err
        assert problem in said and "save to another folder, or delete this file" in said
    for text in (before[path.name], "damaged"):
        path.write_text(text)
        (tmp_path / "copies/notes.json").write_text("[]")  # of the user
        reported(capsys, asked, *save)
        assert path.read_text() == before[path.name]


def finish(run):
    run.directory.mkdir(parents=True)
    (run.directory / "summary.json").write_text(json.dumps(SUMMARY | {"seed": run.seed}))
    return run.directory


def test_copies_of_folders_are_no_seeds(prepared, rows):
    for folder in [finish(run) for run in find_runs(rows, [1, 2], cpu=True)]:
        for name in (f"{folder.name}-old", f"{folder.name}.bak"):
            shutil.copytree(folder, folder.with_name(name))
    assert {row: [s["seed"] for s in f] for row, f in from_runs(rows).items()} == {"first": [1, 2], "second": [1, 2]}
    shutil.copytree(folder, folder.with_name("seed7"))
    refused("seed7: is a copy of the run of seed 2; delete or rename it", from_runs, rows)


def test_a_report_finds_the_runs_with_the_batch_of_the_paper(prepared, table, capsys):
    name = table(("rows:", "gpus: 4\nrows:"))
    rows = [row.with_batch_of_paper(2) for row in load_table(name).rows.values()]
    for run in find_runs(rows, [1], cpu=True):
        finish(run)
    asked = ["report", name, "--format", "json", "--gpus-of-paper"]
    for gpus, seeds in ("2", {1}), ("4", {0}):
        found, _ = reported(capsys, [*asked, gpus])
        assert {line["seeds"] for line in found.values()} == seeds


def test_equal_runs_in_several_folders_are_all_found(prepared, rows, table):
    """Of two processes that began before either had a folder; and equal rows of one table share one."""
    (row, _), renamed = rows, load_table(table(("first:", "other:"))).rows["other"]
    one, two = find_runs([row], [1], cpu=True), find_runs([renamed], [2, 3], cpu=True)
    folders = [finish(run) for run in (*one, *two)]
    assert len({folder.parent for folder in folders}) == 2
    for each in (row, renamed):
        assert [s["seed"] for s in from_runs([each])[each.name]] == [1, 2, 3]
        assert [run.directory for run in find_runs([each], [1, 2, 3], cpu=True)] == folders
    twice = finish(replace(two[0], directory=one[0].directory.with_name("seed2")))
    (found,) = find_runs([row], [2], cpu=True)
    assert found.directory == folders_by_seed(found)[2] == twice
    more = load_table(table(("first:", "first: {lr: 7}\n  third: {lr: 7}"))).rows
    assert len({run.directory for run in find_runs([more["first"], more["third"]], [1], cpu=True)}) == 1


def test_a_baseline_with_a_baseline_that_is_not_shown_is_compared_with_nothing(table, tmp_path, capsys):
    chain = ("  second: {", "  third: {dropout: 0.4, baseline: second}\n  second: {")
    found, _ = reported(capsys, results(tmp_path / "results", table(chain), NLL), "--rows", "third")
    assert found["third"]["baseline"] == "second" and list(found) == ["second", "third"]
    assert "nll_delta" not in found["second"]


def test_the_verdict_says_how_many_rows_are_tested_together(table, tmp_path, capsys, output_of):
    asked = results(tmp_path / "results", table(THIRD), NLL)[:-2]
    assert main([*asked, "--verdict", "--rows", "second"]) == 0
    assert "all rows of a baseline at once (2 rows, 1 of them shown)" in capsys.readouterr().out
    for path in (tmp_path / "results").glob("*-seed2.json"):
        path.unlink()
    assert "all rows of a baseline at once\n" in output_of(*asked, "--verdict")


def test_rows_that_are_not_shown_and_cannot_be_run_do_not_stop_a_report_of_runs(table, tmp_path, capsys):
    name = table(("  second:", "  third: {data: nowhere}\n  fourth: {dropout: 0.4}\n  second:"))
    for row, values in {"first": NLL["first"], "second": NLL["second"], "fourth": NLL["third"]}.items():
        for seed, nll in enumerate(values, 1):
            folder = tmp_path / f"runs/multi30k_en_de-size-{row}-unprepared/seed{seed}"
            folder.mkdir(parents=True)
            content = SUMMARY | {"seed": seed, "test_nll": [nll, nll + 1]}
            (folder / "summary.json").write_text(json.dumps(content))
    asked = ["report", name, "--runs", str(tmp_path / "runs"), "--format", "json"]
    found, _ = reported(capsys, asked, "--rows", "second")
    assert found["second"]["nll_seed_rows"] == 2 and found["second"]["seeds"] == 2
    assert [found[row]["nll"] for row in ("first", "second")] == [pytest.approx(5.6), pytest.approx(5.25)]
    assert main(asked) == 2 and "nowhere" in capsys.readouterr().err


def test_neural_metrics_are_compared_as_bleu(table, tmp_path, capsys, output_of):
    """Over seeds and over sentences, with four digits and their signatures; not where a run lacks them."""
    name = table(("rows:", "metrics: {comet: a/model, meteor: }\nrows:"))
    key = "comet:a/model"
    assert load_table(name).rows["first"].metrics == (key, "meteor")
    asked = results(tmp_path / "results", name, {row: NLL[row] for row in ("first", "second")})
    scores = {"first": 0.8, "second": 0.9}
    paths = sorted((tmp_path / "results").iterdir())
    for path in paths:
        content = json.loads(path.read_text())
        values = [round(scores[content["system"]] + 0.01 * content["seed"] + step, 4) for step in (-0.05, 0.05)]
        content["sentence_scores"] = {key: values}
        content["metrics"] |= {key: round(sum(values) / 2, 4), "meteor": 30.0}
        signatures = {key: "comet-score|model:a/model|version:2.2.6", "meteor": "METEOR 1.5|language:de"}
        content["metrics"]["signatures"] |= signatures
        path.write_text(json.dumps(content))
    lines, notes = reported(capsys, asked)
    first, second = lines["first"], lines["second"]
    assert second[f"{key}_delta"] == pytest.approx(second[key] - first[key]) and second[f"{key}_seed_p"] < 0.05
    assert second[f"{key}_p"] < 0.05 and first["signatures"][key] == [signatures[key]]
    assert f"COMET (model): {signatures[key]}" in notes and f"METEOR: {signatures['meteor']}" in notes
    header, _, row = output_of(*asked[:-2], "--format", "markdown").splitlines()[2:5]
    assert header.startswith("| row | BLEU | Δ BLEU | COMET (model) | Δ COMET (model) | NLL | Δ NLL | METEOR |")
    assert f"| {first[key]:.4f} ± {first[f'{key}_deviation']:.4f} |" in row
    content = json.loads(paths[0].read_text())
    del content["metrics"][key], content["sentence_scores"]
    paths[0].write_text(json.dumps(content | {"missing": {key: "comet-score is missing"}}))
    lines, notes = reported(capsys, asked)
    assert f"{key}_delta" not in lines["second"] and "nll_delta" in lines["second"]
    assert any(note.startswith(f"not measured: {key} (comet-score is missing)") for note in notes)
    asked[1] = table(("rows:", "metrics: {bleu: a/model}\nrows:"))
    assert main(asked) == 2 and "metrics bleu:a/model: takes no model; comet and metricx do" in capsys.readouterr().err


def test_a_metric_that_is_missing_is_named_with_its_reason(table, tmp_path, capsys):
    name = table(("rows:", "metrics: meteor, comet\nrows:"))
    asked = results(tmp_path / "results", name, {row: NLL[row] for row in ("first", "second")})
    for path in (tmp_path / "results").iterdir():
        content = json.loads(path.read_text()) | {"missing": {"comet": "is missing", "cider": "no one asked"}}
        content["metrics"]["meteor"] = 30.0
        path.write_text(json.dumps(content))
    lines, notes = reported(capsys, asked)
    assert "not measured: comet (is missing)" in notes and lines["first"]["metrics"] == {"meteor": 30}
    content["metrics"] |= {"comet": 80.0}  # measured since
    path.write_text(json.dumps(content))
    _, notes = reported(capsys, asked)
    other = "second" if content["system"] == "first" else "first"
    seed = 3 - content["seed"]
    (note,) = (note for note in notes if note.startswith("not measured"))
    assert f"{content['system']} seed {seed}" in note and other in note
    text = results(tmp_path / "whole", name, {"first": [5.0]})
    assert not any(note.startswith("not measured") for note in reported(capsys, text)[1])
