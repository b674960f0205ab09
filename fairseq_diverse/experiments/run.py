"""One run as data: a row with a prepared data set and a seed, and the folder that it works in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.experiments.rows import Row


@dataclass(frozen=True)
class DataSet:
    """A prepared data set."""

    name: str
    path: Path
    source: str
    target: str
    hash: str | None  # None while it is not prepared (for ``--dry-run``)
    # by name, the first one first, each with its own hash where it has one
    tests: Mapping[str, str | None] = field(default_factory=lambda: {"test": None})
    glue: str = ""  # the task of GLUE that it is
    preparation: str = ""  # flags with which ``prepare`` makes it, for messages; or in words what to do by hand

    @property
    def subsets(self) -> dict[str, str]:
        """The splits that can be translated, by name; the first test set is also called test."""
        return {"valid": "valid", "test": "test"} | {name: f"test{n or ''}" for n, name in enumerate(self.tests)}


class Tracking(NamedTuple):
    """Where trainings log to besides ``train.log``: a folder for TensorBoard, a project of Weights & Biases."""

    tensorboard: Path | None = None
    wandb: str | None = None


NOT_TRACKED = Tracking()


@dataclass(frozen=True)
class Run:
    """A row, a data set and a seed; what is known of its folder's files, `runs.folder` reads."""

    row: Row
    seed: int
    data: DataSet
    cpu: bool
    directory: Path  # shared by all tables that hold an equal row
    first: "Run | None" = None  # of the row that it is pre-trained by, to be finished before
    tracking: Tracking = NOT_TRACKED  # two runs that differ in nothing else are the same run
    read: dict[str, str] = field(default_factory=dict)  # digests of what it reads besides its data (`inputs`)
    equal: str = ""  # the pattern of the names of the folders of equal rows

    @property
    def name(self) -> str:
        return f"{self.row.name} seed {self.seed}"

    @property
    def key(self) -> str:
        """The key of its row in the name of its folder."""
        return self.directory.parent.name.rpartition("-")[2]

    @property
    def pretrained(self) -> Path | None:
        """The checkpoint that its training starts from."""
        if self.first:
            return self.first.checkpoint
        return Path(str(self.row.pretrained)).absolute() if self.row.pretrained else None

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint that is evaluated and kept."""
        return self.checkpoints / ("checkpoint_average.pt" if self.row.average else "checkpoint_last.pt")

    @property
    def further(self) -> dict[str, str]:
        """The splits that are evaluated besides the first test set, by name: those of the row that the data have."""
        subsets = self.data.subsets
        return {name: subsets[name] for name in self.row.tests if subsets.get(name, "test") != "test"}

    def split_of(self, test: str) -> str:
        """The split that one of ``further`` is, by name; for any other name that of the row."""
        return self.further.get(test, self.row.split)
