"""Copies of summaries outside the folder of runs, by which a table is trained over several machines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.inputs import differing, trees_read_by
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.records import AGAIN
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.folder import summary_of
from fairseq_diverse.experiments.runs.provenance import collect, commits_of, machine, starts_of
from fairseq_diverse.experiments.runs.saved import copy_path, from_results, save
from fairseq_diverse.experiments.runs.summary import read_summary


class Copies:
    """A folder of summaries: runs whose copies are there are finished, others are copied when they are. Raises
    ValueError: a copy is of a row with other settings or files, or any copy there is of other data of the same name, or
    of other trees, than the runs read."""

    def __init__(self, folder: Path, runs: Sequence[Run]) -> None:
        self.folder = folder
        self.names: dict[Path, set[str]] = {}  # of equal rows
        for run in runs:
            if (path := copy_path(folder, run.row.name, run.seed)).is_symlink():
                raise ValueError(f"{path}: a link; delete it, or give another --save")
        paths = sorted(folder.glob("*.json"))
        copies = from_results(folder, [run.row for run in runs]) if paths else {}
        self.summaries = [read_summary(path, AGAIN) for path in paths]  # of every row: all are to be compared
        by_seed = {(name, copy["seed"]): copy for name, of_row in copies.items() for copy in of_row}
        self.finished: set[Path] = set()  # directories of runs whose copies have all that their rows ask for
        self.lacking: set[Path] = set()  # of those that lack a test set, a metric or the figures of heads
        for run in {run.data.path: run for run in runs if run.data.hash}.values():
            self._refuse_other(run, "data_hash", run.data.hash, "data")
        trees = {run.data.path: (run, digest) for run in runs if (digest := trees_read_by(run.row, run.data))}
        for run, digest in trees.values():
            self._refuse_other(run, "trees", digest, "trees")
        for run in runs:
            self.names.setdefault(run.directory, set()).add(run.row.name)
            if copy := by_seed.get((run.row.name, run.seed)):
                if other := differing(run.read, copy.get("read", {})):
                    wrong = f"the copy of {run.name} is of another {other} than there is here"
                    raise ValueError(f"{folder}: {wrong}; bring it from where it was trained, or give another --save")
                again = run.checkpoint.is_file()  # it is scored
                complete = kind_of(run.row).is_complete(run, copy, tried=not again)
                (self.finished if complete else self.lacking).add(run.directory)
        needed = {run.first.directory for run in runs if run.first and run.directory not in self.finished}
        self.finished -= needed  # checkpoints are not copied: what others are to start from is trained again

    def _refuse_other(self, run: Run, key: str, own: str | None, what: str) -> None:
        for copy in self.summaries:
            if copy["data"] == run.data.name and copy.get(key, own) != own:
                of = f"the copy of {copy['system']} seed {copy['seed']} is of other {what} than {run.data.path}"
                todo = f"bring the {what} from where it was trained, or give another --save"
                raise ValueError(f"{self.folder}: {of}; {todo}")

    def open_runs(self, runs: Sequence[Run], say: Callable[[str], None]) -> list[Run]:
        """The runs that have no complete copy; says which have, and which are trained again for what theirs lack."""
        for run in runs:
            if run.directory in self.finished:
                say(f"{run.name}: done before, {self.folder}")
            elif run.directory in self.lacking and not run.checkpoint.is_file():
                why = "its copy lacks a test set, a metric or the figures of heads, and its checkpoint is not here"
                say(f"{run.name}: {why}: trained again")
        return [run for run in runs if run.directory not in self.finished]

    def differences(self, environment: dict[str, str]) -> list[str]:
        """In what the copies are not of the commit, versions and machine that runs with this environment have."""
        if not self.summaries:
            return []
        aspects: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "another commit": lambda start: commits_of([dict(start)])[0],
            "other versions": lambda start: ", ".join(f"{name} {v}" for name, v in start.get("versions", {}).items()),
            "another machine": machine,
        }
        here = collect(environment)
        there = [start for summary in self.summaries for start in starts_of(summary)]
        lines = []
        for name, aspect in aspects.items():
            if others := dict.fromkeys(aspect(start) for start in there if aspect(start) != aspect(here)):
                lines.append(f"{self.folder} has runs of {name}: {'; '.join(others)}; here: {aspect(here)}")
        return lines

    def add(self, run: Run) -> None:
        """Copy the summary of a finished run, for each row that it is the run of."""
        if summary := summary_of(run):
            save(self.folder, {name: [summary] for name in self.names[run.directory]})
