"""Show the results of a table: measured and published scores, differences to the baseline and their significance.

Results come from finished runs, or with --results from summaries that --save copied; then no runs are needed. Rows
without a finished run are marked "not run". Each test set has a table of its own. docs/statistics.md explains the
tests. HTML is one self-contained page with pictures, translations side by side, and the flags of every row.
--refresh renews every table of a Markdown file between <!-- fairseq-diverse report ... --> and
<!-- end -->.
"""

import argparse
import contextlib
import io
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from fairseq_diverse import __version__
from fairseq_diverse.cli.run import add_table_arguments, parse_seeds, read_table
from fairseq_diverse.cli.user_dir import add_user_dir, register_with
from fairseq_diverse.experiments.runs.saved import runs_of, with_other_settings
from fairseq_diverse.experiments.tables.load import Table, load_table
from fairseq_diverse.reports import formats
from fairseq_diverse.reports import report as reports
from fairseq_diverse.reports.page import page
from fairseq_diverse.reports.selection import Selection, Source, choose
from fairseq_diverse.reports.side_by_side import side_by_side
from fairseq_diverse.support.errors import UserError, warn
from fairseq_diverse.support.files import rewrite_blocks, write_text

EXAMPLE = "fairseq-diverse report multi30k --format markdown --save results/multi30k"
FORMATS = ("text", "markdown", "latex", "csv", "json", "html")
PAGE_SENTENCES = 20
MARKER = "fairseq-diverse report (?P<command>.+?)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser, nargs="?")
    add_comparison_arguments(parser)
    add = parser.add_argument
    add("--jobs", type=int, default=1, help=argparse.SUPPRESS)  # so that the arguments of `run` can be given
    add("--finished", action="store_true", help="only rows with a finished run; a note names the others")
    add("--verdict", action="store_true", help="for each row: whether it helps, how certain that is, and its cost")
    groups = "NLL by groups of test sentences: length, rare-words, attachment (of prepositional phrases) or verb-final "
    beside = "with --verdict: also the difference of the row of that name in another table, by the summaries in DIR"
    add("--beside", nargs=2, action="append", default=[], metavar=("TABLE", "DIR"), help=beside)
    add("--by", metavar="PROPERTY", help=f"{groups}(clauses); several comma-separated")
    add("--heads", action="store_true", help="how different each row's heads are, as measured by `run --heads`")
    sentences = "also each row's translations of N sentences, evenly spread over the test set (default: 0; HTML: 20)"
    add("--translations", type=int, metavar="N", help=sentences)
    add("--format", choices=FORMATS, default="text", help="output format (default: text)")
    columns = parser.add_mutually_exclusive_group()
    columns.add_argument("--columns", metavar="A,B", help="only these columns, in this order, named by their headings")
    details = "also parameters, further scores, tests over sentences alone, and speeds"
    columns.add_argument("--all-columns", action="store_true", help=details)
    add("--no-notes", action="store_true", help="leave out the notes below the tables")
    add("--out", type=Path, metavar="FILE", help="write to this file instead of printing")
    add("--save", type=Path, metavar="DIR", help="copy the runs' summaries there, for --results")
    add("--refresh", type=Path, nargs="+", metavar="FILE", help="renew the tables of Markdown files, instead of TABLE")


def add_comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rows are compared with which, and on what."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--runs", metavar="DIR", help="folder of the runs (default: $FAIRSEQ_DIVERSE_RUNS or runs/)")
    source.add_argument("--results", type=Path, metavar="DIR", help="folder of summaries, instead of runs")
    add = parser.add_argument
    add("--seeds", metavar="1,2,3", help="only the runs of these seeds (default: all)")
    add("--baseline", metavar="ROW", help="row to compare with (default: the table's)")
    add("--without", metavar="a,b", help="neither show nor test these rows (rows left out by --rows are still tested)")
    best = "of each grid the row with the lowest NLL at the last validation; GLUE: dev score, pictures: accuracy"
    add("--best", action="store_true", help=best)
    add("--test", metavar="NAME", help="only this test set")


def source_of(args: argparse.Namespace) -> Source:
    """What --runs or --results names."""
    if args.runs and not Path(args.runs).is_dir():
        raise UserError(f"--runs {args.runs}: no such folder")
    return Source(args.results, Path(args.runs).resolve() if args.runs else None)


def selection_of(args: argparse.Namespace, table: Table) -> Selection:
    seeds = parse_seeds(args.seeds) if args.seeds else None
    return choose(table, source_of(args), args.rows, args.without, args.baseline, args.best, args.finished, seeds)


def _with_tables_beside(args: argparse.Namespace, selection: Selection) -> Selection:
    if args.beside and not args.verdict:
        raise UserError("--beside: goes with --verdict")
    beside = {}
    for name, folder in args.beside:
        table, source = load_table(name, user_dir=args.user_dir), Source(Path(folder))
        if table.name in beside:
            raise UserError(f"--beside {table.name}: given twice; a table has one column")
        beside[table.name] = choose(table, source, None, None, None, best=False, finished=False, seeds=None)
    return replace(selection, beside=beside)


def nothing_finished(table: str) -> str:
    todo = "if you ran it with --set, --size or --data, give the same flags here"
    return f"no row has a finished run; fairseq-diverse run {table} trains them; {todo}"


def main(args: argparse.Namespace) -> None:
    if (args.table is None) == (args.refresh is None):
        raise UserError("either a TABLE or --refresh FILE is needed")
    if args.refresh:
        for path in args.refresh:
            refresh(path)
        return
    selection = _with_tables_beside(args, selection_of(args, read_table(args)))
    shown = show(args, selection)
    _warn_if_nothing_finished(args, selection)
    if args.out:
        write_text(args.out, f"{shown}\n")
    print(args.out or shown)


def _warn_if_nothing_finished(args: argparse.Namespace, selection: Selection) -> None:
    absent = [] if args.results else [row for row in selection.rows if not selection.summaries[row.name]]
    if outdated := with_other_settings(absent, selection.source.runs):
        more = "give the --set, --size and --data that they were run with"
        warn(f"finished runs have other settings than the table now; {more}; by row: {'; '.join(outdated)}")
    if not any(selection.summaries[row.name] for row in selection.rows):
        grids = {(row.family, row.data) for row in selection.rows}
        more = "; --best shows one point of each grid" * (not args.best and len(grids) < len(selection.rows))
        warn(nothing_finished(args.table) + more)


def refresh(path: Path) -> None:
    """Write the marked tables of a Markdown file anew, or raise a UserError that names the marker."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    add_user_dir(parser)

    def parsed(command: str) -> argparse.Namespace:
        try:
            with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
                args = parser.parse_args([*shlex.split(command), "--format", "markdown"])
        except SystemExit:
            raise UserError((errors.getvalue().strip() or "shows no table").splitlines()[-1]) from None
        if wrong := [f"--{flag}" for flag in ("refresh", "save", "out") if getattr(args, flag)]:
            raise UserError(f"{wrong[0]}: not in a page; leave it out")
        if args.table is None:
            raise UserError("names no TABLE")
        return args

    def table(block: re.Match[str]) -> str:
        try:
            args = parsed(block["command"])
            if args.user_dir:
                register_with(args.user_dir)
            selection = _with_tables_beside(args, selection_of(args, read_table(args)))
            text = show(args, selection)
            absent = [row.name for row in selection.rows if not selection.summaries[row.name]]
            compared = [row.name for row in selection.rows if row.baseline in absent]
            gone = [] if len(absent) == len(selection.rows) else [*selection.not_run, *absent, *compared]
            if (gone or absent) and (lost := formats.lost_figures(block[0], text, gone)):
                todo = "give --runs or --results, or delete the figures"
                raise UserError(f"no finished run here of {', '.join(lost)}, whose figures the page has; {todo}")
            _warn_if_nothing_finished(args, selection)
        except (ValueError, OSError) as error:
            raise UserError(f"{path}: {block['start'].strip()}: {error}") from None
        return f"{text}\n"

    if not (count := rewrite_blocks(path, MARKER, table)):
        raise UserError(f"{path}: no table between <!-- fairseq-diverse report TABLE --> and <!-- end -->")
    print(f"{path}: {count} table{'s' * (count > 1)}")


def show(args: argparse.Namespace, selection: Selection) -> str:
    """The report that the arguments ask for, in their format; copies the summaries where they say so."""
    html, columns = args.format == "html", None if args.format == "csv" else args.columns
    views = {name: getattr(args, name) for name in ("test", "verdict", "by", "heads")}
    report = reports.build(selection, views, columns, with_rows=html, details=args.all_columns)
    count = _sentence_count(args, selection)
    runs = runs_of(selection.rows, selection.source.runs) if count and not html else []
    shown = side_by_side(runs, count, args.test or "test").sentences if runs else []
    report = reports.completed(report, selection, shown, not args.no_notes)
    if args.save and (problem := selection.save(args.save)):
        print(f"--save {args.save}: without what --by needs: {problem}", file=sys.stderr)
    if args.format == "json":
        return json.dumps({"table": selection.table.name, "title": selection.table.title} | report.content, indent=1)
    if args.format == "csv":
        return formats.as_csv(report.content, args.columns)
    if html:
        return page(selection, report, count, args.out.resolve().parent if args.out else Path.cwd(), __version__)
    write = {"text": formats.as_text, "markdown": formats.as_markdown, "latex": formats.as_latex}[args.format]
    written = [write(*block).rstrip("\n") for block in report.blocks]
    if args.format == "text" and report.details and not args.no_notes:
        written.append(f"--all-columns shows also: {', '.join(report.details)}")
    if shown:
        text = "\n\n".join(sentence.as_text() for sentence in shown)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        written.append(f"{fence}text\n{text}\n{fence}" if args.format == "markdown" else text)
    return "\n\n".join(written)


def _sentence_count(args: argparse.Namespace, selection: Selection) -> int:
    """How many sentences are shown as the rows translate them."""
    if args.translations is None:
        return PAGE_SENTENCES if args.format == "html" else 0
    if args.results or args.format in ("latex", "csv") or "translations" not in selection.kinds[0].views:
        others = "--results, --format latex or csv, or other kinds"
        raise UserError(f"--translations: is for rows of translation, not for {others}")
    if args.translations < 0:
        raise UserError(f"--translations {args.translations}: at least 0")
    return args.translations
