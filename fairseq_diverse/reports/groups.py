"""Where a row helps: NLL of groups of test sentences against the baseline's, over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Column, Line, Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.metrics.seeds import Difference, over_seeds, with_holm
from fairseq_diverse.reports.comparable import comparable, refuse_other_data
from fairseq_diverse.reports.lines import Runs, entries
from fairseq_diverse.reports.notes import commits_note, differing_seeds_note, machines_note, tested_rows
from fairseq_diverse.reports.sentences import BY, Groups, Record, group
from fairseq_diverse.support.pictures import STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(kw_only=True)
class GroupLine(Line):
    """A row's NLL in a group of sentences, in nats a sentence and a word of the references, means over seeds.

    ``differences`` are "nll", of the NLL a sentence, and "rest", of the NLL a word in the group less that in all other
    sentences.
    """

    group: str = ""
    sentences: int = 0
    words: int = 0
    nll: float = 0.0
    nll_word: float = 0.0

    @property
    def word_delta(self) -> float:
        """The difference in NLL a word; its p is that of the NLL a sentence."""
        return self.differences["nll"].delta * self.sentences / self.words

    @property
    def word_interval(self) -> list[float]:
        """Its 95% interval over seeds; empty where nothing is tested."""
        return [end * self.sentences / self.words for end in self.differences["nll"].interval or ()]


def compare_groups(runs: Runs, records: Mapping[str, tuple[Record, str]], by: str, test: str) -> list[GroupLine]:
    """A line for each row and group; of rows without a finished run one.

    Differences are tested over seeds in each group together with those of the hidden rows; Holm's correction is over
    all groups and rows that are tested.

    Args:
        runs: of one test set (`of_test`).
        records: of `find_records`.
        by: one of `BY`.

    Raises:
        ValueError: rows were run on other test data than their baseline, or the sentences have no trees.
    """
    measures = runs.kind.measures(runs.rows)
    refuse_other_data(runs.rows, runs.summaries, measures)
    tested = [*runs.rows, *comparable(runs.hidden, runs.summaries, measures)]
    differences: dict[str, dict[tuple[str, str], Difference]] = {"nll": {}, "rest": {}}  # by row and group
    lines: list[GroupLine] = []
    for data in dict.fromkeys(row.data for row in runs.rows):
        shown, together = ([row for row in rows if row.data == data] for rows in (runs.rows, tested))
        done = [row for row in shown if runs.summaries[row.name]] if data in records else []
        by_row: dict[str, list[GroupLine]] = {row.name: [] for row in shown}
        groups = group(records[data][0], test, by, records[data][1]) if done else Groups([], np.array([]))
        for index, name in enumerate(groups.names):
            measured = _Group.of(groups.of == index, runs.summaries[done[0].name][0])
            for key, weights in measured.weights.items():
                scores = {
                    row.name: {run["seed"]: _sum(weights, run) for run in runs.summaries[row.name]} for row in together
                }
                compared = over_seeds(scores, {row.name: row.baseline for row in together})
                differences[key] |= {(row, name): difference for row, difference in compared.items()}
            for row in done:
                by_row[row.name].append(_line(row, runs.summaries[row.name], name, measured))
        for row in shown:
            lines += by_row[row.name] or [GroupLine(row=row, seeds=0)]
    corrected = {key: with_holm(by_line) for key, by_line in differences.items()}
    for line in lines:
        line.differences = {
            key: by_line[line.name, line.group]
            for key, by_line in corrected.items()
            if (line.name, line.group) in by_line
        }
        if line.differences:
            line.baseline, line.baseline_runs = line.row.baseline, runs.summaries[line.row.baseline]
    return lines


class _Group(NamedTuple):
    """Weights of the NLL of all test sentences in the sums that are compared, and the group's size."""

    sentences: int
    words: int
    weights: dict[str, np.ndarray]

    @classmethod
    def of(cls, inside: np.ndarray, run: Summary) -> "_Group":
        """Of the sentences where ``inside`` is true; the references' words are those that BLEU counts."""
        counts = np.array([of_sentence[1] for of_sentence in run["bleu_counts"]])
        sentences, words, others = (
            int(inside.sum()),
            max(1, int(counts[inside].sum())),
            max(1, int(counts[~inside].sum())),
        )
        rest = {"rest": inside / words - ~inside / others} if sentences < len(inside) else {}
        return cls(sentences, words, {"nll": inside / sentences, **rest})


def _line(row: Row, runs: Sequence[Summary], name: str, group: _Group) -> GroupLine:
    nll = float(np.mean([_sum(group.weights["nll"], run) for run in runs]))
    return GroupLine(
        row=row,
        seeds=len(runs),
        runs=runs,
        group=name,
        sentences=group.sentences,
        words=group.words,
        nll=nll,
        nll_word=nll * group.sentences / group.words,
    )


def _sum(weights: np.ndarray, run: Summary) -> float:
    """The weighted sum of the NLL of a run's test sentences, rounded once: the same on every machine."""
    return fsum(weights * np.array(run["test_nll"]))


def group_entries(line: GroupLine) -> dict[str, Any]:
    """``row`` and ``seeds``; of finished rows ``group``, its ``sentences`` and ``words``, ``nll`` and ``nll_word``, and
    where there is a baseline nll_delta and rest_delta and so on (`Difference.entries`), ``word_delta`` and
    ``word_interval``.
    """
    values = entries(replace(line, differences={}))
    del values["published"]
    if not line.seeds:
        return values
    values |= {key: getattr(line, key) for key in ("group", "sentences", "words", "nll", "nll_word")}
    for key, difference in line.differences.items():
        values |= difference.entries(f"{key}_")
    if line.differences:
        values |= {"word_delta": line.word_delta} | (
            {"word_interval": line.word_interval} if line.word_interval else {}
        )
    return values


def group_columns() -> list[Column[GroupLine]]:
    def tested(key: str, digits: int, line: GroupLine) -> str:
        return line.differences[key].text(digits, corrected=True) if key in line.differences else ""

    return [
        Column("row", lambda line: line.name, unfinished=True),
        Column("group", lambda line: line.group or "not run", unfinished=True),
        Column("sentences", lambda line: f"{line.sentences:,}"),
        Column("NLL", lambda line: f"{line.nll:.3f}"),
        Column("NLL a word", lambda line: f"{line.nll_word:.4f}"),
        Column("Δ NLL", partial(tested, "nll", 3)),
        Column("95% interval", lambda line: line.differences["nll"].interval_text(3) if line.differences else ""),
        Column("Δ NLL a word", lambda line: f"{line.word_delta:+.4f}" if line.differences else ""),
        Column("Δ NLL a word less that of the others", partial(tested, "rest", 4)),
        Column("seeds", lambda line: str(line.seeds)),
    ]


def group_notes(lines: Sequence[GroupLine], by: str, records: Mapping[str, tuple[Record, str]]) -> list[str]:
    """What the groups and the figures are, and what the tests correct for."""
    rows = list({line.name: line for line in lines if line.seeds}.values())  # one line of each
    text = [f"groups: {BY[by]}"]
    if by == "length":
        longest = dict.fromkeys(f"{record['longest']} words" for record, _ in records.values())
        text.append(f"the longest source sentence in training: {', '.join(longest)}")
    text.append("NLL: nats a test sentence, or nats a word of the reference (sacreBLEU's), lower is better")
    compared = [line for line in lines if line.differences]
    if not compared:
        return text + machines_note(rows)
    against = f"Δ against {', '.join(dict.fromkeys(line.baseline for line in compared))}"
    counts = {
        key: max((line.differences[key].holm_of for line in compared if key in line.differences), default=0)
        for key in ("nll", "rest")
    }
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
    if any("rest" in line.differences for line in compared):
        correction = f", a Holm's correction of its own ({counts['rest']} p-values)" * bool(counts["rest"])
        text.append(
            "Δ NLL a word less that of the others: of all sentences of the other groups; below zero, the row helps "
            f"more here than there{correction}. That one group has a star and another has none does not show it"
        )
    return text + differing_seeds_note(rows) + machines_note(rows) + commits_note(rows)


def draw_groups(lines: Sequence[GroupLine], title: str) -> "Figure":
    """Δ NLL a word of every row with its 95% interval over seeds, a panel a group; rows of one seed have no interval.

    Raises:
        UserError: matplotlib is not installed.
    """
    compared = [line for line in lines if line.differences]
    sentences = {line.group: line.sentences for line in compared}
    rows = list(dict.fromkeys(line.name for line in compared))
    figure = new_figure(1.6 + 1.9 * len(sentences), 1.6 + 0.28 * len(rows))
    panels = figure.subplots(1, len(sentences), sharex=True, sharey=True, squeeze=False)[0]
    color, marker = STYLES[1]
    for axis, (name, count) in zip(panels, sentences.items(), strict=True):
        for line in (line for line in compared if line.group == name):
            delta, interval = line.word_delta, line.word_interval
            bar = [[delta - interval[0]], [interval[1] - delta]] if interval else None
            axis.errorbar(delta, rows.index(line.name), xerr=bar, color=color, marker=marker, capsize=3)
        axis.set_title(f"{name}\n({count:,} sentences)", fontsize=9)
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(rows)), rows, parse_math=False)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    bars = "; bar: 95% interval over seeds" * any(line.word_interval for line in compared)
    figure.supxlabel(f"NLL minus the baseline's, nats a word (lower is better){bars}", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure
