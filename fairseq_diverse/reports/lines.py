"""From runs that can be compared to lines: means over seeds, differences to the baseline, what JSON and CSV have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.kinds.kind import Kind
from fairseq_diverse.experiments.kinds.lines import Compared, Line, Measure, OverExamples, Summaries, Summary, grouped
from fairseq_diverse.experiments.run import Row
from fairseq_diverse.experiments.runs.provenance import MACHINE_KEYS, UNKNOWN, commits_of, machine, starts_of
from fairseq_diverse.experiments.runs.saved import figures_by_test
from fairseq_diverse.metrics.seeds import Spread, compared, over_seeds, with_holm
from fairseq_diverse.metrics.significance import interval, p_value, paired_difference
from fairseq_diverse.reports.notes import differing_seeds, ended_early, machines, versions

RUN_SPEEDS: dict[str, Callable[[Summary], float | None]] = {
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
    """Of their kind; one that a finished run lacks, as a metric whose program was missing, is not compared."""
    names = dict.fromkeys(name for row in (*runs.rows, *runs.hidden) for name in (row.name, row.baseline))
    all_runs = [run for name in names for run in runs.summaries.get(name, ())]

    def usable(measure: Measure) -> Measure:
        lacking = measure.compared and any(measure.figure(run) is None for run in all_runs)
        return replace(measure, compared=False, examples=None, resampled=None) if lacking else measure

    return list(map(usable, runs.kind.measures(runs.rows)))


def comparable(runs: Runs, measures: Sequence[Measure]) -> Runs:
    """The runs without hidden rows that were not run on the data of their baseline, or whose baseline is left out so.
    Raises ValueError: not all seeds of a shown row and its baseline were run on the same data."""
    for row in runs.rows:
        _refuse_other_data(row, runs.summaries, measures)
    hidden = []
    for row in runs.hidden:
        sides = [*runs.summaries[row.name], *runs.summaries.get(row.baseline, ())]
        if row.baseline in runs.summaries and len({(r.get("data_hash"), _examples(r, measures)) for r in sides}) == 1:
            hidden.append(row)
    while outside := {row.baseline for row in hidden} - {row.name for row in (*runs.rows, *hidden)}:
        hidden = [row for row in hidden if row.baseline not in outside]
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
    inputs: dict[str, list[tuple[str, Summary]]] = grouped(
        (what, (digest, run))
        for run in summaries[row.name]  # those of earlier versions have no digests
        for what, digest in ({"trees": run.get("trees")} | run.get("read", {})).items()
        if digest
    )
    for what, digests in inputs.items():
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
        values = {key: [speed for run in runs if (speed := get(run)) is not None] for key, get in RUN_SPEEDS.items()}
        return {key: float(np.mean(known)) if known and not line.no_speed else None for key, known in values.items()}

    row_means, baseline_means = means(line.runs), means(line.baseline_runs)
    pairs = {ratio: (row_means[key], baseline_means[key]) for ratio, key in RATIOS.items() if line.baseline}
    return row_means | {ratio: row / base if row and base else None for ratio, (row, base) in pairs.items()}


Resampled = Mapping[tuple[str, str, int], np.ndarray]  # scores on resampled test sets by measure, row and seed


def names_of_tests(runs: Runs) -> list[str]:
    """The test sets on which runs were scored for the rows or that have published figures, the first ones first."""
    scored = [(row, run) for row in runs.rows for run in runs.summaries.get(row.name, ())]
    names = [run.get("test", "test") for _, run in scored] or ["test"]
    names += [name for row, run in scored for name in run.get("tests", {}) if name in row.tests]
    return list(dict.fromkeys(names + [name for row in runs.rows for name in _by_test(row) if name != "test"]))


def of_test(runs: Runs, name: str) -> Runs:
    """The runs with the figures of one test set, measured and published.

    Published figures that name no test are the first one's, which "test" is a name of, too. Rows that have nothing to
    do with the test set are left out.
    """
    by_row = {row: [(run, figures_by_test(run)) for run in row_runs] for row, row_runs in runs.summaries.items()}
    summaries = {row: [run | parts[name] for run, parts in pairs if name in parts] for row, pairs in by_row.items()}
    first, rows = names_of_tests(runs)[0], []
    for row in runs.rows:
        row_runs, by_test = runs.summaries[row.name], _by_test(row)
        figures = dict(by_test.get(name, {}))
        if name == (row_runs[0].get("test", "test") if row_runs else first):
            plain = {key: value for key, value in row.published.items() if key not in by_test}
            figures = plain | by_test.get("test", {}) | figures
        if summaries[row.name] or figures or not row_runs:
            rows.append(replace(row, published=figures))
    return runs._replace(rows=rows, summaries=summaries)


def _by_test(row: Row) -> dict[str, Any]:
    """Published figures by the test set that they name."""
    return {key: value for key, value in row.published.items() if isinstance(value, dict)}


def compare(runs: Runs) -> Compared:
    """A line for each row that is shown, by the measures of its kind, with its facts and speeds; as `comparable`."""
    kind, measures = runs.kind, measures_of(runs)
    compared_rows = compare_by(measures, comparable(runs, measures))
    for line in (line for line in compared_rows.lines if line.runs):
        line.facts = {"parameters": line.runs[0]["parameters"], **kind.facts(line.row, line.runs)}
        line.facts["ended_early"] = ended_early(line.row, line.runs)
        if kind.speeds:
            line.no_speed = no_speed([*line.runs, *line.baseline_runs])
            line.speeds = speeds(line)
    return compared_rows


def compare_by(measures: Sequence[Measure], runs: Runs) -> Compared:
    """The same by any measures, of runs that can be compared.

    Differences to the baseline are tested over seeds together with those of the hidden rows (`over_seeds`), those of
    tasks with Holm's correction; over test examples by a paired t-test of a measure's ``examples`` or a paired
    bootstrap of its ``resampled`` scores, each system averaged over its seeds first.
    """
    tested, differences = {row.name: row for row in (*runs.rows, *runs.hidden)}, {}
    sides = dict.fromkeys(name for row in tested.values() for name in (row.name, row.baseline))
    for m in (m for m in measures if m.compared):
        by_seed = {name: {run["seed"]: m.figure(run) for run in runs.summaries[name]} for name in sides}
        deltas = over_seeds(by_seed, {name: row.baseline for name, row in tested.items()})
        judged = {name: runs.kind.judge(tested[name], tested[tested[name].baseline], d) for name, d in deltas.items()}
        differences[m.key] = with_holm(judged) if runs.kind.task_table(runs.rows) else judged
    names = dict.fromkeys(name for row in runs.rows for name in (row.name, row.baseline))
    named_runs = [(name, run) for name in names for run in runs.summaries[name]]
    resampled = {(m.key, n, run["seed"]): m.resampled(run) for m in measures if m.resampled for n, run in named_runs}
    lines: list[Line] = []
    for row in runs.rows:
        row_runs, first = runs.summaries[row.name], runs.summaries[row.baseline]
        lines.append(line := Line(row=row, seeds=len(row_runs), runs=row_runs))
        if not row_runs:
            continue
        for m in measures:
            scores = [score for run in row_runs if (score := m.figure(run)) is not None]
            if len(scores) == len(row_runs):
                line.scores[m.key] = Spread.over(scores)
            if m.resampled:
                low, high = interval(np.mean([resampled[m.key, row.name, run["seed"]] for run in row_runs], axis=0))
                line.intervals[m.key] = (high - low) / 2
        if row.name != row.baseline and first:
            line.baseline, line.baseline_runs = row.baseline, first
            line.differences = {key: by_row[row.name] for key, by_row in differences.items()}
            line.over_examples = _over_examples(line, measures, resampled)
    return Compared(lines, runs.hidden, runs.summaries, differences)


def _over_examples(line: Line, measures: Sequence[Measure], resampled: Resampled) -> dict[str, OverExamples]:
    sides = {line.baseline: line.baseline_runs, line.name: line.runs}
    seeds = dict(zip(sides, compared(*([run["seed"] for run in side] for side in sides.values())), strict=True))
    shared = {name: [run for run in side if run["seed"] in seeds[name]] for name, side in sides.items()}
    tests = {}
    for m in (m for m in measures if m.compared):
        if m.examples:
            before, after = (np.mean([m.examples(run) for run in side], axis=0) for side in shared.values())
            _, error, p = paired_difference(before, after)
            tests[m.key] = OverExamples(p, error)
        elif m.resampled:
            by_side = {name: [resampled[m.key, name, run["seed"]] for run in side] for name, side in shared.items()}
            before, after = (np.mean(scores, axis=0) for scores in by_side.values())
            tests[m.key] = OverExamples(p_value(before, after, line.differences[m.key].delta))
    return tests


def entries(line: Line) -> dict[str, Any]:
    """A line as JSON has it: ``row``, ``seeds``, ``published``; of finished rows scores (KEY, KEY_deviation), machines,
    versions, commits; where there is a baseline, its name, how the seeds differ, and the differences: of the main
    measure ``delta``, those of `Difference.entries`, and ``p`` and ``error`` over examples, of another KEY_delta and so
    on.
    """
    values: dict[str, Any] = {"row": line.name, "seeds": line.seeds, "published": line.row.published, **line.facts}
    for key, score in line.scores.items():
        values |= score.entries(key)
    values |= {f"{key}_interval": half for key, half in line.intervals.items()}
    values |= line.speeds | ({"no_speed": line.no_speed} if line.speeds else {})
    if line.runs:
        values |= {"machines": machines(line.runs), "versions": versions(line.runs), "commits": commits_of(line.runs)}
    if line.baseline:
        values |= {"baseline": line.baseline, **differing_seeds(line)}
    for number, (key, difference) in enumerate(line.differences.items()):
        prefix = f"{key}_" if number else ""
        values |= difference.entries(prefix)
        if over := line.over_examples.get(key):
            values |= {f"{prefix}{name}": value for name, value in over._asdict().items() if value is not None}
    return values
