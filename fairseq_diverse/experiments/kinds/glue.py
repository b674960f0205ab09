"""GLUE: fine-tuning on one of its tasks, scored on the dev sets."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairseq_diverse.experiments.datasets import DataSet
from fairseq_diverse.experiments.flags import Flags
from fairseq_diverse.experiments.kinds.kind import Kind, Measured, State, Summary, own_command, register_kind
from fairseq_diverse.experiments.records import read_json
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.preparation import glue
from fairseq_diverse.support.paths import runs_dir

FILE = "glue.json"


class DevSet(msgspec.Struct):
    """Metrics are times 100; ``majority`` are those of always predicting the most frequent label."""

    examples: int
    metrics: dict[str, float]
    majority: dict[str, float] = {}


class Tuned(Measured):
    """By dev set."""

    glue: dict[str, DevSet]

    def __post_init__(self) -> None:
        task = next((task for task in glue.TASKS.values() if {*task.named("valid")} == {*self.glue}), None)
        if not task or any({*part.metrics} != {*task.metrics} for part in self.glue.values()):
            raise ValueError("glue")


@register_kind
class Glue(Kind):
    """Rows of fairseq's task ``sentence_prediction``, on prepared tasks of GLUE."""

    name = "glue"
    tasks = ("sentence_prediction",)
    keys = frozenset({"pretrained"})
    evaluation = ("glue",)
    Measured = Tuned

    def examples(self, data: str) -> int | None:
        """Of the prepared data, else as GLUE has them."""
        from fairseq_diverse.preparation.pipeline import FILE, entry, glue_task, read_record

        for folder in (runs_dir() / "data" / data, Path(data)):
            if (folder / FILE).is_file() and glue_task(record := read_record(folder)):
                return int(entry(folder, record, "splits", "train", "kept"))
        task = glue.split_name(Path(data).name)
        return task[0].examples if task else None

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        if not (task := glue.split_name(name)):
            return None
        how = f"--raw DIR --out {folders[0]} (DIR has GLUE's files, {glue.ORIGIN})"
        return DataSet(name, folders[0], "en", "", None, glue=task[0].name, preparation=how)

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        where = f"row {row.name}: data set {row.data}"
        if not data.glue:
            raise ValueError(f"{where}: no task of GLUE (`fairseq-diverse prepare glue-TASK`)")
        if (
            row.first
            and first
            and (data.path / "input0/dict.txt").read_bytes() != (first.path / "dict.txt").read_bytes()
        ):
            raise ValueError(
                f"{where}: has another dictionary than {row.first.data}, on which row {row.first.name} pre-trains; "
                f"prepare and name {glue.PREFIX}{data.glue}@{Path(row.first.data).name}"
            )

    def training(self, run: Run) -> Flags:
        """<s> and </s> are where fairseq's RoBERTa has them."""
        if not run.data.glue:
            return {}
        task = glue.TASKS[run.data.glue]
        classes: Flags = {"num-classes": str(len(task.labels) or 1), "regression-target": task.regression}
        return classes | {"init-token": "0", "separator-token": "2"}

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        files = ["--checkpoint", str(run.checkpoint), "--data", str(run.data.path)]
        out = ["--save", str(run.directory / FILE), "--predictions", str(run.directory / "predictions")]
        return {"glue": own_command("glue", run, *files, *out)}

    def summarize(self, run: Run, state: State) -> Summary:
        """``glue``: by dev set, see `DevSet`; a validation loss does not choose between its models."""
        return {"valid_nll": None, "glue": read_json(run.directory / FILE) or {}}

    def outcome(self, row: Row, summary: Summary) -> str:
        from fairseq_diverse.metrics.glue import HEADINGS

        figures = ((name, *figure) for name, part in summary["glue"].items() for figure in part["metrics"].items())
        return "; ".join(f"{name} {HEADINGS[metric]} {score:.2f}" for name, metric, score in figures)

    def loss(self, summary: Summary) -> float | None:
        return -main_score(summary)


def main_score(summary: Summary) -> float:
    """The figure of a run that counts in GLUE's average: the first metric of the first dev set."""
    return next(iter(next(iter(summary["glue"].values()))["metrics"].values()))
