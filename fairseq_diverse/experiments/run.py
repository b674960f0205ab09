"""One run as data: a row with a data set and a seed, and the folder that it works in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.experiments.datasets import DataSet
from fairseq_diverse.experiments.rows import Row


class Tracking(NamedTuple):
    """Where trainings log to besides ``train.log``: a folder for TensorBoard, a project of Weights & Biases."""

    tensorboard: Path | None = None
    wandb: str | None = None


NOT_TRACKED = Tracking()


@dataclass(frozen=True)
class Run:
    """A row, a data set and a seed; what is known of its folder's files, `runs.folder` reads.

    ``directory`` is shared by all tables that hold an equal row. ``first`` is the run of the row that it is pre-trained
    by, which is to be finished before. ``tracking`` says where its training logs to; two runs that differ in nothing
    else are the same run. ``read`` has the digests of what it reads besides its data (`runs.inputs`), ``equal`` the
    pattern of the names of the folders of equal rows.
    """

    row: Row
    seed: int
    data: DataSet
    cpu: bool
    directory: Path
    first: "Run | None" = None
    tracking: Tracking = NOT_TRACKED
    read: dict[str, str] = field(default_factory=dict)
    equal: str = ""

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
