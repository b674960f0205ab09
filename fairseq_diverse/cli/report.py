"""Show the results of a table: measured beside published figures, differences to the baseline and significance.

Figures come from finished runs, or with --results from the summaries that --save copied, so that a table can be shown
where nothing was run. Rows without a finished run are marked "not run".
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_diverse.cli.run import add_table_arguments

if TYPE_CHECKING:
    from fairseq_diverse.experiments.report import Summary
    from fairseq_diverse.experiments.tables import Row

EXAMPLE = "fairseq-diverse report multi30k-li2021 --format markdown --save results/multi30k-li2021"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    add_source_arguments(parser)
    parser.add_argument("--baseline", metavar="ROW", help="row to compare with (default: the table's)")
    parser.add_argument(
        "--best", action="store_true", help="of a row's grid, only the point with the lowest validation NLL"
    )
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--save", type=Path, metavar="DIR", help="copy the summaries there")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Where summaries come from."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--runs", metavar="DIR", help="folder of the runs (default: $FAIRSEQ_DIVERSE_RUNS or runs/)")
    source.add_argument("--results", type=Path, metavar="DIR", help="folder of saved summaries, instead of runs")


def read_summaries(args: argparse.Namespace, rows: "Sequence[Row]") -> "dict[str, list[Summary]]":
    """The rows' summaries from the place that the arguments name."""
    from fairseq_diverse.experiments import report

    if args.runs:
        os.environ["FAIRSEQ_DIVERSE_RUNS"] = args.runs
    return report.from_results(args.results, rows) if args.results else report.from_runs(rows)


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.experiments import report
    from fairseq_diverse.experiments.accuracy_report import accuracy_cells, accuracy_notes, compare_accuracy
    from fairseq_diverse.experiments.runs import classifies
    from fairseq_diverse.experiments.tables import load_table, select_rows

    table = load_table(args.table, args.data, args.size, args.settings)
    rows = select_rows(table, args.rows)
    if args.baseline:
        if args.baseline not in table.rows:
            raise ValueError(f"--baseline {args.baseline}: no such row; rows: {', '.join(table.rows)}")
        rows = [dataclasses.replace(row, baseline=args.baseline) for row in rows]
    shown = {row.name for row in rows}
    rows = [table.rows[name] for name in dict.fromkeys(row.baseline for row in rows) if name not in shown] + rows
    summaries = read_summaries(args, rows)
    if args.best:
        rows = report.best_of_grids(rows, summaries)
    classifiers = {classifies(row) for row in rows}
    if len(classifiers) > 1:
        raise ValueError(f"{table.name}: rows that translate and rows that classify; choose some with --rows")
    if True in classifiers:
        lines = compare_accuracy(rows, summaries)
        cells, notes = accuracy_cells(lines), accuracy_notes(lines)
    else:
        lines = report.compare(rows, summaries)
        cells, notes = report.to_cells(lines), report.notes(rows, lines)
    if args.save and not report.save(args.save, summaries):
        raise ValueError(f"--save {args.save}: no row of {table.name} has a finished run")
    if args.format == "json":
        print(json.dumps({"table": table.name, "rows": lines}, indent=1, ensure_ascii=False))
        return
    print(f"{table.title}\n")
    print(report.as_markdown(cells) if args.format == "markdown" else report.as_text(cells))
    print("\n" + "\n".join([*filter(None, [table.note]), *notes]))
