"""Runs that can be compared: on the same data, and for speeds on one machine."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.kinds.kind import Kind
from fairseq_diverse.experiments.kinds.lines import Line, Measure, Summaries, Summary, grouped
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.runs.provenance import MACHINE_KEYS, UNKNOWN, machine, starts_of

SPEEDS: dict[str, Callable[[Summary], float | None]] = {
    "words_per_second": lambda run: run["words_per_second"].get("train"),
    "updates_per_second": lambda run: run.get("updates_per_second", {}).get("train"),
    "epoch_minutes": lambda run: run.get("epoch_minutes"),
    "decoding_words_per_second": lambda run: run["words_per_second"].get("generate"),
}
RATIOS = {"speed": "words_per_second", "decoding_speed": "decoding_words_per_second"}  # to the baseline's


class Runs(NamedTuple):
    """Rows of a kind that are shown, ``hidden`` ones of their table that are tested with them, and the runs of all."""

    kind: Kind
    rows: Sequence[Row]
    hidden: Sequence[Row]
    summaries: Summaries


def measures_of(runs: Runs) -> Sequence[Measure]:
    """Of their kind; one that a finished run lacks, as a metric whose program was missing, is not compared. The first
    and the last of those that are compared every run has."""
    measures = runs.kind.measures(runs.rows)
    optional = [measure for measure in measures if measure.compared][1:-1]
    names = dict.fromkeys(name for row in (*runs.rows, *runs.hidden) for name in (row.name, row.baseline))
    every = [run for name in names for run in runs.summaries.get(name, ())] if optional else []
    lacking = [measure for measure in optional if any(measure.figure(run) is None for run in every)]
    return [replace(m, compared=False, examples=None) if m in lacking else m for m in measures]


def comparable(runs: Runs, measures: Sequence[Measure]) -> Runs:
    """The runs without hidden rows that were not run on the data of their baseline. Raises ValueError: not all seeds of
    a shown row and its baseline were run on the same data."""
    for row in runs.rows:
        _refuse_other_data(row, runs.summaries, measures)
    hidden = []
    for row in runs.hidden:
        sides = [*runs.summaries[row.name], *runs.summaries.get(row.baseline, ())]
        if row.baseline in runs.summaries and len({(r.get("data_hash"), _examples(r, measures)) for r in sides}) == 1:
            hidden.append(row)
    return runs._replace(hidden=hidden)


def _refuse_other_data(row: Row, summaries: Summaries, measures: Sequence[Measure]) -> None:
    sides = {name: summaries[name] for name in (row.name, row.baseline)}
    runs = [(name, run) for name, side in sides.items() for run in side]
    if len({_examples(run, measures) for _, run in runs if run.get("data_hash") == runs[0][1].get("data_hash")}) > 1:
        counts = [f"{name} seed {run['seed']} {_examples(run, measures):,}" for name, run in runs]
        raise ValueError(f"runs differ in how many test examples they have: {', '.join(counts)}; run them again")
    by_data = [grouped((run.get("data_hash"), run) for run in side) for side in sides.values()]
    for name, groups in zip(sides, by_data, strict=True):
        if len(groups) > 1:
            raise ValueError(f"row {name}: {_seeds(groups.values())} were run on different data; run them on the same")
    read: dict[str, list[tuple[str, Summary]]] = grouped(
        (what, (digest, run))
        for run in summaries[row.name]  # those of earlier versions have no digests
        for what, digest in ({"trees": run.get("trees")} | run.get("read", {})).items()
        if digest
    )
    for what, digests in read.items():
        if len(groups := grouped(digests)) > 1:
            seeds = _seeds(groups.values())
            raise ValueError(f"row {row.name}: {seeds} were run with different {what}; run them with the same")
    if len({digest for groups in by_data for digest in groups}) > 1:
        named = " and ".join(f"{name} ({_seeds([side])})" for name, side in sides.items())
        raise ValueError(f"rows {named} were run on different data; choose another --baseline")


def _examples(run: Summary, measures: Sequence[Measure]) -> int:
    """How many test examples the run has a figure of each of; 0 where it has none."""
    return next((len(m.examples(run)) for m in measures if m.examples), 0)


def _seeds(groups: Iterable[Sequence[Summary]]) -> str:
    """``seed 1 and seeds 2, 3``."""
    named = (f"seed{'s' * (len(runs) > 1)} {', '.join(str(run['seed']) for run in runs)}" for runs in groups)
    return " and ".join(named)


def no_speed(runs: Sequence[Summary]) -> str:
    """Why speeds of these runs are not compared; empty where all ran on one known machine with the same settings."""
    starts = [start for run in runs for start in starts_of(run)]
    if UNKNOWN in (places := {machine(start) for start in starts}):
        return UNKNOWN
    if len({tuple(start["machine"].get(key) for key in MACHINE_KEYS) for start in starts}) > 1:
        return "different machines"
    return "different settings of one machine" if len(places) > 1 else ""


def speeds(line: Line) -> dict[str, float | None]:
    """Means over the runs whose speed is known, by entry of JSON, and where there is a baseline their ratios to its;
    None of each where the line says why there is no speed."""

    def means(runs: Sequence[Summary]) -> dict[str, float | None]:
        values = {key: [speed for run in runs if (speed := of(run)) is not None] for key, of in SPEEDS.items()}
        return {key: float(np.mean(known)) if known and not line.no_speed else None for key, known in values.items()}

    own, other = means(line.runs), means(line.baseline_runs)
    ratios: dict[str, Any] = {ratio: (own[key], other[key]) for ratio, key in RATIOS.items()} if line.baseline else {}
    return own | {ratio: row / base if row and base else None for ratio, (row, base) in ratios.items()}
