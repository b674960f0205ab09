"""A table's figures row by row, with their seeds or intervals; and against a flag in which its rows differ."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Line, Measure, Summaries, Summary, deciding_last
from fairseq_diverse.experiments.run import Row
from fairseq_diverse.metrics.dunnett import LEVEL
from fairseq_diverse.metrics.seeds import Spread, compared
from fairseq_diverse.metrics.significance import interval, resampled_sums
from fairseq_diverse.reports.lines import no_speed
from fairseq_diverse.support import pictures
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import SENTENCES, STYLES, Figure, panels

BETTER, WORSE, OPEN = STYLES[2], STYLES[1], ("gray", "o")  # of differences in a picture
OUTCOMES = {
    BETTER: "triangle: better (p < 0.05)",
    WORSE: "square: worse (p < 0.05)",
    OPEN: "disc: not resolved or not tested",
}
NORMAL = 1.96  # standard errors in half a 95% interval over the examples of a test set


class _Bar(NamedTuple):
    """What a bar is, half its length, and how its line is drawn: dotted where it is not over seeds."""

    text: str
    half: float
    line: str = "-"


def draw_rows(lines: Sequence[Line], measures: Sequence[Measure], items: str) -> Figure:
    """The main score of every finished row, mean over seeds, with a hollow dot a seed, and the difference to the
    baseline by the last measure that is compared.

    Bars are over seeds: one standard deviation of the score, the 95% interval of the difference (Dunnett's). Where
    seeds give none, they are dotted and over test examples, the same trainings: the 95% bootstrap interval of the
    score, the 95% interval of the paired difference. The panel's axis says which of both it shows. ``items`` are what
    a test set has, such as sentences."""
    main, last = next(measure for measure in measures if measure.compared), deciding_last(measures)[-1]
    done = [line for line in lines if line.seeds]
    figure, axes = panels(2, 9.6, 1.5 + 0.28 * len(done), sharey=True)
    labels = main.long or main.name, f"{last.long or last.name} minus the baseline's"
    bars: tuple[list[_Bar], list[_Bar]] = [], []
    for place, line in enumerate(done):
        color, marker = STYLES[int(bool(line.differences))]
        values = [(axes[0], line.scores[main.key].mean, _bar_of_score(line, main, items), bars[0])]
        if difference := line.differences.get(last.key):
            values.append((axes[1], difference.delta, _bar_of_difference(line, last, items), bars[1]))
        for axis, value, bar, shown in values:
            dot = axis.errorbar(value, place, xerr=bar.half if bar else None, color=color, marker=marker, capsize=3)
            if bar:
                dot[2][0].set_linestyle(bar.line)
                shown.append(bar)
        seeds = [main.figure(run) for run in line.runs]
        axes[0].plot(seeds, [place] * len(seeds), "o", color=color, fillstyle="none", markersize=4)
    for axis, label, measure, shown in zip(axes, labels, (main, last), bars, strict=True):
        texts = sorted({f"bar: {bar.text}" for bar in shown}, key=lambda text: "(dotted)" in text)
        axis.set_xlabel("\n".join([measure.label(label, ",\n"), *texts]))
        axis.grid(axis="x", alpha=0.3)
    _name_rows(axes[0], done)
    axes[1].axvline(0, color="gray", linewidth=0.8)
    return figure


def _bar_of_score(line: Line, measure: Measure, items: str) -> _Bar | None:
    if (deviation := line.scores[measure.key].deviation) is not None:
        return _Bar("standard deviation over seeds", deviation)
    half = line.intervals.get(measure.key)
    return None if half is None else _Bar(f"95% bootstrap interval over test {items} (dotted)", half, SENTENCES)


def _bar_of_difference(line: Line, measure: Measure, items: str) -> _Bar | None:
    if ends := line.differences[measure.key].interval:
        return _Bar("95% interval over seeds (Dunnett's)", (ends[1] - ends[0]) / 2)
    over = line.over_examples.get(measure.key)
    text = f"95% interval over test {items} (dotted)"
    return _Bar(text, NORMAL * over.error, SENTENCES) if over and over.error is not None else None


def draw_verdict(lines: Sequence[Line], measures: Sequence[Measure], title: str) -> Figure:
    """Differences to the baseline, one line a row, by the measure that decides first: the mean over seeds, its 95%
    interval (Dunnett's, for all rows of a baseline at once; none where nothing can be tested) and a hollow dot a seed.
    """
    *others, judge = deciding_last(measures)
    shown = [line for line in lines if line.differences]
    figure, axes = panels(1 + len(others), 9.6, 1.5 + 0.28 * len(shown), sharey=True)
    inches = figure.get_figwidth() / pictures.fitting(len(axes), 2.0) - 1.2  # beside the names of rows
    styles = set()
    for axis, measure in zip(axes, (judge, *others), strict=True):
        for place, line in enumerate(shown):
            difference = line.differences[measure.key]
            resolved = difference.p is not None and difference.p < LEVEL
            style = (BETTER if (difference.delta < 0) == measure.lower else WORSE) if resolved else OPEN
            styles.add(style)
            color, marker = style
            bar = np.abs(np.array(difference.interval)[:, None] - difference.delta) if difference.interval else None
            axis.errorbar(difference.delta, place, xerr=bar, color=color, marker=marker, capsize=3)
            sides = [{run["seed"]: measure.figure(run) for run in side} for side in (line.baseline_runs, line.runs)]
            before, after = ([of[seed] for seed in seeds] for of, seeds in zip(sides, compared(*sides), strict=True))
            seeds = [score - float(np.mean(before)) for score in after]
            axis.plot(seeds, [place] * len(seeds), "o", color=color, fillstyle="none", markersize=4)
        axis.set_xlabel(pictures.in_lines("Δ " + measure.label(measure.name, ",\n"), inches))
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.grid(axis="x", alpha=0.3)
    _name_rows(axes[0], shown)
    bars = "bar: 95% interval over seeds (Dunnett's); " * any(line.differences[judge.key].interval for line in shown)
    outcomes = ", ".join(text for style, text in OUTCOMES.items() if style in styles)
    baselines = {line.baseline for line in shown}
    baseline = baselines.pop() if len(baselines) == 1 else "the baseline"
    pictures.set_note(figure, f"minus {baseline}'s; {bars}hollow: a seed\n{outcomes}")
    pictures.set_title(figure, title)
    return figure


def _name_rows(axis: Any, lines: Sequence[Line]) -> None:
    pictures.set_names(axis.yaxis, [line.name for line in lines])
    axis.set_ylim(len(lines) - 0.5, -0.5)


SPEED = Measure("speed", "target subwords a second in training", lambda run: run["words_per_second"]["train"] or np.nan)
MINUTES = Measure("epoch_minutes", "minutes an epoch", lambda run: run.get("epoch_minutes") or np.nan)
PUBLISHED = {"epoch_minutes": "epoch-minutes", "multi-bleu": "bleu", "yisi-1": "yisi", "meteor-en": "meteor"}  # keys
OVER_SEEDS, OVER_SENTENCES = "bar: standard deviation over seeds", "dotted: 95% bootstrap interval over test sentences"
BARS = {OVER_SEEDS: "-", OVER_SENTENCES: SENTENCES}  # their lines
OF_PAPER = "hollow: published"


class Curve(NamedTuple):
    """Rows that differ in x alone, by x: a number, or text where the flag has no numbers; a row without is a level."""

    label: str
    points: dict[float | str | None, str]  # x -> name of the row


def curves(rows: Sequence[Row], flags: Sequence[str]) -> list[Curve]:
    """Group rows by everything but ``flags``; x is the first of them, or its default where its mechanism is on; the
    others go with it. Raises UserError: no row has the flag."""
    from fairseq_diverse.attention.registry import value_where_on  # needs torch

    texts = {row.name: value_where_on(flags[0], row.train) for row in rows}
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


def published_figure(row: Row, measure: Measure) -> float | None:
    """The paper's figure of this measure, on the row's first test set; None where there is none."""
    figure = row.comparable.get(PUBLISHED.get(measure.key, measure.key))
    return None if figure is None else _number(figure)


def draw_curves(
    grouped: Sequence[Curve], summaries: Summaries, flag: str, measures: Sequence[Measure], published: Mapping[str, Row]
) -> Figure:
    """Means over seeds against a flag, a panel a measure; speeds only where all runs are of one known machine.

    Bars are one standard deviation over seeds; of one seed they are dotted, the 95% bootstrap interval over test
    sentences. Below the panels is said which of both there are. A row that is a level has a pale band instead.
    ``published``: rows by name; their paper's figures are hollow markers, of a level a dotted line. Raises UserError:
    no row has a finished run or a published figure."""
    drawn = [(c.label, {x: summaries[name] for x, name in c.points.items() if summaries[name]}) for c in grouped]
    by_measure: dict[str, list[dict[Any, float]]] = {measure.key: [] for measure in measures}
    for measure, curve in itertools.product(measures, grouped):
        figures = {x: published_figure(published[name], measure) for x, name in curve.points.items()}
        by_measure[measure.key].append({x: figure for x, figure in figures.items() if figure is not None})
    if not any(points for _, points in drawn) and not any(any(curves) for curves in by_measure.values()):
        raise UserError("no row has a finished run")
    figure, axes = panels(len(measures), 4.2 * len(measures), 3.8)
    reason = no_speed([run for _, points in drawn for runs in points.values() for run in runs])
    bars: set[str] = set()
    for axis, measure in zip(axes, measures, strict=True):
        axis.set_ylabel(measure.label(measure.long or measure.name, ",\n"))
        of_paper = by_measure[measure.key]
        hidden = measure in (SPEED, MINUTES) and reason
        if hidden and not any(of_paper):
            axis.text(0.5, 0.5, f"not shown: {reason}", ha="center", transform=axis.transAxes)
            continue
        if hidden:
            axis.set_title(f"runs not shown: {reason}", fontsize="medium")
        shown = [(label, {} if hidden else by_x) for label, by_x in drawn]
        points = [(label, {x: _point(runs, measure) for x, runs in by_x.items()}) for label, by_x in shown]
        bars |= _draw_panel(figure, axis, points, of_paper)
        axis.set_xlabel(f"{flag.replace('-', ' ')}\n(--{flag})" if "-" in flag else f"--{flag}")
    pictures.set_note(figure, "; ".join(bar for bar in (*BARS, OF_PAPER) if bar in bars))
    pictures.legend_above(figure)
    return figure


class _Point(NamedTuple):
    mean: float
    half: float  # of the bar's length; 0: none
    bar: str


Points = dict[float | str | None, _Point]


def _draw_panel(
    figure: Figure, axis: Any, drawn: Sequence[tuple[str, Points]], of_paper: Sequence[dict[Any, float]]
) -> set[str]:
    """Draw curves of one figure; returns what their bars are, and whether there are published figures."""
    from matplotlib.transforms import offset_copy

    pairs = list(zip(drawn, of_paper, strict=True))
    xs = list(dict.fromkeys(x for (_, points), published in pairs for x in (*points, *published) if x is not None))
    texts = [x for x in xs if isinstance(x, str)]  # in the rows' order
    places: dict[Any, float] = {x: i for i, x in enumerate(texts)} or {x: x for x in sorted(xs)}  # type: ignore[type-var]
    bars = {point.bar for _, points in drawn for point in points.values() if point.half}
    bars |= {OF_PAPER} if any(of_paper) else set()
    for number, ((label, points), published) in enumerate(pairs):
        color, marker = STYLES[number % len(STYLES)]
        if level := points.pop(None, None):
            axis.axhline(level.mean, color=color, linestyle="--", label=label)
            axis.axhspan(level.mean - level.half, level.mean + level.half, color=color, alpha=0.1, linewidth=0)
        at = sorted((x for x in points if x is not None), key=places.__getitem__)
        beside = offset_copy(axis.transData, figure, 4 * (number - (len(drawn) - 1) / 2), units="points")
        shown = {"color": color, "transform": beside}  # so that bars of several curves do not hide each other
        if at:
            name = None if level else label
            axis.plot([places[x] for x in at], [points[x].mean for x in at], marker=marker, label=name, **shown)
        if None in published:
            axis.axhline(published[None], color=color, linestyle=":", label=None if level or at else label)
        at_published = sorted((x for x in published if x is not None), key=places.__getitem__)
        if at_published:
            name = None if level or at else label
            hollow = {"marker": marker, "markerfacecolor": "none", "linestyle": ":", "color": color}
            axis.plot([places[x] for x in at_published], [published[x] for x in at_published], label=name, **hollow)
        for x in at:
            mean, half, bar = points[x]
            axis.update_datalim([(places[x], mean - half), (places[x], mean + half)])  # the shifted ones do not
            if half:
                axis.errorbar(places[x], mean, half, capsize=3, **shown)[2][0].set_linestyle(BARS[bar])
    axis.autoscale_view()
    if len(xs) > 1 and not texts and all(x > 0 and np.log2(x).is_integer() for x in places):
        axis.set_xscale("log", base=2)
    axis.set_xticks(list(places.values()), [x if texts else f"{x:g}" for x in places])
    if len("".join(texts)) > 30:
        axis.tick_params(axis="x", labelrotation=30)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    return bars


def _point(runs: Sequence[Summary], measure: Measure) -> _Point:
    """The mean over a row's seeds and its bar: the deviation, or of one seed half the interval over known examples."""
    spread = Spread.over([measure.figure(run) for run in runs])
    if spread.deviation is not None:
        return _Point(spread.mean, spread.deviation, OVER_SEEDS)
    if measure.resampled:
        low, high = interval(measure.resampled(runs[0]))
    elif measure.examples:
        values = np.array(measure.examples(runs[0]))
        low, high = interval(resampled_sums(values[:, None])[:, 0] / len(values))
    else:
        low, high = 0.0, 0.0
    return _Point(spread.mean, (high - low) / 2, OVER_SENTENCES)


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
