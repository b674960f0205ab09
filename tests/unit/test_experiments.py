"""Tables, logs, locks and schedule of experiments, without training anything."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from fairseq_diverse import __version__, register
from fairseq_diverse.cli import main
from fairseq_diverse.cli.run import parse_seeds
from fairseq_diverse.experiments import logs
from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.inputs import GENERATE, TRAIN, parsers_of_trees, read_by
from fairseq_diverse.experiments.kinds import translation
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.kinds.translation import chosen_penalty, is_of_test
from fairseq_diverse.experiments.kinds.translation import test_digests as digests_of
from fairseq_diverse.experiments.run import DataSet, Run, Tracking
from fairseq_diverse.experiments.runs import environment, execution, provenance, saved, schedule
from fairseq_diverse.experiments.runs.check import lacking_trees
from fairseq_diverse.experiments.runs.execution import Progress, RunFailed, repair_last_checkpoint
from fairseq_diverse.experiments.runs.find import find_data, find_runs, joined
from fairseq_diverse.experiments.runs.folder import is_finished, read_state, stage, summary_of, valid_state, write_state
from fairseq_diverse.experiments.runs.plan import lines_of, steps_of, variables
from fairseq_diverse.experiments.tables.load import load_table, select_rows
from fairseq_diverse.preparation import DataConfig
from fairseq_diverse.reports.selection import best_of_grids
from fairseq_diverse.support.paths import config_path
from fairseq_diverse.support.processes import Busy
from fairseq_diverse.support.slurm import _minutes, _value
from tests.refusals import refused
from tests.unit.conftest import RECORD, SIZE
from tests.unit.test_records import SUMMARY

SPAWN = execution._spawn  # before a fixture replaces it


def test_a_grid_makes_one_row_per_combination(table):
    grid = ("rows:", "grid: {lr: [1.0e-4, 0.2], arch: [a, b]}\nrows:")
    rows = load_table(table(grid)).rows
    points = [f"-lr={lr}-arch={arch}" for lr in (0.0001, 0.2) for arch in "ab"]
    assert list(rows) == [name + point for name in ("first", "second") for point in points]
    row = rows["second-lr=0.2-arch=a"]
    assert (row.train["lr"], row.train["arch"], row.train["dropout"]) == ("0.2", "a", "0.3")
    assert (row.family, row.baseline, row.published) == ("second", "first-lr=0.2-arch=a", {"bleu": 27.3})
    assert load_table(table()).rows["second"].family == "second"
    rows = load_table(table(("rows:", "grid: {finetune-from-model: [/a/b.pt, /a/c.pt]}\nrows:"))).rows
    assert list(rows)[:2] == ["first-finetune-from-model=_a_b.pt", "first-finetune-from-model=_a_c.pt"]
    assert rows["second-finetune-from-model=_a_c.pt"].train["finetune-from-model"] == "/a/c.pt"


def test_a_row_has_a_grid_of_its_own_and_is_compared_with_one_without(table):
    made = load_table(table(("  second: {", "  second: {grid: {lr: [1, 2]}, ")))
    assert [(row.name, row.baseline) for row in made.rows.values()] == [
        ("first", "first"), ("second-lr=1", "first"), ("second-lr=2", "first")
    ]  # fmt: skip
    assert "grid" not in made.rows["second-lr=2"].train and made.rows["second-lr=2"].train["lr"] == "2"
    assert [row.name for row in select_rows(made, "second,second-lr=1")] == ["second-lr=1", "second-lr=2"]
    rows = load_table(table(("rows:", "grid: {lr: [1, 2]}\nrows:"), ("  first:", "  first: {grid: {}}"))).rows
    assert [row.baseline for row in rows.values()] == ["first"] * 3
    with pytest.raises(ValueError, match="row first: baseline second is not a row; rows: first, second-lr=1"):
        load_table(table(("  second: {", "  second: {grid: {lr: [1]}, "), ("  first:", "  first: {baseline: second}")))


def test_what_is_set_for_every_row_is_not_in_the_names_of_a_grid(table):
    """A name never says another value than that which is trained."""
    file = table(("rows:", "grid: {lr: [1, 2], data: [a, b]}\nrows:"))
    made = load_table(file, settings=["lr=5"])
    assert list(made.rows) == [f"{name}-data={data}" for name in ("first", "second") for data in "ab"]
    assert {row.train["lr"] for row in made.rows.values()} == {"5"} and made.changed == ("--set lr=5",)
    made = load_table(file, data="c", size="tiny")
    assert list(made.rows) == [f"{name}-lr={lr}" for name in ("first", "second") for lr in (1, 2)]
    assert made.changed == ("--data c", "--size tiny")
    of_trees = ("{dropout: 0.3,", "{task: translation_with_syntax,")
    parsers = table(("rows:", "grid: {parser: [spacy, stanza]}\nrows:"), of_trees)
    (row,) = [row for row in load_table(parsers, settings=["parser=stanza"]).rows.values() if row.parser]
    assert row.name == "second" and {*row.parser.values()} == {"stanza"}


def test_equal_rows_are_one_and_scored_as_all_of_them_ask_for(table):
    zero = ("  first:", "  zero: {metrics: ter, tests: [test]}\n  first:")
    file = table(("rows:", "metrics: wer\ntests: [valid]\nrows:"), zero)
    rows = load_table(file, data="other").rows
    assert "first" not in rows and rows["zero"].baseline == "zero"
    assert set(rows["zero"].metrics) == {"wer", "ter"} and rows["zero"].tests == ("test", "valid")
    added = "rows:\n  third: {data: wmt14_en_de, baseline: third}\n  fourth: {dropout: 0.5, baseline: third}\n"
    name = table(("rows:\n", added))
    assert list(load_table(name).rows) == ["third", "fourth", "first", "second"]
    rows = load_table(name, data="toy").rows
    assert {row.name: row.baseline for row in rows.values()} == dict.fromkeys(("third", "fourth", "second"), "third")
    name = table(("rows:\n", "rows:\n  third: {data: wmt14_en_de}\n"), ("second: {", "second: {baseline: first, "))
    assert load_table(name, data="toy").rows["second"].baseline == "third"


def test_equal_rows_of_a_table_are_one_run_scored_as_both_ask_for(table, prepared):
    rows = load_table(table(("  first:", "  zero: {metrics: ter}\n  first: {metrics: wer, heads: true}"))).rows
    (run,) = joined(find_runs([rows["zero"], rows["first"]], [1], cpu=True), Tracking())
    assert run.row.name == "first" and {*run.row.metrics} == {"ter", "wer"} and run.row.heads


def test_rows_that_start_from_other_checkpoints_are_not_equal(table):
    tuned = ("first: {task: sentence_prediction, pretrained: a.pt}", "second: {task: sentence_prediction, pretrained: ")
    of_file = "second: {dropout: 0.3, fp16: true, share-all-embeddings: false, published: {bleu: 27.3}}"
    for other, names in (("b.pt}", ["first", "second"]), ("a.pt}", ["first"])):
        file = table((of_file, tuned[1] + other), ("first:", tuned[0]))
        assert list(load_table(file, data="glue-CoLA").rows) == names


def test_a_grid_shows_the_point_with_the_lowest_validation_loss(table):
    rows = list(load_table(table(("rows:", "grid: {lr: [1, 2, 3]}\nrows:"))).rows.values())
    losses = {"first-lr=2": [3.0], "first-lr=3": [2.0, 5.0], "second-lr=1": [1.0], "second-lr=3": [0.5]}
    last = {name: [{"valid_nll": {"best": 1 / x, "last": x}} for x in values] for name, values in losses.items()}
    summaries = {row.name: last.get(row.name, []) for row in rows}
    best = best_of_grids(rows, summaries)
    assert [(row.name, row.baseline) for row in best] == [("first-lr=2", "first-lr=2"), ("second-lr=3", "first-lr=2")]
    nothing = best_of_grids(rows, {row.name: [] for row in rows})
    assert [row.name for row in nothing] == ["first-lr=1", "second-lr=1"]


def test_rows_are_size_then_table_then_row_then_settings(table):
    rows = load_table(table(), settings=["lr=0.001", "generate.beam=4", "average.last=3", "average.every=5"]).rows
    assert rows["first"].train == {"arch": "transformer", "max-update": "30", "lr": "0.001", "dropout": "0.2"}
    assert rows["second"].train["dropout"] == "0.3" and rows["second"].train["fp16"] is True
    assert "share-all-embeddings" not in rows["second"].train
    assert rows["second"].generate == {"beam": "4"} and rows["second"].average == {"last": 3, "every": 5}
    assert rows["second"].published == {"bleu": 27.3} and rows["second"].baseline == "first"
    assert load_table(table(), settings=["dropout=0.5"]).rows["second"].train["dropout"] == "0.5"
    assert to_arguments({"arch": "transformer", "fp16": True}) == ["--arch", "transformer", "--fp16"]
    rows = load_table(table(("first:", "first: &first {lr: 1}\n  third: {<<: *first, dropout: 0.4}"))).rows  # YAML's
    assert rows["third"].train["lr"] == "1" and rows["third"].train["dropout"] == "0.4"
    made, of_table = load_table(table(), settings=["lr=5e-4"]), load_table(table(("second: {", "second: {lr: 5e-4, ")))
    assert made.rows["second"].train == of_table.rows["second"].train  # else the same run would be trained twice


def test_a_list_of_length_penalties_is_tried_on_the_validation_split(table, tmp_path):
    several = ("rows:", "generate: {lenpen: [0.6, 1.0, 1.4]}\nrows:")
    row = load_table(table(several)).rows["first"]
    assert row.lenpen == ("0.6", "1", "1.4") and row.generate == {"beam": "5"}
    assert row.key("h") != load_table(table()).rows["first"].key("h")
    assert load_table(table(several), settings=["generate.lenpen=2"]).rows["first"].lenpen == ()
    run = Run(row, 1, DataSet("d", tmp_path, "en", "de", "h"), True, tmp_path)
    assert chosen_penalty(row, {}) is None and lines_of(run, {}, {})["generate"].endswith('highest BLEU above}"')
    steps = {"lenpen-0.6": {"bleu": 30.0}, "lenpen-1": {"bleu": 31.0}}
    for last, chosen in ((30.9, "1.0"), (31.0, "1.0"), (31.1, "1.4")):
        state = steps | {"lenpen-1.4": {"bleu": last}}
        assert chosen_penalty(row, state) == {"lenpen": float(chosen), "valid_bleu": {"0.6": 30, "1": 31, "1.4": last}}
        commands = steps_of(run, state)
        assert commands["lenpen-0.6"][-2:] == ["--lenpen", "0.6"] and "valid" in commands["lenpen-0.6"]
        assert commands["generate"][-2:] == ["--lenpen", chosen] and "--lenpen" not in commands["reference"]
        assert "LENPEN" not in "".join(lines_of(run, state, {}).values())
    (tmp_path / "state.json").write_text(json.dumps(steps | {"lenpen-1": {}}))
    refused(r"state.json: damaged \(lenpen-1\)", read_state, run)


def test_references_are_scored_by_the_model_that_translates(table, tmp_path):
    overrides = "{'decoder_layers_to_keep': '0', 'encoder_layers_to_keep': '0,2'}"
    row = load_table(table(), settings=[f'generate.model-overrides="{overrides}"', "generate.beam=4"]).rows["second"]
    commands = steps_of(Run(row, 1, DataSet("d", tmp_path, "en", "de", "h"), True, tmp_path), {})
    for step in ("generate", "reference"):
        assert commands[step][commands[step].index("--model-overrides") + 1] == overrides
    assert "--beam" not in commands["reference"]


def test_further_test_sets(table, prepared, capsys):
    path = prepared / "preprocess.json"
    path.write_text(json.dumps(RECORD | {"tests": {"one": "1", "two": "2"}}))
    without = load_table(table()).rows["second"]
    name = table(("rows:", "tests: [valid, one, two]\nrows:"), ("first:", "first: {tests: [test], lr: 1}"))
    first, second = load_table(name).rows.values()
    assert second.key("h") == without.key("h")
    plain, several = find_runs([first, second], [1])
    assert list(steps_of(plain, {})) == ["train", "generate", "reference"]
    assert several.further == {"valid": "valid", "two": "test1"}
    commands = steps_of(several, {})
    assert list(commands)[3:] == ["generate-valid", "reference-valid", "generate-two", "reference-two"]
    assert commands["generate-two"] == [word if word != "test" else "test1" for word in commands["generate"]]
    several.directory.mkdir(parents=True)
    two = [{}, {"valid": {}, "two": {"data_hash": "2"}}, {"valid": {}, "two": {"data_hash": "of another text"}}]
    for tests, finished in zip(two, (False, True, False), strict=True):
        tests = {name: SUMMARY | {"data_hash": None} | part for name, part in tests.items()}
        (several.directory / "summary.json").write_text(json.dumps(SUMMARY | {"tests": tests}))
        assert is_finished(several) == finished
    state = {"generate-valid": {}, "generate-two": {"data_hash": "2"}, "reference-two": {"data_hash": "3"}}
    (several.directory / "state.json").write_text(json.dumps(state))
    assert list(valid_state(several)) == ["generate-valid", "generate-two"]
    trees = replace(several, row=replace(second, train={**second.train, "task": "translation_with_syntax"}))
    for content, made in (("a", ""), ("b", digests_of(trees, "two")["trees"])):  # older runs kept no digest of trees
        (prepared / "test1.en-de.en.syntax.json").write_text(content)
        now = digests_of(trees, "two")
        assert now["trees"] != made and now["data_hash"] == "2" and is_of_test(trees, "two", now)
        assert is_of_test(trees, "two", {"data_hash": "2"}) and not is_of_test(trees, "two", now | {"trees": made})
    path.write_text(json.dumps(RECORD))
    refused(r"row second: tests: data set multi30k_en_de has no one, two; known: valid,", find_runs, [second], [1])
    elsewhere = load_table(name, data=str(prepared)).rows["second"]
    assert find_runs([elsewhere], [1])[0].further == {"valid": "valid"}
    asked = ["run", name, "--rows", "second", "--data", str(prepared), "--dry-run"]
    assert main(asked) == 0
    assert capsys.readouterr().err == "tests: data set multi30k_en_de has no one, two: left out\n"
    refused("row first: tests: not for rows of kind classificat", load_table, name, settings=["task=logical_inference"])
    path.write_text(json.dumps(RECORD | {"tests": {"../x": ""}}))
    refused(r"preprocess.json: damaged \(tests\)", find_runs, [second], [1])


def test_a_test_set_that_was_exchanged_is_scored_again(table, prepared, monkeypatch):
    (prepared / "preprocess.json").write_text(json.dumps(RECORD | {"tests": {"one": "1", "two": "2"}}))
    (run, _) = find_runs(load_table(table(("rows:", "tests: [valid, two]\nrows:"))).rows.values(), [1], cpu=True)
    monkeypatch.setattr(translation, "_scored", lambda run, test: {"metrics": {}, "scored": test})
    tests = {"valid": {"metrics": {}}, "two": {"metrics": {}, "data_hash": "of another text"}}
    tests = kind_of(run.row).complete(run, {"metrics": {}, "tests": tests})["tests"]
    assert tests == {"valid": {"metrics": {}}, "two": {"metrics": {}, "scored": "two", "data_hash": "2"}}


def test_a_key_depends_only_on_the_training(table):
    row = load_table(table()).rows["second"]
    other_order = load_table(table(("{dropout: 0.3, fp16: true,", "{fp16: true, dropout: 0.3,"))).rows["second"]
    renamed = load_table(table(("second:", "another:"), ("27.3", "20.0"))).rows["another"]
    whole_number = load_table(table(), settings=["lr=-1.0", "clip-norm=-.5"]).rows["second"]
    assert whole_number.train["lr"] == "-1"
    assert row.key("hash") == other_order.key("hash") == renamed.key("hash")
    same = load_table(table(), settings=["lr=-1", "clip-norm=-.5"]).rows["second"]
    assert whole_number.key("hash") == same.key("hash")
    changed = [["dropout=0.4"], ["generate.beam=4"], ["average.last=2", "average.every=5"]]
    keys = {row.key("hash"), row.key("other hash")}
    keys |= {load_table(table(), settings=s).rows["second"].key("hash") for s in changed}
    assert len(keys) == 5


def test_other_trees_make_another_run_of_the_rows_that_read_them(table, prepared):
    rows = load_table(table(("{dropout: 0.3,", "{task: translation_with_syntax,"))).rows.values()
    directories = []
    for digest in ("one", "other"):
        (prepared / "train.en-de.en.syntax.json").write_text(digest)
        directories.append([run.directory for run in find_runs(rows, [1])])
    (plain, parsed), (plain_again, parsed_again) = directories
    assert plain == plain_again and parsed != parsed_again
    (prepared / "train.en-de.de.syntax.json").write_text("of the target")
    assert [run.directory for run in find_runs(rows, [1])] == directories[-1]
    for split in ("valid", "test"):
        (prepared / f"{split}.en-de.en.syntax.json").write_text("one")
        directories.append([run.directory for run in find_runs(rows, [1])])
    assert len({parsed for _, parsed in directories}) == 4 and {of_plain for of_plain, _ in directories} == {plain}


def test_the_other_direction_of_a_text_is_another_run(table, prepared, tmp_path):
    """Its hash is the same; of runs of earlier versions, which had no direction, those of data of this name are."""
    reverse = prepared.with_name("multi30k_de_en")
    reverse.mkdir()
    (reverse / "preprocess.json").write_text(json.dumps(RECORD | {"source": "de", "target": "en"}))
    tables = [load_table(table(), data=name).rows["second"] for name in ("multi30k_en_de", "multi30k_de_en")]
    (run,), (other,) = (find_runs([row], [1]) for row in tables)
    assert run.key != other.key
    for language, name in (("de", prepared.name), ("en", reverse.name)):
        folder = tmp_path / f"runs/{name}-size-before-{tables[0].key('h')}/seed1"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(SUMMARY | {"data": name, "language": language}))
    (run, other) = find_runs(tables, [1])
    assert run.key == other.key and run.directory.parent.name.startswith("multi30k_en_de-size-before-")
    assert other.directory == folder
    for row, name in zip(tables, (prepared.name, reverse.name), strict=True):
        assert [summary["data"] for summary in saved.from_runs([row])["second"]] == [name]


def test_trees_are_needed_of_every_split_that_a_run_reads(table, prepared):
    register()
    reads_trees = "{arch: diverse_transformer_tiny, task: translation_with_syntax, syntax: dependency,"
    rows = load_table(table(("{dropout: 0.3,", reads_trees))).rows
    runs = find_runs([rows["second"]], [1])
    for split in ("train", "valid", "test"):
        (lacking,) = lacking_trees(runs)
        assert lacking.startswith(f"row second: {prepared}: {split} has no dependency trees; ")
        (prepared / f"{split}.en-de.en.idx").touch()
        description = json.dumps({"kinds": ["dependency"], "lengths": 5})
        (prepared / f"{split}.en-de.en.syntax.json").write_text(description)
    assert not [*lacking_trees(runs)]


def test_a_row_that_names_its_parser_demands_trees_recorded_as_made_by_it(table, prepared, capsys):
    """Rows that name none, or those of ``parse``, keep their runs, whatever is recorded."""
    path = prepared / "test.en-de.en.syntax.json"
    trees = {"kinds": ["dependency", "constituency"], "sentences": 1, "lengths": 5, "unparsed": {}, "digest": "d"}

    def record(makers, of="syntax"):
        """By ``binarize-syntax``; with ``of`` "preprocess", by one of before; None: by none of before either."""
        made = {"parsers": {kind: {"parser": name} for kind, name in (makers or {}).items()}}
        (prepared / "preprocess.json").write_text(json.dumps(RECORD | (made if of == "preprocess" else {})))
        path.write_text(json.dumps(trees | (made if of == "syntax" and makers is not None else {})))

    def row(parser, **settings):
        reads_trees = ("{dropout: 0.3,", "{task: translation_with_syntax,")
        rows = load_table(table(reads_trees, ("rows:", f"parser: {parser}\nrows:")), **settings).rows
        assert not rows["first"].parser  # it reads no trees
        return rows["second"]

    def key(parser, **settings):
        (run,) = find_runs([row(parser, **settings)], [1])
        return run.directory.parent.name.rpartition("-")[2]

    own, pcfg = "dependency=spacy, constituency=benepar", "constituency=pcfg"
    todo = "fairseq-diverse binarize-syntax --data {} --dependency FILES --constituency FILES --parser {}"
    record(None)
    before = key("null")
    all_gold = "dependency=gold,constituency=gold"
    for parser, name, kind, makers in (("gold", "gold", "dependency", all_gold), (pcfg, "pcfg", "constituency", pcfg)):
        how = todo.format(prepared, makers)
        says = f"row second: {path}: does not say that {name} made its {kind} trees; if so: {how}"
        refused(f"^{re.escape(says)}$", key, parser)
    neural = {"dependency": "spacy", "constituency": "benepar"}
    record(neural, "preprocess")
    assert key(own) == before
    record(neural)
    (prepared / "test.en-de.de.syntax.json").write_text(json.dumps(trees))  # of the target
    assert key("null") == key(own) == key("gold", settings=["parser=null"]) == before
    says = f"{path}: benepar made its constituency trees, not pcfg; in a copy for --data: {todo.format('COPY', pcfg)}"
    refused(f"^row second: {re.escape(says)}$", key, pcfg)
    (run,) = find_runs([row(pcfg)], [1], dry=True)
    assert stage(run) == f"refused: {says}" and parsers_of_trees(run.row, run.data) == neural
    assert stage(replace(run, data=replace(run.data, hash=None))) == f"data {run.data.name} not prepared"
    run.directory.mkdir(parents=True)
    (run.directory / "summary.json").touch()
    assert saved.from_runs([run.row]) == {"second": []}  # of a run of before
    assert capsys.readouterr().err == f"row second is left out: {says}\n"
    record(neural | {"constituency": "pcfg"})
    assert key(pcfg) == key("gold", settings=[f"parser={pcfg}"]) != before == key("null")
    train, valid = (prepared / f"{split}.en-de.en.syntax.json" for split in ("train", "valid"))
    valid.write_text(path.read_text())
    train.write_text(path.read_text().replace("pcfg", "benepar"))
    refused(f"^row second: {train}: benepar made its constituency trees, not pcfg; in a", key, pcfg)
    for one in (path, train, valid):
        one.unlink()
    assert key(own)  # `parse` can still make them
    for name, todo in (("pcfg", "`run --prepare` makes"), ("berkeley", "once it is prepared: fairseq-diverse bin")):
        says = f"^row second: {prepared}: has no constituency trees by {name}; {todo}"
        refused(says, key, f"constituency={name}")


@pytest.mark.parametrize(
    ("replacement", "problem"),
    [
        (("flags:", "flag:"), "table.yaml: unknown key flag; known: flags, data, size"),
        (("fp16: true", "parser: a=b"), "table.yaml: parser: .a=b.: NAME or KIND=NAME expected"),
        (("fp16: true", "parser: [a, b]"), "row second: parser: text expected"),
        (("{bleu: 27.3}", "{blue: 27.3}"), "row second: published: unknown key blue; known: bleu"),
        (("first:", "first: 3"), "rows: first: a list of `key: value` expected, not 3"),
        (("data: multi30k_en_de", "title: x"), "row first has no `data`"),
        (("fp16: true", "fp16: [true]"), "fp16: one value expected"),
        (("fp16: true", "baseline: third"), "baseline third is not a row; rows: first, second"),
        (("fp16: true", "average: {last: 2}"), "average: .*allowed, with whole numbers above 0: none, {last: N, every"),
        (("fp16: true", "generate: {lenpen: [1, 1.0]}"), "row second: generate: lenpen: .1, 1.0.: a number or a list"),
        (("fp16: true", "generate: {lenpen: [a, 1]}"), "lenpen: .'a', 1.: a number or a list of different ones"),
        (("fp16: true", "generate: {beam: [1, 2]}"), "generate: beam: one value expected"),
        (("fp16: true", "tests: valid"), "row second: tests: a list expected, not valid"),
        (("fp16: true", "tests: [a, a]"), "row second: tests: a, a: one of them twice"),
        (("{bleu: 27.3}", "{other: {bleu: 27.3}}"), "row second: published: unknown key other; known: ter, "),
        (("{bleu: 27.3}", "{test: {blue: 1}}, tests: [test]"), "row second: published: unknown key blue; known: bleu"),
        (("{bleu: 27.3}", "{test: {bleu: true}}, tests: [test]"), "row second: published: test: bleu: text expected,"),
        (("fp16: true", "average: 3"), "average: 3; allowed: none"),
        (("fp16: true", "max-update: many"), "max-update: many is not a number"),
        (("fp16: true", "fp16: '${nothing}'"), "table.yaml: .*nothing"),
        (("fp16: true", "fp16: {"), "table.yaml, line 7: not valid YAML"),
        (("fp16: true", "fp16: true, fp16: false"), "table.yaml, line 7: not valid YAML .duplicate key fp16"),
        (("first:", "1: {}\n  '1':"), "table.yaml, line 7: not valid YAML .duplicate key 1"),
        (("fp16: true", "lr: .nan"), "table.yaml: rows: second: lr: nan: must be a finite number"),
        (("fp16: true", "lr: '${oc.env:HOME}'"), r"table.yaml: .*lr: \$\{oc.env:HOME\}: \$\{...\} is not supported"),
        (("fp16: true", "adam-betas: '__import__(\"os\").getcwd()'"), "row second: adam-betas: .* is not a literal"),
        (("fp16: true", "lr: '2**99'"), "row second: lr: .* is not a plain value; write the value itself"),
        (("fp16: true", "lr: --seed=5"), "row second: lr: --seed=5 would be read as another flag"),
        (("fp16: true", "fp16: -sde"), "row second: fp16: -sde would be read as another flag"),
        (("fp16: true", "dataset-impl: fasta"), "row second: dataset-impl: fasta makes fairseq read files"),
        (("fp16: true", "log-file: /tmp/x"), "row second: log-file: a table names no program and no file to write"),
        (("fp16: true", "post-save-script: ls"), "row second: post-save-script: a table names no program and no file"),
        (("fp16: true", "plasma-path: ls"), "row second: plasma-path: a table names no program"),
        (("fp16: true", "seed=5: true"), "row second: seed=5 is not the name of a flag"),
        (("fp16: true", "max-update: true"), "row second: max-update: True is not a number of updates"),
        (("fp16: true", "average: {last: true, every: 3}"), "average: .*allowed, with whole numbers above 0"),
        (("fp16: true", "lr: !!bool x"), "table.yaml: not valid YAML .a value does not fit its tag"),
        (("fp16: true", "lr: !!python/object/apply:os.getcwd []"), "table.yaml, line 7: not valid YAML"),
        (("fp16: true", 'lr: "a\\0b"'), "table.yaml: rows: second: lr: a.x00b: has a control character"),
        (("{bleu: 27.3}", "{bleu: true}"), "row second: published: bleu: text or a list of `key: value` expected, not"),
        (("{bleu: 27.3}", '{bleu: "27%"}'), "row second: published bleu: 27%: write 27.3, 12.6M or 90.9/87.0"),
        (("size: ", "size: [a]\nx: "), "table.yaml: size: text expected, not"),
        (("rows:", "grid: {metrics: [wer, ter]}\nrows:"), "grid: metrics: not a flag of a program; write rows for it"),
        (("rows:", "grid: {dropout: [0.1, 0.2]}\nrows:"), "row second: dropout: the grid has it, too; give the row"),
        (("rows:", "grid: {lr: 0.1}\nrows:"), "grid: lr: .*expected"),
        (("rows:", "grid: {lr: []}\nrows:"), "grid: lr: .*expected"),
        (("fp16: true", "task: sentence_probing, metrics: wer"), "row second: metrics: not for rows of kind"),
        (("fp16: true", "task: sentence_probing, generate: {beam: 2}"), "row second: generate: not for rows of kind"),
        (("rows:", "grid: {from-checkpoint: [a/b, a_b]}\nrows:"), "two rows would be called first-from-checkpoint=a_b"),
    ],
)
def test_a_wrong_table_is_refused_by_name(table, replacement, problem):
    refused(problem, load_table, table(replacement))


def test_what_is_for_translations_only_needs_a_row_that_translates(table):
    settings = ["generate.beem=3", "task=logical_inference"]
    refused(r"table\.yaml: generate: beem: no row uses it", load_table, table(), settings=settings)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello", "holds no `key: value` pairs; known keys: data"), ("3", "holds no `key: value` pairs"),
        ("a: " + "[" * 5000, "nested too deeply"), ("a: &a [*a]", "nested too deeply"),
        ("a0: &a0 [1]\n" + "".join(f"a{n + 1}: &a{n + 1} [{f'*a{n}, ' * 10}]\n" for n in range(12)), "unknown key a0")
    ],
    ids=["text", "number", "deep", "endless", "a million million"],
)  # fmt: skip
def test_a_file_that_is_not_a_table_is_refused(tmp_path, text, problem):
    (tmp_path / "table.yaml").write_text(text)
    refused(f"table.yaml.*: .*{problem}", load_table, str(tmp_path / "table.yaml"))


def test_names_and_values_that_older_yaml_reads_as_others_are_text(table, tmp_path):
    names = ("on", "off", "no", "y", "4", "1e3", "0123", "1:30", "null", "2020-01-01")
    file = table(("first:", "".join(f"{name}: {{dropout: {p}}}\n  " for p, name in enumerate(names)) + "first:"))
    rows = load_table(file, settings=["enliven=off", "lr=1:30", "clip-norm=010", "fp16=TRUE"]).rows
    assert tuple(rows)[:-2] == names and rows["off"].train["dropout"] == "1" and rows["off"].baseline == "on"
    (path := tmp_path / "data.yaml").write_text("{source: en, target: no, files: {train: a, valid: b, test: c}}")
    assert DataConfig.load(path).languages == ("en", "no")  # Norwegian
    train = rows["on"].train
    assert [train[flag] for flag in ("enliven", "lr", "clip-norm", "fp16")] == ["off", "1:30", "010", True]


@pytest.mark.parametrize(
    "name", ["a/../../b", "/etc", "..", ".a", "", " a", "a ", "a\nb", "a\0b", "x" * 400, "a\\b", "\x85"]
)
def test_names_of_rows_that_are_not_valid_in_a_path_are_refused(table, name):
    with pytest.raises(ValueError, match=r"table.yaml: .*(a row's name is part|a name of 400 bytes|control character)"):
        load_table(table(("first:", f"{json.dumps(name)}:")))


def test_names_of_rows_with_signs_are_kept_and_their_folders_are_plain(table, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    for name in ("it's", "a b", "ä+β", "x-routing-on=encoder:1-2", "$(ls)", "*", "日本"):
        row = load_table(table(("first:", f"{json.dumps(name)}:"))).rows[name]
        (run,) = find_runs([row], [1], dry=True)
        assert run.directory.parent.parent == tmp_path / "runs" and not set(run.directory.parent.name) & set(":'$*() ")
    for wrong in ("a:b", "a\nb", "a\tb", "${b", "a\udcffb"):
        monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / wrong))
        with pytest.raises(ValueError, match=r"^[ -~]*: fairseq cannot read a path with :, \${ or control characters"):
            find_runs([row], [1], dry=True)


def test_a_row_cannot_set_flags_that_run_sets(table, tmp_path):
    row = load_table(table()).rows["second"]
    run = Run(row, 7, DataSet("d", tmp_path, "en", "de", "h"), True, tmp_path)
    given = {f"--{flag}" for flag in (*row.train, *row.generate, "task", "num-workers", "batch-size")}
    own = {s: set(filter(lambda word: word.startswith("--"), c)) - given for s, c in steps_of(run, {}).items()}
    assert {"--seed", "--save-dir", "--user-dir", "--source-lang", "--log-format"} <= own["train"]
    assert {"--path", "--gen-subset", "--score-reference"} <= own["reference"]
    settings = [f"{a[2:]}=1" for a in own["train"]] + ["data=x", "no-save=true", "restore-file=x", "reset-meters=true"]
    settings += [f"generate.{flag[2:]}=1" for flag in own["generate"] | own["reference"]] + ["generate.scoring=bleu"]
    for setting in settings:
        refused(rf"row first: {setting.split('=')[0]}: `fairseq-diverse run`", load_table, table(), settings=[setting])
    refused(r"table.yaml: row second: seed: `fairseq-diverse run` sets", load_table, table(("fp16: true", "seed: 3")))
    assert "num-workers" in load_table(table(), settings=["seed=null", "num-workers=2"]).rows["first"].train


@pytest.mark.parametrize(
    ("settings", "size", "problem"),
    [
        *(([setting], SIZE, rf"--set {setting}: write flag=value, ") for setting in ("dropout", "=3", "other.beam=4")),
        (["average.first=3"], SIZE, "unknown key first"),
        (["max-update=true"], SIZE, "row first: max-update: True is not a number of updates"),
        (["dropout={a: 1}"], SIZE, "row first: dropout: one value expected"),
        (["average.last=4", "average.every=8"], SIZE, "average: the last 4 checkpoints of every 8 .*only 30"),
        ([], SIZE + "lr: 3\n", r"size.yaml: unknown key lr; known: train"),
        ([], SIZE.replace("max-update: 30, ", ""), "set no `max-update`"),
        ([], SIZE.replace("max-update: 30, ", "warmup-updates: 6%, "), "warmup-updates: 6%: needs max-update"),
    ],
)
def test_a_wrong_setting_or_size_is_refused(table, settings, size, problem):
    refused(problem, load_table, table(size=size), settings=settings)


def test_unknown_names_are_reported_with_the_known_ones(table, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    refused(r"nosuch: .*known: .*multi30k", load_table, "nosuch")
    refused(r"nosuch: .*known: .*small", load_table, table(), size="nosuch")
    refused(r"no row third in table; rows: first, second", select_rows, load_table(table()), "first,third")
    assert [row.name for row in select_rows(load_table(table()), "second, first")] == ["second", "first"]
    refused(r"data set nosuch: .*known: .*multi30k_en_de", find_data, "nosuch")
    (tmp_path / "subj_number.txt").write_text("tr\t1\ta\n")
    refused(r"lacks sentence_length.txt, word_content.txt, .*, of SentEval \(https://", find_data, str(tmp_path))
    refused("fairseq-diverse prepare multi30k_en_de --raw RAW_DIR --out", find_data, "multi30k_en_de")
    assert find_data("multi30k_en_de", dry=True).hash is None


@pytest.mark.parametrize("text", ["[[[", "!!bool x", "!!int ''", "a: b: c", "*a", "[" * 5000])
def test_a_setting_that_is_not_yaml_is_text(table, text):
    assert load_table(table(), settings=[f"data-name={text}"]).rows["first"].train["data-name"] == text


def test_averages_of_the_best(table):
    by_loss = ["average.best=3", "average.every=5", "average.by=loss"]
    row = load_table(table(), settings=by_loss).rows["first"]
    assert row.average == {"best": 3, "every": 5, "by": "loss"}
    assert row.key("h") != load_table(table()).rows["first"].key("h")
    flags = steps_of(Run(row, 1, DataSet("d", Path("d"), "en", "de", "h"), True, Path("r")), {})
    shown = " ".join(flags["train"])
    assert "--save-interval-updates 5 --keep-interval-updates -1 --best-checkpoint-metric loss" in shown
    averaging = "--updates --best 3 --metric loss --strict --out r/checkpoints/checkpoint_average.pt"
    assert " ".join(flags["average"]).endswith(averaging)
    last = ("fp16: true", "average: {last: 2, every: 5}")
    assert load_table(table(last), settings=by_loss).rows["second"].average == row.average
    last_3 = {"last": 3, "every": 5}
    best = ("fp16: true", "average: {best: 2, every: 5, by: nll_loss}")
    assert load_table(table(best), settings=["average.last=3", "average.every=5"]).rows["second"].average == last_3
    assert load_table(table(best), settings=["average.last=0"]).rows["second"].average == {}
    assert load_table(table(best)).rows["second"].average == {"best": 2, "every": 5, "by": "nll_loss"}
    for wrong in ("{best: 2, every: 5}", "{best: 2, every: 5, by: bleu}", "{best: 2, last: 2, every: 5}", "{last: x}"):
        with pytest.raises(ValueError, match=r"average: .*; allowed, with whole numbers above 0: none, \{last"):
            load_table(table(("fp16: true", f"average: {wrong}")))
    with pytest.raises(ValueError, match="average: the best 7 checkpoints of every 5 updates, but only 30 updates"):
        load_table(table(("fp16: true", "average: {best: 7, every: 5, by: loss}")))
    classifier = ("fp16: true", "task: sentence_probing, average: {best: 2, every: 5, by: nll_loss}")
    refused("row second: average: by: nll_loss: rows of kind classification have loss", load_table, table(classifier))
    with pytest.raises(ValueError, match="row first: best-checkpoint-metric: `fairseq-diverse run` sets this flag"):
        load_table(table(), settings=[*by_loss, "best-checkpoint-metric=ppl"])


def test_the_batch_of_the_paper_on_fewer_gpus(table, capsys, error_of, monkeypatch):
    name = table(("rows:", "gpus: 4\nrows:"), ("fp16: true", "update-freq: 2"))

    def frequencies(*arguments):
        found = {}
        assert not main(["run", "--dry-run", "--commands", name, "--data", "toy", *arguments])
        for text in capsys.readouterr().out.split("\n\n")[1:3]:
            found[text.split()[1]] = (re.findall(r"--update-freq (\d+)", text) or ["1"])[0]
        return [found["first"], found["second"]]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert frequencies() == ["1", "2"] and frequencies("--gpus-of-paper") == ["4", "8"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert frequencies("--gpus-of-paper") == ["2", "4"] and frequencies("--gpus-of-paper", "4") == ["1", "2"]
    slurm = ["--gpus-of-paper", "--slurm", "gpus_per_node=a100:1"]
    assert frequencies(*slurm) == ["4", "8"]
    assert frequencies("--gpus-of-paper", "6") == ["1", "2"]  # a run uses four of them
    for arguments, problem in (
        (["3"], "row first: its batch is for 4 GPUs, which 3 cannot share evenly"),
        (["-1"], "--gpus-of-paper -1: a number of GPUs above 0"),
        (["1", "--size", "li2022"], "neither its table nor size li2022 says for how many GPUs"),
        (["1", "--set", "update-freq='1,2'"], "row first: update-freq: 1,2: one whole number expected"),
        (["--slurm", "partition=gpu"], "how many GPUs will a job have? Add gpus_per_node=N"),
    ):
        assert problem in error_of("run", "--dry-run", name, "--data", "toy", "--gpus-of-paper", *arguments)
    assert load_table("li2021-table1").rows["baseline"].gpus == 8
    assert load_table("zhang2021-table1").rows["transformer"].gpus == 4
    refused("gpus: a whole number expected, not many", load_table, table(("rows:", "gpus: many\nrows:")))


@pytest.mark.usefixtures("prepared")
def test_a_batch_for_another_number_of_gpus_is_warned_of(table, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(schedule, "run_all", lambda *given: 0)
    monkeypatch.setattr(schedule, "queue", lambda *given: [])
    asked = ["run", table(("rows:", "gpus: 4\nrows:")), "--rows", "first"]
    for count, more, has in (
        (2, [], 2), (2, ["--jobs", "2"], 1), (4, [], 4), (2, ["--gpus-of-paper"], 4), (8, [], 8),
        (8, ["--gpus-of-paper"], 8), (0, ["--slurm", "gpus_per_node=1"], 1), (0, ["--slurm", "partition=gpu"], 4)
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert main([*asked, *more]) == 0
        warning = f"warning: batches are for 4 GPUs, and runs have {has}: "
        share = f"an update has {has}/4 of the tokens; see --gpus-of-paper"
        warning += "a run uses 4; share them with --jobs" if has > 4 else share
        said = capsys.readouterr().err
        assert said.startswith(warning) if has != 4 else "warning" not in said


@pytest.mark.usefixtures("prepared")
def test_a_table_that_is_edited_while_it_is_run_is_named(table, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "run_all", lambda *given: bool(table(("dropout: 0.2", "dropout: 0.4"))) and 0)
    assert main(["run", name := table()]) == 1
    assert f"{name}: edited meanwhile, and run as it was before; give the" in capsys.readouterr().err


@pytest.mark.usefixtures("prepared")
def test_a_page_that_cannot_be_written_is_an_error(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "run_all", lambda *given: 0)
    assert main(["run", name := table(), "--report", f"{name}/page.html"]) == 2
    said = capsys.readouterr()
    assert f"{name}" in said.err.splitlines()[-1] and "page.html" not in said.out


@pytest.mark.parametrize(("count", "expected"), [(0, "0,1,2,3"), (1, "0"), (2, "0,1"), (8, "0,1,2,3")])
def test_a_run_uses_at_most_the_gpus_that_its_batch_is_for(count, expected, training, monkeypatch):
    run, seen = training(), []
    run = replace(run, row=replace(run.row, gpus=count))
    monkeypatch.setattr(schedule, "start", lambda run, variables, say: seen.append(variables) or iter(()))
    schedule.run_all([run], 1, {"OMP_NUM_THREADS": "1"}, gpus=["0,1,2,3"])
    assert seen == [{"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": expected}]


@pytest.mark.parametrize("size", sorted(path.stem for path in config_path("size", "base").parent.glob("*.yaml")))
def test_a_size_says_for_how_many_gpus_its_batch_is(size):
    """But those of papers that do not say it: fine-tuning on several GPUs by accident ends with an error, or has
    several times the paper's batch."""
    unknown = {"li2022", "wang2021_base", "wang2021_lite"}
    content = yaml.safe_load(config_path("size", size).read_text(encoding="utf-8"))
    assert ("gpus" in content) == (size not in unknown)


def test_metrics_of_a_table(table):
    rows = load_table(table(("rows:", "metrics: yisi-0,wer\nrows:"))).rows
    assert rows["second"].metrics == ("yisi-0", "wer") and load_table(table()).rows["second"].metrics == ()
    own = load_table(table(("rows:", "metrics: yisi-0\nrows:\n  own: {metrics: wer, dropout: 0.7}"))).rows
    assert own["own"].metrics == ("wer",) and own["second"].metrics == ("yisi-0",)
    assert rows["second"].key("hash") == load_table(table()).rows["second"].key("hash")
    refused(r"table.yaml: metrics blue: not known; choose from", load_table, table(("rows:", "metrics: blue\nrows:")))


def test_seeds():
    assert parse_seeds("1, 20") == [1, 20]
    for text in ("", "1,a", "1,1", "-1", "1,01"):
        refused("--seeds", parse_seeds, text)


TRAIN_LOG = """2026 00:00 | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,000)
2026 00:01 | INFO | train_inner | {"epoch": 1, "loss": "9.5", "wps": "100", "num_updates": "10", "gb_free": "5.5"}
2026 00:02 | INFO | valid | {"epoch": 1, "valid_nll_loss": "3.0", "valid_num_updates": "10"}
2026 00:03 | INFO | train_inner | {"epoch": 1, "loss": "9.0", "wps": "300", "num_updates": "20", "gb_free": "4.5"}
2026 00:03 | INFO | train_inner | {"epoch": 1, "loss": "8.0", "wps": "120", "num_updates": "30", "gb_free": "5.0"}
2026 00:04 | INFO | valid | {"epoch": 1, "valid_nll_loss": "4.0", "valid_num_updates": "30"}
2026 00:05 | INFO | train_inner | {"epoch": 1, "los"""


def test_measurements_of_training_and_translation(tmp_path):
    (tmp_path / "train.log").write_text(TRAIN_LOG)
    measured = logs.measure("train", tmp_path / "train.log")
    assert measured["parameters"] == 1234 and measured["words_per_second"] == 120 and measured["gb_free"] == 4.5
    assert measured["valid_nll"] == {"last": round(4 * np.log(2), 4), "best": round(3 * np.log(2), 4)}
    line = "| Translated 1,000 sentences (12,345 tokens) in 10.0s (100.00 sentences/s, 1234.50 tokens/s)\n"
    (tmp_path / "generate.log").write_text("H-0\t-1\tword\n" + line)
    measured = {"sentences": 1000, "tokens": 12345, "seconds": 10.0, "words_per_second": 1234.5}
    assert logs.measure("generate", tmp_path / "generate.log") == measured
    path = tmp_path / "reference.log"
    path.write_text("S-1\tsource\nP-1\t-1.0000 -2.5000\nP-0\t-4.0000\n")
    assert logs.reference_nll(path) == pytest.approx([4 * np.log(2), 3.5 * np.log(2)])
    path.write_text("P-2\t-1.0000\nP-0\t-4.0000\n")
    refused("2 scored sentences", logs.reference_nll, path)


def test_updates_per_second_and_minutes_an_epoch(tmp_path):
    logged = (0.125, "100", "0.05", "2000", 10), (0.25, "300", "0.15", "2000", 20), (0.375, "120", "0.05", "2500", 30)
    lines = [json.dumps(dict(zip(("update", "wps", "ups", "wpb", "num_updates"), x, strict=True))) for x in logged]
    (tmp_path / "train.log").write_text("".join(f"2026 | INFO | train_inner | {line}\n" for line in lines))
    measured = logs.measure("train", tmp_path / "train.log")
    assert measured["updates_per_second"] == 0.05  # of 0.05, 0.15 and 0.048, of which "ups" has too few digits
    assert measured["epoch_minutes"] == pytest.approx(80 * 20 / 60, abs=1e-4)  # 30 updates are 0.375 of an epoch
    (tmp_path / "train.log").write_text("killed at once\n")
    assert not any(logs.measure("train", tmp_path / "train.log").values())


def test_following_a_log_that_grows_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("of an earlier start\n")
    follower = logs.Follower(path)
    assert follower.latest() == (0, "", "")
    middle = TRAIN_LOG.index("num_updates") + 3
    parts = TRAIN_LOG[:middle], TRAIN_LOG[middle:-200], TRAIN_LOG[-200:]
    for text, expected in zip(parts, ((0, "", ""), (20, "9.0", "300"), (30, "8.0", "120")), strict=True):
        with open(path, "a") as f:
            f.write(text)
        assert follower.latest() == expected


def checkpoint(path, updates):
    torch.save({"model": {"w": torch.zeros(3)}, "optimizer_history": [{"num_updates": updates}]}, path)


def test_a_last_checkpoint_that_was_cut_off_is_replaced_by_the_newest_whole_one(tmp_path):
    assert repair_last_checkpoint(tmp_path) == 0
    checkpoint(tmp_path / "checkpoint_last.pt", 30)
    assert repair_last_checkpoint(tmp_path) == 30
    for epoch, updates in ((3, 9), (2, 20), (3, 100)):  # updates decide, whatever the epoch
        checkpoint(tmp_path / f"checkpoint_{epoch}_{updates}.pt", updates)
    for name in ("checkpoint_last.pt", "checkpoint_3_100.pt"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
    assert repair_last_checkpoint(tmp_path) == 20
    assert (tmp_path / "checkpoint_2_20.pt").read_bytes() == (tmp_path / "checkpoint_last.pt").read_bytes()
    checkpoint(tmp_path / "checkpoint_10_300.pt", 300)  # by name before checkpoint_2_20.pt
    (tmp_path / "checkpoint_last.pt").write_bytes(data[:10])
    assert repair_last_checkpoint(tmp_path) == 300


@pytest.fixture
def training(table, tmp_path, monkeypatch):
    """The run of a row of 30 updates, the training of which ends after 13."""

    def spawn(run, step, command, environment, lock):
        (run.directory / "train.log").write_text(TRAIN_LOG)
        checkpoint(run.checkpoints / "checkpoint_last.pt", 13)
        yield Progress("train", 13)
        return 2**20

    monkeypatch.setattr(execution, "_spawn", spawn)
    monkeypatch.delattr(os, "link")  # as of some file systems

    def make(*settings):
        row = load_table(table(), settings=[*settings, "average.last=0"]).rows["first"]
        run = Run(row, 1, DataSet("d", tmp_path, "en", "de", "h"), True, tmp_path / "run")
        run.checkpoints.mkdir(parents=True)
        return run

    return make


@pytest.mark.parametrize("edited", ["train", "late", "average", "test", "trees", "data"])
def test_nothing_is_kept_of_a_step_whose_code_or_data_changed(edited, table, prepared, tmp_path, monkeypatch):
    """A step that may have read others than those that the folder of its run is named by."""
    code, record = tmp_path / "own/__init__.py", RECORD | {"tests": {"one": "1", "two": "2"}}
    code.parent.mkdir()
    code.write_text("first = 1\n")
    (prepared / "preprocess.json").write_text(json.dumps(record))
    reads_trees = ("fp16: true", "tests: [valid, two], average: {last: 1, every: 4}, task: translation_with_syntax")
    row = load_table(table(reads_trees)).rows["second"]
    (run,) = find_runs([replace(row, user_dir=str(code.parent))], [1], cpu=True)
    first = run.checkpoints / "checkpoint_1_4.pt"
    run.checkpoints.mkdir(parents=True)
    checkpoint(first, 4)
    os.utime(first, (1, 1))  # of an earlier start
    (run.directory / "train.log").write_text("before\n")

    def spawn(run, step, command, environment, lock):
        changes = {"data": (prepared / "preprocess.json", json.dumps(record | {"hash": "x"}))}
        changes["test"] = prepared / "preprocess.json", json.dumps(record | {"tests": {"one": "1", "two": "x"}})
        changes["trees"] = prepared / "train.en-de.en.syntax.json", "{}"
        file, text = changes.get(edited, (code, "second = 1\n"))
        if step == "train":
            checkpoint(run.checkpoints / "checkpoint_last.pt", 30)
            checkpoint(run.checkpoints / "checkpoint_2_30.pt", 30)
        change = f"printf %s {shlex.quote(text)} > {tmp_path}/new; mv {tmp_path}/new {file}"
        words = ["true", f"echo '{TRAIN_LOG.splitlines()[1]}'"]
        if step == ("average" if edited == "average" else "train"):
            words = [words[1], "sleep 1", change] if edited == "late" else [change, words[1]]
        return (yield from SPAWN(run, step, ["sh", "-c", "; ".join(words)], {}, lock))

    monkeypatch.setattr(execution, "_spawn", spawn)
    with pytest.raises(RunFailed, match=r"^(user-dir|two|trees|data) changed while it worked; start again for a run"):
        for _ in execution.execute(run, {}):
            time.sleep(0.05)
    kept = ["train"] if edited in ("late", "average") else []
    assert [step for step in read_state(run) if step != "starts"] == kept and summary_of(run) is None
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == ({first.name, "checkpoint_2_30.pt", "checkpoint_last.pt"} if kept else {first.name})
    assert ((run.directory / "train.log").read_text() == "before\n") == (not kept)


@pytest.mark.parametrize(
    ("setting", "loss", "said"),
    [([], "4.0", "train ended after 13 of 30 updates"),
     *((["max-epoch=1"], loss, "training diverged: a validation loss is not finite") for loss in ("nan", "inf"))],
)  # fmt: skip
def test_training_that_diverges_or_ends_early_without_a_flag_fails(setting, loss, said, training, monkeypatch):
    run = training(*setting)
    monkeypatch.setattr("tests.unit.test_experiments.TRAIN_LOG", TRAIN_LOG.replace('"4.0"', f'"{loss}"'))
    with pytest.raises(RunFailed, match=rf"^{said}; see .*train\.log$"):
        list(execution._train(run, "train", [], {}, 0))
    assert "train" not in read_state(run)


def test_what_needs_a_checkpoint_that_is_gone_says_so(training):
    run = training()
    write_state(run, {"train": {"updates": 30, "valid_nll": None, "parameters": 1, "gb_free": 0, "peak_memory": 1}})
    missing = rf"^its checkpoint {run.checkpoint} is missing, generate needs it; .* delete {run.directory} to train it"
    with pytest.raises(RunFailed, match=missing):
        list(execution.execute(run, {}))


@pytest.mark.parametrize("setting", ["max-epoch=1", "patience=2", "stop-min-lr=0.1", "stop-time-hours=1"])
def test_training_that_a_flag_ends_early_is_recorded(training, setting, capsys):
    run = training(setting)
    list(execution._train(run, "train", [], {}, 0))
    assert read_state(run)["train"]["updates"] == 13 and (run.checkpoints / "checkpoint_0_13.pt").is_file()
    command = steps_of(run, {})["train"]
    assert command[command.index("--save-interval") + 1] == "1"  # fairseq does not save where --max-epoch ends training


@pytest.mark.parametrize(
    ("asked", "cores", "same", "of_run", "of_job"),
    [("", "3", False, "2", "3"), ("5", "3", False, "5", "5"), ("", "", False, "2", "8"), ("", "", True, "2", "1")],
)
def test_runs_share_the_cores_and_a_job_has_its_own(table, asked, cores, same, of_run, of_job, monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    for name, value in (("OMP_NUM_THREADS", asked), ("SLURM_CPUS_PER_TASK", cores)):
        monkeypatch.setenv(name, value)
    assert main(["run", table(), "--data", "toy", "--rows", "first", "--jobs", "4", "--dry-run", "--commands"]) == 0
    assert f"OMP_NUM_THREADS={of_run} " in capsys.readouterr().out
    threads = []
    monkeypatch.setattr(schedule, "run_all", lambda runs, jobs, given, gpus: threads.append(given["OMP_NUM_THREADS"]))
    monkeypatch.setattr(schedule, "outcome", lambda run: "BLEU 1")
    (run,) = find_runs([load_table(table(), data="toy").rows["first"]], [1], dry=True, cpu=True)
    assert schedule.Job(run, same)() == "BLEU 1" and threads == [of_job]


def test_what_tracks_a_training_is_in_its_command_and_not_in_its_name(training, tmp_path):
    plain = training()
    tracked = replace(plain, tracking=Tracking(tmp_path / "board", "project"))
    command = shlex.join(steps_of(tracked, {})["train"])
    folder = tmp_path / "board" / plain.directory.parent.name / plain.directory.name
    plainly = shlex.join(steps_of(plain, {})["train"])
    assert command == f"{plainly} --tensorboard-logdir {folder} --wandb-project project"
    assert tracked.directory == plain.directory and steps_of(tracked, {})["generate"] == steps_of(plain, {})["generate"]
    key = plain.directory.parent.name.rpartition("-")[2]
    assert variables(tracked, "train") == {
        **{"WANDB_NAME": plain.name, "WANDB_RUN_ID": f"{key}-seed1"},
        "WANDB_RESUME": "allow",  # the same id begins a training and resumes it
    }
    assert not variables(tracked, "generate")
    assert not variables(plain, "train") and "WANDB" not in "".join(lines_of(plain, {}, {}).values())
    assert any("WANDB_RUN_ID=" in line for line in lines_of(tracked, {}, {}).values())


@pytest.mark.parametrize("flag", ["--tensorboard", "--wandb"])
def test_tracking_without_its_package_is_refused(flag, monkeypatch, error_of):
    monkeypatch.setattr("fairseq_diverse.cli.run.find_spec", lambda name: None)
    assert re.search(rf"{flag} needs \w+; install it: pip install .*tracking", error_of("run", "toy", flag, "x"))


@pytest.mark.parametrize("name", ["summary.json", "state.json"])
@pytest.mark.parametrize(
    "text", ["", "{", '{"train": 3}', "[]", "null", '"x"', "[" * 100_000, '{"train": {}}', b"\xff"]
)
def test_a_damaged_file_of_a_run_is_named(training, name, text):
    run = training()
    (run.directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    read = summary_of if name == "summary.json" else read_state
    refused(rf"{name}: (damaged|not a summary).*; delete this file and start the run", read, run)
    assert name in stage(run)
    assert schedule.run_all([run], jobs=10**9, environment={}) == 1


def test_files_left_by_a_full_disk_are_removed_and_reported(tmp_path, monkeypatch):
    (tmp_path / "checkpoint_1_4.pt.tmp").write_bytes(b"half")
    assert repair_last_checkpoint(tmp_path) == 0 and not list(tmp_path.iterdir())
    log = tmp_path / "train.log"
    assert not logs.disk_is_full(log)
    log.write_text("OSError: [Errno 28] No space left on device\nTraceback\n")
    assert logs.disk_is_full(log)
    log.write_text("")
    monkeypatch.setattr(logs.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert logs.disk_is_full(log)


def test_the_end_of_a_log_shows_the_users_own_code(tmp_path):
    """Where an own mechanism fails inside a library, the line of the mechanism, and no marks below code."""
    (own := tmp_path / "own").mkdir()
    (own / "__init__.py").write_text("import json\n\ndef fail():\n    return json.loads('{')\n")
    failed = subprocess.run([sys.executable, "-c", "import own; own.fail()"], cwd=tmp_path, capture_output=True).stderr
    (log := tmp_path / "train.log").write_bytes(b"an earlier line\n" + failed)
    place, code, error = logs.tail(log, 0, str(own)).splitlines()
    assert f'File "{own}/__init__.py", line 4, in fail' in place and code.strip() == "return json.loads('{')"
    assert error.strip().startswith("json.decoder.JSONDecodeError: ")
    assert "own/__init__.py" not in logs.tail(log) and len(logs.tail(log).splitlines()) == 4
    log.write_bytes(failed + b"\tof several lines\nits last\n")
    assert logs.tail(log, 0, str(own)).splitlines() == [place, code, error, "    its last"]
    log.write_bytes(failed + b"begun again\nerror: no such file\n")
    assert logs.tail(log, len(failed), str(own)).splitlines() == ["    begun again", "    error: no such file"]


class FakeRun(SimpleNamespace):
    """A run of a few steps that may fail; counts simultaneous runs."""

    working = most = 0

    def __init__(self, name, folder, error=None):
        row = SimpleNamespace(max_update=10, gpus=0, train={})
        super().__init__(name=name, directory=folder, row=row, error=error, summary=None, first=None)
        self.closed = False

    def execute(self, environment):
        FakeRun.working += 1
        FakeRun.most = max(FakeRun.most, FakeRun.working)
        try:
            for updates in range(3):
                yield Progress("train", updates, "1.0", "100")
            if self.error:
                raise self.error
            self.summary = {"metrics": {"bleu": 30, "chrf": 50, "ter": 40, "length_ratio": 1}}
        finally:
            FakeRun.working -= 1
            self.closed = True


@pytest.fixture
def fake_runs(monkeypatch):
    """What the schedule reads of folders, for `FakeRun`."""
    monkeypatch.setattr(schedule, "is_finished", lambda run: run.summary is not None)
    monkeypatch.setattr(schedule, "summary_of", lambda run: run.summary)
    monkeypatch.setattr(schedule, "stage", lambda run: "new")
    monkeypatch.setattr(schedule, "execute", FakeRun.execute)
    monkeypatch.setattr(schedule.time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("fake_runs")
def test_a_failing_run_is_shown_and_the_others_continue(tmp_path, capsys):
    FakeRun.most = 0
    errors = [None, RunFailed("train ended"), ValueError("a user's"), ZeroDivisionError("a bug's"), Busy("held"), None]
    runs = [FakeRun(f"run {number}", tmp_path, error) for number, error in enumerate(errors)]
    assert schedule.run_all(runs, jobs=2, environment={}) == 4
    shown = capsys.readouterr().err
    assert [run.summary is not None for run in runs] == [True, False, False, False, False, True]
    assert "run 1: FAILED: train ended" in shown and "run 2: FAILED: a user's" in shown and "run 4: left alone" in shown
    assert "Traceback" not in shown and "ZeroDivisionError" in (tmp_path / "error.log").read_text()
    assert FakeRun.most == 2 and FakeRun.working == 0


@pytest.mark.usefixtures("fake_runs")
@pytest.mark.parametrize(("updates", "ending"), [(7, "ratio 1.000; ended after 7 of 10 updates"), (10, "ratio 1.000")])
def test_the_outcome_of_a_run_says_whether_it_ended_early(updates, ending, tmp_path):
    run = FakeRun("run", tmp_path)
    list(run.execute({}))
    run.summary["updates"] = updates
    assert schedule.outcome(run).endswith(ending)


@pytest.mark.usefixtures("fake_runs")
def test_the_time_left_is_that_of_all_runs(tmp_path, monkeypatch):
    clock = iter([0.0, 100.0, 200.0])
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(clock))
    runs = [FakeRun(f"run {number}", tmp_path / str(number)) for number in range(4)]
    runs[3].summary = {}
    pace = schedule.Pace(runs)
    assert pace.left(runs[:2], runs[2:], 2) == ""
    pace.follow(runs[0], Progress("train", 1, "1.0", "100"))
    pace.follow(runs[0], Progress("train", 3, "1.0", "100"))  # 50 s an update
    pace.follow(runs[1], Progress("translate"))
    # run 0 needs 7 updates, run 1 none, so that run 2 starts beside it and needs 10; run 3 is finished
    assert pace.left(runs[:2], runs[2:], 2) == f"all runs: about {500 / 60:.0f} min of training left"
    assert pace.left(runs[:1], runs[1:], 1) == f"all runs: about {850 / 60:.0f} min of training left"
    assert pace.left(runs[1:2], [], 2) == ""  # nothing is left to train


@pytest.mark.usefixtures("fake_runs")
def test_an_interruption_ends_every_run(tmp_path, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule.time, "sleep", interrupt)
    runs = [FakeRun(f"run {number}", tmp_path) for number in range(3)]
    with pytest.raises(KeyboardInterrupt):
        schedule.run_all(runs, jobs=2, environment={})
    assert [run.closed for run in runs] == [True, True, False]


def test_a_table_names_data_and_sizes_beside_it(table, tmp_path, monkeypatch):
    """From any folder; what the current one or that of runs has goes before."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(elsewhere / "runs"))
    name = table((f"size: {tmp_path}/size.yaml", "size: size.yaml"), ("data: multi30k_en_de", "data: mine"))
    (tmp_path / "mine").mkdir()
    row = load_table(name).rows["first"]
    assert (row.data, row.size) == (str(tmp_path / "mine"), "size")
    for folder in (elsewhere / "runs/data/mine", elsewhere / "mine"):
        folder.mkdir(parents=True)
        assert load_table(name).rows["first"].data == "mine"
        folder.rmdir()


def test_a_table_names_a_folder_of_mechanisms(table, tmp_path):
    """Relative to the file; every command of the run gets it, and changed code makes another run."""
    folder = tmp_path / "own_mechanisms"
    folder.mkdir()
    refused("own_mechanisms: no such folder, or", load_table, table(("rows:", "user-dir: own_mechanisms\nrows:")))
    (folder / "__init__.py").write_text("first = 1\n")
    row = load_table(table(("rows:", "user-dir: own_mechanisms\nrows:"))).rows["first"]
    assert row.user_dir == str(folder) and load_table(table()).rows["first"].user_dir == ""
    assert load_table(table(), user_dir=str(folder)).rows["first"].user_dir == str(folder)
    run = Run(row, 1, DataSet("d", tmp_path, "en", "de", "h"), True, tmp_path)
    for step, command in steps_of(run, {}).items():
        if step != "average":
            assert command[command.index("--user-dir") + 1] == str(folder), step
    before = read_by([row])
    assert list(before["first"]) == ["user-dir"]
    os.symlink("user@host.4711:1700000000", folder / ".#__init__.py")  # of Emacs
    os.mkfifo(folder / "pipe.py")
    for left in (".ipynb_checkpoints", "folder.py"):
        (folder / left).mkdir()
    (folder / ".ipynb_checkpoints/__init__-checkpoint.py").touch()
    assert read_by([row]) == before
    (folder / "__init__.py").write_text("second = 1\n")
    changed = read_by([row])
    (folder / "part").mkdir()
    (folder / "part/inner.py").write_text("third = 1\n")
    assert before != changed != read_by([row]) and read_by([replace(row, user_dir="")]) == {"first": {}}


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("flag", [*TRAIN, *(f"generate.{flag}" for flag in GENERATE)])
def test_another_file_of_the_same_name_makes_another_run(table, tmp_path, flag):
    file, folders, digests = tmp_path / "file", [], []
    row = load_table(table(), settings=[f"{flag}={file}"]).rows["first"]
    for time_of_change, content in enumerate(("first", "other", "first")):  # as long as the one before
        file.write_text(content)
        os.utime(file, (time_of_change, time_of_change))
        (run,) = find_runs([row], [1], cpu=True)
        assert list(run.read) == [flag.removeprefix("generate.")]
        folders.append(run.directory)
        digests += run.read.values()
    assert folders[0] == folders[2] != folders[1]
    file.unlink()
    assert find_runs([row], [1], dry=True, cpu=True)[0].directory not in folders
    for number in (0, 1):  # finished runs are found without the file, the first of them
        folders[number].mkdir(parents=True)
        read = {flag.removeprefix("generate."): digests[number]}
        (folders[number] / "summary.json").write_text(json.dumps({"read": read}))
    assert find_runs([row], [1], dry=True, cpu=True)[0].directory in folders


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"source": "en;touch PWNED;"}, "source: 'en;touch PWNED;' is not a language"),
        ({"target": [1]}, r"target: \[1\] is not a language"), ({"source": None}, "source: None is not a language"),
        ({"hash": 3}, r"damaged \(hash\)"), ("hash", r"incomplete \(hash\)"), ("source", r"incomplete \(source\)")
    ],
)  # fmt: skip
def test_a_damaged_record_of_prepared_data_is_one_line(change, problem, tmp_path):
    record = {k: v for k, v in RECORD.items() if k != change} if isinstance(change, str) else {**RECORD, **change}
    (tmp_path / "preprocess.json").write_text(json.dumps(record))
    refused(f"preprocess.json: {problem}", find_data, str(tmp_path))


@pytest.mark.parametrize(
    ("count", "jobs", "visible", "expected"),
    [
        (1, 4, "", []), (8, 1, "", ["0,1,2,3,4,5,6,7"]), (2, 1, "5,GPU-x", ["5,GPU-x"]),
        (8, 8, "", [str(number) for number in range(8)]), (8, 3, "", ["0,1", "2,3", "4,5"]),
        (2, 3, "", ["0", "1", "0"]), (2, 2, "5,GPU-x", ["5", "GPU-x"])
    ],
)  # fmt: skip
def test_jobs_share_the_gpus(count, jobs, visible, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment.gpus_of_jobs(jobs) == expected


def test_runs_in_one_job_of_slurm_do_not_meet(training, monkeypatch):
    """fairseq takes the port from the job's number, and the number of nodes from its variables."""
    variables = dict.fromkeys((*environment.SEVERAL_NODES, "SLURM_CPUS_PER_TASK"), "7")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run, given = training(), []
    monkeypatch.setattr(execution, "Popen", lambda command, env, **options: given.append(env) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(SPAWN(run, "train", ["true"], {}, 0))
    assert given[0]["SLURM_CPUS_PER_TASK"] == "7" and not set(environment.SEVERAL_NODES) & set(given[0])


@pytest.mark.usefixtures("prepared")
def test_a_dry_run_prints_the_gpus_of_each_run(table, monkeypatch, output_of):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    asked = ["run", "--dry-run", "--commands", table(("rows:", "gpus: 2\nrows:"))]
    for more, expected in (([], ["0,1", "0,1"]), (["--jobs", "2"], ["0,1", "4,5"]), (["--jobs", "8"], ["0", "1"])):
        found = [re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", text) for text in output_of(*asked, *more).split("\n\n")]
        assert [each[0] for each in found if each] == expected


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("600", 600), ("90:00", 90), ("1:30", 2), ("10:00:00", 600), ("08:30:01", 511), ("1-12", 2160),
        ("1-00:30", 1470), ("2-03:04:05", 3065), ("soon", None), ("1:2:3:4", None), ("-5", None)
    ],
)  # fmt: skip
def test_times_of_slurm_are_in_minutes(text, minutes):
    if minutes is None:
        refused(f"--slurm time={text}: minutes, HOURS", _minutes, text)
    else:
        assert _minutes(text) == minutes


@pytest.mark.parametrize(
    ("text", "value"),
    [("0123", "0123"), ("1:30", "1:30"), ("4", 4), ("true", True), ("{mem: 4}", {"mem": 4}), ("a100:2", "a100:2")],
)
def test_other_options_of_slurm_stay_text(text, value):
    assert _value(text) == value and type(_value(text)) is type(value)


def test_the_version_is_that_of_the_code_that_runs(monkeypatch):
    """Not of an installed one, beside a checkout of another commit."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    versions = provenance.collect()["versions"]
    assert versions["fairseq-diverse"] == __version__ and versions["torch"] == "0"


def test_the_number_of_gpus_is_part_of_a_machine(monkeypatch):
    """Another number is another batch: runs with both are named in a report."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    devices = [provenance.collect(given)["machine"]["device"] for given in ({}, {"CUDA_VISIBLE_DEVICES": "3"})]
    assert devices == ["8 x H200", "H200"]
    assert provenance.collect({"CUDA_VISIBLE_DEVICES": "4,5"})["device"] == "2 x H200"
