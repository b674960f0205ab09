"""Show the results of a table: measured beside published figures, differences to the baseline and significance.

Figures come from finished runs, or with --results from the summaries that --save copied, so that a table can be shown
where nothing was run. Rows without a finished run are marked "not run". HTML has the table's pictures too. --refresh
writes every table of a Markdown file anew that stands between <!-- fairseq-diverse report ... --> and <!-- end -->.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_diverse.cli.run import add_table_arguments
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, read_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_diverse.experiments.rows import Row
    from fairseq_diverse.experiments.saved import Summary
    from fairseq_diverse.experiments.tables import Table

EXAMPLE = "fairseq-diverse report multi30k --format markdown --save results/multi30k"
BLOCK = re.compile(r"(<!-- fairseq-diverse report (.+?) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser, nargs="?")
    add_source_arguments(parser)
    parser.add_argument("--baseline", metavar="ROW", help="row to compare with (default: the table's)")
    parser.add_argument(
        "--best", action="store_true", help="of a row's grid, only the point with the lowest NLL in its last validation"
    )
    parser.add_argument("--finished", action="store_true", help="only rows with a finished run")
    parser.add_argument("--format", choices=("text", "markdown", "latex", "json", "html"), default="text")
    parser.add_argument("--columns", metavar="A,B", help="only these columns, in this order, named as in their header")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there, do not print it")
    parser.add_argument("--save", type=Path, metavar="DIR", help="copy the summaries there")
    parser.add_argument(
        "--refresh", type=Path, nargs="+", metavar="FILE", help="the tables of Markdown files, no other"
    )


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Where summaries come from."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--runs", metavar="DIR", help="folder of the runs (default: $FAIRSEQ_DIVERSE_RUNS or runs/)")
    source.add_argument("--results", type=Path, metavar="DIR", help="folder of saved summaries, instead of runs")


def read_summaries(args: argparse.Namespace, rows: "Sequence[Row]") -> "dict[str, list[Summary]]":
    """The rows' summaries from the place that the arguments name."""
    from fairseq_diverse.experiments import saved

    if args.results:
        return saved.from_results(args.results, rows)
    return saved.from_runs(rows, Path(args.runs).resolve() if args.runs else None)


def main(args: argparse.Namespace) -> None:
    if (args.table is None) == (args.refresh is None):
        raise UserError("either a TABLE or --refresh FILE is needed")
    if args.refresh:
        for path in args.refresh:
            refresh(path)
        return
    shown = show(args)
    if args.out:
        with atomic_write(args.out) as f:
            f.write(f"{shown}\n")
    else:
        print(shown)


def refresh(path: Path) -> None:
    """Write the marked tables of a Markdown file anew.

    Raises:
        UserError: a marker that is not a report, or a file without any.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    def table(block: re.Match[str]) -> str:
        try:
            with contextlib.redirect_stderr(io.StringIO()) as said:
                args = parser.parse_args([*shlex.split(block[2]), "--format", "markdown"])
        except SystemExit:
            raise UserError(f"{path}: {block[1].strip()}: {said.getvalue().strip().splitlines()[-1]}") from None
        return f"{block[1]}{show(args)}\n"

    text, count = BLOCK.subn(table, "\n".join([*read_lines(path), ""]))
    if not count:
        raise UserError(f"{path}: no table between <!-- fairseq-diverse report TABLE --> and <!-- end -->")
    with atomic_write(path) as f:
        f.write(text)
    print(f"{path}: {count} table{'s' * (count > 1)}")


def show(args: argparse.Namespace) -> str:
    """The report that the arguments ask for; copies the summaries where they say so."""
    from fairseq_diverse.experiments import formats, report, saved
    from fairseq_diverse.experiments.accuracy_report import (
        accuracy_cells,
        accuracy_notes,
        compare_accuracy,
        length_cells,
        probe_cells,
    )
    from fairseq_diverse.experiments.runs import classifies
    from fairseq_diverse.experiments.tables import load_table, select_rows

    table = load_table(args.table, args.data, args.size, args.settings, args.user_dir)
    rows = select_rows(table, args.rows)
    if args.baseline and args.baseline not in table.rows:
        raise ValueError(f"--baseline {args.baseline}: no such row; rows: {', '.join(table.rows)}")
    shown = {row.name for row in rows}
    baselines = [args.baseline] if args.baseline else dict.fromkeys(row.baseline for row in rows)
    rows = [table.rows[name] for name in baselines if name not in shown] + rows
    if args.baseline:
        rows = [dataclasses.replace(row, baseline=args.baseline) for row in rows]
    summaries = read_summaries(args, rows)
    if args.best:
        rows = report.best_of_grids(rows, summaries)
    if args.finished:
        rows = [row for row in rows if summaries[row.name]]
        if not rows:
            raise UserError(f"--finished: no row of {table.name} has a finished run")
    classifiers = {classifies(row) for row in rows}
    if len(classifiers) > 1:
        raise ValueError(f"{table.name}: rows that translate and rows that classify; choose some with --rows")
    more: list[list[str]] = []
    if True in classifiers:
        lines = compare_accuracy(rows, summaries)
        table_of = probe_cells if all("probe" in line for line in lines) else accuracy_cells
        cells, more = _columns(table_of(lines), args.columns), length_cells(lines)
        notes = accuracy_notes(lines) + report.published_note(rows)
    else:
        lines = report.compare(rows, summaries)
        cells = _columns(report.to_cells(lines), args.columns)
        notes = report.notes(rows, lines, cells[0])
    if args.save and not saved.save(args.save, summaries):
        raise ValueError(f"--save {args.save}: no row of {table.name} has a finished run")
    if args.format == "json":
        return json.dumps({"table": table.name, "title": table.title, "rows": lines, "notes": notes}, indent=1)
    notes = [*filter(None, [table.note]), *notes]
    if args.format == "html":
        return formats.as_html(cells, table.title, notes, _figures(args, table, rows, lines, summaries), more)
    write = {"text": formats.as_text, "markdown": formats.as_markdown, "latex": formats.as_latex}[args.format]
    return "\n\n".join(
        [write(cells, table.title, notes), *([write(more, "Accuracy by number of operators", [])] if more else [])]
    )


def _columns(cells: list[list[str]], names: str | None) -> list[list[str]]:
    if names is None:
        return cells
    chosen = [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in cells[0]]:
        raise UserError(f"--columns: no column {', '.join(unknown)}; there are: {', '.join(cells[0])}")
    return [[row[cells[0].index(name)] for name in chosen] for row in cells]


def _figures(
    args: argparse.Namespace,
    table: "Table",
    rows: "Sequence[Row]",
    lines: "Sequence[dict]",
    summaries: "dict[str, list[Summary]]",
) -> "dict[str, Figure]":
    """The pictures of a table by their captions; of what was not run there is none."""
    from fairseq_diverse.experiments.accuracy_report import draw_lengths
    from fairseq_diverse.experiments.learning_curves import draw_learning_curves, read_curve
    from fairseq_diverse.experiments.row_curves import METRICS, curves, draw_curves
    from fairseq_diverse.experiments.row_dots import draw_rows
    from fairseq_diverse.experiments.runs import classifies, find_runs

    if not any(summaries.values()):
        return {}
    figures: dict[str, Figure] = {}
    if "probe" in rows[0].train:
        return {}
    if classifies(rows[0]):
        figures["Accuracy by number of operators"] = draw_lengths(rows, summaries)
    else:
        figures["Rows: means and seeds"] = draw_rows(lines, summaries)
        if table.x:
            drawn = draw_curves(curves(rows, table.x), summaries, table.x[0], list(METRICS))
            figures[f"Against --{table.x[0]}"] = drawn
    if not args.results:
        logs = {
            run.row.name: sorted(run.directory.parent.glob("seed*/train.log"))
            for run in find_runs(rows, [0], True, Path(args.runs).resolve() if args.runs else None, cpu=True)
        }
        training = {name: [read_curve(log) for log in logs[name]] for name in logs if summaries[name]}
        figures["Training loss"] = draw_learning_curves(training, "loss")
    return figures
