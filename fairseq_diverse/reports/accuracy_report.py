"""Reports of classifiers: logical inference by length, probing by task and group of tasks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_diverse.analysis.accuracy import Accuracy, draw_accuracy, pooled
from fairseq_diverse.data.probing import GROUPS, group_means
from fairseq_diverse.experiments.kinds.kind import Summary
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.where_run import ran
from fairseq_diverse.logic.corpus import MOST_OPERATORS
from fairseq_diverse.reports.comparison import (
    NO_OTHERS,
    SMALLEST,
    Others,
    compared,
    compared_seeds,
    deviation,
    difference,
    ended_early,
    holm_entries,
    mark,
    over_seeds,
    p_number,
    p_values,
    refuse_other_data,
    runs_notes,
    seeds_notes,
    spread,
    with_others,
    without_empty_columns,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compare_accuracy(
    rows: Sequence[Row], summaries: Mapping[str, list[Summary]], others: Others = NO_OTHERS
) -> list[dict[str, Any]]:
    """One dictionary a row; rows without a finished run hold only ``row``, ``published``, ``seeds`` (0), and, of
    probes, ``probe`` and ``system``, the row's name without it. Below are means over groups of probes.

    ``seen``, ``longer`` and ``all`` are accuracies in percent, means over seeds, of the tests with as many operators as
    in training, with more, and of all (probing has ``all`` only); ``parts`` those of each number of operators or of the
    probe, ``largest`` and ``largest_parts`` the shares of the largest class. ``delta`` and so on compare ``all`` with
    the baseline's over seeds (`over_seeds`); ``holm_p``, of probes, is ``seed_single_p`` after Holm's correction over
    all of them, ``holm_of`` tests, the table's ``others`` that are not shown among them. ``p`` is that of a paired
    t-test over examples, each averaged over seeds first; ``one_encoder`` says that the seeds are of a classifier on one
    trained encoder, which tells nothing about the system: then there is no ``holm_p``.

    Raises:
        ValueError: a row was run on other test data than the baseline.
    """
    from fairseq_diverse.metrics.significance import paired_difference

    refuse_other_data(rows, summaries)
    tested, every = with_others(rows, summaries, others)
    judged = over_seeds(tested, every, lambda summary: pooled(_accuracies([summary])[0].values()).share)
    lines: list[dict[str, Any]] = []
    for row in rows:
        of_row, first = _accuracies(summaries[row.name]), summaries[row.baseline]
        line: dict[str, Any] = {"row": row.name, "seeds": len(of_row)}
        if probe := str(row.train.get("probe", "")):
            line |= {"probe": probe, "system": row.name.replace(f"-probe={probe}", "")}
        line["published"] = row.published.get(probe)
        lines.append(line)
        if not of_row:
            continue
        trained = int(row.train.get("train-operators", 6))
        lengths = [part for part in of_row[0] if part.isdigit()]
        groups = {
            "seen": [length for length in lengths if int(length) <= trained],
            "longer": [length for length in lengths if int(length) > trained],
            "all": list(of_row[0]),
        }
        for name, parts in groups.items():
            shares = [pooled(seed[part] for part in parts).share for seed in of_row if parts]
            line[name] = float(np.mean(shares)) if shares else None
            line[f"{name}_deviation"] = deviation(shares)
        line |= {
            "parameters": summaries[row.name][0]["parameters"],
            "largest": pooled(of_row[0].values()).largest,
            "parts": {part: float(np.mean([seed[part].share for seed in of_row])) for part in of_row[0]},
            "largest_parts": {name: part.largest for name, part in of_row[0].items()},
            **ran(summaries[row.name]),
            "ended_early": ended_early(row, summaries[row.name]),
        }
        if row.name == row.baseline or not first:
            continue
        line |= {"baseline": row.baseline, "one_encoder": "from-checkpoint" in row.train} | judged[row.name]
        line |= compared_seeds(first, summaries[row.name])
        line["p"] = paired_difference(*(_hits(_accuracies(group)) for group in compared(first, summaries[row.name])))[2]
    probes = [row.name for row in tested if "probe" in row.train and "from-checkpoint" not in row.train]
    corrected = holm_entries({name: judged.get(name, {}).get("seed_single_p") for name in probes})
    for line in lines:
        line |= corrected.get(line["row"], {})
    return lines + _averages(lines)


def probe_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each probe and group of probes: the accuracy of every system and the share of
    the largest class; columns that nobody fills are left out."""
    systems = dict.fromkeys(line["system"] for line in lines)
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["probe"], {})[line["system"]] = line
    rows = [["probe", "largest class", *(name + kind for name in systems for kind in ("", ", published"))]]
    for probe, of_system in found.items():
        largest = next((f"{line['largest']:.2f}" for line in of_system.values() if "largest" in line), "")
        rows.append([probe, largest])
        for line in (of_system.get(name, {}) for name in systems):
            share = _share(line, "all") + (mark(line["holm_p"]) if "holm_p" in line else "")
            rows[-1] += ["not run" if line.get("seeds") == 0 else share, _share(line, "published")]
    return without_empty_columns(rows)


def accuracy_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each line; columns that nobody fills are left out."""
    rows = [["row", "parameters", "as in training", "longer", "all", "largest class", "Δ all", "p over examples"]]
    rows[0] += ["seeds", "published"]
    for line in lines:
        published = _share(line, "published")
        if not line["seeds"]:
            rows.append([line["row"], "not run", *[""] * 7, published])
            continue
        shares = [_share(line, name) for name in ("seen", "longer", "all")]
        parameters = f"{line['parameters']:,}" if line.get("parameters") else ""
        largest = f"{line['largest']:.2f}" if "largest" in line else ""
        tests = [difference(line, 2), p_number(line["p"])] if "delta" in line else ["", ""]
        rows.append([line["row"], parameters, *shares, largest, *tests, str(line["seeds"]), published])
    return without_empty_columns(rows)


def length_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Accuracy by number of operators, one column per row of the table, with the share of the largest class; empty for
    probes."""
    done = [line for line in lines if "parts" in line]
    lengths = [part for part in done[0]["parts"] if part.isdigit()] if done else []
    table = [["operators", "largest class", *(line["row"] for line in done)]]
    for length in lengths:
        shares = [done[0]["largest_parts"][length], *(line["parts"][length] for line in done)]
        table.append([length, *(f"{share:.2f}" for share in shares)])
    return table if lengths else []


def accuracy_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures mean, and what they were measured with."""
    done = [line for line in lines if line["seeds"]]
    if not done:
        return []
    text = ["accuracy in percent; ±: standard deviation over seeds"]
    judged = [line for line in done if "delta" in line]
    if judged and "probe" in done[0]:
        text += _probing_notes(judged)
    elif judged:
        text += seeds_notes(done, {"": ("points", 2)})
        text.append("p over examples (other test examples, the same trainings): paired t-test")
    if "probe" in done[0]:
        text.append(f"seeds a row: {', '.join(sorted({str(line['seeds']) for line in done}))}")
    return text + runs_notes(done)


def _probing_notes(judged: Sequence[Mapping[str, Any]]) -> list[str]:
    """How probes are judged: over seeds with stars, over examples without."""
    from fairseq_diverse.metrics.dunnett import LEVEL, holm

    baselines = {line["baseline"].replace(f"-probe={line['probe']}", "") for line in judged}
    tested = [line for line in judged if "holm_p" in line]
    one = any(line["one_encoder"] for line in judged)
    text = []
    if tested:
        text.append(
            f"against {', '.join(sorted(baselines))}, over seeds: t-tests with the deviation of all systems in each "
            f"probe, then Holm's correction over {p_values(tested)}; *: p < 0.05, **: p < 0.01"
        )
        ends = (
            f"{end:.2f}" for end in (min(line["smallest"] for line in tested), max(line["smallest"] for line in tested))
        )
        text.append(f"{SMALLEST}, by probe, each tested alone: {' to '.join(dict.fromkeys(ends))} points")
    elif one:
        text.append("each encoder is one training, seeds are the classifier's: no system is tested, nothing has a star")
    else:
        text.append("one seed: nothing is tested over seeds, nothing has a star")
    adjusted = zip(judged, holm([line["p"] for line in judged]), strict=True)
    beyond = [f"{line['probe']} {line['system']}" for line, p in adjusted if p < LEVEL]
    over = f"over test examples (paired t-test, Holm's correction over {len(judged)} p-values; no stars), p < 0.05"
    return [*text, f"{over}: {', '.join(beyond) or 'none'}"]


def draw_lengths(rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> "Figure":
    """Accuracy of every finished row by number of operators, the seeds together.

    Raises:
        UserError: matplotlib is not installed.
    """
    trained = max(int(row.train.get("train-operators", 6)) for row in rows)
    lengths = list(range(1, MOST_OPERATORS + 1))
    found = {
        row.name: [pooled(seed[str(length)] for seed in _accuracies(summaries[row.name])) for length in lengths]
        for row in rows
        if summaries[row.name]
    }
    return draw_accuracy(lengths, found, trained)


def _averages(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over the probes of a group, of every system that has them all (Li et al., 2021, Table 7)."""
    of_system: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        if "probe" in line:
            of_system.setdefault(line["system"], {})[line["probe"]] = line
    averages = []
    for group, tasks in GROUPS.items():
        for system, found in of_system.items():
            if set(tasks) <= set(found):
                average: dict[str, Any] = {"row": f"{system}, {group}", "probe": group, "system": system}
                average["seeds"] = min(found[task]["seeds"] for task in tasks)
                for key in ("published", "all"):
                    known = {task: line[key] for task, line in found.items() if line.get(key) is not None}
                    average[key] = group_means(known).get(group)
                averages.append(average)
    return averages


def _accuracies(summaries: Sequence[Summary]) -> list[dict[str, Accuracy]]:
    return [
        {name: Accuracy(part["classes"], part["hits"]) for name, part in summary["accuracy"].items()}
        for summary in summaries
    ]


def _hits(seeds: Sequence[Mapping[str, Accuracy]]) -> np.ndarray:
    """For every test example, the share of the seeds that classify it correctly."""
    return np.mean([[hit == "1" for hit in pooled(seed.values()).hits] for seed in seeds], axis=0)


def _share(line: Mapping[str, Any], name: str) -> str:
    """The cell of an accuracy; empty where there is none."""
    return "" if line.get(name) is None else spread(line[name], line.get(f"{name}_deviation"))
