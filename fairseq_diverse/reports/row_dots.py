"""A table's figures row by row: scores with their seeds, differences with their intervals."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Line, Measure, deciding_last
from fairseq_diverse.metrics.dunnett import LEVEL
from fairseq_diverse.metrics.seeds import compared
from fairseq_diverse.support import pictures
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
    if interval := line.differences[measure.key].interval:
        return _Bar("95% interval over seeds (Dunnett's)", (interval[1] - interval[0]) / 2)
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
