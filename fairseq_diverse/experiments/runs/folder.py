"""The files of a run's folder: what is done, what it measured, and its summary, which reports read."""

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fairseq_diverse.experiments.inputs import parsers_of_trees, refused_trees, trees_read_by
from fairseq_diverse.experiments.kinds.kind import KINDS, Loss, State, Summary, kind_of
from fairseq_diverse.experiments.records import write_json
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs import schema1
from fairseq_diverse.experiments.runs.plan import readable_lines, steps_of
from fairseq_diverse.experiments.runs.provenance import Start
from fairseq_diverse.support.files import RUN_AGAIN, read_json
from fairseq_diverse.support.typed import shown, typed

OF_TRAINING = {"peak_memory", "parameters", "valid_nll", "gb_free"}


def read_state(run: Run) -> dict[str, Any]:
    """Measurements of the finished steps, by step, and what training was started with (``starts``). Raises ValueError:
    the file is damaged."""
    path = run.directory / "state.json"
    state = read_json(path) or {}
    needed = {"train": OF_TRAINING, **kind_of(run.row).needed(run.row)}
    for step, measured in state.items():
        complete = isinstance(measured, dict) and needed.get(step, set()) <= measured.keys()
        if not (isinstance(measured, list) if step == "starts" else complete):
            raise ValueError(f"{path}: damaged ({step}); {RUN_AGAIN}")
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
    return read_summary(path, RUN_AGAIN) if path.exists() else None


def is_finished(run: Run) -> bool:
    """Whether the summary is there, with all that the row wants measured."""
    summary = summary_of(run)
    return summary is not None and kind_of(run.row).is_complete(run, summary)


def stage(run: Run) -> str:
    """Done, the step at which it resumes, new, refused, what it lacks, or which of its files is damaged."""
    if run.data.hash and (why := refused_trees(run.row, run.data)):
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
    remaining = [step for step in steps_of(run, state) if step not in state]
    begun = state or (run.checkpoints / "checkpoint_last.pt").is_file()
    return f"resumes with {remaining[0] if remaining else 'score'}" if begun else "new"


def folders_by_seed(run: Run) -> dict[int, Path]:
    """The folders of the finished runs of every seed, whatever their row was called then."""
    parent = run.directory.parent
    by_seed: dict[int, Path] = {}
    parents = sorted(parent.parent.glob(run.equal or parent.name))
    for folder in (path.parent for parent in parents for path in parent.glob("seed*/summary.json")):
        if (seed := folder.name.removeprefix("seed")).isdecimal():
            by_seed.setdefault(int(seed), folder)
    return dict(sorted(by_seed.items()))


SCHEMA = 2


class Settings(msgspec.Struct):
    """`Kind.settings`."""

    train: dict[str, str | bool]
    average: dict[str, int | str]
    generate: dict[str, str | bool] = {}
    lenpen: list[str] = []
    split: str = "test"
    pretrained: str = ""


class Common(Start, kw_only=True):
    """What a summary has of every kind."""

    kind: str
    system: str
    data: str
    data_hash: str | None
    seed: int
    row: Settings
    parameters: int | None
    words_per_second: dict[str, float | None]
    commands: Annotated[list[str], msgspec.Meta(min_length=1)]
    updates: int = 0
    valid_nll: Loss | None = None
    updates_per_second: dict[str, float | None] = msgspec.field(default_factory=dict)
    epoch_minutes: float | None = None
    starts: list[Start] = msgspec.field(default_factory=list)
    test: str = ""
    read: dict[str, str] = msgspec.field(default_factory=dict)


def read_summary(path: Path, hint: str) -> Summary:
    """A finished run's summary, or a copy of it, with all that reports need; one of schema 1 is converted. Raises
    ValueError: it is damaged or something else; names the file, and ``hint`` says what to do."""
    summary = read_json(path, hint, not_finite=str) or {}
    try:
        if "schema" not in summary:
            summary = schema1.converted(summary)
        if summary["schema"] != SCHEMA:
            raise ValueError(f"schema {shown(summary['schema'])}, and this version reads up to {SCHEMA}")
        typed(summary, Common, "")
        if summary["kind"] not in KINDS:
            raise ValueError(f"kind {shown(summary['kind'])}; known: {', '.join(KINDS)}")
        typed(summary, KINDS[summary["kind"]].Measured, "")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{path}: not a summary of a run ({error}); {hint}") from None
    return summary


def summarize(run: Run, state: State) -> Summary:
    """Gather what the steps of a finished run measured; what its kind measures, `Kind.summarize` says.

    ``row`` are the settings that decide its results (`Kind.settings`). ``read`` has the digests of what it reads
    besides its data, ``trees`` that of trees. Commit, versions and machine are those of the last start of a step; where
    starts differ, ``starts`` has each. Speeds are in (target) subwords and in updates per second, memory in bytes.
    Raises ValueError: what a step measured is incomplete."""
    kind, train = kind_of(run.row), state["train"]
    peaks = {step: state[step]["peak_memory"] for step in ("train", *kind.evaluation)}
    import torch

    if train["gb_free"] is not None and torch.cuda.is_available():  # it may be summarized on another machine
        peaks["gpu"] = torch.cuda.get_device_properties(0).total_memory - int(train["gb_free"] * 2**30)
    parsers, trees = parsers_of_trees(run.row, run.data), trees_read_by(run.row, run.data)
    summary = {
        "schema": SCHEMA,
        "kind": kind.name,
        "system": run.row.name,
        "data": run.data.name,
        "data_hash": run.data.hash,
        "size": run.row.size,
        "seed": run.seed,
        "row": kind.settings(run.row),
        "parameters": train["parameters"],
        "updates": train.get("updates", run.row.max_update),
        "valid_nll": train["valid_nll"],
        "words_per_second": {step: state[step].get("words_per_second") for step in ("train", *kind.evaluation)},
        "updates_per_second": {"train": train.get("updates_per_second")},
        "epoch_minutes": train.get("epoch_minutes"),
        "peak_memory": peaks,
        **starts(state),
        **({"parsers": parsers} if parsers else {}),
        **({"trees": trees} if trees else {}),
        **({"read": run.read} if run.read else {}),
        "commands": [*readable_lines(run, state).values()],
        **kind.summarize(run, state),
    }
    # before it is written, since it is read again
    typed(json.loads(json.dumps(summary)), kind.Measured, f"kind {kind.name}: summarize and its type Measured differ")
    return summary


def starts(state: State) -> dict[str, Any]:
    """What the last start of a step had (`provenance.collect`), and ``starts``, all that differ, if several do."""
    different: list[dict[str, Any]] = []
    for start in state.get("starts", []):
        different += [] if start in different else [start]
    return {**state.get("starts", [{}])[-1], **({"starts": different} if len(different) > 1 else {})}


def complete(run: Run) -> Summary:
    """The summary of a run whose steps are done, with all that its row wants measured, and the commands for that; one
    that another table finished has what all tables share, and may lack the rest."""
    state = read_state(run)
    summary = summary_of(run) or summarize(run, state)
    lines = [line for step, line in readable_lines(run, state).items() if step not in ("train", "average")]
    more = [line for line in lines if line not in summary["commands"]]
    return kind_of(run.row).complete(run, summary) | {"commands": [*summary["commands"], *more]}
