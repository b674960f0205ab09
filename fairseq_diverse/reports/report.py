"""A report: tables with their notes, and what JSON has of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from fairseq_diverse.experiments.kinds.kind import Kind
from fairseq_diverse.experiments.kinds.lines import Line, deciding_last
from fairseq_diverse.experiments.run import Row
from fairseq_diverse.experiments.tables.load import Table
from fairseq_diverse.metrics.catalogue import PUBLISHED
from fairseq_diverse.reports import columns, groups, heads, notes
from fairseq_diverse.reports.columns import Beside, Cells, Elsewhere, cells_of, without_empty
from fairseq_diverse.reports.formats import Block
from fairseq_diverse.reports.lines import Runs, compare, entries, measures_of, names_of_tests, of_test
from fairseq_diverse.reports.selection import Selection
from fairseq_diverse.reports.sentences import find_records, known_property
from fairseq_diverse.reports.side_by_side import Sentence
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.paths import data_name


class Report(NamedTuple):
    """Tables, and what JSON has of them."""

    blocks: list[Block]
    content: dict[str, Any]
    lines: Sequence[Line] = ()  # of the first table
    details: Sequence[str] = ()  # headings of columns that are left out


class Sheet(NamedTuple):
    """A table whose columns are not chosen yet, on which its notes depend, and what JSON has of its lines."""

    title: str
    cells: Cells
    notes: Callable[[Sequence[str]], list[str]]
    lines: Sequence[Line]
    values: list[dict[str, Any]]
    details: Collection[str] = ()  # headings


def build(selection: Selection, views: Mapping[str, Any], names: str | None, with_rows: bool, details: bool) -> Report:
    """The report of rows, with scores or a ``verdict``, ``by`` groups of sentences, or of ``heads`` (``views``, by the
    flags of ``report``), or ``with_rows`` of both one below the other; ``names`` are those of columns, by default all
    that are no details, or with these. ValueError: rows have no such report."""
    test, by = views["test"], views["by"]
    chosen = [f"--{view}" for view in ("verdict", "by", "heads") if views[view]]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}: one of them")
    if refused := [view for view, value in views.items() if value and view not in selection.kinds[0].views]:
        reason = f"is for kinds of rows that have it, such as translation; {selection.table.name} has none"
        raise UserError(f"--{refused[0]}: {reason}")
    if not by and not views["heads"]:
        return rows_report(selection, test, names, views["verdict"], details)
    shown = None if with_rows else names
    report = groups_report(selection, by, test, shown) if by else heads_report(selection, shown)
    rows = rows_report(selection, test, names, details=details) if with_rows else None
    return rows._replace(blocks=rows.blocks + report.blocks) if rows else report


def completed(report: Report, selection: Selection, sentences: Sequence[Sentence], with_notes: bool) -> Report:
    """The report with translations, and with the rows that are left out as not run; or without notes."""
    blocks, content = list(report.blocks), dict(report.content)
    if sentences:
        content["translations"] = list(map(asdict, sentences))
    if not_run := selection.not_run:
        content["not_run"] = not_run
        share = f"{len(not_run)} of {len(selection.rows) + len(not_run)} rows"
        note = f"not run ({share}): {', '.join(not_run)}"
        blocks[:1] = [block._replace(notes=[*block.notes, note]) for block in blocks[:1]]
    blocks = blocks if with_notes else [block._replace(notes=[]) for block in blocks]
    return report._replace(blocks=blocks, content=content)


def rows_report(
    selection: Selection, test: str | None, names: str | None, judged: bool = False, details: bool = False
) -> Report:
    """A table for each test set, with what all their notes have in common below the last one, and one for each kind
    that is shown beside; arguments as of `build`."""
    main, *kinds_beside = selection.kinds
    runs, table = selection.of_kind(main), selection.table
    all_tests, chosen = tests_of(runs, test)
    titles = {name: table.title + f": {name}" * (len(all_tests) > 1) for name in chosen if runs.rows}
    beside = _differences_beside(selection, main) if judged else None
    sheets = [sheet_of(of_test(runs, name), title, beside) for name, title in titles.items()]
    others = [sheet_of(selection.of_kind(kind), kind.title) for kind in kinds_beside]
    blocks = _with_columns([*sheets, *others], names, details)
    tables = [{"rows": sheet.values, "notes": block.notes} for sheet, block in zip(sheets, blocks, strict=False)]
    content: dict[str, Any] = {"test": chosen[0]} if "test" in main.views else {}
    content |= tables[0] if tables else {"rows": [], "notes": []}
    content |= {"tests": dict(zip(chosen, tables, strict=True))} if len(tables) > 1 else {}
    content |= {kind.name: sheet.values for kind, sheet in zip(kinds_beside, others, strict=True)}
    if sheets:
        by_test = blocks[: len(sheets)]  # what all have in common is below the last one alone, behind the table's note
        common = [text for text in blocks[0].notes if all(text in block.notes for block in by_test)]
        *shown, last = [b._replace(notes=[x for x in b.notes if x not in common]) for b in by_test]
        last = last._replace(notes=[*last.notes, *filter(None, [table.note]), *common])
        blocks[: len(sheets)] = [*shown, last]
        blocks += [Block(cells, title, []) for title, cells in main.tables(sheets[0].lines)]
        blocks += _cited(table) if names is None and not judged else []
    hidden = sheets[0].details if sheets and names is None and not details else ()
    return Report(blocks, content, sheets[0].lines if sheets else (), list(hidden))


def _cited(table: Table) -> list[Block]:
    """Published figures of systems that are not rows of the table."""
    keys = list(dict.fromkeys(key for figures in table.cited.values() for key in figures))
    headings = [f"published {(PUBLISHED | columns.PUBLISHED_SPEEDS).get(key, key)}" for key in keys]
    lines = [[name, *(str(figures.get(key, "")) for key in keys)] for name, figures in table.cited.items()]
    return [Block([["other systems", *headings], *lines], "Published for other systems", [])] if lines else []


def _differences_beside(selection: Selection, kind: Kind) -> Beside:
    """Of the tables beside, by the first test set of each; UserError: a table has none of the selection's rows."""
    key, beside = deciding_last(measures_of(selection.of_kind(kind)))[-1].key, {}
    for table, other in selection.beside.items():
        runs = other.of_kind(kind)
        lines = compare(of_test(runs, names_of_tests(runs)[0])).lines
        found = {line.name: line.differences[key] for line in lines if key in line.differences}
        if not (shared := [row.name for row in selection.rows if row.name in found]):
            raise UserError(f"--beside {table}: compares no row with the name of one of {selection.table.name}")
        beside[table] = Elsewhere(found, _unlike(selection, other, shared))
    return beside


def _unlike(selection: Selection, other: Selection, shared: Sequence[str]) -> str:
    """What another table's rows are of, and those whose flags differ from their baseline's in another way there."""
    here, there = (it.table.rows | {row.name: row for row in (*it.rows, *it.hidden)} for it in (selection, other))
    pairs = [(here[name], there[name]) for name in shared]
    bases = [(here[one.baseline], there[two.baseline]) for one, two in pairs]
    texts = [", ".join(dict.fromkeys(_what(two) for _, two in pairs))]
    one, two = bases[0]
    if one.size == two.size and (flags := dict(one.train.items() ^ two.train.items())):
        texts.append(f"its baseline has another {', '.join(sorted(flags))}")
    unlike = [
        one.name
        for (one, two), (its, other_its) in zip(pairs, bases, strict=True)
        if one.train.items() ^ its.train.items() != two.train.items() ^ other_its.train.items()
    ]
    if unlike:
        texts.append(f"with other flags there: {', '.join(unlike)}")
    return "; ".join(texts)


def _what(row: Row) -> str:
    return f"data {data_name(row.data)}, size {row.size}" + f", split {row.split}" * (row.split != "test")


def sheet_of(runs: Runs, title: str, judged: Beside | None = None) -> Sheet:
    """A table of scores, or where ``judged`` is given, of verdicts, with these differences beside."""
    kind, measures, compared = runs.kind, measures_of(runs), compare(runs)
    lines: Sequence[Line] = compared.lines
    details: list[str] = []
    if tasks := kind.task_table(runs.rows):
        lines = task_lines = kind.task_lines(compared)
        cells = columns.task_cells(tasks, task_lines)
    elif judged is not None:
        for line in lines:
            line.facts["verdict"] = columns.verdict(line, measures) if line.differences else None
            found = {table: other.differences.get(line.name) for table, other in judged.items()}
            line.facts |= {f"in {table}": difference.entries() for table, difference in found.items() if difference}
        with_baseline = [line for line in lines if line.name != line.row.baseline]
        if not with_baseline:
            raise UserError("--verdict: there is no row beside the baseline")
        shown = [c for c in columns.verdict_columns(measures, judged) if kind.speeds or c.heading != "training speed"]
        cells = without_empty(cells_of(shown, with_baseline))
    else:
        all_columns = columns.row_columns(kind, lines, measures)
        cells = without_empty(cells_of(all_columns, lines))
        details = [column.heading for column in all_columns if column.details and column.heading in cells[0]]

    def below(headings: Sequence[str]) -> list[str]:
        if judged is not None:
            return notes.verdict_notes(lines, measures, headings, {name: it.about for name, it in judged.items()})
        return notes.table_notes(kind, runs.rows, measures, lines, headings)

    return Sheet(title, cells, below, lines, list(map(entries, lines)), details)


def tests_of(runs: Runs, test: str | None) -> tuple[list[str], list[str]]:
    """All test sets, and those that are shown."""
    names = names_of_tests(runs)
    if test and test not in names:
        raise UserError(f"--test {test}: no run was scored on it; there are: {', '.join(names)}")
    return names, [test] if test else names


def groups_report(selection: Selection, by: str, test: str | None, names: str | None) -> Report:
    """A table for each property of sentences and each test set; arguments as of `build`."""
    runs, source = selection.of_kind(selection.kinds[0]), selection.source
    properties = [known_property(name.strip()) for name in by.split(",")]
    records = find_records(runs.rows, runs.summaries, source.results, source.runs)
    all_tests, chosen = tests_of(runs, test)
    content: dict[str, Any] = {}
    sheets = []
    for test_name in chosen:
        shown = of_test(runs, test_name)
        for name in properties if any(shown.summaries[row.name] for row in shown.rows) else ():
            lines = groups.compare_groups(shown, records, name, test_name)
            text = groups.group_notes(lines, name, records)
            title = f"{selection.table.title}: by {name}" + f", {test_name}" * (len(all_tests) > 1)
            cells = without_empty(cells_of(groups.group_columns(), lines))
            sheets.append(Sheet(title, cells, lambda _, text=text: text, lines, list(map(groups.group_entries, lines))))
            content.setdefault(test_name, {})[name] = {"rows": sheets[-1].values, "notes": text}
    return Report(_with_columns(sheets, names if sheets else None), {"groups": content})


def heads_report(selection: Selection, names: str | None) -> Report:
    """How different the heads of the rows are."""
    lines = heads.compare_heads(selection.of_kind(selection.kinds[0]))
    text, values = heads.head_notes(lines), list(map(heads.head_entries, lines))
    cells = cells_of(heads.head_columns(), lines)
    sheet = Sheet(f"{selection.table.title}: heads", cells, lambda _: text, lines, values)
    return Report(_with_columns([sheet], names), {"rows": values, "notes": text})


def _with_columns(sheets: Sequence[Sheet], names: str | None, details: bool = False) -> list[Block]:
    """The tables with the chosen columns, of each those that it has; by default all but details, or with them."""
    known = list(dict.fromkeys(heading for sheet in sheets for heading in sheet.cells[0]))
    chosen = [name.strip() for name in names.split(",")] if names is not None else known
    if unknown := [name for name in chosen if name not in known]:
        raise UserError(f"--columns: no column {', '.join(unknown)}; there are: {', '.join(known)}")
    blocks = []
    for sheet in sheets:
        left_out = sheet.details if names is None and not details else ()
        headings = chosen if names is not None else sheet.cells[0]
        places = [sheet.cells[0].index(name) for name in headings if name in sheet.cells[0] and name not in left_out]
        cells = [[row[place] for place in places] for row in sheet.cells]
        blocks.append(Block(cells, sheet.title, sheet.notes(cells[0])))
    return blocks
