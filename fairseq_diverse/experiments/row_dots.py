"""A table's figures row by row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_diverse.support.pictures import STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "BLEU, deviation over seeds": ("bleu", "bleu_deviation"),
    "NLL against the baseline, standard error over seeds": ("nll_delta", "nll_seed_error"),
}


def draw_rows(lines: Sequence[Mapping[str, Any]], summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """BLEU of every finished row, mean over seeds with a bar of one standard deviation and a hollow dot a seed, and the
    difference in NLL to the baseline, nats a sentence, with a bar of one standard error over seeds where it is known.

    Args:
        lines: of ``experiments.report.compare``.
        summaries: of the rows' runs.

    Raises:
        UserError: matplotlib is not installed.
    """
    done = [line for line in lines if line["seeds"]]
    figure = new_figure(9, 1.2 + 0.28 * len(done))
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axis, (name, (key, spread)) in zip(panels, PANELS.items(), strict=True):
        for place, line in enumerate(done):
            color, marker = STYLES[int("delta" in line)]
            if key in line:
                axis.errorbar(line[key], place, xerr=line.get(spread), color=color, marker=marker, capsize=3)
            if key == "bleu":
                seeds = [summary["metrics"]["bleu"] for summary in summaries[line["row"]]]
                axis.plot(seeds, [place] * len(seeds), "o", color=color, fillstyle="none", markersize=4)
        axis.set_xlabel(name)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(done)), [line["row"] for line in done], parse_math=False)
    panels[0].set_ylim(len(done) - 0.5, -0.5)
    panels[1].axvline(0, color="gray", linewidth=0.8)
    return figure
