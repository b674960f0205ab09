"""How different heads are, in tables: means over layers and seeds, what is asked for, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import is_finished, stage
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.reports.columns import cells_of
from fairseq_diverse.reports.heads import compare_heads, head_columns, head_entries, head_notes
from tests.refusals import refused
from tests.unit.conftest import trained_with
from tests.unit.test_records import SUMMARY
from tests.unit.views import runs_of


def place(cosine, share, rank):
    return {"cosine": cosine, "constant share": share, "effective rank": rank, "width": 128}


HEADS = [
    {"encoder:1": place(0.1, 0.2, 30.0), "encoder:2": place(0.3, 0.4, 50.0), "cross:1": place(None, 0.5, 7.0)},
    {"encoder:1": place(0.2, 0.1, 20.0), "encoder:2": place(0.0, 0.3, 40.0), "cross:1": place(None, 0.7, 9.0)},
]


def test_figures_are_means_over_layers_and_seeds(rows):
    runs = {"first": [SUMMARY | {"seed": seed, "heads": heads} for seed, heads in enumerate(HEADS)]}
    runs["second"] = [SUMMARY, SUMMARY | {"heads": HEADS[0]}]
    lines = compare_heads(runs_of(rows, runs))
    first, second = map(head_entries, lines)
    assert first["encoder"]["cosine"] == pytest.approx(0.15)
    for component, layers in (("encoder", ("encoder:1", "encoder:2")), ("cross", ("cross:1",))):
        for name in ("constant share", "effective rank"):
            of_seeds = [sum(heads[layer][name] for layer in layers) / len(layers) for heads in HEADS]
            assert first[component][name] == pytest.approx(sum(of_seeds) / 2)
            assert first[component][f"{name} deviation"] == pytest.approx(np.std(of_seeds, ddof=1))
    assert "decoder" not in first and "cosine" not in first["cross"]
    assert (second["seeds"], second["finished"]) == (1, 2) and second["encoder"]["cosine deviation"] is None
    header, *cells = cells_of(head_columns(), lines)
    of_first = dict(zip(header, cells[0], strict=True))
    assert of_first["encoder: cosine"] == "0.150 ± 0.071" and of_first["cross: cosine"] == "-"
    assert of_first["cross: effective rank"] == "8.0 ± 1.4 of 128" and of_first["decoder: constant share"] == "-"
    assert "runs not measured: second; fairseq-diverse run TABLE --heads does it" in head_notes(lines)
    below = compare_heads(runs_of(rows[:1], {"first": [SUMMARY | {"heads": {"encoder:1": place(-0.0004, 0.5, 9.0)}}]}))
    assert cells_of(head_columns(), below)[1][1] == "0.000"
    lines = compare_heads(runs_of(rows, {"first": [SUMMARY], "second": []}))
    assert [row[1] for row in cells_of(head_columns(), lines)[1:]] == ["not measured", "not run"]


@pytest.fixture
def runs(table, prepared):
    """A table that asks for figures of heads."""
    return table(("rows:", "heads: true\nrows:"), ("first:", "first: {heads: false}"))


def test_a_finished_run_without_figures_of_heads_is_asked_for_these_alone(runs):
    first, second = find_runs(list(load_table(runs).rows.values()), [1], cpu=True)
    assert not first.row.heads and second.row.heads and first.row.with_scores_of(second.row).heads
    assert "heads" not in steps_of(first, {}) and list(steps_of(second, {}))[-1] == "heads"
    assert second.row.key("h") == replace(second.row, heads=False).key("h")
    trained = dict.fromkeys(("peak_memory", "parameters", "valid_nll", "gb_free"))
    for run in (first, second):
        run.directory.mkdir(parents=True)
        (run.directory / "summary.json").write_text(json.dumps(SUMMARY))
        (run.directory / "state.json").write_text(json.dumps({"train": trained, "generate": {}, "reference": {}}))
    assert is_finished(first) and not is_finished(second) and stage(second) == "resumes with heads"
    (second.directory / "summary.json").write_text(json.dumps(SUMMARY | {"heads": HEADS[0]}))
    assert is_finished(second) and stage(second) == "done"


def test_a_view_of_runs_and_of_their_saved_copies(runs, tmp_path, capsys, output_of):
    (_, second) = find_runs(list(load_table(runs).rows.values()), [1], cpu=True)
    second.directory.mkdir(parents=True)
    row = trained_with(dropout="0.3", fp16=True)
    summary = SUMMARY | {"data": "multi30k_en_de", "heads": HEADS[0], "row": row}
    (second.directory / "summary.json").write_text(json.dumps(summary))
    for flags in ([], ["--format", "json"], ["--columns", "row,encoder: cosine"]):
        shown = output_of("report", runs, "--heads", *flags, "--save", tmp_path / "saved")
        assert main(["report", runs, "--heads", *flags, "--results", str(tmp_path / "saved")]) == 0
        assert capsys.readouterr().out == shown and ("0.200" in shown or '"cosine": 0.2' in shown)


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        (("rows:", "heads: many\nrows:"), "heads: true or false expected, not many"),
        (("first:", "first: {task: masked_lm, heads: true}"), "heads: not for rows of kind pretraining"),
    ],
)
def test_a_table_that_asks_wrongly_is_refused(replaced, words, table):
    refused(words, load_table, table(replaced))


def test_run_refuses_heads_of_rows_that_do_not_translate(table, capsys):
    assert main(["run", table(("first:", "first: {task: masked_lm}")), "--heads", "--dry-run"]) == 2
    assert "--heads: row first does not translate" in capsys.readouterr().err
