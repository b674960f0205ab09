"""Where a row helps: NLL of groups of test sentences against the baseline's, over seeds."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_diverse.experiments.kinds.kind import Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.sentences import BY, Record, group
from fairseq_diverse.experiments.where_run import commits_note, machines_note, ran
from fairseq_diverse.reports.comparison import (
    NO_OTHERS,
    Others,
    compared_seeds,
    difference,
    holm_entries,
    interval_text,
    over_seeds,
    refuse_other_data,
    seeds_that_differ_note,
    tested_rows,
    with_others,
    without_empty_columns,
)
from fairseq_diverse.support.pictures import STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TESTED = ("nll_", "rest_")  # prefixes of what is tested


def compare_groups(
    rows: Sequence[Row],
    summaries: Mapping[str, list[Summary]],
    records: Mapping[str, tuple[Record, str]],
    by: str,
    test: str,
    others: Others = NO_OTHERS,
) -> list[dict[str, Any]]:
    """One dictionary for each row and group; of rows without a finished run one with ``row`` and ``seeds`` (0) only.

    ``group`` is the group's name, ``sentences`` and ``words`` how many it has (words of the reference, as BLEU counts
    them); ``nll`` is in nats a sentence and ``nll_word`` in nats a word, means over seeds.

    Differences to the baseline are those of `over_seeds`, tested in each group together with ``others``, the table's
    other rows: ``nll_delta`` and so on are of ``nll``, ``rest_delta`` and so on of the NLL a word in the group less
    that in all other sentences; ``word_delta`` and ``word_interval`` are ``nll_delta`` and its interval a word, which
    have the same p. ``nll_holm_p`` and ``rest_holm_p`` are their ``seed_single_p`` after Holm's correction over all
    groups and rows that are tested, ``nll_holm_of`` and ``rest_holm_of`` of them.

    Args:
        rows, summaries, others: of one test set (`report.of_test`).
        records: of `find_records`.
        by: one of `BY`.

    Raises:
        ValueError: rows were run on other test data than their baseline, or the sentences have no trees.
    """
    refuse_other_data(rows, summaries)
    tested, every = with_others(rows, summaries, others)
    lines: list[dict[str, Any]] = []
    p_values: dict[str, dict[tuple[str, str], float | None]] = {prefix: {} for prefix in TESTED}
    for data in dict.fromkeys(row.data for row in rows):
        shown, of_data = ([row for row in some if row.data == data] for some in (rows, tested))
        if data not in records or not any(summaries[row.name] for row in shown):
            lines += [{"row": row.name, "seeds": 0} for row in shown]
            continue
        runs: dict[str, list[Summary]] = {row.baseline: [] for row in of_data} | {
            row.name: every[row.name] for row in of_data
        }
        groups = group(records[data][0], test, by, records[data][1])
        words = np.array([counts[1] for counts in next(filter(None, runs.values()))[0]["bleu_counts"]])  # of references
        of_groups = {name: _of_group(of_data, runs, words, groups.of == at) for at, name in enumerate(groups.names)}
        for name, of_rows in of_groups.items():
            for prefix, found in p_values.items():
                found |= {(row, name): line.get(f"{prefix}seed_single_p") for row, line in of_rows.items()}
        for row in shown:
            done = [{"group": name, **of_rows[row.name]} for name, of_rows in of_groups.items() if runs[row.name]]
            lines += [{"row": row.name, "seeds": len(runs[row.name]), **line} for line in done or [{}]]
    for prefix, found in p_values.items():
        corrected = holm_entries(found, prefix)
        for line in lines:
            line |= corrected.get((line["row"], line.get("group", "")), {})
    return lines


def _of_group(
    rows: Sequence[Row], runs: Mapping[str, list[Summary]], words: np.ndarray, inside: np.ndarray
) -> dict[str, dict[str, Any]]:
    """By row with runs, the entries of its line for a group of sentences, those where ``inside`` is true; ``words`` has
    the number of words of each reference.

    All figures are weighted sums of the sentences' NLL, so that only the weights differ.
    """
    sentences, size, others = int(inside.sum()), max(1, int(words[inside].sum())), max(1, int(words[~inside].sum()))
    judged = over_seeds(rows, runs, partial(_sum, inside / sentences), "nll_")
    if sentences < len(inside):
        for name, entries in over_seeds(rows, runs, partial(_sum, inside / size - ~inside / others), "rest_").items():
            judged[name] |= entries
    found: dict[str, dict[str, Any]] = {}
    for row in (row for row in rows if runs[row.name]):
        of_row = runs[row.name]
        nll = float(np.mean([_sum(inside / sentences, run) for run in of_row]))
        line = found[row.name] = {
            "sentences": sentences,
            "words": size,
            "nll": nll,
            "nll_word": nll * sentences / size,
            **ran(of_row),
        }
        if row.name in judged:
            line |= {"baseline": row.baseline, **judged[row.name], **compared_seeds(runs[row.baseline], of_row)}
            line["word_delta"] = line["nll_delta"] * sentences / size
            if interval := line.get("nll_seed_interval"):
                line["word_interval"] = [end * sentences / size for end in interval]
    return found


def _sum(weights: np.ndarray, run: Summary) -> float:
    """The weighted sum of the NLL of a run's test sentences, rounded once: the same on every machine."""
    return fsum(weights * np.array(run["test_nll"]))


def group_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each line; columns that nobody fills are left out."""
    cells = [["row", "group", "sentences", "NLL", "NLL a word", "Δ NLL", "95% interval", "Δ NLL a word"]]
    cells[0] += ["Δ NLL a word less that of the others", "seeds"]
    for line in lines:
        if not line["seeds"]:
            cells.append([line["row"], "not run", *[""] * 8])
            continue
        shown = [line["row"], line["group"], f"{line['sentences']:,}", f"{line['nll']:.3f}", f"{line['nll_word']:.4f}"]
        a_word = f"{line['word_delta']:+.4f}" if "word_delta" in line else ""
        shown += [_tested(line, 3, "nll_"), interval_text(line, 3, "nll_"), a_word, _tested(line, 4, "rest_")]
        shown.append(str(line["seeds"]))
        cells.append(shown)
    return without_empty_columns(cells)


def group_notes(lines: Sequence[Mapping[str, Any]], by: str, records: Mapping[str, tuple[Record, str]]) -> list[str]:
    """What the groups and the figures are, and what the tests correct for."""
    first = list({line["row"]: line for line in lines if line["seeds"]}.values())
    text = [f"groups: {BY[by]}"]
    if by == "length":
        longest = dict.fromkeys(f"{record['longest']} words" for record, _ in records.values())
        text.append(f"the longest source sentence in training: {', '.join(longest)}")
    text.append("NLL: nats a test sentence, or nats a word of the reference (sacreBLEU's), lower is better")
    shown = [line for line in lines if "nll_delta" in line]
    if not shown:
        return text + machines_note(first)
    tested = list({line["row"]: line for line in shown if "nll_seed_rows" in line}.values())
    against = f"Δ against {', '.join(dict.fromkeys(line['baseline'] for line in shown))}"
    counts = {
        prefix: next((line[f"{prefix}holm_of"] for line in shown if f"{prefix}holm_of" in line), 0) for prefix in TESTED
    }
    if not counts["nll_"]:
        text.append(f"{against}: nothing can be tested over seeds, nothing has a star")
    else:
        text += [
            f"{against}: mean over seeds ± standard error over seeds, in brackets p over seeds: t-tests in each group "
            f"with the deviation of all rows ({tested_rows(tested, ['nll_'])}), then Holm's correction over all groups "
            f"and rows ({counts['nll_']} p-values); *: p < 0.05, **: p < 0.01",
            "95% interval: of Δ NLL, Dunnett's, for all rows of one group at once: corrects for rows, not for groups",
        ]
    if any("rest_delta" in line for line in shown):
        correction = f", a Holm's correction of its own ({counts['rest_']} p-values)" * bool(counts["rest_"])
        text.append(
            "Δ NLL a word less that of the others: of all sentences of the other groups; below zero, the row helps "
            f"more here than there{correction}. That one group has a star and another has none does not show it"
        )
    return text + seeds_that_differ_note(first) + machines_note(first) + [commits_note(first)]


def _tested(line: Mapping[str, Any], digits: int, prefix: str) -> str:
    """A difference with the p that Holm's correction leaves; empty where there is none."""
    if f"{prefix}delta" not in line:
        return ""
    return difference({**line, f"{prefix}seed_p": line.get(f"{prefix}holm_p")}, digits, prefix)


def draw_groups(lines: Sequence[Mapping[str, Any]], title: str) -> "Figure":
    """Δ NLL a word of every row with its 95% interval over seeds, a panel a group; rows of one seed have no interval.

    Raises:
        UserError: matplotlib is not installed.
    """
    shown = [line for line in lines if "word_delta" in line]
    names, rows = (list(dict.fromkeys(line[key] for line in shown)) for key in ("group", "row"))
    figure = new_figure(1.6 + 1.9 * len(names), 1.6 + 0.28 * len(rows))
    panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    color, marker = STYLES[1]
    for axis, name in zip(panels, names, strict=True):
        for line in (line for line in shown if line["group"] == name):
            delta, place = line["word_delta"], rows.index(line["row"])
            low, high = line.get("word_interval", [delta] * 2)
            bar = [[delta - low], [high - delta]] if low < high else None
            axis.errorbar(delta, place, xerr=bar, color=color, marker=marker, capsize=3)
        size = next(line["sentences"] for line in shown if line["group"] == name)
        axis.set_title(f"{name}\n({size:,} sentences)", fontsize=9)
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(rows)), rows, parse_math=False)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    bars = "; bar: 95% interval over seeds" * any("word_interval" in line for line in shown)
    figure.supxlabel(f"NLL minus the baseline's, nats a word (lower is better){bars}", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure
