"""How different the heads of a table's rows are."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Column, Line, Measure, Summary
from fairseq_diverse.reports.lines import Runs, compare_by

COMPONENTS = ("encoder", "decoder", "cross")
DIGITS = {"cosine": 3, "constant share": 3, "effective rank": 1}  # of the figures that are shown


def compare_heads(runs: Runs) -> list[Line]:
    """A line a row, of the runs whose heads were measured; its fact ``finished`` is how many runs there are. Figures
    are means over layers, then over seeds. Without a second head there is no cosine."""
    pairs = itertools.product(COMPONENTS, (*DIGITS, "width"))
    measures = [Measure(f"{part}: {name}", "", partial(_mean, part, name), compared=False) for part, name in pairs]
    measured = {row: [run for run in row_runs if "heads" in run] for row, row_runs in runs.summaries.items()}
    lines = list(compare_by(measures, runs._replace(summaries=measured)).lines)
    for line in lines:
        line.facts["finished"] = len(runs.summaries[line.name])
    return lines


def _mean(component: str, name: str, run: Summary) -> float | None:
    """Of a figure over the layers of a component that have it."""
    layers = [figures.get(name) for place, figures in run["heads"].items() if place.partition(":")[0] == component]
    known = [value for value in layers if value is not None]
    return float(np.mean(known)) if known else None


def head_entries(line: Line) -> dict[str, Any]:
    """A line as JSON has it: ``row``, ``finished``, ``seeds``, and by component the figures and their ``... deviation``
    over seeds."""
    values: dict[str, Any] = {"row": line.name, "finished": line.facts["finished"], "seeds": line.seeds}
    for key, score in line.scores.items():
        component, _, name = key.partition(": ")
        values.setdefault(component, {}).update({name: score.mean, f"{name} deviation": score.deviation})
    return values


def head_columns() -> list[Column[Line]]:
    columns: list[Column[Line]] = [Column("row", lambda line: line.name, unfinished=True)]
    for component, name in itertools.product(COMPONENTS, DIGITS):
        columns.append(Column(f"{component}: {name}", partial(_cell, component, name), unfinished=len(columns) == 1))
    return [*columns, Column("seeds", lambda line: str(line.seeds))]


def _cell(component: str, name: str, line: Line) -> str:
    if not line.seeds:
        return "not measured" if line.facts["finished"] else "not run"
    if (score := line.scores.get(f"{component}: {name}")) is None:
        return "-"
    width = f" of {line.scores[f'{component}: width'].mean:.0f}" if name == "effective rank" else ""
    return score.text(DIGITS[name]) + width


def head_notes(lines: Sequence[Line]) -> list[str]:
    """What the figures are, and of which rows they are missing."""
    text = [
        "means over layers and seeds, ± standard deviation over seeds; from the heads' outputs at all subwords "
        "and ends of the validation split",
        "cosine: of two different heads, mean; constant share: of the outputs' energy, that which does not depend on "
        "the position; effective rank: in how many directions the outputs vary, of so many",
    ]
    missing = [line.name for line in lines if line.seeds < line.facts["finished"]]
    todo = f"runs not measured: {', '.join(missing)}; fairseq-diverse run TABLE --heads does it"
    return [*text, todo] if missing else text
