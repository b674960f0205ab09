"""What the page of a report has besides its tables: pictures, translations, the flags and runs of rows."""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.folder import folders_by_seed
from fairseq_diverse.experiments.runs.saved import runs_of
from fairseq_diverse.reports.comparable import measures_of
from fairseq_diverse.reports.learning_curves import draw_learning_curves, read_training
from fairseq_diverse.reports.page import Translations, marked, render, row_info
from fairseq_diverse.reports.report import Report
from fairseq_diverse.reports.row_curves import SPEED, curves, draw_curves
from fairseq_diverse.reports.row_dots import draw_rows, draw_verdict
from fairseq_diverse.reports.selection import Selection
from fairseq_diverse.reports.side_by_side import side_by_side
from fairseq_diverse.support.pictures import Figure

Folders = Mapping[str, Mapping[int, Path]]  # of runs, by row and seed


def page(selection: Selection, report: Report, count: int, folder: Path, version: str) -> str:
    """The page, with translations of ``count`` sentences and links from its ``folder``."""
    source, table = selection.source, selection.table
    done = [] if source.results else [row for row in selection.rows if selection.summaries[row.name]]
    runs = runs_of(done, source.runs)
    folders = {run.row.name: folders_by_seed(run) for run in runs}
    by_name = table.rows | {row.name: row for row in selection.rows}
    infos = []
    for row in selection.rows:
        by_seed = folders.get(row.name, {}).items()
        links = {f"seed {seed}": quote(os.fsencode(os.path.relpath(path, folder))) for seed, path in by_seed}
        infos.append(row_info(row, by_name[row.baseline], links))
    tests = list(report.content.get("tests", [report.content["test"]])) if "test" in report.content else []
    translations = _translations(runs, tests, count)
    return render(report.blocks, _figures(selection, report, folders), infos, translations, version)


def _translations(runs: Sequence[Run], tests: Sequence[str], count: int) -> list[Translations]:
    """Those of every test set and data set; where they do not fit to the data of now, the reason."""
    translations = []
    for name, path in itertools.product(tests if count else (), dict.fromkeys(run.data.path for run in runs)):
        on_data = [run for run in runs if run.data.path == path]
        if name != tests[0] and name not in on_data[0].further:
            continue
        title = f"Translations: {path.name}" + f", {name}" * (len(tests) > 1)
        try:
            shown = side_by_side(on_data, count, name)
            if shown.sentences:
                translations.append(marked(shown, {run.row.name: run.row.baseline for run in runs}, title))
        except ValueError as error:
            translations.append(Translations(title, f"not shown: {error}"))
    return translations


def _figures(selection: Selection, report: Report, folders: Folders) -> dict[str, Figure]:
    """The pictures by their captions: of the lines, and the losses of rows that are not systems on tasks."""
    kind, lines, x = selection.kinds[0], report.lines, selection.table.x
    rows = selection.of_kind(kind).rows
    in_tasks = {row.name for row in rows} if kind.task_table(rows) else set()
    figures: dict[str, Figure] = {} if in_tasks else kind.pictures(lines) if lines else {}
    if not any(selection.summaries[row.name] for row in selection.rows):
        return figures
    if kind.draws_rows and lines:
        measures = measures_of(selection.of_kind(kind))
        figures["Rows: means and seeds"] = draw_rows(lines, measures, kind.items)
        if any(line.facts.get("verdict") for line in lines):
            figures["Verdict: differences and their intervals"] = draw_verdict(lines, measures, "")
        if x and any(x[0] in line.row.train for line in lines):
            shown, runs = [*(m for m in measures if m.compared), SPEED], {line.name: line.runs for line in lines}
            by_name = {line.name: line.row for line in lines}
            figures[f"Against --{x[0]}"] = draw_curves(curves([*by_name.values()], x), runs, x[0], shown, by_name)
    by_row = {row: by_seed.values() for row, by_seed in folders.items() if by_seed and row not in in_tasks}
    logs = {row: [log for path in of if (log := path / "train.log").exists()] for row, of in by_row.items()}
    if training := {row: list(map(read_training, of_row)) for row, of_row in logs.items()}:
        figures["Training and validation loss"] = draw_learning_curves(training, "loss")
    return figures
