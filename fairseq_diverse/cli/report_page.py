"""The HTML page of a report: its tables, pictures and translations, and the flags and runs of its rows."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairseq_diverse.cli.report_views import Asked, folder_of_runs
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.folder import folders_by_seed
from fairseq_diverse.experiments.runs.saved import runs_of
from fairseq_diverse.reports.accuracy_report import draw_lengths
from fairseq_diverse.reports.formats import Block
from fairseq_diverse.reports.learning_curves import draw_learning_curves, read_training
from fairseq_diverse.reports.page import Translations, marked, render, row_info
from fairseq_diverse.reports.report import of_test, test_names
from fairseq_diverse.reports.row_curves import METRICS, curves, draw_curves
from fairseq_diverse.reports.row_dots import draw_rows
from fairseq_diverse.reports.side_by_side import side_by_side
from fairseq_diverse.reports.verdict import draw_verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def page(asked: Asked, blocks: list[Block], content: dict[str, Any], count: int) -> str:
    """The page, with ``count`` translations.

    Args:
        content: of the report as JSON.
    """
    rows, args = asked.rows, asked.args
    done = [] if args.results else [row for row in rows if asked.summaries[row.name]]
    runs = runs_of(done, folder_of_runs(args))
    folders = {run.row.name: folders_by_seed(run) for run in runs}
    beside = args.out.resolve().parent if args.out else Path.cwd()
    links = {
        name: {f"seed {seed}": quote(os.path.relpath(folder, beside)) for seed, folder in of_row.items()}
        for name, of_row in folders.items()
    }
    by_name = asked.table.rows | {row.name: row for row in rows}
    infos = [row_info(row, by_name[row.baseline], links.get(row.name, {})) for row in rows]
    tests = list(content.get("tests", [content["test"]])) if "test" in content else []
    figures = _figures(asked, content["rows"], folders)
    return render(blocks, figures, infos, _translations(runs, tests, count))


def _translations(runs: Sequence[Run], tests: Sequence[str], count: int) -> list[Translations]:
    """Those of every test set and data set for a page; where they do not fit to the data of now, the reason."""
    found = []
    for name, path in itertools.product(tests if count else (), dict.fromkeys(run.data.path for run in runs)):
        of_data = [run for run in runs if run.data.path == path]
        if name != tests[0] and name not in of_data[0].further:
            continue
        title = f"Translations: {path.name}" + f", {name}" * (len(tests) > 1)
        try:
            shown = side_by_side(of_data, count, name)
            if shown.sentences:
                found.append(marked(shown, {run.row.name: run.row.baseline for run in runs}, title))
        except ValueError as error:
            found.append(Translations(title, f"not shown: {error}"))
    return found


def _figures(asked: Asked, lines: Sequence[dict], folders: dict[str, dict[int, Path]]) -> "dict[str, Figure]":
    """The pictures of a table by their captions; of what was not run there is none.

    Args:
        folders: of the rows' runs, by seed; empty where there are only saved summaries.
    """
    table, rows, summaries = asked.table, asked.rows, asked.summaries
    if not any(summaries.values()):
        return {}
    figures: dict[str, Figure] = {}
    if "probe" in rows[0].train:
        return {}
    if kind_of(rows[0]).name in ("glue", "pretraining"):
        rows = [row for row in rows if kind_of(row).name == "pretraining"]
    elif kind_of(rows[0]).name == "classification":
        figures["Accuracy by number of operators"] = draw_lengths(rows, summaries)
    else:
        rows, summaries = of_test(rows, summaries, asked.args.test or test_names(rows, summaries)[0])
        figures["Rows: means and seeds"] = draw_rows(lines, summaries)
        if any(line.get("verdict") for line in lines):
            figures["Verdict: differences and their intervals"] = draw_verdict(rows, summaries, lines, "")
        if table.x and any(table.x[0] in row.train for row in rows):
            drawn = draw_curves(curves(rows, table.x), summaries, table.x[0], list(METRICS))
            figures[f"Against --{table.x[0]}"] = drawn
    logs = {row.name: [path / "train.log" for path in folders.get(row.name, {}).values()] for row in rows}
    training = {name: [read_training(log) for log in of_row if log.exists()] for name, of_row in logs.items() if of_row}
    if training:
        figures["Training and validation loss"] = draw_learning_curves(training, "loss")
    return figures
