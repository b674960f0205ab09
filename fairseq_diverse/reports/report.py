"""A report: tables with their notes, and what JSON has of them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fairseq_diverse.experiments.kinds.lines import Line
from fairseq_diverse.reports import heads
from fairseq_diverse.reports.columns import (
    Cells,
    cells_of,
    row_columns,
    task_cells,
    verdict,
    verdict_columns,
    without_empty,
)
from fairseq_diverse.reports.comparable import Runs
from fairseq_diverse.reports.formats import Block
from fairseq_diverse.reports.groups import compare_groups, group_columns, group_entries, group_notes
from fairseq_diverse.reports.lines import compare, entries, names_of_tests, of_test
from fairseq_diverse.reports.notes import table_notes, verdict_notes
from fairseq_diverse.reports.selection import Selection
from fairseq_diverse.reports.sentences import find_records, known_property
from fairseq_diverse.reports.side_by_side import Sentence
from fairseq_diverse.support.errors import UserError


@dataclass
class Report:
    """Tables, what JSON has of them, and the lines of the first one."""

    blocks: list[Block]
    content: dict[str, Any]
    lines: Sequence[Line] = ()


class Draft(NamedTuple):
    """A table whose columns are not chosen yet; its notes depend on them."""

    cells: Cells
    title: str
    notes: Callable[[Sequence[str]], list[str]]


def build(
    selection: Selection,
    test: str | None = None,
    judged: bool = False,
    by: str | None = None,
    with_heads: bool = False,
    names: str | None = None,
    with_rows: bool = False,
) -> Report:
    """The report of rows, of groups of sentences, or of heads.

    Args:
        test: this test set only.
        judged: the verdict on each row, in place of its scores.
        by: properties of sentences that make groups, joined by commas.
        with_heads: how different heads are.
        names: of the columns that are shown, joined by commas.
        with_rows: with groups and heads, below the report of rows, whose columns are chosen.

    Raises:
        ValueError: these rows have no such report.
    """
    views = {"test": test, "verdict": judged, "by": by, "heads": with_heads}
    chosen = [view for view in ("verdict", "by", "heads") if views[view]]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(f'--{view}' for view in chosen)}: one of them")
    kind = selection.kinds[0]
    if refused := [view for view, value in views.items() if value and view not in kind.views]:
        raise UserError(f"--{refused[0]}: is for translations; {selection.table.name} classifies")
    if not by and not with_heads:
        return rows_report(selection, test, names, judged)
    own = None if with_rows else names
    report = groups_report(selection, by, test, own) if by else heads_report(selection, own)
    if with_rows:
        rows = rows_report(selection, test, names)
        report = Report(rows.blocks + report.blocks, rows.content, rows.lines)
    return report


def completed(report: Report, selection: Selection, sentences: Sequence[Sentence], with_notes: bool) -> Report:
    """The report with translations, and with the rows that are left out as not run; or without notes."""
    blocks, content = report.blocks, report.content
    if sentences:
        content = content | {"translations": list(map(asdict, sentences))}
    if not_run := selection.not_run:
        share = f"{len(not_run)} of {len(selection.rows) + len(not_run)} rows"
        notes = [*blocks[0].notes, f"not run ({share}): {', '.join(not_run)}"]
        blocks, content = [blocks[0]._replace(notes=notes), *blocks[1:]], content | {"not_run": not_run}
    return Report(blocks if with_notes else [block._replace(notes=[]) for block in blocks], content, report.lines)


def rows_report(selection: Selection, test: str | None, names: str | None, judged: bool = False) -> Report:
    """A table for each test set, with what all their notes have in common below the last one, and one for each kind
    that is shown beside.

    Args:
        test: this test set only.
        names: of the columns that are shown, joined by commas.
        judged: the verdict on each row, in place of its scores.
    """
    main, *beside = selection.kinds
    runs, table = selection.of_kind(main), selection.table
    every, chosen = tests_of(runs, test)
    lines: list[Sequence[Line]] = []
    drafts = []
    for name in chosen if runs.rows else ():
        draft, shown = table_of(of_test(runs, name), table.title + f": {name}" * (len(every) > 1), judged)
        drafts.append(draft)
        lines.append(shown)
    content: dict[str, Any] = {"test": chosen[0]} if "test" in main.views else {}
    further = {}
    for kind in beside:
        draft, shown = table_of(selection.of_kind(kind), kind.title, False)
        drafts.append(draft)
        further[kind.name] = list(map(entries, shown))
    blocks = _with_columns(drafts, names)
    of_main = blocks[: len(lines)]
    tables = [
        {"rows": list(map(entries, shown)), "notes": block.notes} for shown, block in zip(lines, of_main, strict=True)
    ]
    content |= tables[0] if tables else {"rows": [], "notes": []}
    content |= {"tests": dict(zip(chosen, tables, strict=True))} if len(tables) > 1 else {}
    more = [Block(cells, title, []) for title, cells in (main.tables(lines[0]) if lines else [])]
    return Report(
        [*_share_notes(of_main, table.note), *blocks[len(lines) :], *more], content | further, lines[0] if lines else ()
    )


def table_of(runs: Runs, title: str, judged: bool) -> tuple[Draft, Sequence[Line]]:
    """The table of the rows of one kind, and its lines."""
    kind, measures, compared = runs.kind, runs.kind.measures(runs.rows), compare(runs)
    lines: Sequence[Line] = compared.lines
    if tasks := kind.task_table(runs.rows):
        lines = task_lines = kind.task_lines(compared)
        cells = task_cells(tasks, task_lines)
    elif judged:
        judge = [measure for measure in measures if measure.compared][-1]
        for line in lines:
            line.facts["verdict"] = verdict(line, judge) if line.differences else None
        cells = cells_of(verdict_columns(measures), [line for line in lines if line.name != line.row.baseline])
        return Draft(cells, title, lambda headings: verdict_notes(lines, measures, headings)), lines
    else:
        cells = without_empty(cells_of(row_columns(kind, lines, measures), lines))
    return Draft(cells, title, lambda headings: table_notes(kind, runs.rows, lines, headings)), lines


def _share_notes(blocks: Sequence[Block], note: str) -> list[Block]:
    """The tables with the notes that all have in common below the last one alone, behind the table's note."""
    if not blocks:
        return []
    common = [text for text in blocks[0].notes if all(text in block.notes for block in blocks)]
    *shown, last = [block._replace(notes=[text for text in block.notes if text not in common]) for block in blocks]
    return [*shown, last._replace(notes=[*last.notes, *filter(None, [note]), *common])]


def tests_of(runs: Runs, test: str | None) -> tuple[list[str], list[str]]:
    """All test sets, and those that are shown."""
    names = names_of_tests(runs)
    if test and test not in names:
        raise UserError(f"--test {test}: no run was scored on it; there are: {', '.join(names)}")
    return names, [test] if test else names


def groups_report(selection: Selection, by: str, test: str | None, names: str | None) -> Report:
    """A table for each property of sentences and each test set.

    Args:
        by: properties, joined by commas.
        test, names: as of `rows_report`.
    """
    runs, source = selection.of_kind(selection.kinds[0]), selection.source
    properties = [known_property(name.strip()) for name in by.split(",")]
    records = find_records(runs.rows, runs.summaries, source.results, source.runs)
    every, chosen = tests_of(runs, test)
    content: dict[str, Any] = {}
    drafts = []
    for test_name in chosen:
        shown = of_test(runs, test_name)
        for name in properties if any(shown.summaries[row.name] for row in shown.rows) else ():
            lines = compare_groups(shown, records, name, test_name)
            notes = group_notes(lines, name, records)
            content.setdefault(test_name, {})[name] = {"rows": list(map(group_entries, lines)), "notes": notes}
            title = f"{selection.table.title}: by {name}" + f", {test_name}" * (len(every) > 1)
            drafts.append(Draft(without_empty(cells_of(group_columns(), lines)), title, lambda _, notes=notes: notes))
    return Report(_with_columns(drafts, names if drafts else None), {"groups": content})


def heads_report(selection: Selection, names: str | None) -> Report:
    """How different the heads of the rows are."""
    lines = heads.compare_heads(selection.of_kind(selection.kinds[0]))
    notes = heads.head_notes(lines)
    cells = cells_of(heads.head_columns(), lines)
    blocks = _with_columns([Draft(cells, f"{selection.table.title}: heads", lambda _: notes)], names)
    return Report(blocks, {"rows": list(map(heads.head_entries, lines)), "notes": notes})


def _with_columns(drafts: Sequence[Draft], names: str | None) -> list[Block]:
    """The tables with the chosen columns, of each those that it has."""
    known = list(dict.fromkeys(heading for draft in drafts for heading in draft.cells[0]))
    chosen = [name.strip() for name in names.split(",")] if names is not None else known
    if unknown := [name for name in chosen if name not in known]:
        raise UserError(f"--columns: no column {', '.join(unknown)}; there are: {', '.join(known)}")
    blocks = []
    for cells, title, notes in drafts:
        places = [cells[0].index(name) for name in chosen if name in cells[0]]
        shown = [[row[place] for place in places] for row in cells] if names is not None else cells
        blocks.append(Block(shown, title, notes(shown[0])))
    return blocks
