"""What every comparison of rows needs: differences over seeds, marks, notes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any

import numpy as np

from fairseq_diverse.experiments.kinds.kind import Summary, kind_of
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.where_run import commits_note, machines_note, versions_note

Others = tuple[Sequence[Row], Mapping[str, list[Summary]]]  # rows of a table that are not shown, and their runs
NO_OTHERS: Others = ((), {})
SMALLEST = "with these seeds, a true difference of this size is found (p < 0.05) in 80% of cases"
UNEVEN = 3.0  # times the deviation of all others: the plan of the comparison shows the table without such a row, too
ALONE = "comparable only if all runs had the machine to themselves"


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds; None for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def spread(mean: float, deviation: float | None, digits: int = 2) -> str:
    """A cell: a mean and its deviation, where there is one."""
    return f"{mean:z.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def refuse_other_data(rows: Sequence[Row], summaries: Mapping[str, Sequence[Summary]]) -> None:
    """Raise ``ValueError`` where not all seeds of a row and its baseline were run on the same data."""
    for row in rows:
        sides = {name: summaries[name] for name in (row.name, row.baseline)}
        runs = [(name, summary) for name, of_row in sides.items() for summary in of_row]
        of_first = [summary for _, summary in runs if summary.get("data_hash") == runs[0][1].get("data_hash")]
        if len(set(map(_examples, of_first))) > 1:
            counts = [f"{name} seed {summary['seed']} {_examples(summary):,}" for name, summary in runs]
            raise ValueError(f"runs differ in how many test examples they have: {', '.join(counts)}; run them again")
        found = [_by(of_row, lambda summary: summary.get("data_hash")) for of_row in sides.values()]
        for name, of_row in zip(sides, found, strict=True):
            if len(of_row) > 1:
                seeds = " and ".join(_seeds(group) for group in of_row.values())
                raise ValueError(f"row {name}: {seeds} were run on different data; run them on the same")
        for what, groups in _by_what_they_read(summaries[row.name]).items():
            if len(groups) > 1:
                seeds = " and ".join(map(_seeds, groups.values()))
                raise ValueError(f"row {row.name}: {seeds} were run with different {what}; run them with the same")
        if len({digest for of_row in found for digest in of_row}) > 1:
            of_sides = [f"{name} ({_seeds(of_row)})" for name, of_row in sides.items()]
            raise ValueError(f"rows {' and '.join(of_sides)} were run on different data; choose another --baseline")


def _examples(summary: Summary) -> int:
    """How many test examples the run has a figure of each of; 0 where it has none."""
    hits = sum(len(part["hits"]) for part in summary.get("accuracy", {}).values())
    return len(summary.get("test_nll", ())) or hits


def _by_what_they_read(summaries: Sequence[Summary]) -> dict[str, dict[str, list[Summary]]]:
    """The runs by the digests of trees, code and files, of each; those of earlier versions have none."""
    found: dict[str, dict[str, list[Summary]]] = {}
    for summary in summaries:
        trees = {"trees": summary["trees"]} if summary.get("trees") else {}
        for what, digest in (trees | summary.get("read", {})).items():
            found.setdefault(what, {}).setdefault(digest, []).append(summary)
    return found


def _by(summaries: Sequence[Summary], key: Callable[[Summary], Any]) -> dict[Any, list[Summary]]:
    """The runs by a property that they may share."""
    found: dict[Any, list[Summary]] = {}
    for summary in summaries:
        found.setdefault(key(summary), []).append(summary)
    return found


def _seeds(summaries: Sequence[Summary]) -> str:
    """``seed 1`` or ``seeds 1, 2``."""
    return f"seed{'s' * (len(summaries) > 1)} {', '.join(str(summary['seed']) for summary in summaries)}"


def compared(first: Sequence[Summary], other: Sequence[Summary]) -> tuple[list[Summary], list[Summary]]:
    """The runs of a baseline and a row whose difference is shown: all of them, as seeds are not paired. Where one side
    has one seed, so that nothing can be tested over seeds, those of the seed that both have, if there is one: a seed
    decides on initial values and the order of batches, which change a score as much as a mechanism.
    """
    before, after = ({s["seed"] for s in group} for group in (first, other))
    if min(len(first), len(other)) > 1 or not before & after:
        return list(first), list(other)
    return [s for s in first if s["seed"] in after], [s for s in other if s["seed"] in before]


def with_others(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], others: Others
) -> tuple[list[Row], dict[str, list[Summary]]]:
    """The rows that are shown and those of the same table that are not, but are tested with them: which rows are chosen
    to be shown changes no p. Left out are rows that are not of the shown ones' kind, or were run on other data than
    their baseline: they cannot be compared with it."""
    every = {**others[1], **summaries}
    kinds = {kind_of(row).name for row in rows}
    found = list(rows)
    for row in others[0]:
        runs = [*every[row.name], *every.get(row.baseline, ())]
        same = len({(s.get("data_hash"), _examples(s)) for s in runs}) == 1 and row.baseline in every
        found += [row] if same and kind_of(row).name in kinds else []
    return found, {name: every.get(name, []) for row in found for name in (row.name, row.baseline)}


def over_seeds(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], score: Callable[[Summary], float], prefix: str = ""
) -> dict[str, dict[str, Any]]:
    """What the seeds say of every row against its baseline, where both have runs: entries of a line of a report.

    ``delta`` is the difference of the mean scores of the runs that are `compared`. ``seed_error``, ``seed_p``,
    ``seed_single_p``, ``seed_interval``, ``seed_deviation`` and ``smallest`` are those of `dunnett`, of all rows with
    the same baseline and several seeds together, ``seed_rows`` of them; ``seed_ratio`` is the row's own deviation
    divided by that of all others, the baseline among them (None if that is 0), ``seed_baseline_ratio`` the baseline's
    divided by that of all rows. ``seed_welch_p`` is that of Welch's t-test of the row and the baseline alone, whose
    variances may differ (None where nothing varies). Where nothing can be tested, ``untested`` says why, and there is
    no ``seed_interval``.

    Args:
        score: of a run.
        prefix: of the entries' names.
    """
    from fairseq_diverse.metrics.dunnett import dunnett
    from fairseq_diverse.metrics.significance import seed_difference

    values = {name: [score(s) for s in of_row] for name, of_row in summaries.items()}
    found: dict[str, dict[str, Any]] = {}
    for baseline in dict.fromkeys(row.baseline for row in rows if summaries.get(row.baseline)):
        group = [row.name for row in rows if row.baseline == baseline != row.name and summaries[row.name]]
        several = [name for name in group if min(len(values[baseline]), len(values[name])) > 1]
        tests = dict(zip(several, dunnett(values[baseline], [values[name] for name in several]), strict=True))
        for name in group:
            before, after = compared(summaries[baseline], summaries[name])
            entries: dict[str, Any] = {"delta": float(np.mean([*map(score, after)]) - np.mean([*map(score, before)]))}
            if test := tests.get(name):
                entries |= {"seed_error": test.error, "seed_p": test.p, "seed_single_p": test.single_p}
                entries |= {"seed_deviation": test.deviation, "smallest": test.smallest, "seed_rows": len(several)}
                entries["seed_ratio"] = _ratio([values[x] for x in (baseline, *several) if x != name], values[name])
                entries["seed_baseline_ratio"] = _ratio([values[x] for x in several], values[baseline])
                entries["seed_welch_p"] = seed_difference(values[baseline], values[name])[1]
                if test.p is None:
                    entries["untested"] = "no spread over seeds"
                else:
                    entries["seed_interval"] = list(test.interval)
            else:
                entries["untested"] = "one seed" if len(values[name]) == 1 else "baseline: one seed"
            found[name] = {f"{prefix}{key}": value for key, value in entries.items()}
    return found


def holm_entries(p_values: Mapping[Any, float | None], prefix: str = "") -> dict[Any, dict[str, Any]]:
    """``holm_p`` of the tests that could be made, their p after Holm's correction over all of them, and ``holm_of``,
    how many they are: entries of a line of a report, with a ``prefix`` as in `over_seeds`."""
    from fairseq_diverse.metrics.dunnett import holm

    tested = {key: p for key, p in p_values.items() if p is not None}
    adjusted = zip(tested, holm(list(tested.values())), strict=True)
    return {key: {f"{prefix}holm_p": p, f"{prefix}holm_of": len(tested)} for key, p in adjusted}


def _ratio(others: Sequence[Sequence[float]], own: Sequence[float]) -> float | None:
    """The standard deviation over seeds of a row, divided by that of all others together (pooled)."""
    squares = fsum(np.var(scores) * len(scores) for scores in others)
    pooled = (squares / sum(len(scores) - 1 for scores in others)) ** 0.5
    return float(np.std(own, ddof=1)) / pooled if pooled else None


def difference(line: Mapping[str, Any], digits: int, prefix: str = "") -> str:
    """A cell: the difference, its standard error and p over seeds, with stars; or why there is no p."""
    text = f"{line[f'{prefix}delta']:+.{digits}f}"
    if reason := line.get(f"{prefix}untested"):
        return f"{text} ({reason})"
    p = line[f"{prefix}seed_p"]
    return f"{text} ± {line[f'{prefix}seed_error']:.{digits}f}{mark(p)} ({p_text(p)})"


def interval_text(line: Mapping[str, Any], digits: int, prefix: str = "") -> str:
    """The interval over seeds of a difference; empty where nothing could be tested."""
    if (interval := line.get(f"{prefix}seed_interval")) is None:
        return ""
    return " to ".join(f"{end:+.{digits}f}" for end in interval)


def seeds_notes(lines: Sequence[Mapping[str, Any]], scales: Mapping[str, tuple[str, int]]) -> list[str]:
    """What a difference over seeds is, and the smallest that could have been seen.

    Args:
        scales: unit and digits by prefix of `over_seeds`.
    """
    shown = [line for line in lines if any(f"{prefix}delta" in line for prefix in scales)]
    if not shown:
        return []
    against = f"Δ against {', '.join(dict.fromkeys(line['baseline'] for line in shown))}"
    if not any(f"{prefix}seed_p" in line for line in shown for prefix in scales):
        return [f"{against}, of one seed: nothing is tested over seeds, nothing has a star"]
    text = [
        f"{against}: mean over seeds ± standard error over seeds, in brackets p of Dunnett's test over seeds of all "
        f"rows against their baseline ({tested_rows(shown, scales)}); *: p < 0.05, **: p < 0.01"
    ]
    designs: dict[str, list[str]] = {}
    for line in shown:
        found = [
            (f"{line[f'{key}seed_deviation']:.{digits}f} {unit}", f"{line[f'{key}smallest']:.{digits}f} {unit}")
            for key, (unit, digits) in scales.items()
            if line.get(f"{key}seed_p") is not None
        ]
        if found:
            spread, smallest = (", ".join(part) for part in zip(*found, strict=True))
            designs.setdefault(f"{smallest} (standard deviation over seeds {spread})", []).append(line["row"])
    if designs:
        named = [f"{', '.join(names)}: {design}" for design, names in designs.items()]
        text.append(f"{SMALLEST}: {'; '.join(named if len(named) > 1 else designs)}")
    for key, (unit, _) in scales.items():
        ratios = {line["baseline"]: line.get(f"{key}seed_baseline_ratio") or 0.0 for line in shown}
        ratios |= {line["row"]: line.get(f"{key}seed_ratio") or 0.0 for line in shown}
        if wide := [f"{name} ({ratio:.1f} times)" for name, ratio in ratios.items() if ratio > UNEVEN]:
            text.append(
                f"the test assumes one standard deviation over seeds, but in {unit} more than {UNEVEN:.0f} times that "
                f"of all others together have {', '.join(wide)}: p of such a row, and of all rows if it is the "
                "baseline, is too small; compare Welch p in --verdict, and --without ROW"
            )
    return text


def tested_rows(lines: Sequence[Mapping[str, Any]], prefixes: Iterable[str]) -> str:
    """How many rows are tested together, by baseline where it differs."""
    found = {
        line["baseline"]: (count, sum(line["baseline"] == other["baseline"] for other in tested))
        for prefix in prefixes
        if (tested := [line for line in lines if f"{prefix}seed_rows" in line])
        for line in tested
        for count in (line[f"{prefix}seed_rows"],)
    }
    words = {
        name: f"{count} row{'s' * (count != 1)}" + f", {shown} of them shown" * (shown < count)
        for name, (count, shown) in found.items()
    }
    one = len(set(words.values())) < 2
    return next(iter(words.values()), "") if one else "; ".join(f"{name}: {text}" for name, text in words.items())


def p_values(lines: Sequence[Mapping[str, Any]]) -> str:
    """Over how many p-values Holm's correction of these lines goes, and whether all of them are shown."""
    count = lines[0]["holm_of"] if lines else 0
    return f"these {count} p-values" if count == len(lines) else f"{count} p-values, {len(lines)} of them shown"


def compared_seeds(first: Sequence[Summary], other: Sequence[Summary]) -> dict[str, list[int]]:
    """Entries of a line where a row and its baseline have not the same seeds: ``compared``, those that the difference
    is of, if not all, else ``other_seeds``, the row's."""
    before, after = ([s["seed"] for s in group] for group in (first, other))
    if set(before) == set(after):
        return {}
    chosen = [s["seed"] for s in compared(first, other)[1]]
    return {"compared" if set(chosen) & set(before) and min(len(before), len(after)) == 1 else "other_seeds": chosen}


def seeds_that_differ_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which rows are compared with one seed of the baseline, and which have other seeds than it."""
    texts = {
        "compared": "one seed on a side: Δ and p are of the seed that row and baseline share",
        "other_seeds": "other seeds than the baseline's; all of both are used",
    }
    notes = []
    for key, text in texts.items():
        rows: dict[str, list[str]] = {}
        for line in lines:
            if line.get(key):
                rows.setdefault(", ".join(map(str, line[key])), []).append(line["row"])
        found = [f"{', '.join(names)} {seeds}" for seeds, names in rows.items()]
        notes += [f"{text}: {'; '.join(found)}"] if found else []
    return notes


def ended_early(row: Row, summaries: Sequence[Summary]) -> str:
    """How many updates a row's seeds ran, where its flags ended training before ``max-update``; empty otherwise."""
    ran = [summary.get("updates", row.max_update) for summary in summaries]
    if min(ran) >= row.max_update:
        return ""
    counts = ", ".join(f"{count:,}" for count in ran)
    return f"{row.name} {counts} of {row.max_update:,} ({', '.join(f'--{flag}' for flag in row.ends_early)})"


def ended_early_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which rows trained for fewer updates than ``max-update``, by seed; none where none did."""
    found = [line["ended_early"] for line in lines if line.get("ended_early")]
    return [f"updates until training ended, by seed: {'; '.join(found)}"] if found else []


def runs_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the runs of finished rows differ from what the table says, where and by which code they ran."""
    return [
        *seeds_that_differ_note(lines),
        *ended_early_note(lines),
        *machines_note(lines),
        *versions_note(lines),
        commits_note(lines),
    ]


def missing(row: Row, summaries: Sequence[Summary]) -> dict[str, dict[str, list[int]]]:
    """By metric of the row that could not be computed, the reasons, and the seeds of each."""
    found: dict[str, dict[str, list[int]]] = {}
    for summary in summaries:
        for name, why in summary.get("missing", {}).items():
            if name in row.metrics and name not in summary["metrics"]:
                found.setdefault(name, {}).setdefault(why, []).append(summary["seed"])
    return found


def missing_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which metrics of the table were not measured, of which rows and why; none where all were."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        for name, reasons in line.get("missing", {}).items():
            for why, seeds in reasons.items():
                seed = f" seed {', '.join(map(str, seeds))}" * (len(seeds) < line["seeds"])
                found.setdefault((name, why), []).append(f"{line['row']}{seed}")
    every = [line["row"] for line in lines]
    texts = [f"{name} ({why})" + f" of {', '.join(rows)}" * (rows != every) for (name, why), rows in found.items()]
    return [f"not measured: {'; '.join(texts)}"] if texts else []


def without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The columns of a table that have something below their header."""
    filled = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*filled, strict=True)]


def p_text(value: float) -> str:
    """``p = 0.012`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def p_number(value: float) -> str:
    """A p-value in a column of its own."""
    return p_text(value).removeprefix("p ").removeprefix("= ")


def mark(p: float) -> str:
    """Stars of a p-value."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""
