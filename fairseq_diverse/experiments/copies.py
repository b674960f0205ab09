"""Copies of summaries outside the folder of runs, by which a table is trained over several machines."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fairseq_diverse.experiments.runs import Run
from fairseq_diverse.experiments.saved import from_results, save
from fairseq_diverse.experiments.sentences import find_records, record_path, save_records


class Copies:
    """A folder of summaries: runs whose copies are there are finished, others are copied when they are.

    Raises:
        ValueError: a copy is of a row with other settings, or of other data.
    """

    def __init__(self, folder: Path, runs: Sequence[Run]) -> None:
        self.folder = folder
        self.names: dict[Path, set[str]] = {}  # of equal rows
        found = from_results(folder, [run.row for run in runs]) if any(folder.glob("*.json")) else {}
        seeds = {(name, copy["seed"]): copy for name, of_row in found.items() for copy in of_row}
        self.finished: set[Path] = set()
        for run in runs:
            self.names.setdefault(run.directory, set()).add(run.row.name)
            if not (copy := seeds.get((run.row.name, run.seed))):
                continue
            if run.data.hash and copy["data_hash"] != run.data.hash:
                raise ValueError(f"{folder}: the copy of {run.name} is of other data than {run.data.path}")
            if run.is_complete(copy):
                self.finished.add(run.directory)
        needed = {run.first.directory for run in runs if run.first and run.directory not in self.finished}
        self.finished -= needed  # checkpoints are not copied: what others are to start from is trained again

    def add(self, run: Run) -> None:
        """Copy the summary of a finished run, for each row that it is the run of, and what is known of its test
        sentences."""
        if run.summary:
            for name in self.names[run.directory]:
                save(self.folder, {name: [run.summary]})
            if run.kind == "translation" and not record_path(self.folder, run.row.data).exists():
                with suppress(ValueError):  # what is missing, `report --by` says
                    save_records(self.folder, find_records([run.row], {run.row.name: [run.summary]}))
