"""How different the heads of a table's rows are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairseq_diverse.experiments.kinds.lines import Column, Line, Summaries, Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.metrics.seeds import Spread

COMPONENTS = ("encoder", "decoder", "cross")
DIGITS = {"cosine": 3, "constant share": 3, "effective rank": 1}  # of the figures that are shown


@dataclass(kw_only=True)
class HeadLine(Line):
    """``seeds`` is of how many of the ``finished`` runs the heads were measured; figures by component and name."""

    finished: int
    figures: dict[str, dict[str, Spread]]


def compare_heads(rows: Sequence[Row], summaries: Summaries) -> list[HeadLine]:
    """A line a row; figures are means over layers, then over seeds. Without a second head there is no cosine."""
    lines = []
    for row in rows:
        measured = [run["heads"] for run in summaries[row.name] if "heads" in run]
        figures = {component: _figures(component, measured) for component in COMPONENTS}
        figures = {component: by_name for component, by_name in figures.items() if by_name}
        lines.append(HeadLine(row=row, seeds=len(measured), finished=len(summaries[row.name]), figures=figures))
    return lines


def _figures(component: str, runs: Sequence[Summary]) -> dict[str, Spread]:
    figures = {}
    for name in (*DIGITS, "width"):
        layers = ([f.get(name) for place, f in run.items() if place.partition(":")[0] == component] for run in runs)
        known = [[value for value in values if value is not None] for values in layers]
        if means := [Spread.over(values).mean for values in known if values]:
            figures[name] = Spread.over(means)
    return figures


def head_entries(line: HeadLine) -> dict[str, Any]:
    """``row``, ``finished``, ``seeds``, and by component the figures and their ``... deviation`` over seeds."""
    by_component = {
        component: {
            name: value
            for figure, spread in figures.items()
            for name, value in ((figure, spread.mean), (f"{figure} deviation", spread.deviation))
        }
        for component, figures in line.figures.items()
    }
    return {"row": line.name, "finished": line.finished, "seeds": line.seeds, **by_component}


def head_columns() -> list[Column[HeadLine]]:
    columns: list[Column[HeadLine]] = [Column("row", lambda line: line.name, unfinished=True)]
    for component in COMPONENTS:
        for name in DIGITS:
            first = len(columns) == 1
            columns.append(Column(f"{component}: {name}", partial(_cell, component, name), unfinished=first))
    return [*columns, Column("seeds", lambda line: str(line.seeds))]


def _cell(component: str, name: str, line: HeadLine) -> str:
    if not line.seeds:
        return "not measured" if line.finished else "not run"
    if (figure := line.figures.get(component, {}).get(name)) is None:
        return "-"
    width = f" of {line.figures[component]['width'].mean:.0f}" if name == "effective rank" else ""
    return f"{figure.text(DIGITS[name])}{width}"


def head_notes(lines: Sequence[HeadLine]) -> list[str]:
    """What the figures are, and of which rows they are missing."""
    text = [
        "means over layers and seeds, ± standard deviation over seeds; from the heads' outputs at all subwords "
        "and ends of the validation split",
        "cosine: of two different heads, mean; constant share: of the outputs' energy, that which does not depend on "
        "the position; effective rank: in how many directions the outputs vary, of so many",
    ]
    missing = [line.name for line in lines if line.seeds < line.finished]
    return text + [f"runs not measured: {', '.join(missing)}; fairseq-diverse run TABLE --heads does it"] * bool(
        missing
    )
