"""Which runs can be compared: on the same data, and for speeds on one machine."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Measure, Summaries, Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.runs.provenance import MACHINE_KEYS, UNKNOWN, machine, starts_of

Property = TypeVar("Property", bound=Hashable)


def refuse_other_data(rows: Sequence[Row], summaries: Summaries, measures: Sequence[Measure]) -> None:
    """Raise ``ValueError`` where not all seeds of a row and its baseline were run on the same data."""
    for row in rows:
        sides = {name: summaries[name] for name in (row.name, row.baseline)}
        runs = [(name, run) for name, of_row in sides.items() for run in of_row]
        of_first = [run for _, run in runs if run.get("data_hash") == runs[0][1].get("data_hash")]
        if len({_examples(run, measures) for run in of_first}) > 1:
            counts = [f"{name} seed {run['seed']} {_examples(run, measures):,}" for name, run in runs]
            raise ValueError(f"runs differ in how many test examples they have: {', '.join(counts)}; run them again")
        by_data = [_by(of_row, lambda run: run.get("data_hash")) for of_row in sides.values()]
        for name, groups in zip(sides, by_data, strict=True):
            if len(groups) > 1:
                seeds = " and ".join(map(_seeds, groups.values()))
                raise ValueError(f"row {name}: {seeds} were run on different data; run them on the same")
        for what, read in _by_what_they_read(summaries[row.name]).items():
            if len(read) > 1:
                seeds = " and ".join(map(_seeds, read.values()))
                raise ValueError(f"row {row.name}: {seeds} were run with different {what}; run them with the same")
        if len({digest for groups in by_data for digest in groups}) > 1:
            named = [f"{name} ({_seeds(of_row)})" for name, of_row in sides.items()]
            raise ValueError(f"rows {' and '.join(named)} were run on different data; choose another --baseline")


def comparable(rows: Sequence[Row], summaries: Summaries, measures: Sequence[Measure]) -> list[Row]:
    """The rows that were run on the data of their baseline."""
    found = []
    for row in rows:
        runs = [*summaries[row.name], *summaries.get(row.baseline, ())]
        if row.baseline in summaries and len({(run.get("data_hash"), _examples(run, measures)) for run in runs}) == 1:
            found.append(row)
    return found


def _examples(run: Summary, measures: Sequence[Measure]) -> int:
    """How many test examples the run has a figure of each of; 0 where it has none."""
    return next((len(m.examples(run)) for m in measures if m.examples), 0)


def _by(runs: Sequence[Summary], key: Callable[[Summary], Property]) -> dict[Property, list[Summary]]:
    """The runs by a property that they may share."""
    groups: dict[Property, list[Summary]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def _by_what_they_read(runs: Sequence[Summary]) -> dict[str, dict[str, list[Summary]]]:
    """The runs by the digests of trees, code and files, of each; those of earlier versions have none."""
    groups: dict[str, dict[str, list[Summary]]] = {}
    for run in runs:
        trees = {"trees": run["trees"]} if run.get("trees") else {}
        for what, digest in (trees | run.get("read", {})).items():
            groups.setdefault(what, {}).setdefault(digest, []).append(run)
    return groups


def _seeds(runs: Sequence[Summary]) -> str:
    """``seed 1`` or ``seeds 1, 2``."""
    return f"seed{'s' * (len(runs) > 1)} {', '.join(str(run['seed']) for run in runs)}"


def no_speed(runs: Sequence[Summary]) -> str:
    """Why speeds of these runs are not compared; empty where all ran on one known machine with the same settings."""
    starts = [start for run in runs for start in starts_of(run)]
    if UNKNOWN in (places := {machine(start) for start in starts}):
        return UNKNOWN
    if len({tuple(start["machine"].get(key) for key in MACHINE_KEYS) for start in starts}) > 1:
        return "different machines"
    return "different settings of one machine" if len(places) > 1 else ""


def mean_speeds(runs: Sequence[Summary], why_none: str) -> dict[str, float | None]:
    """Means over the runs whose speed is known, by entry of JSON; None of each where ``why_none`` says why."""
    values: dict[str, list[Any]] = {
        "words_per_second": [run["words_per_second"].get("train") for run in runs],
        "updates_per_second": [run.get("updates_per_second", {}).get("train") for run in runs],
        "epoch_minutes": [run.get("epoch_minutes") for run in runs],
        "decoding_words_per_second": [run["words_per_second"].get("generate") for run in runs],
    }
    known = {key: [value for value in of_key if value is not None] for key, of_key in values.items()}
    return {key: float(np.mean(of_key)) if of_key and not why_none else None for key, of_key in known.items()}
