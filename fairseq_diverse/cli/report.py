"""Show the results of a table: measured and published scores, differences to the baseline and their significance.

Results come from finished runs, or with --results from summaries that --save copied; then no runs are needed. Rows
without a finished run are marked "not run". Each test set has a table of its own. docs/statistics.md explains the
tests. HTML is one self-contained page with pictures, translations side by side, and the flags of every row.
--refresh renews every table of a Markdown file between <!-- fairseq-diverse report ... --> and
<!-- end -->.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_diverse.cli import report_views as views
from fairseq_diverse.cli.report_views import Asked, folder_of_runs
from fairseq_diverse.cli.run import add_table_arguments, read_table
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, rewrite_blocks

if TYPE_CHECKING:
    from fairseq_diverse.experiments.kinds.kind import Summary
    from fairseq_diverse.experiments.rows import Row
    from fairseq_diverse.experiments.tables.load import Table
    from fairseq_diverse.reports.side_by_side import Sentence

EXAMPLE = "fairseq-diverse report multi30k --format markdown --save results/multi30k"
PAGE_SENTENCES = 20
MARKER = "fairseq-diverse report (?P<command>.+?)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser, nargs="?")
    add_source_arguments(parser)
    add_comparison_arguments(parser)
    parser.add_argument(
        "--finished", action="store_true", help="only rows with a finished run; a note names the others"
    )
    parser.add_argument(
        "--verdict", action="store_true", help="for each row: whether it helps, how certain that is, and its cost"
    )
    parser.add_argument(
        "--by",
        metavar="PROPERTY",
        help="NLL by groups of test sentences: length, rare-words, attachment (of prepositional phrases) or verb-final "
        "(clauses); several comma-separated",
    )
    parser.add_argument(
        "--heads", action="store_true", help="how different each row's heads are, as measured by `run --heads`"
    )
    parser.add_argument(
        "--translations",
        type=int,
        metavar="N",
        help="also each row's translations of N sentences, evenly spread over the test set (default: 0; HTML: 20)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "latex", "json", "html"),
        default="text",
        help="output format (default: text)",
    )
    parser.add_argument("--columns", metavar="A,B", help="only these columns, in this order, named by their headings")
    parser.add_argument("--no-notes", action="store_true", help="leave out the notes below the tables")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file instead of printing")
    parser.add_argument("--save", type=Path, metavar="DIR", help="copy the runs' summaries there, for --results")
    parser.add_argument(
        "--refresh", type=Path, nargs="+", metavar="FILE", help="renew the tables of Markdown files, instead of TABLE"
    )


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Where summaries come from."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--runs", metavar="DIR", help="folder of the runs (default: $FAIRSEQ_DIVERSE_RUNS or runs/)")
    source.add_argument("--results", type=Path, metavar="DIR", help="folder of summaries, instead of runs")


def add_comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rows are compared with which, and on what."""
    parser.add_argument("--baseline", metavar="ROW", help="row to compare with (default: the table's)")
    parser.add_argument(
        "--without", metavar="a,b", help="neither show nor test these rows (rows left out by --rows are still tested)"
    )
    parser.add_argument(
        "--best", action="store_true", help="of each grid only the row with the lowest NLL at its last validation"
    )
    parser.add_argument("--test", metavar="NAME", help="only this test set")


def read_summaries(args: argparse.Namespace, rows: "Sequence[Row]", asked: bool = True) -> "dict[str, list[Summary]]":
    """The rows' summaries from the place that the arguments name; rows that were not ``asked`` for raise no error."""
    from fairseq_diverse.experiments.runs import saved

    if args.results:
        return saved.from_results(args.results, rows, asked)
    return saved.from_runs(rows, folder_of_runs(args), asked)


def nothing_finished(table: str) -> str:
    return (
        f"no row has a finished run; fairseq-diverse run {table} trains them; if you ran it with --set, --size or "
        "--data, give the same flags here"
    )


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
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
                args = parser.parse_args([*shlex.split(block["command"]), "--format", "markdown"])
        except SystemExit:
            problem = (said.getvalue().strip() or "shows no table").splitlines()[-1]
            raise UserError(f"{path}: {block['start'].strip()}: {problem}") from None
        return f"{show(args)}\n"

    if not (count := rewrite_blocks(path, MARKER, table)):
        raise UserError(f"{path}: no table between <!-- fairseq-diverse report TABLE --> and <!-- end -->")
    print(f"{path}: {count} table{'s' * (count > 1)}")


def choose(args: argparse.Namespace, table: "Table") -> Asked:
    """The rows of the table that the arguments choose, each with the row that it is compared with, which come first
    where they were not chosen."""
    from fairseq_diverse.experiments.tables.load import select_rows
    from fairseq_diverse.reports import report

    if left := {row.name for row in select_rows(table, args.without, "--without")} if args.without else set():
        if not (kept := {name: row for name, row in table.rows.items() if name not in left}):
            raise UserError(f"--without {args.without}: leaves no row of {table.name}")
        table = dataclasses.replace(table, rows=kept, changed=(*table.changed, f"--without {args.without}"))
    shown = [row.name for row in select_rows(table, args.rows)]
    if table.changed:  # figures that are not those of the file's settings say so in the title
        table = dataclasses.replace(table, title=f"{table.title} [{' '.join(table.changed)}]")
    every = list(table.rows.values())
    points = [row for row in table.rows.values() if row.family == args.baseline]  # of a grid
    if args.baseline is not None and args.baseline not in table.rows and not points:
        raise ValueError(f"--baseline {args.baseline}: no such row; rows: {', '.join(table.rows)}")
    if args.baseline in table.rows:
        every = [dataclasses.replace(row, baseline=args.baseline) for row in every]
    elif args.baseline:
        every = [dataclasses.replace(row, baseline=_of_grid(row, points)) for row in every]
    if row := next((row for row in every if row.baseline in left), None):
        raise UserError(f"--without {row.baseline}: row {row.name} is compared with it; give another --baseline")
    of_name = {row.name: row for row in every}
    rows = [of_name[name] for name in shown]
    baselines = dict.fromkeys(row.baseline for row in rows)
    further = [table.rows[name] for name in baselines if name not in shown]
    alone = [bool(args.baseline) or row.baseline not in (*shown, *baselines) for row in further]
    further = [dataclasses.replace(r, baseline=r.name) if own else r for r, own in zip(further, alone, strict=True)]
    rows = further + rows
    others = [row for row in every if row.name not in {row.name for row in rows}]
    summaries, of_others = read_summaries(args, rows), read_summaries(args, others, asked=False) if others else {}
    if args.best:
        families = {(row.family, row.data) for row in rows}
        others = [row for row in others if (row.family, row.data) not in families]
        best = report.best_of_grids([*rows, *others], summaries | of_others)
        rows, others = ([row for row in best if ((row.family, row.data) in families) == own] for own in (True, False))
    not_run = [row.name for row in rows if not summaries[row.name]] if args.finished else []
    if not (rows := [row for row in rows if row.name not in not_run]):
        raise UserError(f"--finished: no row of {table.name} has a finished run")
    return Asked(args, table, rows, summaries, (others, of_others), not_run)


def _of_grid(row: "Row", points: "Sequence[Row]") -> str:
    """The point of the baseline's grid that a row is compared with: that of equal values, or the only one of its data;
    where no point has its data, the row's own baseline."""
    of_data = {point.name.removeprefix(point.family): point.name for point in points if point.data == row.data}
    equal = of_data.get(row.name.removeprefix(row.family))
    if len(of_data) > 1 and equal is None:
        raise UserError(f"--baseline {points[0].family}: which is for row {row.name}? {', '.join(of_data.values())}")
    return equal or next(iter(of_data.values()), row.baseline)


def show(args: argparse.Namespace) -> str:
    """The report that the arguments ask for; copies the summaries where they say so."""
    from fairseq_diverse.experiments.kinds.kind import kind_of
    from fairseq_diverse.experiments.runs import saved
    from fairseq_diverse.reports import formats

    asked = choose(args, read_table(args))
    table, rows, summaries = asked.table, asked.rows, asked.summaries
    if len(given := [f"--{flag}" for flag in ("verdict", "by", "heads") if getattr(args, flag)]) > 1:
        raise UserError(f"{' and '.join(given)}: one of them")
    kinds = {kind_of(row).name for row in rows}
    if len({"glue" if kind == "pretraining" else kind for kind in kinds}) > 1:
        raise ValueError(f"{table.name}: rows that translate and rows that classify; choose some with --rows")
    if "translation" not in kinds:
        if given := [flag for flag in ("test", "verdict", "by", "heads") if getattr(args, flag)]:
            raise UserError(f"--{given[0]}: is for translations; {table.name} classifies")
        blocks, content = (views.classification_view if "classification" in kinds else views.glue_view)(asked)
    else:
        of_view = views.groups_view if args.by else views.heads_view if args.heads else views.translation_view
        blocks, content = of_view(asked)
        if args.format == "html" and of_view is not views.translation_view:
            main_blocks, content = views.translation_view(asked)
            blocks = main_blocks + blocks
    count = _sentence_count(args, kinds)
    found: list[Sentence] = []
    if count and args.format != "html":
        from fairseq_diverse.reports.side_by_side import side_by_side

        found = side_by_side(saved.runs_of(rows, folder_of_runs(args)), count, args.test or "test").sentences
    if found:
        content["translations"] = list(map(dataclasses.asdict, found))
    if asked.not_run:
        (cells, title, notes), *further = blocks
        missing = f"{len(asked.not_run)} of {len(rows) + len(asked.not_run)} rows"
        blocks = [(cells, title, [*notes, f"not run ({missing}): {', '.join(asked.not_run)}"]), *further]
        content["not_run"] = asked.not_run
    if args.no_notes:
        blocks = [(cells, title, []) for cells, title, _ in blocks]
    if not any(summaries.values()):
        print(f"warning: {nothing_finished(args.table)}", file=sys.stderr)
    if args.save:
        saved.refuse_replacing(args.save, rows, summaries)
        if not saved.save(args.save, summaries):
            raise ValueError(f"--save {args.save}: no row of {table.name} has a finished run")
        if "translation" in kinds:
            _save_sentences(args, rows, summaries)
    if args.format == "json":
        return json.dumps({"table": table.name, "title": table.title, **content}, indent=1)
    if args.format == "html":
        from fairseq_diverse.cli.report_page import page

        return page(asked, blocks, content, count)
    write = {"text": formats.as_text, "markdown": formats.as_markdown, "latex": formats.as_latex}[args.format]
    written = [write(*block).rstrip("\n") for block in blocks]
    if found:
        text = "\n\n".join(sentence.as_text() for sentence in found)
        written.append(f"```text\n{text}\n```" if args.format == "markdown" else text)
    return "\n\n".join(written)


def _sentence_count(args: argparse.Namespace, kinds: set[str]) -> int:
    """How many sentences are shown as the rows translate them."""
    if args.translations is None:
        return PAGE_SENTENCES if args.format == "html" else 0
    if args.results or args.format == "latex" or kinds != {"translation"}:
        raise UserError("--translations: is for runs that translate, not for --results, --format latex or classifiers")
    if args.translations < 0:
        raise UserError(f"--translations {args.translations}: at least 0")
    return args.translations


def _save_sentences(args: argparse.Namespace, rows: "Sequence[Row]", summaries: "dict[str, list[Summary]]") -> None:
    """Copy what --by needs besides the summaries; where it is not to be had, say so."""
    from fairseq_diverse.experiments import sentences

    try:
        sentences.save_records(args.save, sentences.find_records(rows, summaries, args.results, folder_of_runs(args)))
    except ValueError as error:
        print(f"--save {args.save}: without what --by needs: {error}", file=sys.stderr)
