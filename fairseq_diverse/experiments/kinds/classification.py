"""Classification: logical inference and probing, by the accuracy on the test set."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from fairseq_diverse.data.plain import PLAIN_DATA
from fairseq_diverse.experiments.datasets import DataSet
from fairseq_diverse.experiments.kinds.kind import Kind, Measured, State, Summary, own_command, register_kind
from fairseq_diverse.experiments.records import read_json
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.run import Run

FILE = "accuracy.json"


class Part(msgspec.Struct):
    """``classes``: how many examples each class has; ``hits``: 1 or 0 for each example."""

    classes: list[Annotated[int, msgspec.Meta(ge=0)]]
    hits: Annotated[str, msgspec.Meta(pattern="^[01]+$")]

    def __post_init__(self) -> None:
        if sum(self.classes) != len(self.hits):
            raise ValueError("classes")


class Classified(Measured):
    """By number of operators or by probing task."""

    accuracy: dict[str, Part]


@register_kind
class Classification(Kind):
    """Rows of the tasks of logical inference and of probing."""

    name = "classification"
    tasks = ("logical_inference", "sentence_probing")
    evaluation = ("accuracy",)
    Measured = Classified

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        for folder, plain in itertools.product(folders, PLAIN_DATA.values()):
            there = [file for file in plain.files if (folder / file).is_file()]
            if there and len(there) < len(plain.files):
                missing = ", ".join(file for file in plain.files if file not in there)
                raise ValueError(f"data set {name}: {folder} lacks {missing}, {plain.origin}")
            if there:
                content = b"".join((folder / file).read_bytes() for file in plain.files)
                return DataSet(folder.name, folder, "", "", hashlib.sha256(content).hexdigest())
        if name not in PLAIN_DATA:
            return None
        how = f"(downloads {len(PLAIN_DATA[name].files)} files), or give their folder as --data"
        return DataSet(name, folders[0], "", "", None, preparation=f"--archives DIR --out {folders[0]} {how}")

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        files = [f"model={run.checkpoint}", "--data", str(run.data.path), "--save", str(run.directory / FILE)]
        return {"accuracy": own_command("accuracy", run, *files)}

    def summarize(self, run: Run, state: State) -> Summary:
        """``accuracy``, by number of operators or by probing task: see `Part`."""
        return {"accuracy": (read_json(run.directory / FILE) or {})["model"]}

    def outcome(self, row: Row, summary: Summary) -> str:
        from fairseq_diverse.analysis.accuracy import Accuracy, pooled

        parts = summary["accuracy"].values()
        return f"accuracy {pooled(Accuracy(part['classes'], part['hits']) for part in parts).share:.2f}"
