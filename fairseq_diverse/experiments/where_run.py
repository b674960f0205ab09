"""Where and with what runs ran: machines, versions of libraries, commits; whether their speeds can be compared."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_diverse.experiments.kinds.kind import Summary
from fairseq_diverse.experiments.runs.provenance import MACHINE_KEYS, UNKNOWN, commits_of, machine, starts_of


def ran(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Entries of a report's line: the machines, versions and commits of the runs."""
    return {"machines": machines(summaries), "versions": versions(summaries), "commits": commits_of(summaries)}


def commits_note(lines: Sequence[Mapping[str, Any]]) -> str:
    """The commits of all lines that have any."""
    commits = sorted({commit for line in lines for commit in line.get("commits", ())})
    return f"commits: {', '.join(commits)}" + " (+: with changed files)" * any("+" in c for c in commits)


def machines(summaries: Sequence[Summary]) -> dict[str, list[int]]:
    """The seeds of a row by the machine that they ran on; a run that was resumed elsewhere is of several."""
    found: dict[str, list[int]] = {}
    for summary in summaries:
        for place in dict.fromkeys(map(machine, starts_of(summary))):
            found.setdefault(place, []).append(summary["seed"])
    return found


def no_speed(summaries: Sequence[Summary]) -> str:
    """Why speeds of these runs are not compared; empty where all ran on one known machine with the same settings."""
    starts = [start for summary in summaries for start in starts_of(summary)]
    if UNKNOWN in (places := {machine(start) for start in starts}):
        return UNKNOWN
    if len({tuple(start["machine"].get(key) for key in MACHINE_KEYS) for start in starts}) > 1:
        return "different machines"
    return "different settings of one machine" if len(places) > 1 else ""


def no_speed_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which rows have no speed, and why."""
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if line["no_speed"]:
            reasons.setdefault(line["no_speed"], []).append(line["row"])
    found = [f"{why}: {'all rows' if len(rows) == len(lines) else ', '.join(rows)}" for why, rows in reasons.items()]
    where = "where a row and its baseline did not run on one known machine with equal threads, memory and arithmetic"
    return [f"no speed (-) {where}; {'; '.join(found)}"] if found else []


def versions(summaries: Sequence[Summary]) -> list[str]:
    """The libraries that the runs were made with, of all their starts, and their versions."""
    starts = [start for summary in summaries for start in starts_of(summary)]
    return sorted({f"{name} {version}" for start in starts for name, version in start.get("versions", {}).items()})


def versions_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which libraries had several versions; none where each had one."""
    rows: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        for text in line.get("versions", ()):
            rows.setdefault(text.split()[0], {}).setdefault(text, []).append(line["row"])
    found = [f"{text} ({', '.join(of)})" for texts in rows.values() if len(texts) > 1 for text, of in texts.items()]
    return [f"runs with different versions, which alone may change a score: {'; '.join(found)}"] if found else []


def machines_note(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the rows ran."""
    places: dict[str, list[str]] = {}
    for line in lines:
        of_row = line.get("machines", {})
        for place, seeds in of_row.items():
            seed = f" seed {', '.join(map(str, seeds))}" * (len(of_row) > 1)
            places.setdefault(place, []).append(f"{line['row']}{seed}")
    if len(places) > 1:
        ran = "; ".join(f"{place}: {', '.join(names)}" for place, names in places.items())
        return [f"runs of different machines or settings, which alone may change a score: {ran}"]
    return [f"ran on: {place}" for place in places]
