"""Columns of tables over lines, and the cells that they make."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fairseq_diverse.experiments.kinds.kind import Kind
from fairseq_diverse.experiments.kinds.lines import AnyLine, Column, Line, Measure, TaskLine, TaskTable, deciding_last
from fairseq_diverse.metrics.catalogue import PUBLISHED
from fairseq_diverse.metrics.dunnett import LEVEL
from fairseq_diverse.metrics.seeds import Difference, Spread, p_number, stars
from fairseq_diverse.support.paths import data_name

Cells = list[list[str]]  # of a table, the header first


class Elsewhere(NamedTuple):
    """What another table finds."""

    differences: Mapping[str, Difference]  # by row
    about: str  # how its runs differ


Beside = Mapping[str, Elsewhere]  # by table
SPEEDS = {  # entry of JSON, format, key of the published figure
    "words/s": ("words_per_second", ",.0f", ""),
    "updates/s": ("updates_per_second", ".2f", "speed"),
    "minutes an epoch": ("epoch_minutes", ".2f", "epoch-minutes"),
    "speed": ("speed", ".2f", "relative-speed"),
    "decoding words/s": ("decoding_words_per_second", ",.0f", ""),
    "decoding": ("decoding_speed", ".2f", ""),
}
PUBLISHED_SPEEDS = {"speed": "updates/s", "epoch-minutes": "minutes an epoch", "relative-speed": "relative speed"}


def cells_of(columns: Sequence[Column[AnyLine]], lines: Sequence[AnyLine]) -> Cells:
    """A header and a row of text for each line."""
    rows = [[column.cell(line) if line.seeds or column.unfinished else "" for column in columns] for line in lines]
    return [[column.heading for column in columns], *rows]


def without_empty(cells: Cells) -> Cells:
    """The columns that have something below their header."""
    filled = [column for column in zip(*cells, strict=True) if not {*column[1:]} <= {"", "-"}]
    return [list(row) for row in zip(*filled, strict=True)]


def number(value: float | None, form: str = ",") -> str:
    return "" if value is None else format(value, form)


def row_columns(kind: Kind, lines: Sequence[Line], measures: Sequence[Measure]) -> list[Column[Line]]:
    """Of a table of rows: scores, each before its difference, seeds, published figures; as details parameters, tests
    over examples and speeds."""

    def count(line: Line) -> str:
        return number(line.facts["parameters"]) if line.seeds else "" if kind.speeds else "not run"

    def difference(m: Measure, line: Line) -> str:
        return line.differences[m.key].text(m.digits) if line.differences else ""

    def over_examples(m: Measure, line: Line) -> str:
        return p_number(line.over_examples[m.key].p) if m.key in line.over_examples else ""

    parameters = Column("parameters", count, unfinished=True, details=kind.speeds)
    columns = [Column[Line]("row", lambda line: line.name, unfinished=True)]
    columns += [*([] if kind.speeds else [parameters]), *kind.columns]
    details = [parameters] if kind.speeds else []
    single_seed, first = one_seed(lines), next((measure for measure in measures if not measure.details), None)
    for m in sorted(measures, key=lambda m: not m.compared) if kind.speeds else measures:
        score: Callable[[Line], str] = partial(_score, m, single_seed, kind.speeds and m is first)
        columns.append(Column(m.heading or m.name, score, unfinished=m is first, details=m.details))
        if m.compared:
            columns.append(Column(f"Δ {m.name}", partial(difference, m)))
            heading = over_examples_heading(kind, measures, m)
            details.append(Column(heading, partial(over_examples, m), details=True))
    columns += [Column("seeds", lambda line: str(line.seeds))]
    for heading, (key, form, of_paper) in SPEEDS.items():
        details.append(Column(heading, partial(_speed, key, form), details=True))
        if any(of_paper in line.row.published for line in lines):  # no details where no row is finished
            details.append(_published_column(of_paper)._replace(details=any(line.seeds for line in lines)))
    shown = {column.heading for column in (*columns, *details)}
    by_key = {measure.key: measure for measure in measures}
    published = dict.fromkeys(key for line in lines for key in line.row.published)
    further = [_published_column(key, by_key.get(key)) for key in published]
    return columns + [column for column in further if column.heading not in shown] + details


def one_seed(lines: Sequence[Line]) -> bool:
    """Whether no row has several seeds, so that ± is over test examples."""
    return max((line.seeds for line in lines), default=0) <= 1


def over_examples_heading(kind: Kind, measures: Sequence[Measure], measure: Measure) -> str:
    return f"p over {kind.items}" + f": {measure.name}" * (sum(m.compared for m in measures) > 1)


def _score(measure: Measure, single_seed: bool, says_not_run: bool, line: Line) -> str:
    if (score := line.scores.get(measure.key)) is None:
        return "not run" if says_not_run and not line.seeds else ""
    half = line.intervals.get(measure.key) if single_seed else score.deviation
    return Spread(score.mean, half if measure.deviation else None).text(measure.digits)


def _speed(key: str, form: str, line: Line) -> str:
    return "-" if key in line.speeds and line.no_speed else number(line.speeds.get(key), form)


def _published_column(key: str, measure: Measure | None = None) -> Column[Line]:
    def cell(line: Line) -> str:
        figure = line.row.published.get(key, "")
        return f"{figure:.{measure.digits if measure else 2}f}" if isinstance(figure, float) else str(figure)

    name = (PUBLISHED | PUBLISHED_SPEEDS).get(key, measure.name if measure else key)
    return Column(f"published {name}", cell, unfinished=True)


def verdict(line: Line, measures: Sequence[Measure]) -> str:
    """By the last measure that is compared: ``helps`` or ``hurts`` where Dunnett's test over seeds has p < 0.05, else
    ``not resolved``; where nothing can be tested, why."""
    measure = deciding_last(measures)[-1]
    difference = line.differences[measure.key]
    if difference.p is None or difference.p >= LEVEL:
        return difference.untested if difference.p is None else "not resolved"
    return "helps" if (difference.delta < 0) == measure.lower else "hurts"


def verdict_columns(measures: Sequence[Measure], beside: Beside) -> list[Column[Line]]:
    """Of rows that have a baseline: the last measure that is compared decides, the others are shown, and differences of
    rows of the same names in other tables."""
    *others, judge = deciding_last(measures)

    def compared(heading: str, cell: Callable[[Line], str]) -> Column[Line]:
        return Column(heading, lambda line: cell(line) if line.differences else "")

    def with_interval(measure: Measure, found: Difference | None) -> str:
        interval = found.interval_text(measure.digits) if found else ""
        return f"{found.delta:+.{measure.digits}f}" + f" ({interval})" * bool(interval) if found else ""

    def state(line: Line) -> str:
        return verdict(line, measures) if line.differences else "baseline: not run" if line.seeds else "not run"

    def seeds(line: Line) -> str:
        first = len(line.baseline_runs)
        return str(line.seeds) + f" (baseline {first})" * (line.seeds != first)

    def added(line: Line) -> str:
        counts = line.facts["parameters"], line.baseline_runs[0]["parameters"]
        return "" if None in counts else f"{counts[0] - counts[1]:+,}".replace("+0", "0")

    return [
        Column("mechanism", lambda line: line.name, unfinished=True),
        Column("against", lambda line: line.row.baseline, unfinished=True),
        Column("data", lambda line: data_name(line.row.data), unfinished=True),
        compared("seeds", seeds),
        compared(f"Δ {judge.name}", lambda line: f"{line.differences[judge.key].delta:+.{judge.digits}f}"),
        compared("95% interval", lambda line: line.differences[judge.key].interval_text(judge.digits)),
        Column("verdict", state, unfinished=True),
        *(
            Column(
                f"Δ {judge.name}: {table}",
                lambda line, found=found: with_interval(judge, found.differences.get(line.name)),
            )
            for table, found in beside.items()
        ),
        compared("Welch p", lambda line: p_number(line.differences[judge.key].welch_p)),
        *(compared(f"Δ {m.name}", lambda line, m=m: with_interval(m, line.differences[m.key])) for m in others),
        compared("training speed", partial(_speed, "speed", ".2f")),
        compared("added parameters", added),
    ]


def task_cells(table: TaskTable, lines: Sequence[TaskLine]) -> Cells:
    """A header and a row of text for each task: the score of every system beside the published one, and what guessing
    gets; columns that nobody fills are left out. Of more systems than tasks, as of grids, tasks are the columns."""
    systems = dict.fromkeys(line.system for line in lines)
    by_task: dict[str, dict[str, TaskLine]] = {}
    for line in lines:
        by_task.setdefault(line.task, {})[line.system] = line
    rows = [[table.task, table.guessing, *(name + more for name in systems for more in ("", ", published"))]]
    for task, by_system in by_task.items():
        guessing = next((line.guessing for line in by_system.values() if line.guessing is not None), None)
        rows.append([task, number(guessing, ".2f")])
        for cell in map(by_system.get, systems):
            score = cell.score.text() + stars(cell.p) if cell and cell.score else ""
            rows[-1] += ["not run" if not cell.seeds else score, cell.published] if cell else ["", ""]
    if table.parameters:
        rows.append([table.parameters, ""])
        for name in systems:
            shown = [line for line in lines if line.system == name]
            counts = (number(line.facts["parameters"]) for line in shown if line.facts.get("parameters"))
            published = (str(line.row.published.get("parameters", "")) for line in shown)
            rows[-1] += [next(counts, ""), next(published, "")]
    cells = without_empty([row for row in rows if any(row[1:])])
    turned = [list(row) for row in zip(*cells, strict=True)]
    return [["system", *turned[0][1:]], *turned[1:]] if len(systems) > len(cells) else cells
