"""What the report of a kind is made of: measures of runs, lines of a table, columns over lines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from fairseq_diverse.experiments.run import Row
from fairseq_diverse.metrics.seeds import Difference, Spread

SMALLEST = "with these seeds, a true difference of this size is found (p < 0.05) in 80% of cases"

Summary = dict[str, Any]  # of a run
Summaries = Mapping[str, Sequence[Summary]]  # by row


@dataclass(frozen=True)
class Measure:
    """A figure of a run, of which a report has the mean over seeds."""

    key: str  # its entry in JSON
    name: str  # in headings and notes
    figure: Callable[[Summary], Any]  # of a run; None where the run lacks it
    digits: int = 2  # behind the point
    heading: str = ""  # of its column, if not the name
    long: str = ""  # name on an axis, if another
    scale: str = ""  # its unit, for notes and axes, as in "nats a test sentence"
    unit: str = ""  # of a difference, if not the name
    lower: bool = False  # is better
    deviation: bool = True  # the column has the standard deviation over seeds, too
    compared: bool = True  # with the baseline's; the first one that is compared is the main one
    decides: bool = False  # in `--verdict`, in place of the last one that is compared
    details: bool = False  # shown only where all columns are
    examples: Callable[[Summary], Sequence[float]] | None = None  # its values on test examples, for a paired t-test
    # on resampled test sets, for a paired bootstrap, and for an interval of one seed
    resampled: Callable[[Summary], np.ndarray] | None = None

    def label(self, name: str, comma: str = ", ") -> str:
        """A name of it with its scale, for an axis."""
        return f"{name}{comma}{self.scale} ({self.better})" if self.scale else name

    @property
    def better(self) -> str:
        return f"{'lower' if self.lower else 'higher'} is better"


def deciding_last(measures: Sequence[Measure]) -> list[Measure]:
    """Those that are compared, the one that decides in ``--verdict`` last."""
    return sorted((measure for measure in measures if measure.compared), key=lambda measure: measure.decides)


class OverExamples(NamedTuple):
    """A difference over test examples, each system averaged over its seeds: p, and the standard error of a t-test."""

    p: float
    error: float | None = None


@dataclass(kw_only=True)
class Line:
    """What a table says of a row, of which there are so many finished ``runs`` as ``seeds``."""

    row: Row
    seeds: int
    runs: Sequence[Summary] = ()
    scores: dict[str, Spread] = field(default_factory=dict)  # means over seeds, by key of a measure
    intervals: dict[str, float] = field(default_factory=dict)  # half the 95% intervals over test examples, by key
    baseline: str = ""  # the row that it is compared with; empty where nothing is compared
    baseline_runs: Sequence[Summary] = ()
    differences: dict[str, Difference] = field(default_factory=dict)  # to the baseline, by key, the main one first
    over_examples: dict[str, OverExamples] = field(default_factory=dict)  # the same over examples
    speeds: dict[str, float | None] = field(default_factory=dict)  # by entry of JSON; None where a log has none
    no_speed: str = ""  # why all are None
    facts: dict[str, Any] = field(default_factory=dict)  # further entries of JSON

    @property
    def name(self) -> str:
        return self.row.name


AnyLine = TypeVar("AnyLine", bound=Line)


class Column(NamedTuple, Generic[AnyLine]):
    """A heading and the cells below it; rows without a finished run have some only where ``unfinished`` is true. One
    of ``details`` is shown only where all are."""

    heading: str
    cell: Callable[[AnyLine], str]
    unfinished: bool = False
    details: bool = False


@dataclass(kw_only=True)
class TaskLine(Line):
    """A system's score on one of several tasks: a cell of a table with tasks as lines and systems as columns."""

    system: str
    task: str  # what the table's line is called
    score: Spread | None = None  # None where it was not measured
    p: float | None = None  # what its stars are of
    guessing: float | None = None  # the score of always answering the most frequent label
    published: str = ""  # the figure of a paper


class TaskTable(NamedTuple):
    """Headings of the columns of tasks and of guessing, and the name of a last line with the numbers of parameters."""

    task: str
    guessing: str
    parameters: str = ""


class Compared(NamedTuple):
    """Lines of rows, the ``hidden`` rows of their table that are tested with them, the runs of all, and the differences
    of all by measure and row."""

    lines: Sequence[Line]
    hidden: Sequence[Row]
    summaries: Summaries
    differences: Mapping[str, Mapping[str, Difference]]


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """The second values by the first ones."""
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
