"""Attention maps of a tiny untrained model, and their plots."""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from xml.dom import minidom

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import font_manager

from fairseq_diverse.analysis.attention_maps import (
    Comparison,
    Labels,
    SentencePair,
    attention_maps,
    by_words,
    compare_with_plain,
    comparison_panels,
    draw_panels,
    head_panels,
    side_by_side,
)
from fairseq_diverse.analysis.head_map import cosines, draw_head_map, mean_cosine, mean_heads, similarity
from fairseq_diverse.analysis.sentence_lengths import draw_sentence_lengths
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.cli import build_parser, main
from fairseq_diverse.cli.plot import parse_heads, plot_rows
from fairseq_diverse.experiments.kinds.kind import KINDS, kind_of
from fairseq_diverse.experiments.records import bleu_statistics
from fairseq_diverse.experiments.runs.saved import from_results
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.metrics.significance import bleu_scores, interval, resampled_sums
from fairseq_diverse.reports.learning_curves import draw_learning_curves, read_training, smoothed
from fairseq_diverse.reports.row_pictures import MINUTES, SPEED, curves, draw_curves
from fairseq_diverse.support import pictures
from fairseq_diverse.support.errors import UserError
from tests.cases import ALL_ON, batch, build_model
from tests.refusals import refused


@pytest.mark.parametrize("flags", [{}, ALL_ON[1]], ids=["off", "all on"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_maps_are_the_weights_of_each_head(component, flags):
    model = build_model({**flags, "attention_dropout": 0.5}).train()
    maps = attention_maps(model, batch((7,), (5,)), component, "--layer")
    assert list(maps) == [(component, layer) for layer in range(1, 3 if component == "encoder" else 4)]
    queries, keys = {"encoder": (8, 8), "decoder": (6, 6), "cross": (6, 8)}[component]
    for weights in maps.values():
        assert weights.shape == (4, 1, queries, keys)
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, 1, queries))  # no dropout
        if component == "decoder":
            assert not weights.triu(1).any()


labels = Labels.of


def test_labels_say_what_a_query_is():
    source, target = Labels(["ab", "</s>"], [2, 1]), Labels(["xyz", "</s>"], [3, 1])
    pair = SentencePair(["a@@", "b", "</s>"], ["x@@", "y@@", "z", "</s>"], source, target, {})
    read = Labels(["</s>", "xyz"], [1, 3])
    assert pair.labels("encoder") == (source, source)
    assert pair.labels("decoder") == (read, read)
    assert pair.labels("cross") == (target, source)
    assert pair.labels("cross", subwords=True) == (Labels.of(pair.target), Labels.of(pair.source))
    assert pair.labels("decoder", subwords=True)[0] == labels(["</s>", "x@@", "y@@", "z"])


def test_weights_of_words_are_sums_over_keys_and_means_over_queries():
    maps = torch.rand(2, 4, 5).softmax(-1)
    queries, keys = Labels(["q", "r"], [1, 3]), Labels(["k", "l", "m"], [2, 1, 2])
    found = by_words(maps, queries, keys)
    assert found.shape == (2, 2, 3)
    for head in range(2):
        for i, rows in enumerate(((0,), (1, 2, 3))):
            for j, columns in enumerate(((0, 1), (2,), (3, 4))):
                expected = sum(maps[head, t, s] for t in rows for s in columns) / len(rows)
                torch.testing.assert_close(found[head, i, j], expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 2))
    assert torch.equal(by_words(maps, Labels.of("abcd"), Labels.of("abcde")), maps)


def test_a_word_is_masked_where_all_its_subwords_are():
    mask = torch.tensor([[1.0, 0.5, torch.nan], [0.5, torch.nan, torch.nan], [torch.nan, 0.2, 1.0]])
    comparison = Comparison(mask, torch.rand(2, 3, 3), None).by_words(Labels(["a", "b"], [2, 1]))
    expected = torch.tensor([[0.5, torch.nan], [0.1, 1.0]])
    torch.testing.assert_close(comparison.mask, expected, equal_nan=True)
    assert comparison.plain.shape == (2, 2, 2)


@pytest.mark.parametrize("heads", [[2], [1, 2, 3, 4], [4, 1, 6, 2, 3, 7], list(range(1, 17))])
def test_one_panel_per_head_with_one_colour_scale(heads, tmp_path):
    maps = torch.rand(16, 3, 5) / 4
    queries, keys = labels(["ein", "$x$", "</s>"]), labels(["a", "$", "very@@", "long", "</s>"])
    figure = draw_panels(head_panels(maps, heads), queries, keys, "cross-attention, layer 2", ("rows", "columns"))
    *panels, bar = figure.axes
    assert [panel.get_title() for panel in panels] == [f"head {head}" for head in heads]
    assert bar.get_ylabel() == "attention weight" and figure.get_suptitle() == "cross-attention, layer 2"
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("rows", "columns")
    largest = float(maps[[head - 1 for head in heads]].max())
    for panel, head in zip(panels, heads, strict=True):
        image = panel.get_images()[0]
        assert image.get_clim() == pytest.approx((0, largest)) and largest < 0.3
        assert torch.equal(torch.tensor(image.get_array()), maps[head - 1])
        assert [label.get_text() for label in panel.get_xticklabels()] == keys.texts
        beside = queries.texts if heads.index(head) % 4 == 0 else [""] * 3  # the first panel of a row
        assert [label.get_text() for label in panel.get_yticklabels()] == beside
    figure.savefig(tmp_path / "maps.png")  # "$x$" is no formula
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("usual", "outlier", "limits", "more"),
    [(0.3, 1, (0, 0.3), "; brightest: 0.30 to 1.00"), (-0.3, -0.3, (-0.3, 0.3), ""),
     (-0.3, -1, (-0.3, 0.3), "; darkest: ±0.30 to ±1.00")],
)  # fmt: skip
def test_an_outlier_does_not_stretch_the_colour_scale(usual, outlier, limits, more):
    """A decoder's first word has weight 1 on itself; the scale of negative weights is symmetric."""
    maps = torch.full((1, 20, 20), 0.05)
    maps[:, :, 3] = usual
    maps[:, 0, 0] = outlier
    words = labels([*map(str, range(20))])
    panel, bar = draw_panels(head_panels(maps, [1]), words, words, "").axes
    image = panel.get_images()[0]
    assert image.get_clim() == pytest.approx(limits) and (usual > 0 or min(image.get_cmap()(0.5)) > 0.9)
    assert bar.get_ylabel() == f"attention weight{more}"


@pytest.mark.parametrize("kind", ["dependency", "phrase"])
def test_comparison_of_syntax_with_plain_heads(kind):
    """An enlivened head is its plain weights times the mask, normalized; an important one its plain weights."""
    model = build_model({"syntax": kind, "enliven": "enliven", "enliven_gate": "0.45"}).eval()
    sample = batch((7,), (5,))
    maps = attention_maps(model, sample, "encoder:1", "--layer")["encoder", 1][:, 0]
    comparison = compare_with_plain(model, sample, 1)
    assert compare_with_plain(model, sample, 2) is None
    assert 0 < comparison.redundant.sum() < 4
    masked = comparison.plain * comparison.mask.nan_to_num(0)
    expected = torch.where(comparison.redundant[:, None, None], masked / masked.sum(-1, keepdim=True), comparison.plain)
    torch.testing.assert_close(maps, expected)
    rows = comparison_panels(comparison, maps, [3, 1], prune=False)
    titles = [[panel and panel.title for panel in row] for row in rows]
    names = ["enlivened" if head else "important" for head in comparison.redundant[[2, 0]]]
    assert titles == [
        ["syntax mask", "head 3, plain", f"head 3, {names[0]}"], [None, "head 1, plain", f"head 1, {names[1]}"]
    ]  # fmt: skip
    other = head_panels(torch.rand(1, 8, 8), [1], "plain, ", 1)
    together = side_by_side([rows, other])
    assert [[panel and panel[0] for panel in row[3:]] for row in together] == [["plain, head 1"], [None]]
    assert [row[:3] for row in together] == rows
    words = labels([*map(str, range(8))])
    half = [[panel and panel._replace(map=panel.map / 2) for panel in row] for row in rows]
    *panels, factors, weights = draw_panels(half, words, words, "").axes
    assert [panel.get_title() for panel in panels] == [title for row in titles for title in row if title]
    named = [bar.get_ylabel().split(";")[0] for bar in (factors, weights)]
    assert named == ["factor of the weights due to syntax", "attention weight"]
    shown = [panel.get_images()[0] for panel in panels]
    assert {image.get_clim() for image in shown[1:]} == {shown[1].get_clim()} and shown[0].get_clim() == (0, 0.5)
    assert shown[0].get_cmap().name != shown[1].get_cmap().name


@pytest.mark.parametrize(("kind", "name"), [("enliven", "enlivened"), ("prune", "pruned")])
def test_without_syntax_there_is_no_mask(kind, name):
    """Dependencies that only judge the heads multiply no weights."""
    flags = {"enliven": kind, "enliven_gate": "1"} | ({"relative_on": "encoder:1"} if kind == "enliven" else {})
    model, sample = build_model(flags).eval(), batch((7,), (5,))
    comparison = compare_with_plain(model, sample, 1).by_words(labels([*map(str, range(8))]))
    maps = attention_maps(model, sample, "encoder:1", "--layer")["encoder", 1][:, 0]
    rows = comparison_panels(comparison, maps, [3, 1], kind == "prune")
    titles = [[panel.title for panel in row] for row in rows]
    assert titles == [[f"head {head}, plain", f"head {head}, {name}"] for head in (3, 1)]
    assert {panel.values for row in rows for panel in row} == {"attention weight"}


def test_labels_do_not_overlap():
    """40 subwords on both axes: each row and column is at least as wide as its letters are high."""
    words = labels([f"subword{i}" for i in range(40)])
    figure = draw_panels(head_panels(torch.rand(16, 40, 40), range(1, 17)), words, words, "encoder, layer 1")
    figure.canvas.draw()
    panel = figure.axes[0]
    height = panel.get_yticklabels()[0].get_window_extent().height
    extent = panel.get_window_extent()
    assert min(extent.height, extent.width) / 40 > 0.9 * height


def test_what_cannot_be_drawn_is_refused(monkeypatch):
    layer = "--layer 'decoder:4': layer 4 of decoder is out of range; it has 3 layers"
    refused(layer, attention_maps, build_model(), batch(), "decoder:4", "--layer")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = labels(["a", "b"])
    refused(r"pip install .*\[plots\]'", draw_panels, head_panels(torch.rand(1, 2, 2), [1]), words, words, "")


def test_heads():
    assert parse_heads(None, 3) == [1, 2, 3]
    assert parse_heads("3, 1", 4) == [3, 1]
    for text in ("0", "5", "1,1", "a", "", "1-2"):
        refused(f"--heads {text}: different numbers from 1 to 4", parse_heads, text, 4)


ROWS = """
data: toy
size: tiny
rows:
  plain:
  k-2: {syntax: phrase, phrase-limit: 2}
  k-8: {syntax: phrase, phrase-limit: 8}
  k-4: {syntax: phrase, phrase-limit: 4}
  gate-4: {syntax: phrase, phrase-limit: 4, enliven: enliven}
"""


@pytest.fixture
def table(tmp_path):
    """A table file and its folder of results, without those of gate-4."""
    (tmp_path / "table.yaml").write_text(ROWS)
    rows = load_table(str(tmp_path / "table.yaml")).rows
    (tmp_path / "results").mkdir()
    shared = {"schema": 2, "kind": "translation", "data": "toy", "data_hash": "d", "language": "de", "dirty": None}
    shared |= {"commands": ["fairseq-train toy"], "words_per_second": {"train": 100.0}, "parameters": 1000}
    shared |= {"commit": None, "bleu_counts": [[5, 5, 4, 3, 2, 1]] * 2}
    for number, row in enumerate(("plain", "k-2", "k-4", "k-8")):
        for seed in (1, 2):
            metrics = {"bleu": 30 + number + seed, "chrf": 50, "ter": 60, "length_ratio": 1.0}
            summary = {"system": row, "seed": seed, "row": kind_of(rows[row]).settings(rows[row]), **shared}
            summary |= {"metrics": metrics | {"signatures": {"bleu": "s"}}, "test_nll": [number, 2.0]}
            (tmp_path / "results" / f"{row}-seed{seed}.json").write_text(json.dumps(summary))
    return tmp_path / "table.yaml"


def test_curves_are_rows_that_differ_in_one_flag_given_or_by_default(table):
    rows = list(load_table(str(table)).rows.values())
    found = [(curve.label, curve.points) for curve in curves(rows, ["phrase-limit"])]
    assert found == [("plain", {None: "plain"}), ("k", {2: "k-2", 8: "k-8", 4: "k-4"}), ("gate-4", {4: "gate-4"})]
    refused("--x phrase-limits: no row has it", curves, rows, ["phrase-limits"])
    # Zhang et al. (2021), Table 3: the row with k = 6 does not give the flag; the baseline has none
    table.write_text(table.read_text().replace("  gate-4:", "  best: {syntax: phrase}\n  gate-4:"))
    rows = [row for row in load_table(str(table)).rows.values() if row.name != "gate-4"]
    points = {x: name for curve in curves(rows, ["phrase-limit"]) for x, name in curve.points.items()}
    assert points == {None: "plain", 2: "k-2", 8: "k-8", 4: "k-4", 6: "best"}


def test_published_figures_are_hollow(table):
    text = table.read_text()
    for row, figure in (("k-2: {", 30.5), ("k-8: {", 33.5)):
        text = text.replace(row, f"{row}published: {{bleu: {figure}, epoch-minutes: 2}}, ")
    table.write_text(text.replace("plain:", "plain: {published: {bleu: 29}}"))
    rows = load_table(str(table)).rows
    grouped, nothing = curves(list(rows.values()), ["phrase-limit"]), {row: [] for row in rows}
    figure = draw_curves(grouped, nothing, "phrase-limit", [*panels(["bleu", "nll"]), MINUTES], rows)
    bleu, nll, minutes = figure.axes
    level, curve = bleu.get_lines()
    assert level.get_ydata() == [29, 29] and curve.get_xydata().tolist() == [[2, 30.5], [8, 33.5]]
    assert curve.get_markerfacecolor() == "none" and figure.get_supxlabel() == "hollow: published"
    assert not nll.get_lines() and minutes.get_lines()[0].get_ydata().tolist() == [2, 2]
    words = f"plot rows {table} --x phrase-limit --runs {table.parent}/results --out x.png".split()
    (axis,) = plot_rows(build_parser(words).parse_args(words)).axes  # without runs, what is published alone
    assert axis.get_ylabel() == bleu.get_ylabel()
    summaries = from_results(table.parent / "results", list(rows.values()))
    (axis,) = draw_curves(grouped, summaries, "phrase-limit", panels(["bleu"]), rows).axes
    dots = [line for line in axis.get_lines() if line.get_markerfacecolor() == "none"]
    assert [line.get_xydata().tolist() for line in dots] == [[[2, 30.5], [8, 33.5]]]


def panels(names):
    return [m for name in names for m in (*KINDS["translation"].measures([]), SPEED, MINUTES) if m.key == name]


def test_rows_that_differ_in_more_than_the_flag_are_other_curves(table):
    levels = "  none: {syntax: phrase, phrase-limit: no-number}\n  other: {syntax: phrase, phrase-limit: another}\n"
    tried = "  k-8-lenpen: {syntax: phrase, phrase-limit: 8, generate: {lenpen: [1, 2]}}\n"
    table.write_text(table.read_text().replace("rows:\n", f"rows:\n{levels}{tried}"))
    rows = load_table(str(table)).rows
    found = curves([rows[name] for name in ("none", "other", "k-8", "k-8-lenpen")], ["phrase-limit"])
    expected = {None: "none"}, {None: "other"}, {8.0: "k-8"}, {8.0: "k-8-lenpen"}
    assert sorted(str(curve.points) for curve in found) == sorted(map(str, expected))


def bar_ends(axis):
    """Lower and upper end of every bar, in the order of drawing."""
    return [bars[2][0].get_segments()[0][:, 1].tolist() for bars in axis.containers]


def drawn(rows, summaries, names, flag="phrase-limit"):
    return draw_curves(curves(rows, [flag]), summaries, flag, panels(names), {row.name: row for row in rows})


def test_one_seed_has_an_interval_over_test_sentences(table):
    rows = list(load_table(str(table)).rows.values())
    summaries = from_results(table.parent / "results", rows)
    lengths = np.arange(5, 45)
    counts = np.stack([lengths, lengths + 1, lengths - 1, lengths - 3, lengths - 4, lengths - 5 + (lengths == 5)], 1)
    one = {"bleu_counts": np.maximum(counts, 0).tolist(), "test_nll": [float(n) for n in range(40)]}
    summaries["k-4"] = [summaries["k-4"][0] | one]
    figure = drawn(rows, summaries, ["bleu", "nll"])
    bleu, nll = figure.axes
    low, high = interval(bleu_scores(resampled_sums(bleu_statistics(one["bleu_counts"]))))
    ends = bar_ends(bleu)[1]
    assert high - low > 0.1 and ends[1] - ends[0] == pytest.approx(high - low) and sum(ends) == pytest.approx(2 * 33)
    low, high = bar_ends(nll)[0]  # of the others no seed differs in NLL
    draws = np.random.default_rng(3).integers(40, size=(4000, 40)).mean(1)
    assert (high - low) / 2 == pytest.approx(np.subtract(*np.quantile(draws, [0.975, 0.025])) / 2, rel=0.1)
    assert [bars[2][0].get_linestyle()[0][1] is None for bars in bleu.containers] == [True, False, True]  # dotted
    bars = "bar: standard deviation over seeds; dotted: 95% bootstrap interval over test sentences"
    assert figure.get_supxlabel() == bars


def test_means_and_deviations_over_seeds_are_drawn(table):
    rows = list(load_table(str(table)).rows.values())
    summaries = from_results(table.parent / "results", rows)
    figure = drawn(rows, summaries, ["bleu", "nll"])
    bleu, nll = figure.axes
    of_name = {line.get_label(): line for line in bleu.get_lines()}
    assert of_name["plain"].get_ydata()[0] == 31.5
    assert of_name["k"].get_xydata().tolist() == [[2, 32.5], [4, 33.5], [8, 34.5]]
    low, high = bar_ends(bleu)[0]
    assert (high - low) / 2 == pytest.approx(0.5**0.5) and low + high == pytest.approx(2 * 32.5)
    assert {line.get_label(): line for line in nll.get_lines()}["k"].get_ydata().tolist() == [1.5, 2.0, 2.5]
    assert bleu.get_ylim()[0] < 31 and bleu.get_ylim()[1] > high  # all that is drawn is in the panel
    assert figure.get_supxlabel() == "bar: standard deviation over seeds"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["plain", "k"]
    assert bleu.get_xscale() == "log" and [x.get_text() for x in bleu.get_xticklabels()] == ["2", "4", "8"]
    refused("no row has a finished run", drawn, rows, {row: [] for row in summaries}, ["bleu"])


def test_speeds_are_drawn_where_all_runs_are_of_one_known_machine(table):
    rows = list(load_table(str(table)).rows.values())
    summaries = from_results(table.parent / "results", rows)
    (axis,) = drawn(rows, summaries, ["speed"]).axes
    assert [text.get_text() for text in axis.texts] == ["not shown: unknown machine"] and not axis.get_lines()
    published = {row.name: replace(row, published={"epoch-minutes": 3.0}, published_on=row.data) for row in rows}
    (axis,) = drawn([*published.values()], summaries, ["epoch_minutes"]).axes
    assert axis.get_title() == "runs not shown: unknown machine" and axis.get_lines()
    machine = {"cpu": "a", "cores": 2, "threads": 1, "capability": "AVX2", "device": "cpu"}
    known = {row: [run | {"machine": machine} for run in of_row] for row, of_row in summaries.items()}
    (axis,) = drawn(rows, known, ["speed"]).axes
    lines = {line.get_label(): line.get_xdata() for line in axis.get_lines()}
    assert not axis.texts and list(lines["k"]) == [2, 4, 8]


def test_a_flag_without_numbers_is_drawn_in_the_order_of_the_rows(table):
    text = table.read_text()
    for number, placement in ((2, "encoder:2"), (8, "encoder:1"), (4, "encoder")):
        text = text.replace(f"phrase, phrase-limit: {number}}}", f"phrase, syntax-on: {placement}}}")
        for path in table.parent.glob("results/*.json"):
            path.write_text(path.read_text().replace(f'"phrase-limit": "{number}"', f'"syntax-on": "{placement}"'))
    table.write_text(text)
    rows = list(load_table(str(table)).rows.values())
    (axis,) = drawn(rows, from_results(table.parent / "results", rows), ["bleu"], "syntax-on").axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["encoder:2", "encoder:1", "encoder"]
    points = {line.get_label(): line.get_xydata().tolist() for line in axis.get_lines()}
    assert points["k"] == [[0, 32.5], [1, 34.5], [2, 33.5]]
    assert axis.get_xlabel() == "syntax on\n(--syntax-on)"


def test_plot_rows(table, tmp_path, output_of, error_of):
    """Without ``x`` in the table, the rows' scores."""
    of_runs, of_results = [table, "--runs", tmp_path], [table, "--results", table.parent / "results"]
    for more, metrics in (("", ": goes with --x"), ("x: phrase-limit\n", " blue: table has bleu, chrf")):
        table.write_text(table.read_text() + more)
        out = tmp_path / f"rows{len(more)}.pdf"
        assert output_of("plot", "rows", *of_results, "--out", out) == f"{out}\n" and out.read_bytes()[:4] == b"%PDF"
        for words, message in (
            (of_runs, f"plot: no row has a finished run; fairseq-diverse run {table} trains them; "),
            ([*of_results, "--metrics", "blue"], f"--metrics{metrics}"),
            (["nlu-small", "--x", "arch"], "--x: nlu-small has rows that do not have the same measures"),
            (["nlu-small", "--verdict"], "plot rows: not for rows of kind glue; choose others with"),
        ):
            assert message in error_of("plot", "rows", *words, "--out", out)
    table.write_text(table.read_text() + "metrics: meteor\n")
    words = [*of_results, "--metrics", "bleu,meteor", "--out", out]
    assert "--metrics meteor: not measured of plain, k-2, k-8, k-4; leave out" in error_of("plot", "rows", *words)


def test_the_head_map_is_of_means_over_real_tokens_and_layers():
    """Compared with the outputs of each sentence alone, without padding and batches."""
    model = build_model(ALL_ON[1])
    both, sums, count = batch((7, 4), (5, 5)), 0, 0
    for i, length in enumerate((8, 5)):
        alone = batch((7, 4), (5, 5))
        alone = {name: value[i : i + 1] for name, value in alone.items()}
        alone["src_tokens"] = alone["src_tokens"][:, -length:]
        if "source_trees" in alone:
            alone["source_trees"] = alone["source_trees"][:, -length:]
        with torch.no_grad():
            inside = model.eval()(**alone, attention_request=AttentionRequest(inside="encoder"))[1]["inside"]
        sums = sums + sum(outputs[0].sum(1) for outputs, _ in inside.values())
        count += length * len(inside)
    heads = mean_heads(model, [{"net_input": both}], model.encoder.padding_idx)
    torch.testing.assert_close(heads, sums / count)
    unit = heads / heads.norm(dim=1, keepdim=True)
    assert similarity(heads) == pytest.approx(float((unit @ unit.T).mean()), abs=1e-6)
    rows = draw_head_map(dict.fromkeys(("baseline", "subspace", "position", "disagreement"), heads))
    rows.canvas.draw()
    legend = rows.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= rows.bbox.x1
    figure = draw_head_map({"a": heads, "b": heads + 1})
    axis, first, second, bar = figure.axes
    cosine = (unit @ unit.T).fill_diagonal_(torch.nan)
    assert mean_cosine(heads) == pytest.approx(float(cosine.nanmean()), abs=1e-6)
    drawn = torch.tensor(np.ma.filled(first.get_images()[0].get_array(), np.nan))
    torch.testing.assert_close(drawn, cosine, equal_nan=True)
    assert [text.get_text() for text in first.texts[:2]] == [f"{cosine[0, 1]:z.2f}", f"{cosine[0, 2]:z.2f}"]
    limits = {image.get_clim() for place in (first, second) for image in place.get_images()}
    low, high = limits.pop()
    assert not limits and -low == high == pytest.approx(float(cosines(heads + 1).nan_to_num(0).abs().max()))
    assert first.get_title() == f"a: mean cosine {mean_cosine(heads):z.2f}" and "cosine" in bar.get_ylabel()
    assert [len(points.get_offsets()) for points in axis.collections] == [4, 4]
    assert [text.get_text() for text in axis.texts] == ["1", "2", "3", "4"] * 2
    for wrong, message in (({"a": heads, "b": heads[:, 1:]}, "different widths"), ({"a": heads[:2]}, "2 heads; a map")):
        refused(message, draw_head_map, wrong)


def line(update, loss, wall, **more):
    stats = {"num_updates": str(update), "loss": str(loss), "nll_loss": "1", "train_wall": str(wall), "ppl": "2"}
    return f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(stats | more)}\n"


def valid(update, loss, subset="valid"):
    stats = {"epoch": 1, f"{subset}_loss": str(loss), f"{subset}_nll_loss": "1", f"{subset}_num_updates": str(update)}
    return f"2026-01-01 00:00:00 | INFO | {subset} | {json.dumps(stats)}\n"


def test_validations_are_of_the_first_subset_and_lines_may_have_no_tag(tmp_path):
    log = line(10, 9.5, 30) + valid(10, 8.8, "dev.en") + valid(10, 5.0, "valid") + valid(10, 9.9, "train")
    log += line(20, 8.5, 60) + valid(20, 8.2, "dev.en") + valid(20, 4.0, "valid")
    (tmp_path / "train.log").write_text(log)
    assert read_training(tmp_path).validation == ([10, 20], [0.5, 1.5], [8.8, 8.2])
    assert read_training(tmp_path, "nll_loss").validation.losses == [1, 1]
    log = line(10, 9.5, 30) + valid(10, 8.8, "dev") + valid(10, 5.0) + line(20, 8.5, 60) + valid(20, 9.9, "train")
    (tmp_path / "train.log").write_text(log)
    bare = [text.rpartition(" | ")[2] for text in log.splitlines()]
    (tmp_path / "bare.log").write_text("\n".join(["{'common': None}", "{}", *bare, "done training in 11.7 seconds"]))
    assert read_training(tmp_path / "bare.log") == read_training(tmp_path)


def test_learning_curves(tmp_path, capsys, error_of):
    """Updates and validations that were repeated after a kill count once."""
    first = line(10, 9.5, 30) + "something else\n" + line(20, 8.5, 60) + valid(25, 8.8) + line(30, 8.0, 99)
    first += valid(25, 8.2) + line(30, 7.5, 30) + valid(30, 8.1)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/train.log").write_text(first)
    (tmp_path / "b.log").write_text(line(10, 9.0, 6) + line(20, 7.0, 6))
    read = read_training(tmp_path / "a")
    assert read.training == ([10, 20, 30], [0.5, 1.5, 2.0], [9.5, 8.5, 7.5])
    assert read.validation == ([25, 30], [1.75, 2.0], [8.2, 8.1])
    figure = draw_learning_curves({"a": [read], "b": [read_training(tmp_path / "b.log")]}, "loss")
    by_updates, by_minutes = figure.axes
    _, validation, other, nothing = by_updates.get_lines()[:4]
    assert other.get_xydata().tolist() == [[10, 9.0], [20, 7.0]] and not len(nothing.get_xydata())
    assert validation.get_xydata().tolist() == [[25, 8.2], [30, 8.1]] and validation.get_linestyle() == "None"
    assert by_minutes.get_lines()[0].get_xydata().tolist() == [[0.5, 9.5], [1.5, 8.5], [2.0, 7.5]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "training", "validation"]
    assert by_updates.get_ylabel() == "loss, bits a token"
    (tmp_path / "classifier.log").write_text(line(10, 0.6, 6).replace('"ppl"', '"accuracy"'))
    classifier = read_training(tmp_path / "classifier.log")
    assert draw_learning_curves({"a": [read], "c": [classifier]}, "loss").axes[0].get_ylabel() == "loss, as logged"
    pale, mean, *_ = draw_learning_curves({"a": [read]}, "nll_loss", smooth=2).axes[0].get_lines()
    assert pale.get_ydata().tolist() == [9.5, 8.5, 7.5] and mean.get_ydata().tolist() == [9.5, 8.5, 7.5]
    out = str(tmp_path / "curves.png")
    assert main(["plot", "curves", f"a={tmp_path}/a", f"b={tmp_path}/b.log", f"b={tmp_path}/a", "--out", out]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    drawn = []
    for flags in (["--smooth", "1"], ["--smooth", "3"], ["--smooth", "1", "--metric", "nll_loss"]):
        assert main(["plot", "curves", f"a={tmp_path}/a", *flags, "--out", out]) == 0
        drawn.append((tmp_path / "curves.png").read_bytes())
    assert len(set(drawn)) == 3
    (tmp_path / "empty.log").write_text("nothing\n")
    for arguments, message in (
        (["b.log"], "b.log: write NAME=LOG"),
        ([f"b={tmp_path}/b.log", "--smooth", "0"], "--smooth 0: at least 1 is needed"),
        ([f"x={tmp_path}/none"], f"{tmp_path}/none: No such file"),
        ([f"x={tmp_path}/empty.log"], "empty.log: no training statistics; fairseq-train writes them with --log-format"),
    ):
        assert message in error_of("plot", "curves", *arguments, "--out", out)


def test_smoothing_is_a_centred_mean_that_keeps_straight_lines():
    values = [1.0, 5.0, 3.0, 7.0, 2.0, 4.0]
    assert smoothed(values, 1) == pytest.approx(values)
    assert smoothed(values, 3) == pytest.approx([1, 3, 5, 4, 13 / 3, 4])
    assert smoothed(values, 5) == pytest.approx([1, 3, 18 / 5, 21 / 5, 13 / 3, 4])
    line = [3.0 * i for i in range(20)]
    assert smoothed(line, 7) == pytest.approx(line) and smoothed([], 7) == []
    diverged = smoothed([1.0, 1.0, math.inf, 1.0, 1.0, 1.0], 3)
    assert diverged == [1, math.inf, math.inf, math.inf, 1, 1]


def test_time_between_whole_seconds_comes_from_the_speed(tmp_path):
    """Within the precision of fairseq's whole seconds: a validation in an interval lowers the words per second."""
    speeds = [10 * 1000 / seconds for seconds in (1.3, 31.3, 1.3, 1.3)]
    lines = [line(10 * i, 9 - i, 1, wpb="1000", wps=str(speed)) for i, speed in enumerate(speeds, 1)]
    (tmp_path / "log").write_text("".join(lines) + line(50, 1, 7, wpb="1000", wps="0"))
    found = [60 * x for x in read_training(tmp_path / "log").training.minutes]
    assert found == pytest.approx([1.3, 1.3 + 1.5, 2.6 + 1.5, 3.9 + 1.5, 3.9 + 1.5 + 7])


def test_sentence_lengths_are_shares_of_the_sentences():
    short, long = np.array([3, 3, 4, 0]), np.array([1, 5, 120])
    figure = draw_sentence_lengths({"short": (short, short + 1), "long": (long, long)})
    for axis, (lengths, step) in zip(figure.axes, ((short, 1), (long, 3)), strict=True):
        bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axis.patches}
        assert sum(bars.values()) == pytest.approx(100) and len(bars) <= 60
        assert bars[lengths[0] // step * step + step // 2] == pytest.approx(50 if step == 1 else 100 / 3)
        curve, mean = axis.get_lines()
        assert sum(curve.get_ydata()) == pytest.approx(100) and mean.get_xdata()[0] == pytest.approx(lengths.mean())


def test_a_font_without_a_normal_weight_is_accepted(tmp_path, monkeypatch, caplog):
    fonts = font_manager.fontManager.ttflist
    medium = replace(fonts[0], name="Medium", weight=500)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*fonts, medium])
    monkeypatch.setattr(pictures, "EAST_ASIAN_FONTS", ("Medium",))
    figure = pictures.new_figure(2, 2)
    figure.add_subplot(title="a")
    pictures.save_figure(figure, tmp_path / "a.png")
    assert not caplog.records


@pytest.mark.parametrize("installed", [(), ("STIXGeneral",)])
def test_characters_that_no_font_has_are_reported_in_one_line(tmp_path, monkeypatch, caplog, installed):
    monkeypatch.setattr(pictures, "EAST_ASIAN_FONTS", installed)
    figure = pictures.new_figure(2, 2)
    assert matplotlib.rcParams["font.family"] == ["sans-serif", *installed]
    figure.add_subplot(title="\u732b \u72ac")
    pictures.save_figure(figure, tmp_path / "a.png")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [str(tmp_path / "a.png")]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb\x00", "$a_{$", "\udcffx", "a\tb\u2028\u202ec"])
def test_any_name_can_be_in_a_picture(name, tmp_path):
    """A dollar sign is no formula, and what no picture can hold is a space."""
    figure = pictures.new_figure(3, 2)
    axis = figure.subplots()
    axis.plot([1, 2], label=name)
    pictures.set_names(axis.yaxis, [name])
    axis.set_title(name)
    axis.set_xlabel(name)
    figure.suptitle(name)
    pictures.legend_above(figure)
    minidom.parseString(pictures.as_svg(figure))
    for form in ("png", "pdf"):
        pictures.save_figure(figure, tmp_path / f"a.{form}")
    assert not axis.title.get_parse_math() and axis.get_yticklabels()[0].get_text() != "\udcffx"


def for_paper(tmp_path, width, title=True, name="a.pdf"):
    return pictures.for_paper(argparse.Namespace(out=tmp_path / name, width=width, no_title=not title))


def sentences(count=8):
    lengths = np.arange(1, 40)
    return draw_sentence_lengths({f"data set {i}": (lengths, lengths + i) for i in range(count)})


@pytest.mark.parametrize("width", ["column", "text", None])
def test_a_pdf_has_truetype_fonts_and_the_width_of_a_paper(width, tmp_path):
    with for_paper(tmp_path, width):
        pictures.save_figure(sentences(2), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert set(re.findall(rb"/FontFile\w*|/Type3", content)) == {b"/FontFile2"}  # TrueType
    box = [float(number) for number in re.search(rb"/MediaBox \[([^]]+)", content)[1].split()]
    assert box[2] == pytest.approx(72 * (pictures.WIDTHS[width] if width else 8.4))
    if pdffonts := shutil.which("pdffonts"):
        said = subprocess.run([pdffonts, str(tmp_path / "a.pdf")], capture_output=True, text=True, check=True).stdout
        assert "TrueType" in said and "Type 3" not in said


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("width", ["column", "text"])
def test_panels_and_letters_fit_on_paper(width, count, tmp_path):
    with for_paper(tmp_path, width):
        figure = sentences(count)
        figure.draw_without_rendering()
    box, inches = figure.get_tightbbox(), pictures.WIDTHS[width]
    assert figure.get_figwidth() == inches and box.x0 >= -0.01 and box.x1 <= inches + 0.01
    assert len(figure.axes) == count
    for axis in figure.axes:
        assert axis.get_window_extent().width > inches * figure.dpi / 6
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label, *axis.get_xticklabels()):
            assert 5 <= text.get_fontsize() <= 9
    assert sentences(count).get_figwidth() == max(4.8, 4.2 * count)  # as before, and letters of 10 points
    assert sentences(count).axes[0].xaxis.label.get_fontsize() == 10


def test_titles_are_for_readers_without_a_caption(tmp_path):
    maps, words = head_panels(torch.rand(2, 2, 2), [1, 2]), labels(["a", "b"])
    for title in (True, False):
        with for_paper(tmp_path, None, title):
            assert draw_panels(maps, words, words, "cross").get_suptitle() == "cross" * title


def test_flags_of_a_picture_need_one(tmp_path):
    for width, title, flag in (("text", True, "--width"), (None, False, "--no-title")):
        arguments = argparse.Namespace(out=None, width=width, no_title=not title)
        with pytest.raises(UserError, match=f"{flag}: needs --out FILE"), pictures.for_paper(arguments):
            pass


def test_the_users_matplotlibrc_is_respected(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 7\nfont.family: serif\npdf.fonttype: 3\naxes.labelsize: 5\n")
    program = (
        "import argparse; from fairseq_diverse.support import pictures; import matplotlib\n"
        "for width in ('column', None):\n"
        "    with pictures.for_paper(argparse.Namespace(out=None, width=None, no_title=False)):\n"
        "        pictures.PAPER.set(pictures.PAPER.get()._replace(width=width and pictures.WIDTHS[width]))\n"
        "        axis = pictures.new_figure(4, 3).subplots()\n"
        "        print(matplotlib.rcParams['font.family'][0], matplotlib.rcParams['font.size'],\n"
        "              axis.xaxis.label.get_fontsize(), matplotlib.rcParams['pdf.fonttype'],\n"
        "              matplotlib.rcParams['lines.linewidth'])\n"
    )
    environment = os.environ | {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    shown = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert shown.splitlines() == ["serif 7.0 5.0 42 1.0", "serif 7.0 5.0 42 1.5"]


def test_svg_and_pgf(tmp_path, monkeypatch):
    name = "a_b & 50% $x$"
    figure = pictures.new_figure(3, 2)
    pictures.set_names(figure.subplots().yaxis, [name])
    pictures.save_figure(figure, tmp_path / "a.svg")
    minidom.parse(str(tmp_path / "a.svg"))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "which", lambda name: None)
        refused(r"--out .*a\.pgf: letters are measured by LaTeX,", pictures.save_figure, figure, tmp_path / "a.pgf")
    assert not (tmp_path / "a.pgf").exists()
    if any(map(shutil.which, pictures.TEX)):
        pictures.save_figure(figure, tmp_path / "a.pgf")
        assert r"a\_b \& 50\% \$x\$" in (tmp_path / "a.pgf").read_text()


@pytest.mark.parametrize("key", ["loss", "num_updates", "wps", "wpb", "train_wall"])
@pytest.mark.parametrize("value", [None, [], {}, 10**400, "many"], ids=lambda value: str(value)[:5])
def test_a_log_with_other_values_than_numbers_is_named(key, value, tmp_path):
    stats = {"loss": "5", "num_updates": "1", "wps": "10", "wpb": "10", "train_wall": "1", key: value}
    (tmp_path / "train.log").write_text(f"a | INFO | train_inner | {json.dumps(stats)}\n")
    refused(rf"train\.log: {key} is not a number: ", read_training, tmp_path)


def test_the_losses_of_a_training_that_diverged_are_drawn(tmp_path, recwarn):
    (tmp_path / "train.log").write_text(line(10, 9.5, 30) + line(20, "inf", 60) + line(30, "nan", 90) + line(40, 8, 99))
    found = read_training(tmp_path)
    draw_learning_curves({"a": [found]}, "loss", smooth=3).canvas.draw()
    assert found.training.losses[1] == np.inf and not recwarn.list
