"""What each mechanism of a table does, one line each: by NLL, over seeds, and at which cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.where_run import no_speed_note
from fairseq_diverse.metrics.dunnett import LEVEL
from fairseq_diverse.reports.comparison import (
    ALONE,
    compared,
    interval_text,
    p_number,
    runs_notes,
    seeds_notes,
    tested_rows,
)
from fairseq_diverse.support.pictures import STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_diverse.experiments.kinds.kind import Summary

BETTER, WORSE, OPEN = STYLES[2], STYLES[1], ("gray", "o")  # of differences in a picture
OUTCOMES = {
    BETTER: "triangle: better (p < 0.05)",
    WORSE: "square: worse (p < 0.05)",
    OPEN: "disc: not resolved or not tested",
}


def verdict(line: Mapping[str, Any]) -> str:
    """``helps`` or ``hurts`` where Dunnett's test of NLL over seeds has p < 0.05, else ``not resolved``; where nothing
    can be tested, why.

    Args:
        line: of ``reports.report.compare``, with a baseline.
    """
    if reason := line.get("nll_untested"):
        return reason
    if line["nll_seed_p"] >= LEVEL:
        return "not resolved"
    return "helps" if line["nll_delta"] < 0 else "hurts"


def verdict_cells(rows: Sequence[Row], lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row of text for each row that has a baseline."""
    of_name = {line["row"]: line for line in lines}
    cells = [["mechanism", "against", "data", "seeds", "Δ NLL", "95% interval", "verdict", "Welch p"]]
    cells[0] += ["Δ BLEU", "training speed", "added parameters"]
    for row in rows:
        if row.name == row.baseline:
            continue
        line, first = of_name[row.name], of_name.get(row.baseline, {"seeds": 0})
        shown = [row.name, row.baseline, Path(row.data).name]
        if "nll_delta" not in line:
            cells.append([*shown, *[""] * 3, "baseline: not run" if line["seeds"] else "not run", *[""] * 4])
            continue
        seeds = str(line["seeds"]) + f" (baseline {first['seeds']})" * (line["seeds"] != first["seeds"])
        shown += [seeds, f"{line['nll_delta']:+.3f}", interval_text(line, 3, "nll_"), verdict(line)]
        bleu = f"{line['delta']:+.2f}" + (f" ({interval})" if (interval := interval_text(line, 2)) else "")
        speed = "-" if line["no_speed"] else "" if line["speed"] is None else f"{line['speed']:.2f}"
        counts = line["parameters"], first["parameters"]
        added = "" if None in counts else f"{counts[0] - counts[1]:+,}".replace("+0", "0")
        welch = "" if line.get("nll_seed_welch_p") is None else p_number(line["nll_seed_welch_p"])
        cells.append([*shown, welch, bleu, speed, added])
    return cells


def verdict_notes(lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """What the verdict, and the columns that are shown, are about."""
    done = [line for line in lines if line["seeds"]]
    together = f" ({count})" if (count := tested_rows(done, ["nll_"])) else ""
    text = [
        "Δ NLL: nats a test sentence against the baseline, lower is better",
        "helps, hurts: p < 0.05 by Dunnett's test over seeds; its intervals hold for all rows of a baseline at "
        f"once{together}",
        "not resolved: these seeds show no difference, which does not show that there is none",
    ]
    if "Welch p" in columns:
        text.append("Welch p: of the row and its baseline alone, whose standard deviations may differ; no verdict")
    if "Δ BLEU" in columns:
        text.append("Δ BLEU: in brackets its 95% interval over seeds, as that of NLL; no verdict")
    text += seeds_notes(done, {"nll_": ("NLL", 3)})[1:]
    speed = [
        f"training speed: target subwords a second, divided by the baseline's; {ALONE}",
        *no_speed_note([line for line in done if "baseline" in line]),
    ]
    text += speed if "training speed" in columns else []
    return text + (runs_notes(done) if done else [])


def draw_verdict(
    rows: Sequence[Row], summaries: "Mapping[str, list[Summary]]", lines: Sequence[Mapping[str, Any]], title: str
) -> "Figure":
    """Differences in NLL and in BLEU to the baseline, one line a row: the mean over seeds, its 95% interval (Dunnett's,
    for all rows of a baseline at once; none where nothing can be tested) and a hollow dot a seed.

    Args:
        lines: of ``reports.report.compare``, of the rows.
        summaries: of the rows' runs.

    Raises:
        UserError: matplotlib is not installed.
    """
    shown = [(row, line) for row, line in zip(rows, lines, strict=True) if "nll_delta" in line]
    figure = new_figure(9.6, 1.5 + 0.28 * len(shown))
    panels = figure.subplots(1, 2, sharey=True)
    styles = set()
    for axis, prefix, sign, name in zip(
        panels, ("nll_", ""), (1, -1), ("NLL, nats a test sentence (lower is better)", "BLEU"), strict=True
    ):
        for place, (row, line) in enumerate(shown):
            delta, interval = line[f"{prefix}delta"], line.get(f"{prefix}seed_interval")
            resolved = line.get(f"{prefix}seed_p") is not None and line[f"{prefix}seed_p"] < LEVEL
            style = (BETTER if sign * delta < 0 else WORSE) if resolved else OPEN
            styles.add(style)
            color, marker = style
            bar = [[delta - interval[0]], [interval[1] - delta]] if interval else None
            axis.errorbar(delta, place, xerr=bar, color=color, marker=marker, capsize=3)
            before, after = (
                [float(np.mean(s["test_nll"])) if prefix else s["metrics"]["bleu"] for s in side]
                for side in compared(summaries[row.baseline], summaries[row.name])
            )
            seeds = [score - float(np.mean(before)) for score in after]
            axis.plot(seeds, [place] * len(seeds), "o", color=color, fillstyle="none", markersize=4)
        axis.set_xlabel(f"Δ {name}")
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(shown)), [row.name for row, _ in shown], parse_math=False)
    panels[0].set_ylim(len(shown) - 0.5, -0.5)
    bars = "bar: 95% interval over seeds (Dunnett's); " * any(line.get("nll_seed_interval") for _, line in shown)
    outcomes = ", ".join(text for style, text in OUTCOMES.items() if style in styles)
    baselines = {row.baseline for row, _ in shown}
    of = baselines.pop() if len(baselines) == 1 else "the baseline"
    figure.supxlabel(f"minus {of}'s; {bars}hollow: a seed\n{outcomes}", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure
