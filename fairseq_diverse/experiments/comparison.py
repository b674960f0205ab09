"""What every comparison of rows needs: seeds that two rows share, deviations, marks, notes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.saved import Summary


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds; None for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def commits_of(summaries: Sequence[Summary]) -> list[str]:
    """The commits that the runs were made with, a + behind those with changed files."""
    return sorted({f"{(s['commit'] or 'unknown')[:10]}{'+' * bool(s['dirty'])}" for s in summaries})


def commits_note(lines: Sequence[Mapping[str, Any]]) -> str:
    """The commits of all lines that have any."""
    commits = sorted({commit for line in lines for commit in line.get("commits", ())})
    return f"commits: {', '.join(commits)}" + " (+: with changed files)" * any("+" in c for c in commits)


def refuse_other_data(row: Row, of_row: Sequence[Summary], first: Sequence[Summary]) -> None:
    """Raise ``ValueError`` where a row was run on other data than its baseline."""
    if of_row[0]["data_hash"] != first[0]["data_hash"]:
        raise ValueError(f"rows {row.name} and {row.baseline} were run on different data; choose another --baseline")


def of_shared_seeds(
    first: Sequence[Summary], other: Sequence[Summary]
) -> tuple[Sequence[Summary], Sequence[Summary], list[int] | None]:
    """The runs of the seeds that both have, all of them where they share none; these seeds, None if that is all."""
    of_first, of_other = ({s["seed"] for s in group} for group in (first, other))
    shared = of_first & of_other
    if not shared:
        return first, other, []
    before, after = ([s for s in group if s["seed"] in shared] for group in (first, other))
    return before, after, None if of_first == of_other else sorted(shared)


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


def shared_seeds_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which rows are compared over fewer seeds than they or their baseline have, and which over different ones."""
    fewer = [f"{line['row']} {', '.join(map(str, line['compared']))}" for line in lines if line.get("compared")]
    other = [line["row"] for line in lines if line.get("compared") == []]
    notes = [f"Δ over the seeds that a row and its baseline both have: {'; '.join(fewer)}"] if fewer else []
    return notes + ([f"Δ between different seeds: {'; '.join(other)}"] if other else [])


def without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The columns of a table that have something below their header."""
    filled = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*filled, strict=True)]


def p_text(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def mark(p: float) -> str:
    """Stars of a p-value."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""
