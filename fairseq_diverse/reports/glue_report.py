"""Reports of GLUE: every system's scores on the dev sets, and the pre-training of language models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairseq_diverse.experiments.kinds.glue import main_score
from fairseq_diverse.experiments.kinds.kind import Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.where_run import ran
from fairseq_diverse.metrics.glue import HEADINGS
from fairseq_diverse.preparation.glue import TASKS, split_name
from fairseq_diverse.reports.comparison import (
    NO_OTHERS,
    Others,
    compared_seeds,
    deviation,
    difference,
    ended_early,
    holm_entries,
    mark,
    over_seeds,
    p_values,
    refuse_other_data,
    runs_notes,
    seeds_notes,
    spread,
    with_others,
    without_empty_columns,
)

AVERAGE = "average"
HIDDEN = "\0"  # before the name of a system that is not shown: no row's name has it
UNTESTED = {
    "untested": "one seed, or no spread over seeds, so that nothing is tested",
    "other_start": "starts from another checkpoint than its baseline; seeds are of fine-tuning only, nothing is tested",
}


def compare_glue(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], others: Others = NO_OTHERS
) -> list[dict[str, Any]]:
    """One dictionary for each row and figure of its task, those of a system's average last; rows without a finished
    run hold only ``row``, ``system``, ``task``, ``figure``, ``published`` and ``seeds`` (0).

    ``score`` and ``score_deviation`` are over seeds; ``majority`` is the score of the most frequent label. ``delta``
    and so on compare the task's first figure, and the average, with the baseline's over seeds (`over_seeds`);
    ``holm_p`` is ``seed_single_p`` after Holm's correction over all tasks and systems, ``holm_of`` tests with those of
    the table's ``others`` that are not shown; of averages it is ``seed_p``.
    ``other_start`` says that row and baseline start from different checkpoints, whose seeds are not those of the runs:
    then nothing is tested. The average is that of the first figures of all tasks of the table, by seed.

    Raises:
        ValueError: a row was run on other data than the baseline.
    """
    refuse_other_data(rows, summaries)
    tested, every = with_others(rows, summaries, others)
    by_name = {row.name: row for row in (*rows, *others[0])}
    judged = {
        name: _judged(by_name[name], by_name[by_name[name].baseline], entries)
        for name, entries in over_seeds(tested, every, main_score).items()
    }
    tasks = {row.name: _task(row, summaries[row.name]) for row in rows}
    one_point = _one_point(rows, tasks)
    systems = _systems(rows, tasks)
    of_task: dict[tuple[str, str], Row] = {}
    for row in rows:
        if (other := of_task.setdefault((systems[row.name], tasks[row.name]), row)) is not row:
            both = f"{other.data} and {row.data}"
            raise ValueError(f"{systems[row.name]}: two data sets of {tasks[row.name]}, {both}; choose one with --rows")
    lines: list[dict[str, Any]] = []
    for row in rows:
        of_row, task = summaries[row.name], tasks[row.name]
        published = str(row.published.get(task, "")).split("/")
        for number, (name, metric) in enumerate(_figures(task)):
            line: dict[str, Any] = {"row": row.name, "system": systems[row.name], "seeds": len(of_row)}
            line |= {"task": task, "figure": f"{name} {HEADINGS[metric]}"}
            line["published"] = published[number] if number < len(published) else ""
            line["published_parameters"] = str(row.published.get("parameters", ""))
            lines.append(line)
            if not of_row:
                continue
            found = [summary["glue"][name] for summary in of_row]
            values = [part["metrics"][metric] for part in found]
            line |= {"score": float(np.mean(values)), "score_deviation": deviation(values)}
            line |= {"majority": found[0].get("majority", {}).get(metric), "parameters": of_row[0]["parameters"]}
            line |= ran(of_row)
            if number:
                continue
            line["ended_early"] = ended_early(row, of_row)
            if one_point and row.name not in (row.family, f"{row.family}-data={row.data}"):
                line["point"] = row.name
            if row.name in judged:
                line |= judged[row.name]
                line |= {"baseline": systems[row.baseline], **compared_seeds(summaries[row.baseline], of_row)}
    corrected = holm_entries({name: entries.get("seed_single_p") for name, entries in judged.items()})
    for line in lines:
        line |= corrected[line["row"]] if line.get("seed_p") is not None else {}  # of the task's first figure
    hidden = [row for row in tested[len(rows) :] if _task(row, every[row.name]) in set(tasks.values())]
    tasks |= {row.name: _task(row, every[row.name]) for row in hidden}
    systems |= {name: f"{HIDDEN}{system}" for name, system in _systems(hidden, tasks).items()}
    found = _averages([*rows, *hidden], every, systems, tasks)
    return lines + [line for line in found if not line["system"].startswith(HIDDEN)]


def _one_point(rows: Sequence[Row], tasks: Mapping[str, str]) -> bool:
    """Whether there is one point of each grid for a task, as --best leaves."""
    return len({(row.family, tasks[row.name]) for row in rows}) == len(rows)


def _systems(rows: Sequence[Row], tasks: Mapping[str, str]) -> dict[str, str]:
    """The system of each row: what it is called in all tasks."""
    one_point = _one_point(rows, tasks)
    return {row.name: row.family if one_point else row.name.replace(f"-data={row.data}", "") for row in rows}


def glue_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each figure: the score of every system beside the published one; columns that
    nobody fills are left out."""
    systems = dict.fromkeys(line["system"] for line in lines)
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["figure"], {})[line["system"]] = line
    rows = [["dev set", "most frequent label", *(name + kind for name in systems for kind in ("", ", published"))]]
    for figure, of_system in found.items():
        majority = next((line["majority"] for line in of_system.values() if line.get("majority") is not None), None)
        rows.append([figure, "" if majority is None else f"{majority:.2f}"])
        for line in (of_system.get(name, {}) for name in systems):
            rows[-1] += ["not run" if line.get("seeds") == 0 else _score(line), str(line.get("published", ""))]
    rows.append(["parameters", ""])
    for name in systems:
        own = [line for line in lines if line["system"] == name]
        count = next((f"{line['parameters']:,}" for line in own if line.get("parameters")), "")
        rows[-1] += [count, next((line["published_parameters"] for line in own if "published_parameters" in line), "")]
    return without_empty_columns([row for row in rows if any(row[1:])])


def glue_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures mean, and what they were measured with."""
    done = [line for line in lines if line["seeds"] and "score" in line]
    if not done:
        return []
    text = ["scores on GLUE's dev sets, times 100; ±: standard deviation over seeds"]
    judged = [line for line in done if "delta" in line]
    tested = [line for line in judged if "holm_p" in line]
    if tested:
        of_tasks = [line for line in tested if line["figure"] != AVERAGE]
        against = ", ".join(dict.fromkeys(line["baseline"] for line in tested))
        text.append(
            f"against {against}, over seeds: t-tests with the deviation of all systems in each task, by its first "
            f"figure, then Holm's correction over {p_values(of_tasks)}; of the average Dunnett's test; *: p < 0.05, "
            "**: p < 0.01"
        )
        found = [
            f"{line['system']} {line['figure']} {line['delta']:+.2f} "
            f"(p {line['seed_p' if line['figure'] == AVERAGE else 'seed_single_p']:.3f})"
            for line in tested
        ]
        text.append(f"differences, p before Holm's correction: {'; '.join(found)}")
    for key, why in UNTESTED.items():
        if names := dict.fromkeys(line["system"] for line in judged if line.get(key)):
            text.append(f"{', '.join(names)}: {why}")
    if points := [line["point"] for line in done if "point" in line]:
        text.append(f"the best points of the grids, chosen by the dev sets shown here: {', '.join(points)}")
    text.append(f"seeds a row: {', '.join(sorted({str(line['seeds']) for line in done}))}")
    return text + runs_notes(done)


def compare_pretraining(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], others: Others = NO_OTHERS
) -> list[dict[str, Any]]:
    """One dictionary a row: ``nll``, that of the last validation, nats a masked token, mean over seeds, and how it
    differs from the baseline's (`over_seeds`); rows without a finished run hold only ``row`` and ``seeds`` (0)."""
    refuse_other_data(rows, summaries)
    judged = over_seeds(*with_others(rows, summaries, others), lambda summary: summary["valid_nll"]["last"])
    lines: list[dict[str, Any]] = []
    for row in rows:
        of_row = summaries[row.name]
        lines.append(line := {"row": row.name, "seeds": len(of_row)})
        if not of_row:
            continue
        values = [summary["valid_nll"]["last"] for summary in of_row]
        line |= {"nll": float(np.mean(values)), "nll_deviation": deviation(values)}
        line |= {"parameters": of_row[0]["parameters"], "updates": of_row[0]["updates"]}
        line |= ran(of_row)
        line["ended_early"] = ended_early(row, of_row)
        if row.name in judged:
            line |= {"baseline": row.baseline, **judged[row.name], **compared_seeds(summaries[row.baseline], of_row)}
    return lines


def pretraining_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each pre-trained row."""
    rows = [["row", "parameters", "updates", "validation NLL", "Δ NLL", "seeds"]]
    for line in lines:
        if not line["seeds"]:
            rows.append([line["row"], "not run", "", "", "", ""])
            continue
        delta = difference(line, 4) if "delta" in line else ""
        parameters = f"{line['parameters']:,}" if line["parameters"] else ""
        updates, nll = f"{line['updates']:,}", spread(line["nll"], line["nll_deviation"], 4)
        rows.append([line["row"], parameters, updates, nll, delta, str(line["seeds"])])
    return without_empty_columns(rows)


def pretraining_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures mean, and what they were measured with."""
    done = [line for line in lines if line["seeds"]]
    if not done:
        return []
    text = ["NLL: nats a masked token at the last update, lower is better", *seeds_notes(done, {"": ("nats", 4)})]
    return text + runs_notes(done)


def _task(row: Row, summaries: Sequence[Summary]) -> str:
    """The task of a row, by what was scored, else by the name of its data."""
    for summary in summaries:
        name = next(iter(summary["glue"]))
        return next(task.name for task in TASKS.values() if name in task.named("valid"))
    found = split_name(row.data.rpartition("/")[2])
    return found[0].name if found else row.data


def _figures(task: str) -> list[tuple[str, str]]:
    """Dev sets and metrics of a task, the one that counts in the average first."""
    found = TASKS.get(task)
    return [(name, metric) for name in found.named("valid") for metric in found.metrics] if found else []


def _judged(row: Row, baseline: Row, judged: Mapping[str, Any]) -> dict[str, Any]:
    """What the seeds say; the difference alone where row and baseline start from different given checkpoints."""
    starts = [start for start in (row.pretrained, baseline.pretrained) if isinstance(start, str)]
    if starts and row.pretrained != baseline.pretrained:
        return {"delta": judged["delta"], "other_start": True}
    return dict(judged)


def _averages(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], systems: Mapping[str, str], tasks: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Of every system that has all tasks of the table, the mean of their first figures, by seeds that all have."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(systems[row.name], []).append(row)
    every = set(tasks.values())
    found = {name: of for name, of in found.items() if len(of) == len(every) == len({tasks[r.name] for r in of}) > 1}
    pooled: dict[str, Row] = {}
    averages: dict[str, list[Summary]] = {}
    for name, of_system in found.items():
        by_seed = [{summary["seed"]: main_score(summary) for summary in summaries[row.name]} for row in of_system]
        shared = sorted(set.intersection(*map(set, by_seed)))
        averages[name] = [{"seed": s, AVERAGE: float(np.mean([of[s] for of in by_seed]))} for s in shared]
        baseline = systems.get(of_system[0].baseline, name)
        pooled[name] = replace(of_system[0], name=name, baseline=baseline if baseline in found else name)
    judged = over_seeds([*pooled.values()], averages, lambda summary: summary[AVERAGE])
    lines: list[dict[str, Any]] = []
    for name, row in pooled.items():
        values = [summary[AVERAGE] for summary in averages[name]]
        line = {"row": name, "system": name, "seeds": len(values), "task": AVERAGE, "figure": AVERAGE}
        published = row.published.get(AVERAGE, "") if every == set(TASKS) else ""  # of all tasks
        lines.append(line | {"published": published})
        if values:
            lines[-1] |= {"score": float(np.mean(values)), "score_deviation": deviation(values)}
        if name in judged:
            lines[-1] |= {"baseline": row.baseline, **_judged(row, pooled[row.baseline], judged[name])}
            lines[-1] |= {"holm_p": p} if (p := lines[-1].get("seed_p")) is not None else {}
    return lines


def _score(line: Mapping[str, Any]) -> str:
    if "score" not in line:
        return ""
    return spread(line["score"], line["score_deviation"]) + (mark(line["holm_p"]) if "holm_p" in line else "")
