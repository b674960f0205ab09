"""A table's figures against a flag of its rows: one curve for the rows that differ in that flag alone."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.records import bleu_statistics
from fairseq_diverse.experiments.where_run import no_speed
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import SENTENCES, STYLES, legend_above, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_diverse.experiments.rows import Row

METRICS = {
    "bleu": "BLEU",
    "nll": "negative log-likelihood,\nnats a test sentence (lower is better)",
    "speed": "target subwords a second in training",
}


OVER_SEEDS, OVER_SENTENCES = "bar: standard deviation over seeds", "dotted: 95% bootstrap interval over test sentences"
BARS = {OVER_SEEDS: "-", OVER_SENTENCES: SENTENCES}  # their lines


class Curve(NamedTuple):
    """Rows that differ in x alone, by x: a number, or text where the flag has no numbers; a row without is a level."""

    label: str
    points: dict[float | str | None, str]  # x -> name of the row


def curves(rows: "Sequence[Row]", flags: Sequence[str]) -> list[Curve]:
    """Group rows by everything but ``flags``; x is the first of them, the others go with it.

    Raises:
        UserError: no row has the flag.
    """
    texts = {row.name: row.train.get(flags[0]) for row in rows}
    if not any(texts.values()):
        raise UserError(f"--x {flags[0]}: no row has it")
    numbers = {name: _number(text) for name, text in texts.items()}
    numeric = any(number is not None for number in numbers.values())
    groups: dict[str, dict[float | str | None, str]] = {}
    for row in rows:
        rest = {flag: value for flag, value in row.train.items() if flag not in flags}
        text = texts[row.name]
        level = text if numeric and numbers[row.name] is None else None  # of each a level of its own
        key = json.dumps([row.data, rest, row.generate, row.lenpen, row.average, level], sort_keys=True)
        groups.setdefault(key, {})[numbers[row.name] if numeric else text and str(text)] = row.name
    return [Curve(_label(list(points.values())), points) for points in groups.values()]


def draw_curves(
    found: Sequence[Curve], summaries: Mapping[str, list[dict[str, Any]]], flag: str, metrics: Sequence[str]
) -> "Figure":
    """One panel a metric: means over seeds; speeds only where all runs are of one known machine.

    Bars are one standard deviation over seeds; of one seed they are dotted, the 95% bootstrap interval over test
    sentences. Below the panels is said which of both there are. A row that is a level has a pale band instead.

    Raises:
        UserError: matplotlib is not installed, or no row has a finished run.
    """
    drawn = [
        (curve.label, {x: summaries[name] for x, name in curve.points.items() if summaries[name]}) for curve in found
    ]
    if not any(points for _, points in drawn):
        raise UserError("no row has a finished run")
    figure = new_figure(4.2 * len(metrics), 3.8)
    from matplotlib.transforms import offset_copy

    axes = figure.subplots(1, len(metrics), squeeze=False)[0]
    kinds: set[str] = set()
    reason = no_speed([summary for _, points in drawn for of_row in points.values() for summary in of_row])
    for axis, metric in zip(axes, metrics, strict=True):
        axis.set_ylabel(METRICS[metric])
        if metric == "speed" and reason:
            axis.text(0.5, 0.5, f"not shown: {reason}", ha="center", transform=axis.transAxes)
            continue
        xs = list(dict.fromkeys(x for _, points in drawn for x in points if x is not None))
        texts = [x for x in xs if isinstance(x, str)]  # in the rows' order
        places: dict[Any, float] = {x: i for i, x in enumerate(texts)} or {x: x for x in sorted(xs)}  # type: ignore[type-var]
        for number, (label, points) in enumerate(drawn):
            color, marker = STYLES[number % len(STYLES)]
            figures = {x: _figures(of_row, metric) for x, of_row in points.items()}
            kinds |= {found.kind for found in figures.values() if found.half}
            if level := figures.pop(None, None):
                axis.axhline(level.mean, color=color, linestyle="--", label=label)
                axis.axhspan(level.mean - level.half, level.mean + level.half, color=color, alpha=0.1, linewidth=0)
            at = sorted((x for x in figures if x is not None), key=places.__getitem__)
            beside = offset_copy(axis.transData, figure, 4 * (number - (len(drawn) - 1) / 2), units="points")
            shown = {"color": color, "transform": beside}  # so that bars of several curves do not hide each other
            if at:
                name = None if level else label
                axis.plot([places[x] for x in at], [figures[x].mean for x in at], marker=marker, label=name, **shown)
            for x in at:
                mean, half, kind = figures[x]
                axis.update_datalim([(places[x], mean - half), (places[x], mean + half)])  # the shifted ones do not
                if half:
                    axis.errorbar(places[x], mean, half, capsize=3, **shown)[2][0].set_linestyle(BARS[kind])
        axis.autoscale_view()
        if len(xs) > 1 and not texts and all(x > 0 and np.log2(x).is_integer() for x in places):
            axis.set_xscale("log", base=2)
        axis.set_xticks(list(places.values()), [x if texts else f"{x:g}" for x in places])
        axis.minorticks_off()
        axis.set_xlabel(in_words(flag))
        axis.grid(alpha=0.3)
    figure.supxlabel("; ".join(kind for kind in BARS if kind in kinds), fontsize=8)
    legend_above(figure)
    return figure


class _Figures(NamedTuple):
    mean: float
    half: float  # of the bar's length; 0: none
    kind: str  # of bar


def _figures(of_row: Sequence[Mapping[str, Any]], metric: str) -> _Figures:
    """The mean over a row's seeds and its bar."""
    values = [_figure(summary, metric) for summary in of_row]
    mean = float(np.mean(values))
    if len(values) > 1:
        return _Figures(mean, float(np.std(values, ddof=1)), OVER_SEEDS)
    return _Figures(mean, _over_sentences(of_row[0], metric), OVER_SENTENCES)


def _figure(summary: Mapping[str, Any], metric: str) -> float:
    if metric == "bleu":
        return summary["metrics"]["bleu"]
    return float(np.mean(summary["test_nll"])) if metric == "nll" else summary["words_per_second"]["train"] or np.nan


def _over_sentences(summary: Mapping[str, Any], metric: str) -> float:
    """Half the 95% bootstrap interval of a run's figure; 0 of a speed."""
    from fairseq_diverse.metrics.significance import bootstrap_scores, interval, resampled_sums

    if metric == "speed":
        return 0.0
    if metric == "bleu":
        low, high = interval(bootstrap_scores(bleu_statistics(summary["bleu_counts"]), "bleu", summary["language"]))
    else:
        nll = np.array(summary["test_nll"])
        low, high = interval(resampled_sums(nll[:, None])[:, 0] / len(nll))
    return (high - low) / 2


def in_words(flag: str) -> str:
    """A flag as the name of an axis: ``encoder attention heads`` above ``(--encoder-attention-heads)``."""
    return f"{flag.replace('-', ' ')}\n(--{flag})"


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _label(names: Sequence[str]) -> str:
    """What the names of a curve's rows have in common at their beginning."""
    equal = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in equal)
    return (common.rstrip("-_. ") if len(names) > 1 else common) or names[0]
