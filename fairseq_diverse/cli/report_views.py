"""What a report shows: the tables of each kind of run, with their notes, and what JSON has of them."""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_diverse.support.errors import UserError

if TYPE_CHECKING:
    from fairseq_diverse.experiments.kinds.kind import Summary
    from fairseq_diverse.experiments.rows import Row
    from fairseq_diverse.experiments.tables.load import Table
    from fairseq_diverse.reports.comparison import Others
    from fairseq_diverse.reports.formats import Block

    View = tuple[list[Block], dict[str, Any]]  # tables, and what JSON has of them


@dataclasses.dataclass(frozen=True)
class Asked:
    """The rows to show, and the summaries of their runs; `others` are not shown, but tested with them; `not_run` are
    left out by ``--finished``."""

    args: argparse.Namespace
    table: "Table"
    rows: "Sequence[Row]"
    summaries: "dict[str, list[Summary]]"
    others: "Others"
    not_run: Sequence[str] = ()


def folder_of_runs(args: argparse.Namespace) -> Path | None:
    """What ``--runs`` names; None = the default."""
    if args.runs and not Path(args.runs).is_dir():
        raise UserError(f"--runs {args.runs}: no such folder")
    return Path(args.runs).resolve() if args.runs else None


def classification_view(asked: Asked) -> "View":
    """The tables of a report of classifiers, and what JSON has of it."""
    from fairseq_diverse.reports import accuracy_report, report

    lines = accuracy_report.compare_accuracy(asked.rows, asked.summaries, asked.others)
    probes = all("probe" in line for line in lines)
    cells = (accuracy_report.probe_cells if probes else accuracy_report.accuracy_cells)(lines)
    notes = accuracy_report.accuracy_notes(lines) + report.published_note(asked.rows)
    (cells,) = _columns([cells], asked.args.columns)
    blocks: list[Block] = [(cells, asked.table.title, [*filter(None, [asked.table.note]), *notes])]
    if more := accuracy_report.length_cells(lines):
        blocks.append((more, "Accuracy by number of operators", []))
    return blocks, {"rows": lines, "notes": notes}


def glue_view(asked: Asked) -> "View":
    """The tables of a report of GLUE, that of pre-training last, and what JSON has of it."""
    from fairseq_diverse.experiments.kinds.kind import kind_of
    from fairseq_diverse.reports import glue_report, report

    summaries, table = asked.summaries, asked.table
    own = [kind_of(table.rows[row.baseline]) is kind_of(row) for row in asked.rows]
    rows = [r if same else dataclasses.replace(r, baseline=r.name) for r, same in zip(asked.rows, own, strict=True)]
    tuned, pretrained = ([row for row in rows if kind_of(row).name == kind] for kind in ("glue", "pretraining"))
    of_tuned, of_text = (
        {name: summaries[name] for row in of_kind for name in (row.name, row.baseline)}
        for of_kind in (tuned, pretrained)
    )
    lines = glue_report.compare_glue(tuned, of_tuned, asked.others)
    before = glue_report.compare_pretraining(pretrained, of_text, asked.others)
    notes = glue_report.glue_notes(lines) + report.published_note(tuned)
    content: dict[str, Any] = {"rows": lines, "notes": notes}
    found: list[tuple[list[list[str]], str, list[str]]] = []
    if lines:
        found.append((glue_report.glue_cells(lines), table.title, [*filter(None, [table.note]), *notes]))
    if before:
        content["pretraining"] = before
        found.append((glue_report.pretraining_cells(before), "Pre-training", glue_report.pretraining_notes(before)))
    shown = _columns([cells for cells, _, _ in found], asked.args.columns)
    return [(cells, title, text) for cells, (_, title, text) in zip(shown, found, strict=True)], content


def translation_view(asked: Asked) -> "View":
    """A table for each test set, what all their notes have in common below the last one, and what JSON has of it."""
    from fairseq_diverse.reports import report
    from fairseq_diverse.reports.verdict import verdict, verdict_cells, verdict_notes

    args, table = asked.args, asked.table
    names, chosen = tests_of(asked)
    views = [report.of_test(asked.rows, asked.summaries, name) for name in chosen]
    further = [report.of_test(*asked.others, name) for name in chosen]
    lines = [report.compare(*view, others) for view, others in zip(views, further, strict=True)]
    if args.verdict:
        for line in itertools.chain(*lines):
            line["verdict"] = verdict(line) if "nll_delta" in line else None
    cells = [
        verdict_cells(view[0], found) if args.verdict else report.to_cells(found)
        for view, found in zip(views, lines, strict=True)
    ]
    cells = _columns(cells, args.columns)
    notes = [
        verdict_notes(found, shown[0]) if args.verdict else report.notes(view[0], found, shown[0])
        for view, found, shown in zip(views, lines, cells, strict=True)
    ]
    common = [note for note in notes[0] if all(note in others for others in notes)]
    own = [[note for note in found if note not in common] for found in notes]
    own[-1] += [*filter(None, [table.note]), *common]
    titles = [f"{table.title}: {name}" if len(names) > 1 else table.title for name in chosen]
    content: dict[str, Any] = {"test": chosen[0], "rows": lines[0], "notes": notes[0]}
    if len(chosen) > 1:
        content["tests"] = {
            name: {"rows": found, "notes": text} for name, found, text in zip(chosen, lines, notes, strict=True)
        }
    return list(zip(cells, titles, own, strict=True)), content


def tests_of(asked: Asked) -> tuple[list[str], list[str]]:
    """All test sets, and those that are shown."""
    from fairseq_diverse.reports.report import test_names

    names, test = test_names(asked.rows, asked.summaries), asked.args.test
    if test and test not in names:
        raise UserError(f"--test {test}: no run was scored on it; there are: {', '.join(names)}")
    return names, [test] if test else names


def groups_view(asked: Asked) -> "View":
    """A table for each property of --by and test set, and what JSON has of them."""
    from fairseq_diverse.experiments import sentences
    from fairseq_diverse.reports import groups, report

    args, rows, summaries = asked.args, asked.rows, asked.summaries
    properties = [sentences.known_property(name.strip()) for name in args.by.split(",")]
    records = sentences.find_records(rows, summaries, args.results, folder_of_runs(args))
    names, chosen = tests_of(asked)
    content: dict[str, Any] = {}
    found: list[tuple[list[list[str]], str, list[str]]] = []
    for test in chosen:
        view, of_others = report.of_test(rows, summaries, test), report.of_test(*asked.others, test)
        if not any(view[1].values()):
            continue
        for name in properties:
            lines = groups.compare_groups(*view, records, name, test, of_others)
            notes = groups.group_notes(lines, name, records)
            content.setdefault(test, {})[name] = {"rows": lines, "notes": notes}
            title = f"{asked.table.title}: by {name}" + f", {test}" * (len(names) > 1)
            found.append((groups.group_cells(lines), title, notes))
    shown = _columns([cells for cells, _, _ in found], args.columns if found and args.format != "html" else None)
    return [(cells, title, notes) for cells, (_, title, notes) in zip(shown, found, strict=True)], {"groups": content}


def heads_view(asked: Asked) -> "View":
    """The table of --heads and what JSON has of it."""
    from fairseq_diverse.reports.head_report import compare_heads, head_cells, head_notes

    lines = compare_heads(asked.rows, asked.summaries)
    notes = head_notes(lines)
    (cells,) = _columns([head_cells(lines)], asked.args.columns if asked.args.format != "html" else None)
    return [(cells, f"{asked.table.title}: heads", notes)], {"rows": lines, "notes": notes}


def _columns(tables: list[list[list[str]]], names: str | None) -> list[list[list[str]]]:
    """The chosen columns of every table that has them."""
    if names is None:
        return tables
    chosen = [name.strip() for name in names.split(",")]
    known = list(dict.fromkeys(name for cells in tables for name in cells[0]))
    if unknown := [name for name in chosen if name not in known]:
        raise UserError(f"--columns: no column {', '.join(unknown)}; there are: {', '.join(known)}")
    return [[[row[cells[0].index(name)] for name in chosen if name in cells[0]] for row in cells] for cells in tables]
