"""Where a row helps: NLL of groups of test sentences against the baseline's, over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Column, Line, Measure, Summary
from fairseq_diverse.metrics.seeds import with_holm
from fairseq_diverse.reports.lines import Runs, comparable, compare_by, entries, measures_of
from fairseq_diverse.reports.notes import commits_note, differing_seeds_note, machines_note, tested_rows
from fairseq_diverse.reports.sentences import BY, Groups, Record, group
from fairseq_diverse.support.paths import data_name
from fairseq_diverse.support.pictures import STYLES, Figure, panels, set_names, set_note, set_title


def compare_groups(runs: Runs, records: Mapping[str, tuple[Record, str]], by: str, test: str) -> list[Line]:
    """A line for each row and group; of rows without a finished run one.

    Facts of a line are the ``group``, its ``sentences`` and ``words`` (of the references), and ``nll_word``, the mean
    over seeds in nats a word; where there is a baseline also ``word_delta`` and ``word_interval``, a word, whose p is
    that of ``nll``. Its differences are ``nll``, of the NLL a sentence, and ``rest``, of the NLL a word in the group
    less that in all other sentences. Holm's correction is over all groups and rows that are tested.

    Args:
        runs: of one test set (`of_test`).
        records: of `find_records`.
        by: one of `BY`.

    Raises:
        ValueError: rows were run on other test data than their baseline, or the sentences have no trees.
    """
    runs = comparable(runs, measures_of(runs))
    lines: list[Line] = []
    differences: dict[tuple[str, str, str], Any] = {}  # by measure, row and group
    for data in dict.fromkeys(row.data for row in runs.rows):
        rows, hidden = ([row for row in side if row.data == data] for side in (runs.rows, runs.hidden))
        scored = [run for row in rows for run in runs.summaries[row.name]]
        by_row: dict[str, list[Line]] = {row.name: [] for row in rows}
        groups = group(records[data][0], test, by, records[data][1]) if scored else Groups([], np.array([]))
        for index, name in enumerate(groups.names):
            measures, facts = _group_measures(groups.of == index, scored[0])
            compared = compare_by(measures, runs._replace(rows=rows, hidden=hidden))
            for line in (line for line in compared.lines if line.seeds):
                nll_word = line.scores["nll"].mean * facts["sentences"] / facts["words"]
                line.facts = {"group": name, **facts, "nll_word": nll_word}
                by_row[line.name].append(line)
            for key, by_name in compared.differences.items():
                differences |= {(key, row, name): difference for row, difference in by_name.items()}
        for row in rows:
            lines += by_row[row.name] or [Line(row=row, seeds=0)]
    corrected = {key: with_holm({k: d for k, d in differences.items() if k[0] == key}) for key in ("nll", "rest")}
    for line in lines:
        line.differences = {key: corrected[key][key, line.name, line.facts["group"]] for key in line.differences}
        if difference := line.differences.get("nll"):
            share = line.facts["sentences"] / line.facts["words"]
            line.facts["word_delta"] = difference.delta * share
            line.facts |= {"word_interval": [e * share for e in difference.interval]} if difference.interval else {}
    return lines


def _group_measures(inside: np.ndarray, run: Summary) -> tuple[list[Measure], dict[str, int]]:
    """What is compared in the group of the sentences where ``inside`` is true, and the group's size. All are weighted
    sums of the sentences' NLL; the words of references are those that BLEU counts."""
    counts = np.array([sentence[1] for sentence in run["bleu_counts"]])
    words, others = (max(1, int(counts[side].sum())) for side in (inside, ~inside))
    sentences = int(inside.sum())
    measures = [Measure("nll", "NLL", partial(_sum, inside / sentences), 3)]
    if sentences < len(inside):
        measures.append(Measure("rest", "", partial(_sum, inside / words - ~inside / others), 4))
    return measures, {"sentences": sentences, "words": words}


def _sum(weights: np.ndarray, run: Summary) -> float:
    """The weighted sum of the NLL of a run's test sentences, rounded once: the same on every machine."""
    return fsum(weights * np.array(run["test_nll"]))


def group_entries(line: Line) -> dict[str, Any]:
    """A line as JSON has it: that of `entries`, with nll_delta and so on and rest_delta and so on."""
    scores = {key: score for key, score in line.scores.items() if key == "nll"}
    values = entries(replace(line, scores=scores, differences={}))
    del values["published"]
    for key, difference in line.differences.items():
        values |= difference.entries(f"{key}_")
    return values


def group_columns() -> list[Column[Line]]:
    def tested(key: str, digits: int, line: Line) -> str:
        return line.differences[key].text(digits, corrected=True) if key in line.differences else ""

    return [
        Column("row", lambda line: line.name, unfinished=True),
        Column("group", lambda line: line.facts.get("group", "not run"), unfinished=True),
        Column("sentences", lambda line: f"{line.facts['sentences']:,}"),
        Column("NLL", lambda line: f"{line.scores['nll'].mean:.3f}"),
        Column("NLL a word", lambda line: f"{line.facts['nll_word']:.4f}"),
        Column("Δ NLL", partial(tested, "nll", 3)),
        Column("95% interval", lambda line: line.differences["nll"].interval_text(3) if line.differences else ""),
        Column("Δ NLL a word", lambda line: f"{line.facts['word_delta']:+.4f}" if line.differences else ""),
        Column("Δ NLL a word less that of the others", partial(tested, "rest", 4)),
        Column("seeds", lambda line: str(line.seeds)),
    ]


def group_notes(lines: Sequence[Line], by: str, records: Mapping[str, tuple[Record, str]]) -> list[str]:
    """What the groups and the figures are, and what the tests correct for."""
    rows = list({line.name: line for line in lines if line.seeds}.values())  # one line of each
    longest = ", ".join(dict.fromkeys(f"{record['longest']} words" for record, _ in records.values()))
    text = [f"groups: {BY[by]}", *[f"the longest source sentence in training: {longest}"] * (by == "length")]
    text.append("NLL: nats a test sentence, or nats a word of the reference (sacreBLEU's), lower is better")
    compared = [line for line in lines if line.differences]
    if not compared:
        return text + machines_note(rows)
    against = f"Δ against {', '.join(dict.fromkeys(line.baseline for line in compared))}"
    by_key = {key: [line.differences[key] for line in compared if key in line.differences] for key in ("nll", "rest")}
    counts = {key: max((difference.holm_of for difference in tests), default=0) for key, tests in by_key.items()}
    if not counts["nll"]:
        text.append(f"{against}: nothing can be tested over seeds, nothing has a star")
    else:
        tested = list({line.name: line for line in compared if line.differences["nll"].test}.values())
        text += [
            f"{against}: mean over seeds ± standard error over seeds, in brackets p over seeds: t-tests in each group "
            f"with the deviation of all rows ({tested_rows(tested, ['nll'])}), then Holm's correction over all groups "
            f"and rows ({counts['nll']} p-values); *: p < 0.05, **: p < 0.01",
            "95% interval: of Δ NLL, Dunnett's, for all rows of one group at once: corrects for rows, not for groups",
        ]
    if by_key["rest"]:
        correction = f", a Holm's correction of its own ({counts['rest']} p-values)" * bool(counts["rest"])
        text.append(
            "Δ NLL a word less that of the others: of all sentences of the other groups; below zero, the row helps "
            f"more here than there{correction}. That one group has a star and another has none does not show it"
        )
    return text + differing_seeds_note(rows) + machines_note(rows) + commits_note(rows)


def draw_groups(lines: Sequence[Line], title: str) -> Figure:
    """Δ NLL a word of every row with its 95% interval over seeds, a panel a group of a data set; rows of one seed have
    none."""
    compared = [line for line in lines if line.differences]
    sentences = {(line.row.data, line.facts["group"]): line.facts["sentences"] for line in compared}
    several = len({data for data, _ in sentences}) > 1
    rows = list(dict.fromkeys(line.name for line in compared))
    width, height = 1.6 + 1.9 * len(sentences), 1.6 + 0.28 * len(rows)
    figure, axes = panels(len(sentences), width, height, sharex=True, sharey=True)
    color, marker = STYLES[1]
    for axis, ((data, name), count) in zip(axes, sentences.items(), strict=True):
        for line in (line for line in compared if (line.row.data, line.facts["group"]) == (data, name)):
            delta, interval = line.facts["word_delta"], line.facts.get("word_interval")
            bar = [[delta - interval[0]], [interval[1] - delta]] if interval else None
            axis.errorbar(delta, rows.index(line.name), xerr=bar, color=color, marker=marker, capsize=3)
        label = f"{data_name(data)}, {name}" if several else name
        axis.set_title(f"{label}\n({count:,} sentences)", fontsize="small")
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.grid(axis="x", alpha=0.3)
    set_names(axes[0].yaxis, rows)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    bars = "; bar: 95% interval over seeds" * any("word_interval" in line.facts for line in compared)
    set_note(figure, f"NLL minus the baseline's, nats a word (lower is better){bars}")
    set_title(figure, title)
    return figure
