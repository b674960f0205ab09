"""Measured and published figures: means over seeds, differences to the baseline and their tests."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_diverse.experiments.kinds.kind import Summary, kind_of
from fairseq_diverse.experiments.records import bleu_statistics
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.runs.saved import figures_by_test
from fairseq_diverse.experiments.where_run import (
    commits_note,
    machines_note,
    no_speed,
    no_speed_note,
    ran,
    versions_note,
)
from fairseq_diverse.metrics.significance import RESAMPLES
from fairseq_diverse.reports.comparison import (
    ALONE,
    NO_OTHERS,
    Others,
    compared,
    compared_seeds,
    deviation,
    difference,
    ended_early,
    ended_early_note,
    missing,
    missing_note,
    over_seeds,
    p_number,
    refuse_other_data,
    seeds_notes,
    seeds_that_differ_note,
    spread,
    with_others,
    without_empty_columns,
)

SPEEDS = {  # entry of a line, and how it is shown
    "words/s": ("words_per_second", ",.0f"),
    "updates/s": ("updates_per_second", ".2f"),
    "minutes an epoch": ("epoch_minutes", ".2f"),
    "speed": ("speed", ".2f"),
    "decoding words/s": ("decoding_words_per_second", ",.0f"),
    "decoding": ("decoding_speed", ".2f"),
}
PUBLISHED_SPEEDS = {"updates/s": "speed", "minutes an epoch": "epoch-minutes", "speed": "relative-speed"}
SCALES = {"": ("BLEU", 2), "nll_": ("NLL", 3)}  # what is compared and its digits, by prefix of a line's entries


def best_of_grids(rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> list[Row]:
    """Of the rows that a grid made of one row, for each data set that with the lowest validation NLL where training
    ended, of GLUE with the highest score on the dev set, the mean over its seeds; of a grid without a finished run, the
    first. Baselines are the best of theirs.
    """

    def loss(row: Row) -> float:
        losses = [found for s in summaries[row.name] if (found := kind_of(row).loss(s)) is not None]
        return _mean(losses) if losses else np.inf

    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        families.setdefault((row.family, row.data), []).append(row)
    for members in families.values():
        for row in members if len(members) > 1 else []:
            if summaries[row.name] and not np.isfinite(loss(row)):
                raise ValueError(f"--best: row {row.name} has no validation NLL to choose by; choose with --rows")
    best = {family: min(members, key=loss) for family, members in families.items()}
    of_name = {row.name: best[row.family, row.data].name for row in rows}
    return [dataclasses.replace(row, baseline=of_name.get(row.baseline, row.baseline)) for row in best.values()]


def test_names(rows: Sequence[Row], summaries: Mapping[str, Sequence[Summary]]) -> list[str]:
    """The test sets on which runs were scored for these rows or that have published figures, the first ones first."""
    found = [(row, summary) for row in rows for summary in summaries.get(row.name, ())]
    names = [_first_test(summary) for _, summary in found] or ["test"]
    names += [name for row, summary in found for name in summary.get("tests", {}) if name in row.tests]
    return list(dict.fromkeys(names + [name for row in rows for name in _by_test(row) if name != "test"]))


def of_test(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], name: str
) -> tuple[list[Row], dict[str, list[Summary]]]:
    """Rows and summaries with the figures of one test set, measured and published.

    Published figures that name no test are the first one's, which "test" is a name of, too. Rows that have nothing to
    do with the test set are left out.
    """
    view, shown = {}, []
    for row_name, of_row in summaries.items():
        view[row_name] = [s | parts[name] for s in of_row if name in (parts := figures_by_test(s))]
    for row in rows:
        of_row, by_test = summaries[row.name], _by_test(row)
        figures = dict(by_test.get(name, {}))
        if name == (_first_test(of_row[0]) if of_row else test_names(rows, summaries)[0]):
            plain = {key: value for key, value in row.published.items() if key not in by_test}
            figures = plain | by_test.get("test", {}) | figures
        if view[row.name] or figures or not of_row:
            shown.append(dataclasses.replace(row, published=figures))
    return shown, view


def compare(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], others: Others = NO_OTHERS
) -> list[dict[str, Any]]:
    """One dictionary a row; rows without a finished run hold only ``row``, ``published`` and ``seeds`` (0).

    ``bleu``, ``chrf``, ``ter``, ``length_ratio``, ``nll`` and ``metrics`` (of the table) are means over seeds;
    ``missing`` has those metrics that could not be computed, with reasons and seeds;
    ``bleu_deviation`` and ``nll_deviation`` the standard deviations (None for one seed), ``bleu_interval`` half the 95%
    bootstrap interval of the mean. NLL is that of the test set, nats a sentence.

    Differences to the baseline: ``delta`` and so on in BLEU, ``nll_delta`` and so on in NLL, are those of `over_seeds`,
    tested together with ``others``, the table's other rows;
    ``compared`` or ``other_seeds`` say where the seeds are not the same. ``p`` is about other test sentences: every
    resample draws one set of them and averages each system's BLEU over its seeds. ``nll_p`` and the standard error
    ``nll_error`` are those of a paired t-test of NLL, each sentence averaged over seeds first.

    ``words_per_second``, ``updates_per_second``, ``epoch_minutes``, ``decoding_words_per_second``, and ``speed`` and
    ``decoding_speed`` relative to the baseline are None where ``no_speed`` says why, or where a log has none.

    Raises:
        ValueError: a row was run on other test data than the baseline.
    """
    from fairseq_diverse.metrics.significance import interval, p_value, paired_difference

    refuse_other_data(rows, summaries)
    resamples = {row.name: _resampled(summaries[row.name]) for row in rows}
    tested = with_others(rows, summaries, others)
    judged = over_seeds(*tested, lambda summary: summary["metrics"]["bleu"])
    judged_nll = over_seeds(*tested, lambda summary: float(np.mean(summary["test_nll"])), "nll_")
    lines = []
    for row in rows:
        of_row, first = summaries[row.name], summaries[row.baseline]
        line: dict[str, Any] = {"row": row.name, "published": row.published, "seeds": len(of_row)}
        lines.append(line)
        if not of_row:
            continue
        bleu, nll = [s["metrics"]["bleu"] for s in of_row], [float(np.mean(s["test_nll"])) for s in of_row]
        low, high = interval(_over_seeds(resamples[row.name], of_row))
        line |= {
            "parameters": of_row[0]["parameters"],
            "bleu": _mean(bleu),
            "bleu_deviation": deviation(bleu),
            "bleu_interval": (high - low) / 2,
            **{key: _mean(s["metrics"][key] for s in of_row) for key in ("chrf", "ter", "length_ratio")},
            "nll": _mean(nll),
            "nll_deviation": deviation(nll),
            "metrics": {
                key: _mean(s["metrics"][key] for s in of_row)
                for key in row.metrics
                if all(key in s["metrics"] for s in of_row)
            },
            "missing": missing(row, of_row),
            **_speeds(of_row, first or of_row),
            **ran(of_row),
            "signature": of_row[0]["metrics"]["signatures"]["bleu"],
            "ended_early": ended_early(row, of_row),
        }
        if row.name == row.baseline or not first:
            continue
        line |= {"baseline": row.baseline, **compared_seeds(first, of_row), **judged[row.name], **judged_nll[row.name]}
        before, after = compared(first, of_row)
        drawn = _over_seeds(resamples[row.baseline], before), _over_seeds(resamples[row.name], after)
        line["p"] = p_value(*drawn, line["delta"])
        sentences = [np.mean([s["test_nll"] for s in group], axis=0) for group in (before, after)]
        _, line["nll_error"], line["nll_p"] = paired_difference(*sentences)
        for key, of_whole in (("speed", "words_per_second"), ("decoding_speed", "decoding_words_per_second")):
            own, others = line[of_whole], _speeds(first, of_row)[of_whole]
            line[key] = own / others if own and others else None
    return lines


def to_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each line. Columns that nobody fills are left out, and so are speeds that no row
    has, except words/s and those with a published figure."""
    from fairseq_diverse.metrics.catalogue import CATALOGUE

    extra = list(dict.fromkeys(key for line in lines for key in line.get("metrics", ())))
    published = {key: _heading(key) for line in lines for key in line["published"]}
    shown = {
        name
        for name, (key, _) in SPEEDS.items()
        if name == "words/s" or any(line.get(key) for line in lines) or PUBLISHED_SPEEDS.get(name) in published
    }
    columns = ["row", "parameters", *_with_published(("words/s", "updates/s", "minutes an epoch"), shown)]
    columns += ["BLEU", "chrF", "TER", *(CATALOGUE[key].heading for key in extra), "length", "NLL"]
    columns += ["Δ BLEU", "p over sentences: BLEU", "Δ NLL", "p over sentences: NLL"]
    columns += [*_with_published(("speed", "decoding words/s", "decoding"), shown), "seeds"]
    columns += [heading for heading in published.values() if heading not in columns]
    rows = [columns]
    for line in lines:
        cells = {"row": line["row"], "parameters": "not run"}
        if line["seeds"]:
            cells |= _measured(line, _one_seed(lines))
            cells |= {CATALOGUE[key].heading: f"{value:.2f}" for key, value in line["metrics"].items()}
        cells |= {published[key]: _shown(figure) for key, figure in line["published"].items()}
        rows.append([cells.get(column, "") for column in columns])
    return without_empty_columns(rows)


def notes(rows: Sequence[Row], lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """What the figures of the columns that are shown mean, and what they were measured with."""
    done = [line for line in lines if line["seeds"]]
    text = seeds_notes(done, {key: scale for key, scale in SCALES.items() if f"Δ {scale[0]}" in columns})
    of_columns = {
        "p over sentences": "p over sentences (other test sentences, the same trainings): BLEU by paired bootstrap, "
        f"{RESAMPLES:,} resamples; NLL by a paired t-test; each system averaged over its seeds",
        "NLL": "NLL: nats a test sentence, lower is better",
        "words/s": "words/s: target subwords in training",
        "minutes an epoch": "minutes an epoch: training alone, without validation and saving",
        "speed": "speed, decoding: words/s in training and in translation (of the first test set), divided by the "
        f"baseline's; {ALONE}",
    }
    text += [
        note
        for name, note in of_columns.items()
        if any(column.removeprefix("Δ ").startswith(name) for column in columns)
    ]
    if SPEEDS.keys() & set(columns):
        text += no_speed_note(done)
    if odd := [f"{line['row']} {line['length_ratio']:.2f}" for line in done if not 0.8 <= line["length_ratio"] <= 1.25]:
        text.append(
            "translations much shorter or longer than the references: hardly trained models, or wrong settings of "
            f"translation (length, divided by the references'): {', '.join(odd)}"
        )
    for note in (missing_note, seeds_that_differ_note, ended_early_note, machines_note, versions_note):
        text += note(done)
    if done:
        named = ", ".join(name for name in ("BLEU", "NLL") if name in columns) or "BLEU"
        deviations = f"{named} ±: standard deviation over seeds"
        text.append("BLEU ±: half the 95% bootstrap interval" if _one_seed(lines) else deviations)
    text += [f"BLEU: sacreBLEU {signature}" for signature in sorted({line["signature"] for line in done})]
    if done:
        text.append(commits_note(done))
    return text + published_note(rows)


def published_note(rows: Sequence[Row]) -> list[str]:
    """On which data the published figures were measured, one line; none where there are none."""
    published = list(dict.fromkeys(row.published_on for row in rows if row.published))
    return [f"published figures: measured on {', '.join(published)}"] if published else []


def _measured(line: Mapping[str, Any], one_seed: bool) -> dict[str, str]:
    """The cells of a finished row by column, without further metrics."""
    cells = {
        "parameters": _formatted(line["parameters"], ","),
        "BLEU": spread(line["bleu"], line["bleu_interval" if one_seed else "bleu_deviation"]),
        "chrF": f"{line['chrf']:.2f}",
        "TER": f"{line['ter']:.2f}",
        "length": f"{line['length_ratio']:.3f}",
        "NLL": spread(line["nll"], line["nll_deviation"], 3),
        "seeds": str(line["seeds"]),
    }
    for name, (key, form) in SPEEDS.items():
        if key in line:
            cells[name] = "-" if line["no_speed"] else _formatted(line[key], form)
    if "delta" in line:
        cells |= {f"Δ {scale}": difference(line, digits, prefix) for prefix, (scale, digits) in SCALES.items()}
        cells |= {f"p over sentences: {name}": p_number(line[f"{key}p"]) for key, (name, _) in SCALES.items()}
    return cells


def _heading(key: str) -> str:
    """The column of a published figure."""
    from fairseq_diverse.metrics.catalogue import PUBLISHED

    speeds = {published: name for name, published in PUBLISHED_SPEEDS.items()} | {"relative-speed": "relative speed"}
    return f"published {(PUBLISHED | speeds).get(key, key)}"


def _with_published(names: Sequence[str], shown: set[str]) -> list[str]:
    """Columns of speeds, each followed by that of its published figures."""
    columns = []
    for name in names:
        columns += [name] if name in shown else []
        columns += [_heading(PUBLISHED_SPEEDS[name])] if name in PUBLISHED_SPEEDS else []
    return columns


def _speeds(of_row: Sequence[Summary], first: Sequence[Summary]) -> dict[str, Any]:
    """Means over the seeds whose speed is known, unless row and baseline cannot be compared."""
    reason = no_speed([*of_row, *first])
    found = {
        "words_per_second": [s["words_per_second"].get("train") for s in of_row],
        "updates_per_second": [s.get("updates_per_second", {}).get("train") for s in of_row],
        "epoch_minutes": [s.get("epoch_minutes") for s in of_row],
        "decoding_words_per_second": [s["words_per_second"].get("generate") for s in of_row],
    }
    known = {key: [value for value in values if value is not None] for key, values in found.items()}
    return {key: _mean(known[key]) if known[key] and not reason else None for key in found} | {"no_speed": reason}


def _by_test(row: Row) -> dict[str, Any]:
    """Published figures by the test set that they name."""
    return {key: value for key, value in row.published.items() if isinstance(value, dict)}


def _first_test(summary: Summary) -> str:
    return summary.get("test", "test")


def _one_seed(lines: Sequence[Mapping[str, Any]]) -> bool:
    return max(line["seeds"] for line in lines) <= 1


def _resampled(summaries: Sequence[Summary]) -> dict[int, np.ndarray]:
    """BLEU of resampled test sentences, by seed."""
    from fairseq_diverse.metrics.significance import bootstrap_scores

    return {s["seed"]: bootstrap_scores(bleu_statistics(s["bleu_counts"]), "bleu", s["language"]) for s in summaries}


def _over_seeds(resamples: Mapping[int, np.ndarray], summaries: Sequence[Summary]) -> np.ndarray:
    return np.mean([resamples[s["seed"]] for s in summaries], axis=0)


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _formatted(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _shown(figure: float | str) -> str:
    return f"{figure:.2f}" if isinstance(figure, float) else str(figure)
