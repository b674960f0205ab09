"""A row of a table with everything resolved, a prepared data set, and a run: both with a seed and a folder."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_diverse.syntax.makers import other_makers

ENCODER = ("from-checkpoint", "checkpoint-data")  # where an encoder lies that is probed
TREES = "translation_with_syntax"  # the task of rows that read trees
NAME_BYTES = 200  # of a row's name, which is part of files' names: with a seed and more, what a file system takes
EARLY = ("max-epoch", "patience", "stop-min-lr", "stop-time-hours")  # by which a row ends training before max-update


@dataclass(frozen=True)
class Row:
    """One row of a table with everything resolved: what is trained, on what, and how it is translated.

    ``train`` and ``generate`` hold flags of fairseq-train and fairseq-generate as on a command line (``True``: a flag
    without a value).
    """

    name: str
    data: str
    size: str
    train: dict[str, str | bool]
    generate: dict[str, str | bool]
    average: dict[str, Any]  # ``last`` or ``best`` (``by`` a metric) N checkpoints, one ``every`` M updates; or empty
    baseline: str  # the row that it is compared with
    published: dict[str, Any]  # a paper's figures
    published_on: str  # the data set on which these were measured
    family: str  # the row of the file that a grid made this one of
    metrics: tuple[str, ...] = ()  # of `fairseq-diverse score`, besides BLEU, chrF and TER
    user_dir: str = ""  # a folder of mechanisms of the user's own
    lenpen: tuple[str, ...] = ()  # of which a run takes the best by BLEU on validation; empty: ``generate`` decides
    tests: tuple[str, ...] = ()  # sets besides the first test set: names of the data's test sets, or valid
    gpus: int = 0  # for how many the batch is, which a run uses at most; 0: not known
    parser: dict[str, str] = field(default_factory=dict)  # by kind of tree, which must have made them; empty: any
    pretrained: "Row | str" = ""  # a row of the same table, whose run of the same seed is done before, or a checkpoint
    heads: bool = False  # how different they are is measured, too
    off: tuple[str, ...] = ()  # flags that are null or false, and that nothing sets otherwise
    split: str = "test"  # valid: evaluated on the validation split alone, so that no test set is read

    @property
    def first(self) -> "Row | None":
        """The row of the same table that it is pre-trained by."""
        return self.pretrained if isinstance(self.pretrained, Row) else None

    @property
    def comparable(self) -> dict[str, Any]:
        """The paper's figures where the row has the data that they were measured on; else none."""
        return self.published if self.data == self.published_on else {}

    @property
    def max_update(self) -> int:
        return int(self.train["max-update"])

    @property
    def named_in_generate(self) -> list[str]:
        """The flags of its table's `generate`, also one with a list of length penalties."""
        return [*self.generate, *["lenpen"] * bool(self.lenpen)]

    @property
    def ends_early(self) -> list[str]:
        """The flags by which training may end before ``max-update``."""
        return [flag for flag in EARLY if flag in self.train]

    def with_scores_of(self, other: "Row") -> "Row":
        """The row, also scored by the metrics and on the test sets of an equal one, and its heads measured as there."""
        both = self.metrics + other.metrics, self.tests + other.tests
        metrics, tests = (tuple(dict.fromkeys(names)) for names in both)
        return replace(self, metrics=metrics, tests=tests, heads=self.heads or other.heads)

    def with_batch_of_paper(self, gpus: int) -> "Row":
        """The row with ``update-freq`` so that an update on ``gpus`` GPUs has as many tokens as on the paper's; of more
        than the paper's it uses as many as the paper's. Raises ValueError: the paper's number is not known, or not a
        multiple of ``gpus``."""
        where, frequency = f"--gpus-of-paper: row {self.name}", str(self.train.get("update-freq", "1"))
        if not self.gpus:
            raise ValueError(f"{where}: neither its table nor size {self.size} says for how many GPUs it is (`gpus`)")
        if not frequency.isdecimal():
            raise ValueError(f"{where}: update-freq: {frequency}: one whole number expected")
        needed, rest = divmod(self.gpus * int(frequency), min(gpus, self.gpus))
        if rest:
            uneven = f"its batch is for {self.gpus} GPUs, which {gpus} cannot share evenly"
            raise ValueError(f"{where}: {uneven}; choose among them with CUDA_VISIBLE_DEVICES")
        row = replace(self, pretrained=self.first.with_batch_of_paper(gpus)) if self.first else self
        return row if needed == int(frequency) else replace(row, train=self.train | {"update-freq": str(needed)})

    def key(self, data_hash: str) -> str:
        """Ten hexadecimal digits that equal runs share: data, flags and averaging, but not the seed.

        It contains the parsers, except those of ``fairseq-diverse parse``, which rows without ``parser`` usually use.
        ``data_hash``: of all that is read, a probed encoder or a checkpoint too, wherever they lie; but the paths of
        flags such as ``finetune-from-model`` and ``encoder-embed-path`` are in the key as written."""
        train = {flag: value for flag, value in self.train.items() if flag not in ENCODER}
        content = {"data": data_hash, "train": train, "generate": self.generate, "average": self.average}
        content |= {"lenpen": self.lenpen} if self.lenpen else {}
        content |= {"parser": makers} if (makers := other_makers(self.parser)) else {}
        content |= {"split": self.split} if self.split != "test" else {}
        content |= {"pretrained": self.first.key("")} if self.first else {}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


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
