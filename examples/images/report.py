"""Table of finished trainings, and the test over seeds: ``python -m examples.images.report FOLDER [README]``."""

import json
import sys
from pathlib import Path
from statistics import mean, stdev

from fairseq_diverse.metrics.dunnett import dunnett
from fairseq_diverse.support.files import rewrite_blocks

HEAD = "| attention | parameters | top-1, by seed | mean | sd | top-5 | minutes |\n|---|---:|---|---:|---:|---:|---:|\n"
TEST = """Evolving less augmented, top-1: {:+.2f} points, 95% interval {:+.2f} to {:+.2f}, p = {:.3f} (two-sided t-test
with equal variances over seeds). With so few seeds, such a comparison misses a true difference of {:.2f} points in a
fifth of all cases, and a smaller one more often: a large p does not show that there is no difference."""


def table(folder: Path) -> str:
    """Accuracies after the last epoch in FOLDER/*.json, and the difference that evolving attention makes."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if len({str({k: v for k, v in run["settings"].items() if k not in ("seed", "attention")}) for run in runs}) > 1:
        raise SystemExit(f"error: {folder}: trainings with different settings")
    text, scores = HEAD, []
    for kind in ("augmented", "evolving"):
        mine = [run for run in runs if run["settings"]["attention"] == kind]
        if len(mine) < 2:
            return "Not run yet (two seeds of each are needed).\n"
        top, five = ([run["epochs"][-1][key] for run in mine] for key in ("top1", "top5"))
        each, minutes = ", ".join(f"{x:.2f}" for x in top), mean(run["seconds"] for run in mine) / 60
        figures = f"{mean(top):.2f} | {stdev(top):.2f} | {mean(five):.2f} | {minutes:.0f}"
        text += f"| {kind} | {mine[0]['parameters']:,} | {each} | {figures} |\n"
        scores.append(top)
    test = dunnett(scores[0], scores[1:])[0]
    note = TEST.format(test.difference, *test.interval, 1 if test.p is None else test.p, test.smallest)
    return f"{text}\n{note}\n"


if __name__ == "__main__":
    folder, *readmes = sys.argv[1:] or sys.exit(__doc__)
    text = table(Path(folder))
    print(text)
    for readme in map(Path, readmes):
        rewrite_blocks(readme, "results", lambda found: text)
