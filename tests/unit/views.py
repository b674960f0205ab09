"""Reports of rows of one kind as tests look at them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.kinds.lines import Line
from fairseq_diverse.reports.lines import Runs
from fairseq_diverse.reports.report import sheet_of


class View(NamedTuple):
    """``values`` are what JSON has of the ``lines``; notes are those below all columns."""

    values: list[dict[str, Any]]
    cells: list[list[str]]
    notes: list[str]
    lines: Sequence[Line]


def runs_of(rows: Sequence[Any], summaries: dict[str, list], hidden: Sequence[Any] = ()) -> Runs:
    return Runs(kind_of(rows[0]), rows, hidden, summaries)


def view(rows: Sequence[Any], summaries: dict[str, list], hidden: Sequence[Any] = ()) -> View:
    """Of rows and their runs, and of ``hidden`` rows that are tested with them."""
    sheet = sheet_of(runs_of(rows, summaries, hidden), "")
    return View(sheet.values, sheet.cells, sheet.notes(sheet.cells[0]), sheet.lines)
