"""A report as one page of HTML that needs no other file: tables to sort, pictures, translations, flags, runs."""

import base64
import datetime
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.kinds.lines import deciding_last
from fairseq_diverse.experiments.run import Row, Run
from fairseq_diverse.experiments.runs.folder import folders_by_seed
from fairseq_diverse.experiments.runs.saved import runs_of
from fairseq_diverse.reports.formats import Block, Cells
from fairseq_diverse.reports.learning_curves import Training, draw_learning_curves, read_training
from fairseq_diverse.reports.lines import measures_of
from fairseq_diverse.reports.report import Report
from fairseq_diverse.reports.row_pictures import SPEED, curves, draw_curves, draw_rows, draw_verdict
from fairseq_diverse.reports.selection import Selection
from fairseq_diverse.reports.side_by_side import Part, Sentence, SideBySide, compare, side_by_side
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import Figure, as_svg
from fairseq_diverse.support.tables import first_number, one_line, readable


class RowInfo(NamedTuple):
    """A row's flags, those by which it differs from its baseline, and the addresses of its runs by name."""

    name: str
    baseline: str
    changes: Sequence[str]
    flags: Sequence[str]
    runs: Mapping[str, str]


def row_info(row: Row, baseline: Row, runs: Mapping[str, str]) -> RowInfo:
    """What the page says of a row, with the addresses of its folders."""
    before, after = _besides_flags(baseline), _besides_flags(row)
    changes = [f"{key} {value}" if value else f"no {key}" for key, value in after.items() if value != before[key]]
    for section, where in (("train", ""), ("generate", "generate: "), ("average", "checkpoints averaged: ")):
        row_flags, baseline_flags = getattr(row, section), getattr(baseline, section)
        for flag in {**baseline_flags, **row_flags}:
            if (value := row_flags.get(flag, False)) != baseline_flags.get(flag, False):
                changes.append(where + (" ".join(to_arguments({flag: value})) or f"without --{flag}"))
    flags = [" ".join(to_arguments({flag: value})) for flag, value in row.train.items() if value is not False]
    flags += [f"{key} {value}" for key, value in after.items() if value and key != "data"]
    return RowInfo(row.name, baseline.name, changes, flags, runs)


def _besides_flags(row: Row) -> dict[str, str]:
    pretrained = row.first.name if row.first else str(row.pretrained)
    return {"data": row.data, "pretrained": pretrained, "length penalties": ", ".join(row.lenpen)}


class Translations(NamedTuple):
    """Sentences of a test set, each with the parts of its translations by row; without any, the note says why."""

    title: str
    note: str
    sentences: Sequence[tuple[Sentence, Mapping[str, Sequence[Part]]]] = ()


def marked(shown: SideBySide, baselines: Mapping[str, str], title: str) -> Translations:
    """Translations compared with the reference and with that of the row's baseline."""
    sentences = []
    for sentence in shown.sentences:
        parts = {}
        for row, text in sentence.translations.items():
            others = {"reference": sentence.reference}
            if row != baselines[row] in sentence.translations:
                others["baseline"] = sentence.translations[baselines[row]]
            parts[row] = compare(text, others)
        sentences.append((sentence, parts))
    seeds = "seeds: " + ", ".join(f"{row} {seed}" for row, seed in shown.seeds.items())
    seeds = seeds if len(set(shown.seeds.values())) > 1 else f"seed {next(iter(shown.seeds.values()))}"
    evenly = ", evenly spread" * (len(sentences) < shown.total)
    return Translations(title, f"{len(sentences):,} of {shown.total:,} sentences{evenly}; {seeds}.", sentences)


def render(
    blocks: Sequence[Block],
    figures: Mapping[str, Figure],
    rows: Sequence[RowInfo] = (),
    translations: Sequence[Translations] = (),
    version: str = "",
    date: datetime.datetime | None = None,
) -> str:
    """The page. Names and texts may be hostile: they are escaped, and the page's policy forbids every request and every
    script but its own. The first title is the page's; pictures, by their captions, are part of it, as SVG; the first
    column of the tables has links to the ``rows``; without a ``date`` it is written now."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fairseq_diverse.reports")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {"digest": _digest, "plain": one_line, "text": readable, "with_values": with_values}
    style, script = (loader.get_source(environment, f"report.{kind}")[0] for kind in ("css", "js"))
    return environment.get_template("report.html").render(
        title=blocks[0][1],
        blocks=blocks,
        pictures={caption: f"data:image/svg+xml;base64,{_base64(as_svg(f))}" for caption, f in figures.items()},
        rows=rows,
        places={row.name: number for number, row in enumerate(rows)},
        translations=translations,
        date=date or datetime.datetime.now(datetime.UTC).replace(microsecond=0),
        version=version,
        style=style,
        script=script,
    )


def with_values(cells: Cells) -> list[list[tuple[str, float | None]]]:
    """The rows below the header, each cell with the number by which its column is sorted.

    It is the first number of the cell; the first column and those with words in them have none.
    """
    columns = []
    for number, texts in enumerate(zip(*cells[1:], strict=True)):
        values = list(map(first_number, texts))
        words = {text for text, value in zip(texts, values, strict=True) if value is None} - {"", "-", "not run"}
        columns.append(list(zip(texts, ([None] * len(values) if words or not number else values), strict=True)))
    return [list(row) for row in zip(*columns, strict=True)]


def _digest(text: str) -> str:
    """What a page's policy calls a script or a style that it allows."""
    return f"sha256-{_base64(hashlib.sha256(text.encode()).digest())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


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
        if name != tests[0] and not any(name in run.further for run in on_data):
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
    measures = measures_of(selection.of_kind(kind))
    if kind.draws_rows and any(line.seeds for line in lines) and deciding_last(measures):
        figures["Rows: means and seeds"] = draw_rows(lines, measures, kind.items)
        if any(line.facts.get("verdict") for line in lines):
            figures["Verdict: differences and their intervals"] = draw_verdict(lines, measures, "")
        if x and any(x[0] in line.row.train for line in lines):
            shown, runs = [*(m for m in measures if m.compared), SPEED], {line.name: line.runs for line in lines}
            by_name = {line.name: line.row for line in lines}
            figures[f"Against --{x[0]}"] = draw_curves(curves([*by_name.values()], x), runs, x[0], shown, by_name)
    by_row = {row: _trainings(by_seed.values()) for row, by_seed in folders.items() if row not in in_tasks}
    if trainings := {row: row_trainings for row, row_trainings in by_row.items() if row_trainings}:
        figures["Training and validation loss"] = draw_learning_curves(trainings, "loss")
    return figures


def _trainings(folders: Iterable[Path]) -> list[Training]:
    """The curves of runs; none of programs that log no statistics, as those of a kind with ``fairseq = False`` may."""
    trainings = []
    for folder in folders:
        with suppress(UserError):
            trainings.append(read_training(folder))
    return trainings
