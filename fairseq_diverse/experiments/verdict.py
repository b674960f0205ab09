"""What each mechanism of a table does, one line each: by NLL, over seeds, and at which cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.comparison import (
    ALONE,
    ended_early_note,
    p_number,
    seeds_notes,
    seeds_that_differ_note,
    tested_rows,
)
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.where_run import commits_note, machines_note, no_speed_note, versions_note
from fairseq_diverse.metrics.dunnett import LEVEL


def verdict(line: Mapping[str, Any]) -> str:
    """``helps`` or ``hurts`` where Dunnett's test of NLL over seeds has p < 0.05, else ``not resolved``; where nothing
    can be tested, why.

    Args:
        line: of ``experiments.report.compare``, with a baseline.
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
    cells[0] += ["training speed", "added parameters"]
    for row in rows:
        if row.name == row.baseline:
            continue
        line, first = of_name[row.name], of_name.get(row.baseline, {"seeds": 0})
        shown = [row.name, row.baseline, Path(row.data).name]
        if "nll_delta" not in line:
            cells.append([*shown, *[""] * 3, "baseline: not run" if line["seeds"] else "not run", *[""] * 3])
            continue
        seeds = str(line["seeds"]) + f" (baseline {first['seeds']})" * (line["seeds"] != first["seeds"])
        interval = "" if "nll_untested" in line else "{:+.3f} to {:+.3f}".format(*line["nll_seed_interval"])
        speed = "-" if line["no_speed"] else "" if line["speed"] is None else f"{line['speed']:.2f}"
        counts = line["parameters"], first["parameters"]
        added = "" if None in counts else f"{counts[0] - counts[1]:+,}".replace("+0", "0")
        welch = "" if line.get("nll_seed_welch_p") is None else p_number(line["nll_seed_welch_p"])
        cells.append([*shown, seeds, f"{line['nll_delta']:+.3f}", interval, verdict(line), welch, speed, added])
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
    text += seeds_notes(done, {"nll_": ("NLL", 3)})[1:]
    speed = [
        f"training speed: target subwords a second, divided by the baseline's; {ALONE}",
        *no_speed_note([line for line in done if "baseline" in line]),
    ]
    text += speed if "training speed" in columns else []
    text += seeds_that_differ_note(done) + ended_early_note(done) + machines_note(done) + versions_note(done)
    return text + ([commits_note(done)] if done else [])
