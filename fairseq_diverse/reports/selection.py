"""Which rows of a table a report shows, which it compares them with, and their runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fairseq_diverse.experiments.kinds.kind import KINDS, Kind, kind_of, reporting
from fairseq_diverse.experiments.kinds.lines import Summaries, Summary, grouped
from fairseq_diverse.experiments.run import Row
from fairseq_diverse.experiments.runs import saved
from fairseq_diverse.experiments.tables.load import Table, select_rows
from fairseq_diverse.reports.lines import Runs
from fairseq_diverse.reports.sentences import find_records, save_records
from fairseq_diverse.support.errors import UserError

Text = str | None
Seeds = Collection[int] | None


@dataclass(frozen=True)
class Source:
    """Where summaries come from: a folder of copies, or else a folder of runs (None: the default)."""

    results: Path | None = None
    runs: Path | None = None

    def summaries(self, rows: Sequence[Row], named: bool = True) -> dict[str, list[Summary]]:
        """Of the rows; those that the user has not ``named`` raise no error."""
        if self.results:
            return saved.from_results(self.results, rows, named)
        return saved.from_runs(rows, self.runs, named)


@dataclass(frozen=True)
class Selection:
    """Rows to show, baselines first."""

    table: Table
    rows: Sequence[Row]
    hidden: Sequence[Row]  # of the table, tested with them
    summaries: Summaries  # of all
    source: Source
    not_run: Sequence[str] = ()  # rows that ``--finished`` leaves out
    beside: Mapping[str, "Selection"] = field(default_factory=dict)  # other tables, whose verdicts are shown, too

    @property
    def kinds(self) -> list[Kind]:
        """Of the rows: that which the report is of, then those that are shown beside it."""
        kinds = list(dict.fromkeys(map(reporting, self.rows)))
        beside = [kind for kind in kinds if kind.beside]
        main, *others = [kind for kind in kinds if not kind.beside] or [KINDS[beside[0].beside[0]]]
        if others or any(main.name not in kind.beside for kind in beside):
            raise ValueError(f"{self.table.name}: rows that translate and rows that classify; choose some with --rows")
        return [main, *beside]

    def of_kind(self, kind: Kind) -> Runs:
        """Its rows and runs; a row whose baseline is of another kind is compared with nothing."""

        def compared(row: Row) -> Row:
            other_kind = reporting(self.table.rows[row.baseline]) is not kind
            return replace(row, baseline=row.name) if other_kind else row

        rows, hidden = ([compared(row) for row in side if reporting(row) is kind] for side in (self.rows, self.hidden))
        return Runs(kind, rows, hidden, self.summaries)

    def save(self, folder: Path) -> str:
        """Copy the summaries of the rows, and what is known of their test sentences; or say why that is not known."""
        summaries = {row.name: list(self.summaries[row.name]) for row in self.rows}
        saved.refuse_replacing(folder, self.rows, summaries)
        if not saved.save(folder, summaries):
            raise ValueError(f"--save {folder}: no row of {self.table.name} has a finished run")
        if "by" in self.kinds[0].views:
            try:
                save_records(folder, find_records(self.rows, summaries, self.source.results, self.source.runs))
            except ValueError as error:
                return str(error)
        return ""


def choose(
    table: Table, source: Source, rows: Text, without: Text, baseline: Text, best: bool, finished: bool, seeds: Seeds
) -> Selection:
    """The rows of a table that are shown, each with the row that it is compared with, and their runs; arguments as the
    flags of ``report``."""
    table, left_out = _without(table, without)
    shown = [row.name for row in select_rows(table, rows)]
    if table.changed:  # figures that are not those of the file's settings say so in the title
        table = replace(table, title=f"{table.title} [{' '.join(table.changed)}]")
    all_rows = _with_baseline(table, baseline)
    if row := next((row for row in all_rows if row.baseline in left_out), None):
        raise UserError(f"--without {row.baseline}: row {row.name} is compared with it; give another --baseline")
    by_name = {row.name: row for row in all_rows}
    chosen = _with_their_baselines(table, [by_name[name] for name in shown], bool(baseline))
    names = {row.name for row in chosen}
    hidden = [row for row in all_rows if row.name not in names]
    summaries = source.summaries(chosen)
    summaries |= source.summaries(hidden, named=False) if hidden else {}
    if seeds is not None:
        summaries = {row: [run for run in runs if run["seed"] in seeds] for row, runs in summaries.items()}
    if best:
        families = {(row.family, row.data) for row in chosen}
        hidden = [row for row in hidden if (row.family, row.data) not in families]
        points = best_of_grids([*chosen, *hidden], summaries)
        chosen = [row for row in points if (row.family, row.data) in families]
        hidden = [row for row in points if (row.family, row.data) not in families]
    not_run = [row.name for row in chosen if not summaries[row.name]] if finished else []
    if not (chosen := [row for row in chosen if row.name not in not_run]):
        raise UserError(f"--finished: no row of {table.name} has a finished run")
    return Selection(table, chosen, hidden, summaries, source, not_run)


def _without(table: Table, names: str | None) -> tuple[Table, set[str]]:
    left_out = {row.name for row in select_rows(table, names, "--without")} if names else set()
    if not left_out:
        return table, left_out
    if not (rows := {name: row for name, row in table.rows.items() if name not in left_out}):
        raise UserError(f"--without {names}: leaves no row of {table.name}")
    return replace(table, rows=rows, changed=(*table.changed, f"--without {names}")), left_out


def _with_baseline(table: Table, baseline: str | None) -> list[Row]:
    """The rows of the table, compared with another row, or with that of a grid's points that fits to them."""
    rows = list(table.rows.values())
    if baseline is None:
        return rows
    if baseline in table.rows:
        return [replace(row, baseline=baseline) for row in rows]
    if points := [row for row in rows if row.family == baseline]:
        return [replace(row, baseline=_point(row, points)) for row in rows]
    raise ValueError(f"--baseline {baseline}: no such row; rows: {', '.join(table.rows)}")


def _point(row: Row, points: Sequence[Row]) -> str:
    """The point of the baseline's grid that a row is compared with: that of equal values, or the only one of its data;
    where no point has its data, the row's own baseline."""
    names = {point.name.removeprefix(point.family): point.name for point in points if point.data == row.data}
    equal = names.get(row.name.removeprefix(row.family))
    if len(names) > 1 and equal is None:
        raise UserError(f"--baseline {points[0].family}: which is for row {row.name}? {', '.join(names.values())}")
    return equal or next(iter(names.values()), row.baseline)


def _with_their_baselines(table: Table, rows: Sequence[Row], replaced: bool) -> list[Row]:
    """The rows, behind those that they are compared with; these are compared with their own baselines only if they are
    shown, too, and are the table's, not ``replaced``."""
    shown, baselines = {row.name for row in rows}, dict.fromkeys(row.baseline for row in rows)
    further = [table.rows[name] for name in baselines if name not in shown]
    names = {} if replaced else shown | baselines.keys()
    return [*(row if row.baseline in names else replace(row, baseline=row.name) for row in further), *rows]


def best_of_grids(rows: Sequence[Row], summaries: Summaries) -> list[Row]:
    """Of the rows that a grid made of one row, for each data set that with the lowest loss (`Kind.loss`), the mean over
    its seeds; of a grid without a finished run, the first. Baselines are the best of theirs.
    """

    def loss(row: Row) -> float:
        losses = [value for run in summaries[row.name] if (value := kind_of(row).loss(run)) is not None]
        return float(np.mean(losses)) if losses else np.inf

    families = grouped(((row.family, row.data), row) for row in rows)
    for row in (row for points in families.values() if len(points) > 1 for row in points):
        if summaries[row.name] and not np.isfinite(loss(row)):
            raise ValueError(f"--best: row {row.name} has no validation NLL to choose by; choose with --rows")
    best = {family: min(points, key=loss) for family, points in families.items()}
    names = {row.name: best[row.family, row.data].name for row in rows}
    return [replace(row, baseline=names.get(row.baseline, row.baseline)) for row in best.values()]
