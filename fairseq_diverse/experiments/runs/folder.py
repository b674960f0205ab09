"""The files of a run's folder: what is done, and what it measured."""

from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.inputs import refused_trees
from fairseq_diverse.experiments.kinds.kind import State, Summary, kind_of
from fairseq_diverse.experiments.records import AGAIN, read_json, write_json
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.experiments.runs.summary import read_summary

OF_TRAINING = {"peak_memory", "parameters", "valid_nll", "gb_free"}


def read_state(run: Run) -> dict[str, Any]:
    """What finished steps measured, and ``starts``, what training started with. Raises ValueError: it is damaged."""
    path = run.directory / "state.json"
    state = read_json(path) or {}
    needed = {"train": OF_TRAINING, **kind_of(run.row).needed(run.row)}
    for step, measured in state.items():
        of_step = isinstance(measured, dict) and needed.get(step, set()) <= measured.keys()
        if not (isinstance(measured, list) if step == "starts" else of_step):
            raise ValueError(f"{path}: damaged ({step}); {AGAIN}")
    return state


def write_state(run: Run, state: State) -> None:
    write_json(run.directory / "state.json", dict(state))


def valid_state(run: Run) -> dict[str, Any]:
    """The state without steps whose input was exchanged since."""
    state = read_state(run)
    stale = kind_of(run.row).stale(run, state)
    return {step: measured for step, measured in state.items() if step not in stale}


def summary_of(run: Run) -> Summary | None:
    """What is measured of a finished run; None before. Raises ValueError: the file is damaged."""
    path = run.directory / "summary.json"
    return read_summary(path, AGAIN) if path.exists() else None


def is_finished(run: Run) -> bool:
    """Whether the summary is there, with all that the row wants measured."""
    summary = summary_of(run)
    return summary is not None and kind_of(run.row).is_complete(run, summary)


def stage(run: Run) -> str:
    """Done, the step at which it resumes, new, refused, what it lacks, or which of its files is damaged."""
    if why := refused_trees(run.row, run.data):
        return f"refused: {why}"
    try:
        if is_finished(run):
            return "done"
        state = valid_state(run)
    except ValueError as error:
        return str(error)
    lacking = [] if run.data.hash else [f"data {run.data.name} not prepared"]
    if run.pretrained and not run.first and not run.pretrained.is_file():
        lacking.append(f"checkpoint {run.row.pretrained} missing")
    if lacking:
        return ", ".join(lacking)
    left = [step for step in steps_of(run, state) if step not in state]
    begun = state or (run.checkpoints / "checkpoint_last.pt").is_file()
    return f"resumes with {left[0] if left else 'score'}" if begun else "new"


def folders_by_seed(run: Run) -> dict[int, Path]:
    """The folders of the finished runs of every seed, whatever their row was called then."""
    parent = run.directory.parent
    by_seed: dict[int, Path] = {}
    parents = sorted(parent.parent.glob(run.equal or parent.name))
    for folder in (path.parent for parent in parents for path in parent.glob("seed*/summary.json")):
        if (seed := folder.name.removeprefix("seed")).isdecimal():
            by_seed.setdefault(int(seed), folder)
    return dict(sorted(by_seed.items()))
