"""Reports of classifiers: accuracy on lengths seen in training and on longer ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_diverse.evaluation.accuracy import Accuracy, together
from fairseq_diverse.experiments.report import Summary, p_text
from fairseq_diverse.experiments.tables import Row


def compare_accuracy(rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> list[dict[str, Any]]:
    """One dictionary a row; rows without a finished run hold only ``row`` and ``seeds`` (0).

    ``seen``, ``longer`` and ``all`` are accuracies in percent, means over seeds, of the tests with as many operators as
    in training, with more, and of all; ``by_length`` those of each number of operators, ``largest`` the share of the
    largest class. ``delta`` and ``p`` compare ``all`` with the baseline's by a paired t-test over examples, each
    averaged over seeds first.

    Raises:
        ValueError: a row was run on other test data than the baseline.
    """
    from fairseq_diverse.evaluation.significance import paired_difference

    lines: list[dict[str, Any]] = []
    for row in rows:
        of_row, first = (_accuracies(summaries[name]) for name in (row.name, row.baseline))
        line: dict[str, Any] = {"row": row.name, "published": row.published, "seeds": len(of_row)}
        lines.append(line)
        if not of_row:
            continue
        trained = int(row.train.get("train-operators", 6))
        groups = {
            "seen": [length for length in of_row[0] if length <= trained],
            "longer": [length for length in of_row[0] if length > trained],
            "all": list(of_row[0]),
        }
        for name, lengths in groups.items():
            shares = [together(seed[length] for length in lengths).share for seed in of_row if lengths]
            line[name] = float(np.mean(shares)) if shares else None
            line[f"{name}_deviation"] = float(np.std(shares, ddof=1)) if len(shares) > 1 else None
        line |= {
            "parameters": summaries[row.name][0]["parameters"],
            "largest": together(of_row[0].values()).largest,
            "by_length": {length: float(np.mean([seed[length].share for seed in of_row])) for length in of_row[0]},
            "commits": sorted({f"{(s['commit'] or 'unknown')[:10]}{'+' * s['dirty']}" for s in summaries[row.name]}),
        }
        if row.name == row.baseline or not first:
            continue
        if summaries[row.name][0]["data_hash"] != summaries[row.baseline][0]["data_hash"]:
            raise ValueError(
                f"rows {row.name} and {row.baseline} were run on different data; choose another --baseline"
            )
        hits = [
            np.mean([[*map(int, together(seed.values()).hits)] for seed in group], axis=0) for group in (first, of_row)
        ]
        line["baseline"] = row.baseline
        difference, _, line["p"] = paired_difference(*hits)
        line["delta"] = 100 * difference
    return lines


def accuracy_cells(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each line."""
    rows = [["row", "parameters", "as in training", "longer", "all", "largest class", "Δ all", "seeds"]]
    for line in lines:
        if not line["seeds"]:
            rows.append([line["row"], "not run", *[""] * 6])
            continue
        shares = [_spread(line[name], line[f"{name}_deviation"]) for name in ("seen", "longer", "all")]
        delta = f"{line['delta']:+.2f} ({p_text(line['p'])})" if "delta" in line else ""
        rows.append(
            [line["row"], f"{line['parameters']:,}", *shares, f"{line['largest']:.2f}", delta, str(line["seeds"])]
        )
    return rows


def accuracy_notes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures mean, and what they were measured with."""
    done = [line for line in lines if line["seeds"]]
    if not done:
        return []
    text = ["accuracy in percent by number of operators; ±: standard deviation over seeds"]
    if baselines := dict.fromkeys(line["baseline"] for line in done if "baseline" in line):
        text.append(f"Δ against {', '.join(baselines)}, in brackets p by a paired t-test over test examples")
    commits = sorted({commit for line in done for commit in line["commits"]})
    return [*text, f"commits: {', '.join(commits)}" + " (+: with changed files)" * any("+" in c for c in commits)]


def _accuracies(summaries: Sequence[Summary]) -> list[dict[int, Accuracy]]:
    return [{int(n): Accuracy(**part) for n, part in summary["accuracy"].items()} for summary in summaries]


def _spread(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
