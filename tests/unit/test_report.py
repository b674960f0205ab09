"""Reports: comparison, formats, saved summaries, tables in texts."""

import csv
import dataclasses
import io
import itertools
import json
import re
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import dunnett, norm, ttest_ind

from fairseq_diverse.cli import main
from fairseq_diverse.experiments.kinds.kind import KINDS, Kind, kind_of
from fairseq_diverse.experiments.kinds.lines import Line, Measure
from fairseq_diverse.experiments.records import bleu_statistics
from fairseq_diverse.experiments.runs import saved
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.metrics import seeds
from fairseq_diverse.metrics.accuracy import Accuracy, draw_accuracy
from fairseq_diverse.metrics.dunnett import SeedTest
from fairseq_diverse.metrics.scores import sacrebleu_result, score
from fairseq_diverse.metrics.significance import bleu_scores, interval, resampled_sums
from fairseq_diverse.reports import formats
from fairseq_diverse.reports.card import model_card
from fairseq_diverse.reports.columns import verdict, without_empty
from fairseq_diverse.reports.lines import names_of_tests, of_test
from fairseq_diverse.reports.report import Report, completed
from fairseq_diverse.reports.row_pictures import BETTER, OPEN, WORSE, draw_rows, draw_verdict
from fairseq_diverse.reports.selection import best_of_grids
from fairseq_diverse.reports.side_by_side import Sentence, side_by_side
from tests.refusals import refused
from tests.unit.conftest import ROW, trained_with
from tests.unit.views import runs_of, view

MACHINE = {"cpu": "EPYC", "cores": 2, "threads": 1, "capability": "AVX2", "device": "cpu", "variables": {}}
REFERENCES = [f"Das ist der Satz Nummer {n} von allen , und er ist lang ." for n in range(30)]


def summary(seed, wrong, nll, words=100.0, machine=MACHINE):
    """A run's summary whose first ``wrong`` translations are wrong, with NLL around ``nll`` for every sentence."""
    hypotheses = ["Das war ganz anders ."] * wrong + REFERENCES[wrong:]
    scores = score(hypotheses, REFERENCES, "de")
    return {
        "schema": 2, "kind": "translation", "row": ROW, "system": "x", "seed": seed, "language": "de",
        "data_hash": "d", "metrics": scores.as_dict(), "parameters": 1000,
        "words_per_second": {"train": words, "generate": 10.0}, "updates_per_second": {"train": words / 40},
        "epoch_minutes": 60 / words, **({"machine": machine} if machine else {}), "commit": "0123456789abcdef",
        "dirty": True, "test_nll": [nll * (1 + 0.1 * (-1) ** n) for n in range(30)],
        "bleu_counts": scores.statistics["bleu"][:, :6].astype(int).tolist(),
        "commands": ["fairseq-train data --save-dir RUN/checkpoints"], "data": "multi30k_en_de"
    }  # fmt: skip


def test_bleu_statistics_are_sacrebleus():
    hypotheses = ["", "Satz", "Das ist", "Das ist der", "ein langer Satz , der nicht endet ."]
    expected = score(hypotheses, REFERENCES[:5], "de").statistics["bleu"]
    np.testing.assert_array_equal(bleu_statistics(expected[:, :6].astype(int).tolist()), expected)


def test_report_compares_means_over_seeds(rows):
    first, second = [summary(1, 20, 5.0), summary(2, 22, 5.2)], [(1, 3, 4.0), (2, 1, 4.4)]
    summaries = {"first": first, "second": [summary(*one, words=80.0) for one in second]}
    shown = view(rows, summaries)
    first, second = shown.values
    bleu = {name: [s["metrics"]["bleu"] for s in of_row] for name, of_row in summaries.items()}
    assert second["bleu"] == pytest.approx(np.mean(bleu["second"]))
    assert second["bleu_deviation"] == pytest.approx(np.std(bleu["second"], ddof=1))
    assert second["delta"] == pytest.approx(np.mean(bleu["second"]) - np.mean(bleu["first"])) and second["p"] < 0.01
    assert second["nll_delta"] == pytest.approx(-0.9) and second["nll_p"] < 0.001
    assert second["speed"] == pytest.approx(0.8) and second["decoding_speed"] == 1
    assert second["seeds"] == 2 and "delta" not in first and "compared" not in second
    cells = shown.cells
    main_columns = ["row", "BLEU", "Δ BLEU", "NLL", "Δ NLL", "chrF", "TER", "length", "seeds", "published BLEU"]
    published = main_columns.index("published BLEU")
    assert cells[0][: published + 1] == main_columns and [row[published] for row in cells[1:]] == ["", "27.30"]
    details = {"parameters", "p over sentences: NLL", "words/s", "updates/s", "minutes an epoch", "decoding words/s"}
    assert details <= set(cells[0])
    assert cells[2][cells[0].index("updates/s")] == "2.00" and cells[2][cells[0].index("minutes an epoch")] == "0.75"


THIRD = ("  second:", "  third: {dropout: 0.4}\n  fourth: {dropout: 0.5}\n  second:")
SETTINGS = {
    "first": ROW, "third": trained_with(dropout="0.4"), "fourth": trained_with(dropout="0.5"),
    "second": trained_with(dropout="0.3", fp16=True)
}  # fmt: skip


def with_settings(runs, settings=SETTINGS):
    """Those of the rows in the table."""
    return {row: [run | {"row": settings[row]} for run in of_row] for row, of_row in runs.items()}


def test_differences_over_seeds_are_dunnetts(table):
    """Rows with several seeds are tested together, whatever the number of their seeds; one seed is not tested."""
    rows = list(load_table(table(THIRD)).rows.values())
    nll = {"first": [5.0, 5.2, 5.3], "third": [4.0, 4.3], "fourth": [6.0], "second": [5.1, 5.0, 4.8, 5.2]}
    wrong = {"first": [20, 22, 21], "third": [3, 1], "fourth": [9], "second": [20, 18, 22, 19]}
    runs = {row: [summary(i, w, x) for i, (w, x) in enumerate(zip(wrong[row], nll[row], strict=True))] for row in nll}
    compared = view(rows, runs)
    lines = {line["row"]: line for line in compared.values}
    bars = {
        line.name: (line.differences["nll"].interval[1] - line.differences["nll"].interval[0]) / 2
        for line in compared.lines
        if line.differences and line.differences["nll"].interval
    }
    bleu, panel = draw_rows(compared.lines, kind_of(rows[0]).measures(rows), "sentences").axes
    drawn = [container for container in panel.containers if container.has_xerr]
    ends = [container[2][0].get_segments()[0][:, 0] for container in drawn]
    sentences = 1.96 * lines["fourth"]["nll_error"]  # one seed: over test sentences, dotted
    expected = [bars.get(name, sentences) for name in ("third", "fourth", "second")]
    assert [(high - low) / 2 for low, high in ends] == pytest.approx(expected) and len(bars) == 2
    dotted = [container[2][0].get_linestyle()[0][1] is not None for container in drawn]
    assert dotted == [False, True, False] and ("bar: 95% interval over seeds (Dunnett's)\nbar:" in panel.get_xlabel())
    ends = [container[2][0].get_segments()[0][:, 0] for container in bleu.containers]
    expected = [line["bleu_deviation"] or line["bleu_interval"] for line in lines.values()]
    assert [(high - low) / 2 for low, high in ends] == pytest.approx(expected)
    assert "95% bootstrap interval over test sentences (dotted)" in bleu.get_xlabel()
    scores = {row: [s["metrics"]["bleu"] for s in of_row] for row, of_row in runs.items()}
    for prefix, values in (("nll_", nll), ("", scores)):
        expected = dunnett(values["third"], values["second"], control=values["first"], rng=np.random.default_rng(1))
        within = [np.var(values[row], ddof=1) * (len(values[row]) - 1) for row in ("first", "third", "second")]
        for row, p in zip(("third", "second"), expected.pvalue, strict=True):
            line = lines[row]
            assert line[f"{prefix}seed_p"] == pytest.approx(p, abs=1e-3)
            assert line[f"{prefix}delta"] == pytest.approx(np.mean(values[row]) - np.mean(values["first"]))
            error = (np.sum(within) / 6 * (1 / 3 + 1 / len(values[row]))) ** 0.5
            assert line[f"{prefix}seed_error"] == pytest.approx(error)
    assert lines["fourth"]["untested"] == "one seed" and "seed_p" not in lines["fourth"]
    assert lines["third"]["nll_seed_rows"] == 2  # tested together
    result = sacrebleu_result("bleu", ["Das war ganz anders ."] * 9 + REFERENCES[9:], REFERENCES, "de")
    low, high = interval(bleu_scores(resampled_sums(result.statistics)))
    assert lines["fourth"]["bleu_interval"] == pytest.approx((high - low) / 2)
    header, *shown = compared.cells
    cells = {row[0]: dict(zip(header, row, strict=True)) for row in shown}
    third = lines["third"]
    shown = f"{third['nll_delta']:+.3f} ± {third['nll_seed_error']:.3f}** ({seeds.p_text(third['nll_seed_p'])})"
    assert cells["third"]["Δ NLL"] == shown and cells["fourth"]["Δ NLL"] == "+1.000 (one seed)"
    of_sentences = [cells["third"][f"p over sentences: {x}"] for x in ("BLEU", "NLL")]
    assert "*" not in "".join([cells["second"]["Δ NLL"], *of_sentences])
    (design,) = (note for note in compared.notes if note.startswith("with these seeds, a true difference"))
    assert f"third: {third['smallest']:.2f} BLEU, {third['nll_smallest']:.3f} NLL (standard deviation" in design
    assert f"second: {lines['second']['smallest']:.2f} BLEU" in design
    assert third["nll_smallest"] > third["nll_seed_error"]


def test_every_baseline_has_a_family_of_its_own(table):
    third = ("  second: {", "  third: {dropout: 0.4, baseline: third}\n  second: {baseline: third, ")
    rows, nll = list(load_table(table(third)).rows.values()), {"first": 5.0, "third": 4.0, "second": 4.5}
    runs = {row: [summary(1, 9, x), summary(2, 9, x + 0.1)] for row, x in nll.items()}
    shown = view(rows, runs)
    first, third, second = shown.values
    assert "delta" not in first and "delta" not in third and second["baseline"] == "third"
    expected = ttest_ind([4.5, 4.6], [4.0, 4.1]).pvalue  # a family of one row
    assert second["nll_seed_p"] == pytest.approx(expected) and second["untested"] == "no spread over seeds"
    assert any("(no spread over seeds)" in cell for cell in shown.cells[3])
    assert "seed_interval" not in second and "nll_seed_interval" in second


def test_one_seed_is_compared_with_the_same_seed_and_not_tested(rows):
    first, second = [summary(1, 20, 5.0), summary(2, 3, 9.0)], [summary(1, 22, 4.0)]
    shown = view(rows, {"first": first, "second": second})
    line, alone = shown.values[1], view(rows, {"first": first[:1], "second": second}).values[1]
    for key in ("delta", "p", "nll_delta", "nll_error", "nll_p", "untested"):
        assert line[key] == alone[key]
    assert line["untested"] == "one seed" and "*" not in "".join(shown.cells[2])
    assert "one seed on a side: Δ and p are of the seed that row and baseline share: second 1" in shown.notes
    assert any(note.endswith("nothing is tested over seeds, nothing has a star") for note in shown.notes)
    _, line = view(rows, {"first": second, "second": first}).values
    assert line["untested"] == "baseline: one seed" and line["nll_delta"] == pytest.approx(1)
    shown = view(rows, {"first": first, "second": [summary(7, 22, 4.0)]})
    assert shown.values[1]["nll_delta"] == pytest.approx(-3)  # against all seeds, as there is no shared one
    assert "other seeds than the baseline's; all of both are used: second 7" in shown.notes
    _, line = view(rows, {"first": first, "second": [summary(1, 22, 4.0), summary(3, 1, 1.0)]}).values
    assert line["nll_delta"] == pytest.approx(-4.5) and line["other_seeds"] == [1, 3]  # tested: unpaired


def test_of_one_seed_the_bootstrap_interval_is_shown(rows):
    shown = view(rows, {"first": [summary(1, 20, 5.0)], "second": [summary(1, 3, 4.0)]})
    place, line = shown.cells[0].index("BLEU"), shown.values[0]
    assert shown.cells[1][place] == f"{line['bleu']:.2f} ± {line['bleu_interval']:.2f}"
    assert "BLEU ±: half the 95% bootstrap interval" in shown.notes


def test_a_bar_over_test_sentences_is_a_95_interval(rows):
    lines = view(rows, {"first": [summary(1, 20, 5.0)], "second": [summary(1, 3, 4.0)]}).lines
    _, differences = draw_rows(lines, kind_of(rows[0]).measures(rows), "sentences").axes
    ((start, end),) = (bar.get_segments()[0][:, 0] for bar in differences.containers[0].lines[2])
    assert (end - start) / 2 == pytest.approx(norm.ppf(0.975) * lines[1].over_examples["nll"].error, rel=1e-3)


def test_rows_with_the_same_other_seeds_are_named_together(table):
    rows = list(load_table(table(THIRD)).rows.values())
    numbers = {"first": (1, 2), "third": (1, 3), "fourth": (1, 7), "second": (1, 3)}
    runs = {row: [summary(number, 9, 5.0 + number) for number in of_row] for row, of_row in numbers.items()}
    assert any(n.endswith("; all of both are used: third, second 1, 3; fourth 1, 7") for n in view(rows, runs).notes)


def test_a_row_whose_seeds_differ_more_is_named_and_can_be_left_out(table, tmp_path, capsys, error_of, output_of):
    """Left out, it is not in the common deviation, either: what it hid is found."""
    name = table(THIRD)
    nll = {"first": [5.0, 5.1, 5.2], "third": [4.0, 6.0], "fourth": [5.1, 5.0, 5.2], "second": [4.5, 4.6, 4.4]}
    runs = {row: [summary(seed, 9, x) for seed, x in enumerate(values)] for row, values in nll.items()}
    saved.save(tmp_path / "results", with_settings(runs))
    asked = ["report", name, "--results", str(tmp_path / "results")]
    lines = {line["row"]: line for line in json.loads(output_of(*asked, "--format", "json"))["rows"]}
    variances = {row: np.var(values, ddof=1) for row, values in nll.items()}
    assert lines["third"]["nll_seed_ratio"] == pytest.approx((variances["third"] / variances["first"]) ** 0.5)
    others = (2 * variances["first"] + 2 * variances["fourth"] + variances["third"]) / 5
    assert lines["second"]["nll_seed_ratio"] == pytest.approx((variances["second"] / others) ** 0.5)
    assert lines["second"]["nll_seed_p"] > 0.05 and lines["third"]["seed_ratio"] is None
    shown = output_of(*asked, "--verdict")
    assert "as all others: third (14.1 times). Their p is too small, and" in shown
    welch = ttest_ind(nll["first"], nll["third"], equal_var=False).pvalue
    assert lines["third"]["nll_seed_welch_p"] == pytest.approx(welch)
    assert f" {welch:.3f} " in shown and "Welch p: of the row" in shown
    assert "(3 rows)" in shown and "commits: 0123456789+" in shown
    left = output_of(*asked, "--verdict", "--without", "third")
    assert "[--without third]" in left and "third " not in left and "(2 rows)" in left and "vary alike" not in left
    verdicts = [re.search("^second .* (helps|not resolved) ", text, re.MULTILINE)[1] for text in (shown, left)]
    assert verdicts == ["not resolved", "helps"]
    for rows, message in (
        ("first", "--without first: row third is compared with it; give another --baseline"),
        ("fifth", "--without: no row fifth in table; rows: first, "),
        ("first,second,third,fourth", "leaves no row of table"),
    ):
        assert message in error_of(*asked, "--without", rows)
    assert not main([*asked, "--without", "first", "--baseline", "second", "--columns", "row,NLL"])
    assert "first" not in capsys.readouterr().out.split("\n\n")[1]


def test_a_baseline_whose_seeds_differ_much_more_than_the_rows_is_named(table):
    rows = list(load_table(table(("second: {", "third: {dropout: 0.4}\n  second: {"))).rows.values())
    nll = {"first": [3.0, 5.0, 7.5], "third": [5.0, 5.1, 5.2], "second": [4.5, 4.6, 4.4]}
    shown = view(rows, {row: [summary(i, 9, x) for i, x in enumerate(of)] for row, of in nll.items()})
    lines = shown.values
    assert [a.get("nll_deviation") for a in lines] == [pytest.approx(np.std(nll[row.name], ddof=1)) for row in rows]
    pooled = (np.var(nll["third"], ddof=1) + np.var(nll["second"], ddof=1)) / 2
    assert lines[1]["nll_seed_baseline_ratio"] == pytest.approx(np.std(nll["first"], ddof=1) / pooled**0.5)
    (note,) = [note for note in shown.notes if "more than 3 times" in note]
    assert "others: first (22.5 times). Their p is too small, and that of all rows if one of them is the" in note
    assert "BLEU, NLL ±: standard deviation over seeds" in shown.notes and "5.167 ± 2.255" in shown.cells[1]
    for wide, noted in ((0.32, True), (0.28, False)):  # the rows' deviation is 0.1
        nll["first"] = [5.0 - wide, 5.0, 5.0 + wide]
        runs = {row: [summary(i, 9, x) for i, x in enumerate(values)] for row, values in nll.items()}
        said = " ".join(view(rows, runs).notes)
        assert ("more than 3 times" in said) == noted and ("others: first (3.2 times)" in said) == noted


def test_other_trees_and_files_are_refused_and_other_versions_named(rows):
    first, second = ([summary(seed, 9, 5.0 + seed) for seed in (1, 2)] for _ in range(2))
    second = [run | {"trees": "a", "versions": {"torch": version}} for run, version in zip(second, "12", strict=True)]
    text = "runs with different versions, which alone may change a score: torch 1 (second); torch 2 (second)"
    assert text in view(rows, {"first": first, "second": second}).notes
    same = [run | {"versions": {"torch": "2", "numpy": "2"}} for run in second]
    assert not any("different versions" in note for note in view(rows, {"first": first, "second": same}).notes)
    second[1]["trees"] = "b"
    refused("seed 1 and seed 2 were run with different trees", view, rows, {"first": first, "second": second})
    second = [run | {"trees": "a", "read": {"user-dir": code}} for run, code in zip(second, "cd", strict=True)]
    refused("seed 1 and seed 2 were run with different user-dir", view, rows, {"first": first, "second": second})


@pytest.mark.parametrize("other", [None, MACHINE | {"threads": 2}], ids=["unknown", "another"])
def test_speeds_are_those_of_one_machine(table, other):
    """A row elsewhere than its baseline has a dash; the notes say why, and where rows ran."""
    of = table(("fp16: true", "fp16: true, published: {speed: 1.21}"), ("published: {bleu: 27.3}", "lr: 0.005"), THIRD)
    rows = list(load_table(of).rows.values())
    runs = {"first": [summary(1, 9, 5.0), summary(2, 8, 5.1)], "third": [summary(1, 9, 5.0, words=50.0)], "fourth": []}
    runs["second"] = [summary(1, 9, 5.0), summary(2, 8, 5.2, machine=other)]
    shown = view(rows, runs)
    header, first, third, _, second = shown.cells
    at = {n: header.index(n) for n in ("words/s", "updates/s", "speed", "minutes an epoch", "decoding words/s")}
    assert [second[i] for i in at.values()] == ["-"] * 5 and third[at["speed"]] == "0.50" and first[at["speed"]] == ""
    assert header[at["updates/s"] + 1] == "published updates/s" and second[at["updates/s"] + 1] == "1.21"
    assert shown.values[3]["speed"] is shown.values[3]["epoch_minutes"] is None
    notes = shown.notes
    why = "unknown machine" if other is None else "different machines"
    assert any(note.startswith("no speed (-)") and note.endswith(f"{why}: second") for note in notes)
    place = why if other is None else "EPYC, 2 cores, 2 threads, AVX2"
    where = f"EPYC, 2 cores, 1 thread, AVX2: first, third, second seed 1; {place}: second seed 2"
    assert any(note.endswith(where) for note in notes)
    assert "ran on: EPYC, 2 cores, 1 thread, AVX2" in view(rows, runs | {"second": []}).notes


def test_further_metrics_are_means_over_the_seeds_that_all_have_them(table):
    rows = list(load_table(table(("rows:", "metrics: yisi-0,meteor\nrows:"))).rows.values())
    found = [summary(1, 9, 5.0), summary(2, 9, 5.0)]
    for one, value in zip(found, (40.0, 41.0), strict=True):
        one["metrics"]["yisi-0"] = value
    found[0]["metrics"]["meteor"] = 30.0
    cells = view(rows, {"first": found, "second": []}).cells
    at = cells[0].index("YiSi-0")
    assert cells[0][at - 1] == "TER" and cells[1][at] == "40.50" and "METEOR" not in cells[0]


def test_a_published_figure_without_a_unit_says_so(table):
    rows = list(load_table(table(("published: {bleu", "published: {wer-li2022: 9.03, bleu"))).rows.values())
    cells = view(rows, {row.name: [] for row in rows}).cells
    assert "published WER (unit not stated)" in cells[0] and "published BLEU" in cells[0]


def test_rows_that_were_not_run_are_marked(rows):
    shown = view(rows, {"first": [summary(1, 20, 5.0)], "second": []})
    text = formats.as_text(shown.cells, "", [])
    assert "second" in text and "not run" in text and "27.30" in text
    markdown = formats.as_markdown(shown.cells, "title", ["a note"]).splitlines()
    assert (markdown[0], markdown[-1]) == ("title", "- a note")
    markdown = markdown[2:-2]
    assert markdown[1].startswith("| --- | ---:") and len({line.count("|") for line in markdown}) == 1
    notes = "\n".join(shown.notes)
    assert "bootstrap interval" in notes and "0123456789+" in notes and "measured on multi30k_en_de" in notes


def test_saved_summaries_give_the_same_report_without_paths_of_this_machine(rows, tmp_path):
    second = summary(1, 3, 4.0)
    second["row"] = SETTINGS["second"]
    summaries = {"first": [summary(1, 20, 5.0), summary(2, 22, 5.2)], "second": [second]}
    paths = saved.save(tmp_path / "results", summaries)
    assert sorted(path.name for path in paths) == ["first-seed1.json", "first-seed2.json", "second-seed1.json"]
    assert json.loads(paths[0].read_text())["system"] == "first"
    read = saved.from_results(tmp_path / "results", rows)
    assert view(rows, read).values == view(rows, summaries).values
    again = saved.save(tmp_path / "again", read)  # a copy of the copy
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
    refused("no saved summaries", saved.from_results, tmp_path / "nothing", rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["data=wmt14_en_de"], "its data are multi30k_en_de, not wmt14_en_de"),
        (["lr=0.1"], "it was trained with --lr 0.005, not --lr 0.1"),
        (["fp16=true"], "it was trained with no --fp16, not --fp16"),
        (["dropout=null"], "it was trained with --dropout 0.2, not no --dropout"),
    ],
)
def test_results_of_other_runs_are_refused(table, tmp_path, change, message):
    saved.save(tmp_path, {"first": [summary(1, 20, 5.0)]})
    data = change[0].removeprefix("data=") if change[0].startswith("data") else None
    rows = list(load_table(table(), data=data, settings=None if data else change).rows.values())
    with pytest.raises(ValueError, match=f"first-seed1.json: not row first of this table as configured: {message}"):
        saved.from_results(tmp_path, rows)


def test_results_that_are_not_summaries_or_repeat_a_seed_are_refused(rows, tmp_path):
    saved.save(tmp_path, {"first": [summary(1, 20, 5.0)]})
    (tmp_path / "copy.json").write_text((tmp_path / "first-seed1.json").read_text())
    refused(r"first-seed1.json: seed 1 of row first is .*copy.json already", saved.from_results, tmp_path, rows)
    damaged = json.dumps(summary(1, 20, 5.0) | {"system": "first", "seed": "1"})
    for text in ("{}", "[1]", "x", '{"system": "first"}', damaged):
        (tmp_path / "copy.json").write_text(text)
        said = r"copy.json: not a summary that `fairseq-diverse report TABLE --save` wrote"
        refused(f"{said}: not a summary of a run" if text == damaged else said, saved.from_results, tmp_path, rows)


def test_unknown_speeds_and_sizes_are_left_empty(rows):
    unknown = {"words_per_second": {"train": None, "generate": 0.0}, "parameters": None}
    summaries = {"first": [summary(1, 20, 5.0) | unknown], "second": [summary(1, 9, 5.0)]}
    shown = view(rows, summaries)
    first, second = shown.values
    assert first["words_per_second"] is None and second["speed"] is None and second["decoding_speed"] is None
    cells = shown.cells
    assert cells[1][cells[0].index("words/s")] == "" and "speed" not in cells[0]
    assert not any("no speed" in note for note in shown.notes)
    assert [row.name for row in best_of_grids(rows, summaries)] == ["first", "second"]


def test_rows_that_ended_early_are_named(table):
    rows = list(load_table(table(), settings=["patience=3"]).rows.values())
    short = [summary(1, 9, 5.0) | {"updates": 13}, summary(2, 9, 5.0) | {"updates": 30}]
    notes = view(rows, {"first": [summary(1, 20, 5.0)], "second": short}).notes
    assert "updates until training ended, by seed: second 13, 30 of 30 (--patience)" in notes


@pytest.mark.parametrize(("last", "best", "named"), [(4.0, 3.0, False), (4.6, 3.0, True), (12.0, 12.0, True)])
def test_trainings_that_diverged_are_named(rows, last, best, named):
    second = summary(2, 9, 5.0) | {"valid_nll": {"last": last, "best": best}}
    notes = view(rows, {"first": [summary(1, 9, 5.0)], "second": [second]}).notes
    said = f"NLL a token at the end (and the best): second seed 2 {last:.2f} ({best:.2f})"
    assert any(note.startswith("training diverged") and note.endswith(said) for note in notes) == named


@pytest.mark.parametrize(("usual", "odd"), [(1.2, 1.97), (0.85, 0.5)])
def test_translations_of_odd_length_are_named(rows, usual, odd):
    whole = summary(1, 9, 5.0)
    first, second = ([whole | {"metrics": whole["metrics"] | {"length_ratio": ratio}}] for ratio in (usual, odd))
    (note,) = (note for note in view(rows, {"first": first, "second": second}).notes if "much shorter" in note)
    assert note.endswith(f": second {odd:.2f}")
    assert not any("much shorter" in note for note in view(rows, {"first": first, "second": []}).notes)


def test_long_headers_have_several_lines():
    shown = formats.as_text([["row", "p over sentences: BLEU", "Δ"], ["first", "0.001", "a cell of words"]], "T", [])
    assert shown.splitlines()[2:] == [
        "row        p over                Δ", "       sentences:", "             BLEU",
        "first       0.001  a cell of words"
    ]  # fmt: skip


def test_a_grid_as_baseline_is_compared_point_by_point(table, tmp_path, capsys, output_of):
    name = table(("rows:", "grid: {dropout: [0.2, 0.4]}\nrows:"), ("dropout: 0.3, fp16", "fp16"))
    runs = {
        f"{family}-dropout={rate}": [summary(1, 20, nll) | {"row": trained_with(dropout=str(rate), **more)}]
        for family, more in (("first", {}), ("second", {"fp16": True}))
        for rate, nll in ((0.2, 5.0), (0.4, 6.0))
    }
    saved.save(tmp_path / "results", runs)
    asked = ["report", name, "--results", str(tmp_path / "results"), "--format", "json"]
    lines = {line["row"]: line for line in json.loads(output_of(*asked, "--baseline", "second"))["rows"]}
    assert "nll_delta" not in lines["second-dropout=0.4"]
    assert lines["first-dropout=0.2"]["baseline"] == "second-dropout=0.2"
    asked[1] = table(("  first:", "  first: {grid: {}}"), ("dropout: 0.3, fp16", "grid: {dropout: [0.2, 0.4]}, fp16"))
    assert main([*asked, "--baseline", "second"]) == 2
    said = "--baseline second: which is for row first? second-dropout=0.2, second-dropout=0.4"
    assert said in capsys.readouterr().err
    assert main([*asked, "--baseline", "secnd"]) == 2 and "--baseline secnd: no such row" in capsys.readouterr().err


def test_another_baseline_is_compared_with_nothing(table, tmp_path, output_of):
    name = table()
    saved.save(tmp_path / "results", with_settings({"first": [summary(1, 20, 5.0)], "second": [summary(1, 3, 4.0)]}))
    asked = ["report", name, "--results", str(tmp_path / "results"), "--baseline", "second", "--format", "json"]
    for rows in ([], ["--rows", "first"]):
        lines = {line["row"]: line for line in json.loads(output_of(*asked, *rows))["rows"]}
        assert "delta" not in lines["second"] and lines["first"]["baseline"] == "second"


PROBING = """
data: probing
size: probing_small
grid: {probe: [sentence_length, word_content]}
rows:
  baseline: {published: {sentence_length: 90.0, word_content: 80.0}}
  routed: {routing: em}
"""


def test_classifiers_are_compared_over_seeds_and_probes_averaged(tmp_path):
    (tmp_path / "table.yaml").write_text(PROBING)
    rows = list(load_table(str(tmp_path / "table.yaml")).rows.values())
    hits = {"baseline": ["1100" * 25, "1100" * 24 + "1000"], "routed": ["1110" * 25, "1110" * 24 + "1000"]}

    def summary(row, seed):
        part = {"classes": [60, 40], "hits": hits[row.family][seed - 1]}
        if row.name == "routed-probe=word_content":
            part["hits"] = part["hits"][:-8] + ("1111" * 2, "0000" * 2)[seed - 1]
        shared = {"commit": "c", "dirty": False, "data_hash": "d", "parameters": 7, "seed": seed, "machine": MACHINE}
        return {**shared, "accuracy": {row.train["probe"]: part}}

    runs = {row.name: [summary(row, 1), summary(row, 2)] for row in rows}
    whole = view(rows, runs)
    lines = whole.values
    assert [line["row"] for line in lines] == [*(row.name for row in rows), "baseline, Surface", "routed, Surface"]
    assert [line["all"] for line in lines] == [49.5, 49.5, 74, 73, 49.5, 73.5]
    p = [ttest_ind([75, 73], [50, 49]).pvalue, ttest_ind([77, 69], [50, 49]).pvalue]  # families of one row
    assert lines[2]["delta"] == 24.5 and lines[2]["p"] < 1e-6 and "delta" not in lines[0]
    assert [line["seed_p"] for line in lines[2:4]] == pytest.approx(p) and 0.001 < p[0] < p[1] < 0.05
    assert [line["holm_p"] for line in lines[2:4]] == pytest.approx([2 * p[0], p[1]])
    shown = [row for row in rows if row.train["probe"] == "word_content"]
    some = view(shown, runs, [row for row in rows if row not in shown])
    assert some.values[1]["holm_p"] == pytest.approx(lines[3]["holm_p"]) and some.values[1]["holm_of"] == 2
    assert any("Holm's correction over 2 p-values, 1 of them shown" in note for note in some.notes)
    assert not kind_of(rows[0]).tables(whole.lines)
    assert lines[0]["largest"] == 60 and lines[4]["published"] == 85 and lines[5]["published"] is None
    assert whole.cells == [
        ["probe", "largest class", "baseline", "baseline, published", "routed"],
        ["sentence_length", "60.00", "49.50 ± 0.71", "90.00", "74.00 ± 1.41**"],
        ["word_content", "60.00", "49.50 ± 0.71", "80.00", "73.00 ± 5.66*"],
        ["Surface", "", "49.50", "85.00", "73.50"],
    ]
    notes = whole.notes
    assert "seeds a row: 2" in notes and any(n.startswith("against baseline, over seeds: t-tests with") for n in notes)
    assert any(note.endswith("p < 0.05: sentence_length routed, word_content routed") for note in notes)
    assert not any("each encoder is one training" in note for note in notes)
    assert "group means relative to the baseline's: Surface routed +48.48%" in notes  # 73.5 / 49.5
    of_checkpoint = [dataclasses.replace(row, train=row.train | {"from-checkpoint": "model.pt"}) for row in rows]
    trained = view([row for row in rows if row.family == "baseline"] + of_checkpoint[-2:], runs)
    assert {row.family for row in of_checkpoint[-2:]} == {"routed"} and "*" not in str(trained.cells)
    trained = view(of_checkpoint[:2] + [row for row in rows if row.family == "routed"], runs)
    assert {row.family for row in of_checkpoint[:2]} == {"baseline"} and "*" not in str(trained.cells)
    trained = view(of_checkpoint, runs)
    assert not any("holm_p" in line for line in trained.values) and "*" not in str(trained.cells)
    assert any("each encoder is one training" in note for note in trained.notes)
    some = view(rows, {row.name: runs[row.name][:1] * (row.name == rows[0].name) for row in rows})
    assert [cells[2::2] for cells in some.cells[1:]] == [["50.00", "not run"], *[["not run", "not run"]] * 2]
    nothing = view(rows, {row.name: [] for row in rows})
    assert {line["seeds"] for line in nothing.values} == {0}
    assert "not run" in formats.as_text(nothing.cells, "", []) and len(nothing.notes) == 1  # on published figures
    one = view(rows, {row.name: runs[row.name][:1] for row in rows})
    assert "*" not in "".join(map("".join, one.cells)) and any("nothing has a star" in note for note in one.notes)


def test_lengths_of_logic_are_those_of_training_and_longer_ones(tmp_path):
    (tmp_path / "table.yaml").write_text("data: propositional_logic\nsize: logic_small\nrows: {baseline: }\n")
    rows = list(load_table(str(tmp_path / "table.yaml")).rows.values())
    accuracy = {"6": {"classes": [2, 2], "hits": "1111"}, "7": {"classes": [1, 3], "hits": "1000"}}
    run = {"seed": 1, "commit": "c", "dirty": True, "parameters": 7, "accuracy": accuracy, "row": {"train": {}}}
    shown = view(rows, {"baseline": [run]})
    (line,) = shown.values
    assert (line["seen"], line["longer"], line["all"], line["largest"]) == (100, 25, 62.5, 62.5)
    header = ["row", "parameters", "as in training", "longer", "all", "largest class", "seeds"]
    assert shown.cells == [header, ["baseline", "7", "100.00", "25.00", "62.50", "62.50", "1"]]
    ((_, lengths),) = kind_of(rows[0]).tables(shown.lines)
    assert lengths == [["operators", "largest class", "baseline"], ["6", "50.00", "100.00"], ["7", "75.00", "25.00"]]
    assert line["parts"] == {"6": 100, "7": 25} and "c+" in shown.notes[-1]


def test_a_table_may_have_logic_and_probes(tmp_path):
    rows = "  logic: {data: propositional_logic, size: logic_small}\n  probe: {probe: word_content, baseline: probe}\n"
    (tmp_path / "table.yaml").write_text(f"data: probing\nsize: probing_small\nrows:\n{rows}")
    rows = list(load_table(str(tmp_path / "table.yaml")).rows.values())
    shared = {"seed": 1, "commit": "c", "dirty": True, "parameters": 7, "row": {"train": {}}}
    parts = {
        row.name: {part: {"classes": [2, 2], "hits": "1110"}}
        for row, part in zip(rows, ("6", "word_content"), strict=True)
    }
    shown = view(rows, {name: [shared | {"data_hash": name, "accuracy": part}] for name, part in parts.items()})
    ((_, lengths),), pictures = (draw(shown.lines) for draw in (kind_of(rows[0]).tables, kind_of(rows[0]).pictures))
    assert lengths == [["operators", "largest class", "logic"], ["6", "50.00", "75.00"]] and len(pictures) == 1


def test_the_plot_of_lengths_has_one_curve_per_row_and_the_majority_class():
    found = {"a": [Accuracy([3, 1], "1111"), Accuracy([2, 2], "1000")], "b": [Accuracy([3, 1], "0000")] * 2}
    (axis,) = draw_accuracy([6, 7], found, 6).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axis.get_lines()}
    assert drawn["largest class"] == [[6, 75], [7, 50]]
    assert (drawn["a"], drawn["b"]) == ([[6, 100], [7, 25]], [[6, 0], [7, 0]])
    assert [6.5, 6.5] in [list(line.get_xdata()) for line in axis.get_lines()]


def earlier(summary):
    """Of a version before summaries had a schema: only the commands say what the row was."""
    return {key: value for key, value in summary.items() if key not in ("schema", "kind", "row")}


def test_a_saved_run_is_shown_with_its_own_averaging_and_translation_only(table, tmp_path):
    train = "python -m fairseq_cli.train d --arch transformer --max-update 30 --lr 0.005 --dropout 0.2"
    average = "python -m fairseq_diverse.cli average --checkpoints c --updates --last 2 --out c/a.pt"
    best = "python -m fairseq_diverse.cli average --checkpoints c --updates --best 2 --metric loss --out c/a.pt"
    translate = "python -m fairseq_cli.generate d --path p --gen-subset {} --batch-size 64 --beam 5"
    several = {"chosen": {"lenpen": 1.4, "valid_bleu": {"1": 30.0, "1.4": 31.0}}}
    valid, chosen = f"{translate.format('valid')} --lenpen 1", f"{translate.format('test')} --lenpen 1.4"
    averaged = ["average.last=2", "average.every=5"]
    last, best = ([f"{train} --save-interval-updates 5", command] for command in (average, best))
    for commands, more, settings, problem in (
        ([train, translate.format("test")], {}, [], ""),
        ([train], {}, averaged, "it evaluates the last checkpoint, not the average of the last 2 checkpoints, one"),
        ([train], {}, averaged, "updates; --set average.last=0 shows it"),
        (last, {}, averaged, ""),
        (last, {}, [], "--set average.last=2 --set average.every=5 shows it"),
        ([f"{train} --save-interval-updates 6", average], {}, averaged, "one every 6 updates, not the average of the"),
        (best, {}, [*averaged[1:], "average.best=2", "average.by=loss"], ""),
        (best, {}, averaged, "best 2 checkpoints by loss, one every 5 updates, not"),
        (best, {}, [], "best=2 --set average.every=5 --set average.by=loss shows it"),
        ([train, translate.format("test")], {}, ["generate.beam=4"], "it was translated with --beam 5, not --beam 4"),
        ([train, valid, chosen], several, ["generate.lenpen=[1,1.4]"], ""),
        ([train, chosen], {}, ["generate.lenpen=[1,1.4]"], "penalty was chosen from none, not from 1, 1.4"),
        ([train, valid, chosen], several, ["generate.lenpen=1.4"], "penalty was chosen from 1, 1.4, not from none"),
        ([train, chosen], {}, [], "it was translated with --lenpen 1.4, not no --lenpen"),
    ):
        lines = [*commands, *([translate.format("test")] if "generate" not in commands[-1] else [])]
        saved.save(tmp_path / "results", {"first": [earlier(summary(1, 20, 5.0)) | {"commands": lines} | more]})
        rows = list(load_table(table(), settings=settings).rows.values())
        if problem:
            with pytest.raises(ValueError, match=f"first-seed1.json: not row first .*: .*{re.escape(problem)}"):
                saved.from_results(tmp_path / "results", rows)
        else:
            assert len(saved.from_results(tmp_path / "results", rows)["first"]) == 1


def test_stars_and_p_values():
    assert [seeds.stars(p) for p in (0.05, 0.049, 0.01, 0.009)] == ["", "*", "*", "**"]
    assert [seeds.p_text(p) for p in (0.0456, 0.001, 0.0009)] == ["p = 0.046", "p = 0.001", "p < 0.001"]
    assert [seeds.p_number(p) for p in (0.0456, 0.0011, 0.0009)] == ["0.046", "0.001", "< 0.001"]


CELLS = [["row", "Δ BLEU"], ["a_b & 50%", "-1.00** (p < 0.001)"]]


def test_columns_of_dashes_are_left_out():
    cells = [["row", "speed", "seeds"], ["first", "-", "1"], ["second", "", "2"]]
    assert without_empty(cells) == [["row", "seeds"], ["first", "1"], ["second", "2"]]


def test_special_characters_are_escaped_and_break_no_line():
    note = formats.as_latex(CELLS, "", ["λ ≤ 1, β, ω"]).splitlines()[-2]
    assert note == r"\par\footnotesize $\lambda$ $\leq$ 1, $\beta$, $\omega$"
    note = formats.as_latex(CELLS, "", ["--a-b, +0.35 (-1.22 to -0.5)"]).splitlines()[-2]
    assert note.endswith(r" -{}-a-b, +0.35 ($-$1.22 to $-$0.5)")
    lines = formats.as_latex(CELLS, "Table #1", ["±: {x}^2~y\\z a-b|c"]).splitlines()
    assert lines[3] == r"\caption{Table \#1}" and lines[4] == r"\begin{tabular}{lr}"
    assert lines[8] == r"a\_b \& 50\% & $-$1.00$^{**}$ (p $<$ 0.001) \\"
    note = r"\par\footnotesize $\pm$: \{x\}\textasciicircum{}2\textasciitilde{}y\textbackslash{}z a-b\textbar{}c"
    assert lines[-2] == note
    text = "<b>x</b> &lt; a|b *c* _d_ __e__ f_g [h](i) `j` $k$ ~~l~~ \\\n<!-- end -->\x1b[1m 1 < 2"
    markdown = formats.as_markdown([["row"], [text]], "# T_1", ["1. n", "- n", "> n", "n - 1."]).splitlines()
    cell = r"&lt;b>x&lt;/b> &amp;lt; a\|b \*c\* \_d\_ \_\_e\_\_ f_g \[h\](i) \`j\` \$k\$ \~\~l\~\~ \\ "
    assert markdown[4] == f"| {cell}&lt;!-- end --> \\[1m 1 < 2 |"
    assert markdown[0] == r"\# T_1" and markdown[-4:] == [r"- 1\. n", r"- \- n", r"- \> n", "- n - 1."]
    cells = [["row\x1b[31m", "x"], ["[a]\r\nb\u2028c", "\x00"]]
    for write in (formats.as_text, formats.as_markdown, formats.as_latex):
        shown = write(cells, "ti\ntle", ["no\nte"])
        assert all(character.isprintable() or character == "\n" for character in shown)
        assert "ti tle" in shown and "no te" in shown
    assert r"{[}a{]}  b c & " in formats.as_latex(cells, "", [])  # a row that starts with a bracket is no length


def test_a_report_without_a_table_names_rows_that_were_not_run():
    selection = SimpleNamespace(not_run=["second"], rows=["first"])
    assert completed(Report([], {}), selection, [], True) == Report([], {"not_run": ["second"]})


@pytest.fixture
def results(table, tmp_path):
    """The arguments that report a table of one finished row."""
    name = table()
    saved.save(tmp_path / "results", {"first": [summary(1, 20, 5.0), summary(2, 22, 5.2)]})
    return [name, "--results", str(tmp_path / "results")]


def test_report_in_every_format(results, capsys, output_of, tmp_path, error_of):
    signs = {"text": "row  ", "markdown": "| row |", "latex": r"\toprule", "html": '<th scope="col">row</th>'}
    for form, sign in signs.items():
        shown = output_of("report", *results, "--format", form, "--finished", "--columns", "row, BLEU")
        assert sign in shown and "first" in shown and "chrF" not in shown
        assert shown.count("second") == 1 and "not run (1 of 2 rows): second" in shown
    assert "second" not in output_of("report", *results, "--finished", "--no-notes")
    assert not main(["report", *results, "--format", "json", "--out", str(tmp_path / "summaries.json")])
    content = json.loads((tmp_path / "summaries.json").read_text())
    assert content["rows"][0]["seeds"] == 2 and content["notes"]
    assert capsys.readouterr().out == f"{tmp_path}/summaries.json\n"
    assert "--columns: no column bleu; there are: row, BLEU," in error_of("report", *results, "--columns", "row,bleu")
    assert not main(["report", *results, "--baseline", "second", "--finished"])  # a baseline that was not run
    shown = capsys.readouterr().out
    assert re.search(r"^first ", shown, re.MULTILINE) and "Δ" not in shown and "smallest" not in shown
    assert main(["report", *results, "--rows", "second", "--baseline", "second", "--finished"]) == 2
    assert "--finished: no row of table has a finished run" in capsys.readouterr().err


def test_details_are_shown_on_request(results, output_of):
    """A few columns by default; columns of dashes are left out."""
    lines = output_of("report", *results).splitlines()
    assert lines[2].split() == ["row", "BLEU", "NLL", "seeds", "published"]  # and "BLEU" below
    details = "chrF, TER, length, parameters, words/s, updates/s, minutes an epoch, decoding words/s"
    assert lines[-1] == f"--all-columns shows also: {details}"
    shown = output_of("report", *results, "--all-columns", "--format", "markdown")
    assert "| published BLEU | parameters | words/s | updates/s | minutes an epoch | decoding words/s |" in shown
    assert "| speed |" not in shown and "--all-columns" not in shown
    assert main(["report", *results, "--all-columns", "--heads", "--verdict"]) == 2
    assert "--all-columns" not in output_of("report", *results, "--columns", "row,parameters")


def test_seeds_of_run_are_those_of_report(results, capsys, error_of):
    """--jobs, which both take so that their arguments can be the same, changes nothing."""
    for given, count in (("1", 1), ("2,1", 2), ("2,9", 1)):
        assert not main(["report", *results, "--seeds", given, "--jobs", "3", "--format", "json"])
        assert [line["seeds"] for line in json.loads(capsys.readouterr().out)["rows"]] == [count, 0]
    assert not main(["report", *results, "--seeds", "7"])
    assert "no row has a finished run" in capsys.readouterr().err
    assert "--seeds a: different whole numbers expected" in error_of("report", *results, "--seeds", "a")


def test_runs_with_other_settings_are_named(table, tmp_path, monkeypatch, capsys):
    """Those that were run with --set, which a report without it does not show."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    for seed, row in ((1, trained_with(**{"max-update": "9"})), (2, trained_with(**{"max-update": "9"})), (3, ROW)):
        folder = tmp_path / f"runs/multi30k_en_de-size-first-abc{seed}/seed{seed}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary(seed, 20, 5.0) | {"row": row}))
    (folder.parent / "seed4").mkdir()
    (folder.parent / "seed4/summary.json").write_text("{")
    assert not main(["report", table()])
    said = capsys.readouterr().err
    assert "finished runs have other settings than the table now; give the --set, --size and --data" in said
    assert re.search(r"by row: first \(2\): it was trained with --max-update 9, not --max-update \d+\n", said)


def test_the_version_of_an_installed_package_is_in_place_of_a_commit(rows):
    runs = [summary(seed, 20, 5.0) | {"commit": None, "dirty": None} for seed in (1, 2)]
    assert "commits: unknown" in view(rows[:1], {"first": runs}).notes
    runs[0] |= {"versions": {"fairseq-diverse": "1.0.0"}}
    assert "code: unknown, version 1.0.0" in view(rows[:1], {"first": runs}).notes


def test_csv_has_the_single_values_of_json(results, capsys, output_of, error_of):
    shown = {}
    for form in ("json", "csv"):
        shown[form] = output_of("report", *results, "--format", form)
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    for row, line in zip(rows, json.loads(shown["json"])["rows"], strict=True):
        single = {key: value for key, value in line.items() if isinstance(value, int | float | str)}
        assert {key: row[key] for key in single} == {key: str(value) for key, value in single.items()}
    assert rows[1]["published.bleu"] == "27.3" and rows[0]["bleu_deviation"] and not rows[1]["bleu"]
    assert not main(["report", *results, "--format", "csv", "--columns", "row,seeds"])
    assert capsys.readouterr().out == "row,seeds\nfirst,2\nsecond,0\n"
    assert "--columns: no column BLEU;" in error_of("report", *results, "--format", "csv", "--columns", "row,BLEU")


class Copying(Kind):
    """A kind that only says what it measures."""

    name, tasks = "copying", ("copying",)

    def measures(self, rows):
        exact = "percent of sequences, end included"
        return (Measure("exact", "exact match", lambda run: 100 * np.mean(run["copies"]), scale=exact,
                        examples=lambda run: run["copies"]),)  # fmt: skip


def test_a_kind_that_names_its_measure_has_a_report(rows, monkeypatch):
    monkeypatch.setitem(KINDS, "copying", Copying())
    rows = [dataclasses.replace(row, train=row.train | {"task": "copying"}, published={"exact": 99}) for row in rows]
    copies = {"first": ("11110000", "11110001", "11100000"), "second": ("11111111", "11111110", "11111110")}
    runs = {
        name: [{"seed": seed, "copies": list(map(int, text)), "parameters": 7, "commit": "c", "dirty": False}
               for seed, text in enumerate(texts)]
        for name, texts in copies.items()
    }  # fmt: skip
    shown = view(rows, runs)
    assert shown.cells[0] == ["row", "parameters", "exact match", "Δ exact match", "seeds", "published exact match",
                              "p over examples"]  # fmt: skip
    assert shown.cells[1][2] == "50.00 ± 12.50" and shown.cells[2][3].startswith("+41.67 ± 8.33** (p = 0.00")
    line = shown.values[1]
    assert line["exact"] == pytest.approx(91.67, abs=0.01) and line["seed_p"] < 0.01 < line["p"] < 0.05
    assert any(n.startswith("exact match: percent of sequences, end included, higher is better") for n in shown.notes)
    assert any("with these seeds, a true difference" in note for note in shown.notes)
    assert "p over examples (other test examples, the same trainings): paired t-test" in shown.notes
    beside = {"rows": [{"row": "a"}], "copying": [{"row": "b", "exact": 1}]}  # below the table of another kind
    assert formats.as_csv(beside, None) == "row,exact\na,\nb,1"
    scores, differences = draw_rows(shown.lines, Copying().measures(rows), "examples").axes
    assert scores.get_xlabel().startswith("exact match") and "minus the baseline's" in differences.get_xlabel()


LACKING = Measure("a", "a", lambda run: None, examples=lambda run: run["a"], resampled=lambda run: run["a"])
SAME = Measure("a", "a", lambda run: 1.0, compared=False, deviation=False)


@pytest.mark.parametrize("measures", [(), (SAME,), (LACKING,)])
def test_a_kind_without_anything_to_compare_has_a_report(measures, table, tmp_path, monkeypatch, output_of, error_of):
    """It trains by a program of its own, whose log has no statistics."""
    kind = type("Bare", (Kind,), {"name": "bare", "tasks": ("bare",), "measures": lambda self, rows: measures})()
    monkeypatch.setitem(KINDS, "bare", kind)
    (row, _) = load_table(name := table(("flags: {", "flags: {task: bare, "))).rows.values()
    folder = find_runs([row], [1], dry=True, root=tmp_path / "runs", cpu=True)[0].directory
    folder.mkdir(parents=True)
    run = summary(1, 3, 4.0) | {"kind": "bare", "row": kind.settings(row)}
    (folder / "summary.json").write_text(json.dumps(run))
    (folder / "train.log").write_text("trained\n")
    asked = [name, "--runs", str(tmp_path / "runs")]
    (shown,) = (line for line in output_of("report", *asked).splitlines() if line.startswith("first"))
    assert shown.split() == ["first", "1,000", *["1.00"] * (SAME in measures), "1"]
    output_of("report", *asked, "--format", "html", "--out", str(tmp_path / "page.html"))
    assert "<figure>" not in (tmp_path / "page.html").read_text()
    assert "not for rows of kind bare" in error_of("plot", "rows", *asked, "--out", str(tmp_path / "rows.png"))


def test_hidden_rows_of_other_data_than_their_baseline_are_left_out(rows):
    """Also those that are compared with such a row, although both are of the same data."""
    first, second = rows
    hidden = [dataclasses.replace(second, data="other"), dataclasses.replace(second, data="other", name="third")]
    hidden[1] = dataclasses.replace(hidden[1], baseline="second")
    runs = {"first": [summary(1, 3, 4.0)], **{row.name: [summary(1, 3, 4.0) | {"data_hash": "e"}] for row in hidden}}
    assert [line["row"] for line in view([first], runs, hidden).values] == ["first"]


def test_the_card_of_a_model_has_metrics_with_the_models_that_they_name(tmp_path):
    (tmp_path / "seed1").mkdir()
    run = summary(1, 3, 4.0)
    run["metrics"]["comet:organization/model"] = 0.8125
    (tmp_path / "seed1/summary.json").write_text(json.dumps(run))
    config = {"task": "translation", "architecture": "a", "updates": 3}
    card = model_card("m", tmp_path / "seed1/checkpoints/checkpoint_last.pt", tmp_path, {"model": {}}, config)
    assert "| COMET (model) | 0.8125 |" in card


def test_every_test_set_has_a_table_with_its_published_figures(table, tmp_path, output_of, error_of):
    name = table(THIRD, ("dropout: 0.3, fp16: true, ", ""), ("rows:", "tests: [newstest2015]\nrows:"))
    rows = list(load_table(name).rows.values())
    further = {row: [summary(seed, n, nll) for seed in (1, 2)] for row, n, nll in (("first", 9, 5), ("second", 3, 4))}
    runs = {row: [summary(s, 15, 6.0 + 0.1 * s) for s in (1, 2)] for row in ("first", "third", "second")}
    runs["fourth"] = []
    for row, of_row in further.items():
        for run, test in zip(runs[row], of_row, strict=True):
            part = {key: test[key] for key in ("metrics", "test_nll", "bleu_counts", "language")}
            part["test_nll"] = [value + 0.1 * run["seed"] for value in part["test_nll"]]
            run |= {"test": "newstest2014", "tests": {"newstest2015": part}}
    assert names_of_tests(runs_of(rows, runs)) == ["newstest2014", "test", "newstest2015"]
    without = [dataclasses.replace(row, tests=()) for row in rows]
    assert names_of_tests(runs_of(without, runs)) == ["newstest2014", "test"]  # another table names the other
    of_paper = [dataclasses.replace(row, published={"bleu": 20.0}) for row in rows]  # on each row's own first test set
    assert [row.name for row in of_test(runs_of(of_paper, runs), "test").rows if row.published] == ["third"]
    runs["third"] = [run | {"test": "newstest2014"} for run in runs["third"]]
    assert names_of_tests(runs_of(rows, runs)) == ["newstest2014", "newstest2015"]
    figures = {"bleu": 27.3, "speed": 1.2, "newstest2015": {"bleu": 24.1}}
    rows[-1] = dataclasses.replace(rows[-1], published=figures)
    assert names_of_tests(runs_of(rows, {})) == ["test", "newstest2015"]
    shown = of_test(runs_of(rows, runs), "newstest2014").rows
    assert shown[-1].published == {"bleu": 27.3, "speed": 1.2} and len(shown) == 4
    _, shown, _, scored = of_test(runs_of(rows, runs), "newstest2015")
    assert [row.name for row in shown] == ["first", "fourth", "second"]  # third was run, but not on this one
    first, _, second = view(shown, scored).values
    assert first["bleu"] == pytest.approx(further["first"][0]["metrics"]["bleu"])
    assert second["published"] == {"bleu": 24.1}
    assert second["nll_delta"] == pytest.approx(-1) and len(second["nll_seed_interval"]) == 2

    saved.save(tmp_path / "results", with_settings(runs, SETTINGS | {"second": ROW}))
    asked = ["report", name, "--results", str(tmp_path / "results")]
    signs = {"text": "\n\n", "markdown": "\n\n| row", "latex": "}\n\\begin{tabular}", "html": "</h2>"}
    for form, sign in signs.items():
        text = output_of(*asked, "--format", form)
        assert f"table: newstest2015{sign}" in text and text.index("table: newstest2014") < text.index("newstest2015")
        assert text.count("27.30") == 1 and text.count("commits: ") == 1  # of the first test; in common, below both
        assert text.count("with these seeds, a true difference") == 2
    content = json.loads(output_of(*asked, "--format", "json"))
    assert content["test"] == "newstest2014" and content["rows"] == content["tests"]["newstest2014"]["rows"]
    assert [line["row"] for line in content["tests"]["newstest2015"]["rows"]] == ["first", "fourth", "second"]
    text = output_of(*asked, "--test", "newstest2015", "--columns", "row,BLEU")
    assert f"{first['bleu']:.2f}" in text and "third" not in text and "newstest2014" not in text
    assert "no run was scored on it; there are: newstest2014, newstest201" in error_of(*asked, "--test", "newstest2016")


def test_verdicts_are_one_line_a_row(table, tmp_path, capsys, output_of, error_of):
    name = table(THIRD)
    first, third = [summary(1, 9, 5.0), summary(2, 8, 5.1)], [summary(1, 9, 6.0, words=50.0), summary(2, 9, 6.1)]
    second = [summary(1, 3, 5.03), summary(2, 4, 5.0, machine=None), summary(3, 4, 5.01)]
    runs = with_settings({"first": first, "third": third, "fourth": [summary(4, 7, 4.0)], "second": second})
    for row, parameters in (("third", 1234), ("fourth", 1234), ("second", 1000)):
        runs[row] = [run | {"parameters": parameters} for run in runs[row]]
    saved.save(tmp_path / "results", runs)
    text = tmp_path / "verdict.md"
    arguments = f"{name} --results {tmp_path}/results --verdict"
    text.write_text(f"<!-- fairseq-diverse report {arguments} -->\n<!-- end -->\n")
    assert not main(["report", "--refresh", str(text)])
    header, _, *lines = (a.strip("| ").split(" | ") for a in text.read_text().splitlines() if a.startswith("|"))
    third, fourth, second = (dict(zip(header, line, strict=True)) for line in lines)
    assert header[:4] == ["mechanism", "against", "data", "seeds"] and third["data"] == r"multi30k_en_de"
    assert third["verdict"] == "hurts" and third["Δ NLL"] == "+1.000" and third["added parameters"] == "+234"
    low, high = map(float, third["95% interval"].split(" to "))
    assert 0 < low < 1 < high < 2 and (low + high) / 2 == pytest.approx(1, abs=1e-3)
    assert third["training speed"] == "0.75" and second["training speed"] == "-"
    delta, low, high = map(float, re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", third["Δ BLEU"]).groups())
    before, after = (statistics.mean(run["metrics"]["bleu"] for run in runs[row]) for row in ("first", "third"))
    assert delta == pytest.approx(after - before, abs=0.005) and low < delta < high
    assert (low + high) / 2 == pytest.approx(delta, abs=0.015) and re.fullmatch(r"[+-]\d\.\d\d", fourth["Δ BLEU"])
    assert (second["verdict"], fourth["verdict"], fourth["seeds"]) == ("not resolved", "one seed", "1 (baseline 2)")
    assert (second["seeds"], second["added parameters"]) == ("3 (baseline 2)", "0")
    assert "unknown machine: second" in text.read_text() and "with these seeds, a true difference" in text.read_text()
    lower = [run | {"test_nll": [value - 3 for value in run["test_nll"]]} for run in runs["third"]]
    saved.save(tmp_path / "lower", {"first": runs["first"], "third": lower})
    shown = output_of("report", name, "--results", tmp_path / "lower", "--verdict")
    assert re.search(r"^third .* helps +[<.0-9 ]+ [-+.0-9]+ \(.+\) +0.75 +\+234$", shown, re.MULTILINE)
    assert not main(["report", name, "--results", str(tmp_path / "lower"), "--verdict", "--format", "json"])
    verdicts = {line["row"]: line.get("verdict") for line in json.loads(capsys.readouterr().out)["rows"]}
    assert verdicts == {"first": None, "third": "helps", "fourth": None, "second": None}
    assert re.search(r"^fourth .* not run$", shown, re.MULTILINE)
    alone = ["report", name, "--results", tmp_path / "lower", "--verdict", "--rows", "first"]
    assert "--verdict: there is no row beside the baseline" in error_of(*alone)
    (tmp_path / "probing.yaml").write_text(PROBING)
    assert "--verdict: is for kinds of rows that have" in error_of("report", tmp_path / "probing.yaml", "--verdict")


def test_verdicts_show_the_differences_of_other_tables_beside(table, tmp_path, output_of, error_of):
    """By row names, each with its interval there; JSON has them, too."""
    name, other = table(THIRD), tmp_path / "other.yaml"
    other.write_text(Path(name).read_text().replace("fourth:", "new:").replace("0.4", "0.45"))
    nll = {"first": (5.0, 5.1), "third": (6.0, 6.1), "second": (5.0, 5.2)}
    runs = with_settings({row: [summary(n, 9, x) for n, x in enumerate(values, 1)] for row, values in nll.items()})
    saved.save(tmp_path / "results", runs)
    of_other = {"first": [summary(1, 9, 4.0), summary(2, 9, 4.1)], "third": [summary(1, 9, 3.0), summary(2, 9, 3.1)]}
    saved.save(tmp_path / "beside", with_settings(of_other, SETTINGS | {"third": trained_with(dropout="0.45")}))
    asked = ["report", name, "--results", tmp_path / "results", "--verdict", "--beside", other, tmp_path / "beside"]
    shown = output_of(*asked, "--columns", "mechanism,Δ NLL,Δ NLL: other")
    assert re.search(r"^third +\+1\.000 +-1\.000 \(-\d\.\d{3} to -\d\.\d{3}\)$", shown, re.MULTILINE)
    assert re.search(r"^second +\+0\.050$", shown, re.MULTILINE)
    assert "baseline there; data multi30k_en_de, size size; with other flags there: third\n" in shown
    lines = {line["row"]: line for line in json.loads(output_of(*asked, "--format", "json"))["rows"]}
    assert lines["third"]["in other"]["delta"] == pytest.approx(-1) and "in other" not in lines["second"]
    shown = output_of(*asked, "--without", "first", "--baseline", "second")
    assert "size size; its baseline has another dropout, fp16; with other flags there: third\n" in shown
    assert "--beside: goes with --verdict" in error_of(*[word for word in asked if word != "--verdict"])
    assert "--beside other: given twice" in error_of(*asked, "--beside", other, tmp_path / "results")
    other.write_text(other.read_text().replace("  third:", "  fifth:"))
    assert "--beside other: compares no row with the name of one of table" in error_of(*asked)


def test_a_verdict_needs_less_than_the_level():
    nll, row = Measure("nll", "NLL", float, lower=True), Mock()
    tests = (SeedTest(-0.1, 0.1, p, p, (-1.0, 1.0), 1.0, 1.0) for p in (0.05, 0.0499))
    at, below = (Line(row=row, seeds=2, differences={"nll": seeds.Difference(-0.1, test)}) for test in tests)
    assert (verdict(at, [nll]), verdict(below, [nll])) == ("not resolved", "helps")


def test_the_picture_of_a_verdict_shows_what_is_tested(table, tmp_path, monkeypatch, capsys, error_of):
    """Bars are the intervals of Dunnett's test, colours its p of each measure, dots the seeds less the baseline."""
    name = table(THIRD)
    rows = list(load_table(name).rows.values())
    nll = {"first": [5.0, 5.1], "third": [6.0, 6.1, 6.2], "fourth": [4.0], "second": [4.02, 4.13]}
    wrong = {"first": [20, 21], "third": [20, 19, 22], "fourth": [9], "second": [2, 3]}
    runs = {row: [summary(i, w, x) for i, (w, x) in enumerate(zip(wrong[row], nll[row], strict=True))] for row in nll}
    compared = view(rows, runs)
    shown = [line for line in compared.values if line["row"] != "first"]
    figure = draw_verdict(compared.lines, kind_of(rows[0]).measures(rows), "a $title$")
    all_styles = (WORSE, OPEN, BETTER), (OPEN, OPEN, BETTER)
    for axis, prefix, styles in zip(figure.axes, ("nll_", ""), all_styles, strict=True):
        dots = [line for line in axis.lines if line.get_fillstyle() == "none"]
        for line, container, hollow, style in zip(shown, axis.containers, dots, styles, strict=True):
            mean = container[0]
            assert (mean.get_color(), mean.get_marker()) == style and list(mean.get_xdata()) == [line[f"{prefix}delta"]]
            assert np.mean(hollow.get_xdata()) == pytest.approx(line[f"{prefix}delta"])
            assert len(hollow.get_xdata()) == len(nll[line["row"]]) and hollow.get_fillstyle() == "none"
            ends = [list(bar[0][:, 0]) for bar in (bars.get_segments() for bars in container[2])]
            assert ends == ([pytest.approx(line[f"{prefix}seed_interval"])] if line["row"] != "fourth" else [])
    assert figure.get_supxlabel().startswith("minus first's; bar: 95% interval")
    assert figure.get_supxlabel().endswith("square: worse (p < 0.05), disc: not resolved or not tested")
    saved.save(tmp_path / "results", with_settings(runs))
    asked = [name, "--results", str(tmp_path / "results"), "--verdict"]
    assert not main(["plot", "rows", *asked, "--rows", "third", "--out", str(tmp_path / "v.png")])
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    assert not main(["report", *asked, "--format", "html", "--out", str(tmp_path / "page.html")])
    assert "Verdict: differences and their intervals" in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert "--by and --verdict: one" in error_of("plot", "rows", *asked, "--by", "length", "--out", tmp_path / "v.png")
    assert main(["plot", "rows", name, "--verdict", "--runs", str(tmp_path), "--out", str(tmp_path / "v.png")]) == 2
    assert "no row of" in (err := capsys.readouterr().err) and "has a finished run" in err
    assert main(["plot", "rows", *asked[:-1], "--best", "--x", "lr", "--out", str(tmp_path / "v.png")]) == 2
    assert "--best: is for --verdict and --by" in capsys.readouterr().err
    drawn = Mock(return_value=figure)
    monkeypatch.setattr("fairseq_diverse.cli.plot.draw_verdict", drawn)
    flags = ["--baseline", "third", "--without", "first", "--rows", "second", "--out", str(tmp_path / "v.png")]
    assert not main(["plot", "rows", *asked, *flags])
    lines, _, title = drawn.call_args.args
    assert [(line.name, line.row.baseline) for line in lines] == [("third", "third"), ("second", "third")]
    assert lines[1].differences["nll"].systems == 1 and "--without first" in title


def test_tables_in_a_text_are_replaced(results, error_of, output_of, tmp_path):
    text = tmp_path / "results.md"
    marker = f"<!-- fairseq-diverse report {' '.join(results)} --columns row,BLEU -->\n"
    text.write_text(f"before\n\n{marker}old\n<!-- end -->\nafter\n")
    assert output_of("report", "--refresh", text) == f"{text}: 1 table\n"
    written = text.read_text()
    assert written.startswith(f"before\n\n{marker}table\n\n| row | BLEU |") and "old" not in written
    assert written.endswith("\n<!-- end -->\nafter\n") and "| second | not run |" in written
    assert not main(["report", "--refresh", str(text)]) and text.read_text() == written
    (tmp_path / "mechanisms_of_a_page").mkdir()
    (tmp_path / "mechanisms_of_a_page/__init__.py").touch()
    text.write_text(written.replace("--columns", f"--user-dir {tmp_path / 'mechanisms_of_a_page'} --columns"))
    assert output_of("report", "--refresh", text) == f"{text}: 1 table\n" and "mechanisms_of_a_page" in sys.modules
    for wrong, message in (
        ("nothing\n", "no table between"),
        (marker.replace("--columns", "--colums"), "--colums"),
        (marker.replace("--columns row,BLEU", "--help"), "--help -->: shows no table"),
    ):
        text.write_text(f"{wrong}<!-- end -->")
        assert message in error_of("report", "--refresh", text) and text.read_text() == f"{wrong}<!-- end -->"
    assert f"{tmp_path}/no.md: cannot be read (No such file" in error_of("report", "--refresh", tmp_path / "no.md")
    assert "a folder, not a file that can be written" in error_of("report", *results, "--out", tmp_path)
    assert "either a TABLE or --refresh FILE is needed" in error_of("report")


def test_figures_whose_runs_are_not_here_stay_on_the_page(table, tmp_path, monkeypatch, capsys):
    """In all rows, in one, and in one that --finished would leave out; published figures and new markers are free."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    name, page, results = table(), tmp_path / "page.md", tmp_path / "results"
    saved.save(results, with_settings({"first": [summary(1, 20, 5.0)], "second": [summary(1, 9, 4.0)]}))
    marker = f"<!-- fairseq-diverse report {name} --results {results} -->"
    page.write_text(f"{marker}\n<!-- end -->\n")
    assert main(["report", "--refresh", str(page)]) == 0
    whole = page.read_text()
    (results / "second-seed1.json").unlink()
    finished, nothing = (" --results", " --finished --results"), (f" --results {results}", "")
    for change, lost in ((("", ""), "second"), (finished, "second"), (nothing, "first, second")):
        page.write_text(whole.replace(*change))
        before = page.read_text()
        capsys.readouterr()
        assert main(["report", "--refresh", str(page)]) == 2 and page.read_text() == before
        said = f"no finished run here of {lost}, whose figures the page has; give --runs or --results, or delete the"
        assert f"{page}: {before.splitlines()[0]}: {said}" in (err := capsys.readouterr().err) and err.count("\n") == 1
    saved.save(results, with_settings({"second": [summary(1, 9, 4.0)]}))
    page.write_text(f"{marker.replace(' -->', ' --verdict -->')}\n<!-- end -->\n")
    assert main(["report", "--refresh", str(page)]) == 0 and "-1.000" in page.read_text()
    (results / "first-seed1.json").unlink()  # the baseline, which has no line there
    assert main(["report", "--refresh", str(page)]) == 2 and "no finished run here of second" in capsys.readouterr().err
    (results / "second-seed1.json").unlink()
    saved.save(results, with_settings({"first": [summary(1, 20, 5.0)]}))
    page.write_text(f"{marker}\n| row | published BLEU |\n|---|---|\n| second | 27 |\n<!-- end -->\n")
    assert main(["report", "--refresh", str(page)]) == 0 and "| second | not run |" in page.read_text()
    again = page.read_text()
    assert main(["report", "--refresh", str(page)]) == 0 and page.read_text() == again


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("--verdict", "names no TABLE"), ("{0} --save {1}/written", "--save: not in a page; leave it out"),
        ("{0} --out {1}/written", "--out: not in a page; leave it out"),
        ("--refresh a.md", "--refresh: not in a page; leave it out"), ("nosuchtable", "nosuchtable: "),
        ("{0} --rows nope", "--rows: no row nope in table"), ("'{0}", "No closing quotation")
    ],
)  # fmt: skip
def test_a_wrong_marker_is_named_with_its_page(command, said, table, tmp_path, error_of):
    page = tmp_path / "page.md"
    page.write_text(text := f"<!-- fairseq-diverse report {command.format(table(), tmp_path)} -->\n<!-- end -->\n")
    err = error_of("report", "--refresh", page)
    assert f"{page}: {text.splitlines()[0]}: " in err and said in err
    assert page.read_text() == text and not (tmp_path / "written").exists()


def test_translations_are_those_of_rows_that_have_the_test_set(table, prepared):
    (prepared / "text").mkdir()
    for split, language in itertools.product(("valid", "test"), ("en", "de")):
        (prepared / f"text/{split}.{language}").write_text(f"{split} {language}\n")
    rows = load_table(table(("second: {", "second: {tests: [valid], "))).rows.values()
    for run in (runs := find_runs(list(rows), [1], cpu=True)):
        run.directory.mkdir(parents=True)
        (run.directory / "summary.json").write_text("{}")
        for test in ("test", *run.further):
            (run.directory / f"{test}.hyp").write_text(f"{test} of {run.row.name}\n")
    for test, names in (("valid", ["second"]), ("test", ["first", "second"]), ("other", ["first", "second"])):
        (sentence,) = side_by_side(runs, 1, test).sentences
        split = "valid" if test == "valid" else "test"
        assert (sentence.source, sentence.reference) == (f"{split} en", f"{split} de")
        assert sentence.translations == {name: f"{split} of {name}" for name in names}


def test_translations_do_not_steer_the_terminal():
    sentence = Sentence(1, "a\x1b[31m \u200db", "\x07c", {"ro\nw\x1b": "\x9bd\te"})
    lines = sentence.as_text().splitlines()
    assert lines[1:] == ["  source     a [31m \u200db", "  reference   c", "  ro w        d e"]


def test_figures_of_other_systems_are_below_the_table(output_of):
    shown = output_of("report", "li2021-table5", "--rows", "en-de-rnn", "--format", "markdown")
    assert shown.index("| en-de-rnn | not run | 26.30 |") < shown.index("Published for other systems")
    assert "| Transformer-Big (Vaswani et al., 2017), En-De | 28.4 | 213M |" in shown
    assert "| Transformer-Big (Hassan et al., 2018), Zh-En | 24.2 |  |" in shown
