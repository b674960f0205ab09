"""What a row of a table does: its kind, by its task. Each kind is one file (docs/adding-a-kind.md)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairseq_diverse.experiments.flags import Flags, common, machinery, without_folders
from fairseq_diverse.experiments.kinds.lines import Column, Compared, Line, Measure, Summary, TaskLine, TaskTable
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.metrics.seeds import Difference
from fairseq_diverse.support.pictures import Figure

State = Mapping[str, Any]  # of a run: what each finished step measured, by step
KINDS: dict[str, "Kind"] = {}  # by name, in the order of their registration
DEFAULT_TASK = "translation"  # of fairseq-train


class Measured(msgspec.Struct, kw_only=True):
    """What a kind measures: its part of ``summary.json``."""


class Loss(msgspec.Struct):
    """On the validation split."""

    last: float


class Kind:
    """How rows of some tasks are checked, evaluated, summarized and shown.

    Its report has a line for each row, with the means over seeds of its `measures` and their differences to the
    baseline; or with a `task_table` a line for each task, and a column for each system.
    """

    name = ""  # as summaries have it
    within = ""  # the kind whose reports have its rows among their own
    tasks: tuple[str, ...] = ()  # fairseq's (``--task``) of its rows; one that no kind names is one of translation
    # whether fairseq-train trains its rows; else its `steps` have ``train``, too, which leaves ``checkpoint_last.pt``
    # with the number of updates as fairseq does (``optimizer_history``)
    fairseq = True
    keys: frozenset[str] = frozenset()  # of tables that a row of it may have, of those that not every kind knows
    generates = True  # whether it uses the `generate` of its rows
    losses: tuple[str, ...] = ("loss",)  # what the best checkpoints may be chosen by (``average: {by: ...}``)
    evaluation: tuple[str, ...] = ()  # steps whose speed and memory its summaries have besides those of training
    Measured: type[Measured] = Measured  # its part of a summary, which is checked when one is read
    # of its report
    published: tuple[str, ...] = ()  # keys of a paper's figures that its rows may have, besides size and speed
    opening = ""  # the first note below the table
    items = "examples"  # what its test sets have, for notes
    columns: tuple[Column[Line], ...] = ()  # further ones, behind that of parameters
    speeds = False  # whether they are shown
    draws_rows = True  # whether the page has a picture of the rows' scores
    # what else it can show: a chosen `test` set, `verdict`, `by` (groups of sentences), `heads`, `translations`
    views: frozenset[str] = frozenset()
    beside: tuple[str, ...] = ()  # the kinds in whose reports it has a table of its own, called ``title``
    title = ""

    # its rows and data

    def own_flags(self, row: Row) -> dict[str, set[str]]:
        """The flags that a run sets by itself, by section of the table: ``train``, ``generate``."""
        return {"train": {"data", *common("", "", False), *machinery(row, 0, Path())}}

    def examples(self, data: str) -> int | None:
        """The number of training examples of a data set, for ``max-update: 3 epochs``; None where it is not known."""
        return None

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        """A data set of this kind's own format, or one that has no configuration, by its name in a table; None where
        it is neither. It may be in any of the ``folders``; one that is not prepared goes into the first."""
        return None

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        """Raise ``ValueError`` where a row cannot be run on its data; ``first`` are those of the row that it is
        pre-trained by, where both are prepared."""

    # its steps

    def languages(self, data: DataSet) -> tuple[str, str]:
        """``--source-lang`` and ``--target-lang``; empty where its task has none."""
        return "", ""

    def training(self, run: Run) -> Flags:
        """Flags of training that the data decide on; a row may set them otherwise."""
        return {}

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        """The steps after training and averaging, in their order: words of a command of Python's, ``-m MODULE ...``.
        ``state``: what the finished steps measured; a step may depend on those before."""
        return {}

    def shell_lines(self, run: Run, state: State, lines: dict[str, str]) -> dict[str, str]:
        """The steps' lines for a shell, with what a run does between them."""
        return lines

    def needed(self, row: Row) -> dict[str, set[str]]:
        """What `measure` keeps of a step, by step, without which its state is damaged."""
        return {}

    def measure(self, run: Run, step: str) -> dict[str, Any]:
        """What a finished step leaves in the state besides what its log says of speed."""
        return {}

    def stale(self, run: Run, state: State) -> set[str]:
        """Finished steps that are to be repeated, since their input was exchanged."""
        return set()

    # its results

    def settings(self, row: Row) -> dict[str, Any]:
        """What decides a row's results besides data and code, as its summaries have it: two rows with equal settings
        are the same. Files are named without their folders."""
        train = {"task": DEFAULT_TASK, **row.train}
        train.pop("num-workers", None)
        pretrained = {"pretrained": row.first.key("")} if row.first else {}
        return {"train": without_folders(train), "average": row.average, **pretrained}

    def summarize(self, run: Run, state: State) -> Summary:
        """Its part of a finished run's summary. Raises ValueError: what a step wrote is incomplete."""
        return {}

    def complete(self, run: Run, summary: Summary) -> Summary:
        """The summary with all that the run's row wants measured and that it lacks."""
        return summary

    def is_complete(self, run: Run, summary: Summary, tried: bool = False) -> bool:
        """Whether a summary has all that the run's row wants measured. ``tried``: metrics that could not be computed
        where it was trained do not count as lacking."""
        return True

    def outcome(self, row: Row, summary: Summary) -> str:
        """The figures of a finished run in one line."""
        return ""

    def loss(self, summary: Summary) -> float | None:
        """The figure by which the points of a grid are compared, lower is better; None where it has none."""
        valid = summary.get("valid_nll")
        return valid["last"] if valid else None

    # its report

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        """What the report of rows shows, in this order."""
        return ()

    def facts(self, row: Row, runs: Sequence[Summary]) -> dict[str, Any]:
        """What JSON has of a finished row besides the measures."""
        return {}

    def judge(self, row: Row, baseline: Row, difference: Difference) -> Difference:
        """The difference of a row to its baseline; without a test where seeds say nothing."""
        return difference

    def notes(self, lines: Sequence[Any]) -> list[str]:
        """Below the table, behind those on the measures; the lines are of finished rows."""
        return []

    def signatures(self, lines: Sequence[Line], headings: Sequence[str]) -> list[str]:
        """How measures were computed, of the columns that are shown; the lines are of finished rows."""
        return []

    def tables(self, lines: Sequence[Line]) -> list[tuple[str, list[list[str]]]]:
        """Further tables, each with its title; the first row is the header."""
        return []

    def pictures(self, lines: Sequence[Line]) -> dict[str, Figure]:
        """Further pictures of the page, by their captions; the lines may be of rows without a finished run."""
        return {}

    def task_table(self, rows: Sequence[Row]) -> TaskTable | None:
        """Of rows that are systems on tasks; None where a row is a line of the table."""
        return None

    def task_lines(self, compared: Compared) -> list[TaskLine]:
        """The cells of the `task_table`."""
        return []


K = TypeVar("K", bound=type[Kind])


def register_kind(kind: K) -> K:
    """Add a kind; used as a decorator. Raises ValueError: its name or one of its tasks is taken."""
    for registered in KINDS.values():
        if taken := {kind.name} & {registered.name} or {*kind.tasks} & {*registered.tasks}:
            raise ValueError(f"{kind.__name__}: {', '.join(taken)}: kind {registered.name} has this name or task")
    KINDS[kind.name] = kind()
    return kind


def kind_of(row: Row) -> Kind:
    """The kind of a row, by its task."""
    return kind_of_task(row.train.get("task"))


def kind_of_task(task: Any) -> Kind:
    """The kind of rows with a task; None: fairseq's default."""
    task = str(task or DEFAULT_TASK)
    return next((kind for kind in KINDS.values() if task in kind.tasks), KINDS["translation"])


def reporting(row: Row) -> Kind:
    """The kind whose reports have a row."""
    kind = kind_of(row)
    return KINDS.get(kind.within, kind)
