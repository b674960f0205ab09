"""How different the heads of a table's rows are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_diverse.experiments.kinds.kind import Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.reports.comparison import deviation, spread

COMPONENTS = ("encoder", "decoder", "cross")
DIGITS = {"cosine": 3, "constant share": 3, "effective rank": 1}  # of the figures that are shown


def compare_heads(rows: Sequence[Row], summaries: Mapping[str, Sequence[Summary]]) -> list[dict[str, Any]]:
    """One dictionary a row: ``row``, ``finished`` and ``seeds``, how many runs there are and of how many the heads were
    measured, and for each component ``cosine``, ``constant share``, ``effective rank`` and ``width``: means over
    layers, then over seeds, with ``... deviation`` over seeds (None for one). Without a second head there is no cosine.
    """
    lines = []
    for row in rows:
        found = [summary["heads"] for summary in summaries[row.name] if "heads" in summary]
        line: dict[str, Any] = {"row": row.name, "finished": len(summaries[row.name]), "seeds": len(found)}
        for component in COMPONENTS:
            of_seeds = [[f for place, f in run.items() if place.partition(":")[0] == component] for run in found]
            figures: dict[str, float | None] = {}
            for name in (*DIGITS, "width"):
                known = [[of[name] for of in layers if of.get(name) is not None] for layers in of_seeds]
                means = [float(np.mean(values)) for values in known if values]
                if means:
                    figures |= {name: float(np.mean(means)), f"{name} deviation": deviation(means)}
            line |= {component: figures} if figures else {}
        lines.append(line)
    return lines


def head_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each line."""
    cells = [["row", *(f"{component}: {name}" for component in COMPONENTS for name in DIGITS), "seeds"]]
    for line in lines:
        if not line["seeds"]:
            state = "not measured" if line["finished"] else "not run"
            cells.append([line["row"], state, *[""] * (len(cells[0]) - 2)])
            continue
        shown = [_figure(line.get(component, {}), name) for component in COMPONENTS for name in DIGITS]
        cells.append([line["row"], *shown, str(line["seeds"])])
    return cells


def _figure(figures: Mapping[str, Any], name: str) -> str:
    if name not in figures:
        return "-"
    text = spread(figures[name], figures[f"{name} deviation"], DIGITS[name])
    return f"{text} of {figures['width']:.0f}" if name == "effective rank" else text


def head_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures are, and of which rows they are missing."""
    text = [
        "means over layers and seeds, ± standard deviation over seeds; from the heads' outputs at all subwords "
        "and ends of the validation split",
        "cosine: of two different heads, mean; constant share: of the outputs' energy, that which does not depend on "
        "the position; effective rank: in how many directions the outputs vary, of so many",
    ]
    missing = [line["row"] for line in lines if line["seeds"] < line["finished"]]
    text += [f"runs not measured: {', '.join(missing)}; fairseq-diverse run TABLE --heads does it"] if missing else []
    return text
