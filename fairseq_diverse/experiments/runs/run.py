"""One run: a row with a data set and a seed, trained, averaged, translated and scored in its own directory."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_diverse.experiments.datasets import DataSet, find_data
from fairseq_diverse.experiments.runs.flags import Flags, averaging, common, defaults, machinery, of_glue, translation
from fairseq_diverse.experiments.runs.inputs import kept_digests, read_by, trees_read_by
from fairseq_diverse.experiments.runs.records import AGAIN, read_json, read_summary
from fairseq_diverse.experiments.tables.load import NAME_BYTES, to_arguments
from fairseq_diverse.experiments.tables.rows import TREES, Row
from fairseq_diverse.preparation import glue
from fairseq_diverse.support.paths import runs_dir
from fairseq_diverse.syntax.makers import other_trees, recorded_makers


class Tracking(NamedTuple):
    """Where trainings log to besides ``train.log``: a folder for TensorBoard, a project of Weights & Biases."""

    tensorboard: Path | None = None
    wandb: str | None = None


NOT_TRACKED = Tracking()
UNPREPARED = "unprepared"  # in place of a key, which needs the data


@dataclass(frozen=True)
class Run:
    """A row, a data set and a seed. ``directory`` is shared by all tables that hold an equal row. ``first`` is the run
    of the row that it is pre-trained by, which is to be finished before. ``tracking`` says where its training logs to;
    two runs that differ in nothing else are the same run. ``read`` has the digests of what it reads besides its data
    (`inputs`)."""

    row: Row
    seed: int
    data: DataSet
    cpu: bool
    directory: Path
    first: "Run | None" = None
    tracking: Tracking = NOT_TRACKED
    read: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.row.name} seed {self.seed}"

    @property
    def kind(self) -> str:
        return self.row.kind

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
    def state(self) -> dict[str, Any]:
        """Measurements of the finished steps, by step, and what training was started with.

        Raises:
            ValueError: the file is damaged.
        """
        path = self.directory / "state.json"
        state = read_json(path) or {}
        whole = {"train": {"peak_memory", "parameters", "valid_nll", "gb_free"}}
        whole |= {step: {"bleu"} for step in self._tried.values()}
        for step, measured in state.items():
            kind = list if step == "starts" else dict
            if not isinstance(measured, kind) or (step in whole and not whole[step] <= set(measured)):
                raise ValueError(f"{path}: damaged ({step}); {AGAIN}")
        return state

    @property
    def summary(self) -> dict[str, Any] | None:
        """What is measured of a finished run; None before.

        Raises:
            ValueError: the file is damaged.
        """
        path = self.directory / "summary.json"
        return read_summary(path, AGAIN) if path.exists() else None

    @property
    def further(self) -> dict[str, str]:
        """The splits that are translated besides the first test set, by name: those of the row that the data have."""
        subsets = self.data.subsets
        return {name: subsets[name] for name in self.row.tests if subsets.get(name, "test") != "test"}

    def split_of(self, test: str) -> str:
        """The split that one of ``further`` is, by name; for any other name that of the row."""
        return self.further.get(test, self.row.split)

    @property
    def done(self) -> dict[str, Any]:
        """``state`` without the steps of a test set that was exchanged since."""
        state = self.state
        steps = {f"{step}-{name}": name for name in self.further for step in ("generate", "reference")}
        stale = {s for s, name in steps.items() if not self.is_of(name, state.get(s, {}))}
        return {step: measured for step, measured in state.items() if step not in stale}

    def digests(self, test: str) -> dict[str, str]:
        """Of the text and the trees of one of ``further``, where they are known and read."""
        trees = trees_read_by(self.row, self.data, [self.further[test]])
        return {key: of for key, of in {"data_hash": self.data.tests.get(test), "trees": trees}.items() if of}

    def is_of(self, test: str, measured: dict[str, Any]) -> bool:
        """Whether something was measured on one of ``further`` as it is now; of trees earlier versions kept nothing."""
        now = self.digests(test)
        trees = measured.get("trees", now.get("trees"))
        return (measured.get("data_hash"), trees) == (now.get("data_hash"), now.get("trees"))

    @property
    def finished(self) -> bool:
        """Whether the summary is there, with every test set and metric, and the figures of heads, if the row asks."""
        return (summary := self.summary) is not None and self.is_complete(summary)

    def is_complete(self, summary: Mapping[str, Any], tried: bool = False) -> bool:
        """Whether a summary has every test set and metric, and the figures of heads, if the row asks.

        Args:
            tried: metrics that could not be computed where it was trained do not count as lacking.
        """
        tests = summary.get("tests", {})
        parts = [summary, *(tests[name] for name in self.further if name in tests and self.is_of(name, tests[name]))]
        had = [{*part.get("metrics", {}), *(part.get("missing", {}) if tried else ())} for part in parts]
        complete = all(set(self.row.metrics) <= names for names in had)
        return complete and len(parts) == 1 + len(self.further) and ("heads" in summary or not self.row.heads)

    @property
    def _tried(self) -> dict[str, str]:
        """The step of each length penalty that is tried on the validation split."""
        return {value: f"lenpen-{value}" for value in self.row.lenpen} if self.kind == "translation" else {}

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The length penalty with the highest BLEU on the validation split, of equal ones the first, and each one's
        BLEU; None before all were tried, or where the row gives one.
        """
        state = self.state
        if not self._tried or not set(self._tried.values()) <= set(state):
            return None
        bleu = {value: state[step]["bleu"] for value, step in self._tried.items()}
        return {"lenpen": float(max(bleu, key=bleu.__getitem__)), "valid_bleu": bleu}

    @property
    def parsers(self) -> dict[str, str]:
        """By kind, the parser that made the trees of the test set that it reads."""
        reads = self.row.train.get("task") == TREES
        paths = sorted(self.data.path.glob(f"test.*.{self.data.source}.syntax.json"))
        return next(map(recorded_makers, paths), {}) if reads else {}

    @property
    def trees(self) -> str:
        """The digest of the trees that it reads; empty where it reads none."""
        return trees_read_by(self.row, self.data)

    @property
    def refused(self) -> str:
        """Why its data's trees are not by the parsers that its row names; empty where they are, or it names none."""
        return other_trees(self.data.path, self.data.source, self.row.parser) if self.row.parser else ""

    @property
    def stage(self) -> str:
        """Done, the step at which it resumes, new, refused, what it lacks, or which of its files is damaged."""
        if self.refused:
            return f"refused: {self.refused}"
        try:
            if self.finished:
                return "done"
            state = self.done
        except ValueError as error:
            return str(error)
        lacking = [] if self.data.hash else [f"data {self.data.name} not prepared"]
        if self.pretrained and not self.first and not self.pretrained.is_file():
            lacking.append(f"checkpoint {self.row.pretrained} missing")
        if lacking:
            return ", ".join(lacking)
        open_steps = [step for step in self.commands() if step not in state]
        begun = state or (self.checkpoints / "checkpoint_last.pt").is_file()
        return f"resumes with {open_steps[0] if open_steps else 'score'}" if begun else "new"

    def commands(self) -> dict[str, list[str]]:
        """The command line of every step, in their order."""
        row = self.row
        languages = (self.data.source, self.data.target) if self.kind == "translation" else ("", "")
        shared = common(*languages, self.cpu, row.user_dir)
        flags = shared | machinery(row, self.seed, self.checkpoints) | defaults(self.cpu)
        flags |= of_glue(glue.TASKS[self.data.glue]) if self.kind == "glue" and self.data.glue else {}
        flags |= row.train | ({"finetune-from-model": str(self.pretrained)} if self.pretrained else {})
        if self.tracking.tensorboard:
            folder = self.tracking.tensorboard / self.directory.parent.name / self.directory.name
            flags["tensorboard-logdir"] = str(folder)
        if self.tracking.wandb:
            flags["wandb-project"] = self.tracking.wandb
        train = ["-m", "fairseq_cli.train", str(self.data.path), *to_arguments(flags)]
        batch = {} if {"batch-size", "max-tokens"} & set(row.generate) else {"batch-size": "64"}

        def generate(settings: Flags, subset: str = "test", references: bool = False) -> list[str]:
            own = translation(row, self.checkpoint, references, subset)
            return ["-m", "fairseq_cli.generate", str(self.data.path), *to_arguments(shared | own | batch | settings)]

        steps = {"train": train}
        if row.average:
            which = ["--checkpoints", str(self.checkpoints), *to_arguments(averaging(row)), "--strict"]
            steps["average"] = ["-m", "fairseq_diverse.cli", "average", *which, "--out", str(self.checkpoint)]
        own = ["--user-dir", row.user_dir] if row.user_dir else []
        if self.kind == "classification":
            scored = [f"model={self.checkpoint}", "--data", str(self.data.path)]
            saved = ["--save", str(self.directory / "accuracy.json")]
            steps["accuracy"] = ["-m", "fairseq_diverse.cli", "accuracy", *scored, *saved, *own]
        elif self.kind == "glue":
            scored = ["--checkpoint", str(self.checkpoint), "--data", str(self.data.path)]
            saved = ["--save", str(self.directory / "glue.json"), "--predictions", str(self.directory / "predictions")]
            steps["glue"] = ["-m", "fairseq_diverse.cli", "glue", *scored, *saved, *own]
        elif self.kind == "translation":
            for value, step in self._tried.items():
                steps[step] = generate(row.generate | {"lenpen": value}, "valid")
            chosen = self.chosen
            settings = row.generate | ({"lenpen": str(chosen["lenpen"])} if chosen else {})
            model = {flag: value for flag, value in row.generate.items() if flag == "model-overrides"}
            further = {split: f"-{name}" for name, split in self.further.items()}
            for subset, suffix in {row.split: "", **further}.items():
                steps[f"generate{suffix}"] = generate(settings, subset)
                steps[f"reference{suffix}"] = generate(model, subset, references=True)
            if row.heads:
                looked_at = ["--checkpoint", str(self.checkpoint), "--data", str(self.data.path)]
                saved = ["--save", str(self.directory / "heads.json")]
                steps["heads"] = ["-m", "fairseq_diverse.cli", "heads", *looked_at, *saved, *own]
        return {step: [sys.executable, *command] for step, command in steps.items()}

    def variables(self, step: str) -> dict[str, str]:
        """The variables of one step: a training's name in Weights & Biases, and its id, under which it resumes."""
        if step != "train" or not self.tracking.wandb:
            return {}
        key = self.directory.parent.name.rpartition("-")[2]
        return {"WANDB_NAME": self.name, "WANDB_RUN_ID": f"{key}-seed{self.seed}", "WANDB_RESUME": "allow"}

    def of_seeds(self) -> dict[int, Path]:
        """The folders of the finished runs of every seed, by seed, whatever their row was called then."""
        parent = self.directory.parent
        key = parent.name.rpartition("-")[2]
        found: dict[int, Path] = {}
        folders = [parent] if key == UNPREPARED else sorted(parent.parent.glob(f"*-{key}"))
        for folder in (path.parent for parent in folders for path in parent.glob("seed*/summary.json")):
            if (seed := folder.name.removeprefix("seed")).isdecimal():
                found.setdefault(int(seed), folder)
        return dict(sorted(found.items()))

    def shell_lines(self, environment: dict[str, str]) -> list[str]:
        """The command lines for a shell; where a length penalty is to be chosen, the user sets it as ``LENPEN``."""
        return "\n".join(self.lines_by_step(environment).values()).split("\n")

    def lines_by_step(self, environment: dict[str, str]) -> dict[str, str]:
        """The same by step; a line that no step runs is before that of the step that it is for."""
        lines = {}
        for step, line in self.commands().items():
            variables = (f"{name}={shlex.quote(value)}" for name, value in (environment | self.variables(step)).items())
            lines[step] = f"{' '.join(variables)} {shlex.join(line)}"
        if self._tried:
            logs = [str(self.directory / f"{step}.log") for step in self._tried.values()]
            for step, log in zip(self._tried.values(), logs, strict=True):
                lines[step] += f" > {shlex.quote(log)}"
            data = ["--ref", str(self.data.path / f"text/valid.{self.data.target}"), "--data", str(self.data.path)]
            score = [sys.executable, "-m", "fairseq_diverse.cli", "score", "--hyp", *logs, *data, "--metrics", "bleu"]
            lines["generate"] = f"{shlex.join(score)}\n{lines['generate']}"
            for step in () if self.chosen else lines:
                if step.startswith("generate"):
                    lines[step] += ' --lenpen "${LENPEN:?set it to the length penalty with the highest BLEU above}"'
        return lines


def find_runs(
    rows: Sequence[Row], seeds: Sequence[int], dry: bool = False, root: Path | None = None, cpu: bool | None = None
) -> list[Run]:
    """The runs of rows and seeds, row by row; an equal earlier run's directory is used, whatever its row was called.

    Args:
        dry: accept data sets that are known but not prepared.
        root: the folder of runs (default: ``runs_dir()``).
        cpu: run without a GPU; by default where torch, which takes a second to import, finds none.
    """
    root = root or runs_dir()
    every = [*rows, *(row.first for row in rows if row.first)]
    found = {name: find_data(name, dry, root) for name in dict.fromkeys(row.data for row in every)}
    for row in every:
        _refuse_unknown_tests(row, found[row.data])
        _refuse_other_kind(row, found, dry)
    if cpu is None:
        import torch

        cpu = not torch.cuda.is_available()
    read = read_by(every)

    def runs_of(row: Row) -> list[Run]:
        data, first = found[row.data], row.first
        by_flag = read[row.name]
        if first:
            files = [digest for name, digest in read[first.name].items() if name != "user-dir"]  # the row's, too
            by_flag = by_flag | {"pretrained": "".join([found[first.data].hash or "", *files])}
        trees = trees_read_by(row, data)
        called = re.sub(r"[^\w.+=,-]", "_", f"{data.name}-{row.size}-{row.name}")
        called = called.encode()[:NAME_BYTES].decode(errors="ignore")

        def key_of(digests: Mapping[str, str]) -> str:
            return row.key("".join([str(data.hash), trees, *digests.values()])) if data.hash else UNPREPARED

        kept = map(key_of, kept_digests(by_flag, root, called))  # of files that are gone since
        key = [key_of(by_flag), *(one for one in kept if any(root.glob(f"{called}-{one}")))][-1]
        existing = sorted(root.glob(f"*-{key}")) if data.hash else []
        new = root / f"{called}-{key}"
        parent = parents.setdefault(key if data.hash else new.name, existing[0] if existing else new)
        for path in (data.path, parent, row.pretrained if isinstance(row.pretrained, str) else ""):
            if os.pathsep in str(path) or "${" in str(path):
                raise ValueError(f"{path}: fairseq cannot read a path with {os.pathsep} or ${{; choose another folder")
        firsts = runs_of(first) if first else [None] * len(seeds)
        folders = [next((path for path in existing if (path / f"seed{s}").is_dir()), parent) for s in seeds]
        of_seeds = zip(seeds, folders, firsts, strict=True)
        return [Run(row, s, data, cpu, folder / f"seed{s}", first, read=by_flag) for s, folder, first in of_seeds]

    parents: dict[str, Path] = {}  # of equal rows one
    runs: list[Run] = []
    for row in rows:
        runs += runs_of(row)
        if runs[-1].refused and not dry:
            raise ValueError(f"row {row.name}: {runs[-1].refused}")
    return runs


def _refuse_other_kind(row: Row, found: Mapping[str, DataSet], dry: bool) -> None:
    """Raise ``ValueError`` where a row's task does not read its data, or what it is pre-trained by is missing."""
    data, where = found[row.data], f"row {row.name}: data set {row.data}"
    if row.kind == "glue" and not data.glue:
        raise ValueError(f"{where}: no task of GLUE (`fairseq-diverse prepare glue-TASK`)")
    if row.kind == "pretraining" and (data.glue or (data.source and data.target)):
        raise ValueError(f"{where}: not text of one language (`fairseq-diverse prepare NAME --monolingual`)")
    if row.kind == "translation" and data.source and not data.target:
        raise ValueError(f"{where}: of one language; its row has no --task masked_lm or sentence_prediction")
    if dry or not row.pretrained:
        return
    if row.first is None:
        if not Path(str(row.pretrained)).is_file():
            raise ValueError(
                f"row {row.name}: pretrained: {row.pretrained}: neither a row of this table nor a checkpoint; give one "
                "with --set pretrained=FILE"
            )
    elif (data.path / "input0/dict.txt").read_bytes() != (found[row.first.data].path / "dict.txt").read_bytes():
        raise ValueError(
            f"{where}: has another dictionary than {row.first.data}, on which row {row.first.name} pre-trains; "
            f"prepare and name {glue.PREFIX}{data.glue}@{Path(row.first.data).name}"
        )


def _refuse_unknown_tests(row: Row, data: DataSet) -> None:
    """Raise ``ValueError`` where the data that a table names lack a test set; other data, given for them, may."""
    if row.tests and row.kind != "translation":
        raise ValueError(f"row {row.name}: tests: it classifies, and its data have one test set")
    if row.data == row.published_on and (unknown := [name for name in row.tests if name not in data.subsets]):
        raise ValueError(
            f"row {row.name}: tests: data set {data.name} has no {', '.join(unknown)}; known: "
            f"{', '.join(data.subsets)}; if its configuration has more, prepare it again with --overwrite: runs stay"
        )
