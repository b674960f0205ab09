"""A table's figures row by row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_diverse.support.pictures import SENTENCES, STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Panel(NamedTuple):
    """A figure of a row, and its bars: over seeds, and where one seed tells nothing of these, over test sentences."""

    name: str
    key: str
    over_seeds: tuple[str, str]  # what the bar is, and its entry of a line
    over_sentences: tuple[str, str]


PANELS = (
    Panel(
        "BLEU", "bleu", ("standard deviation over seeds", "bleu_deviation"), ("95% bootstrap interval", "bleu_interval")
    ),
    Panel(
        "negative log-likelihood minus the baseline's,\nnats a test sentence (lower is better)",
        "nll_delta",
        ("standard error over seeds", "nll_seed_error"),
        ("standard error", "nll_error"),
    ),
)


def draw_rows(lines: Sequence[Mapping[str, Any]], summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """BLEU of every finished row, mean over seeds, with a hollow dot a seed, and the difference in NLL to the baseline.

    Bars are over seeds: one standard deviation of BLEU, one standard error of the difference. Where seeds give none,
    they are dotted and over test sentences, the same trainings: the 95% bootstrap interval of BLEU, the standard error
    of the paired difference. The panel's axis says which of both it shows.

    Args:
        lines: of ``reports.report.compare``.
        summaries: of the rows' runs.

    Raises:
        UserError: matplotlib is not installed.
    """
    done = [line for line in lines if line["seeds"]]
    figure = new_figure(9.6, 1.5 + 0.28 * len(done))
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axis, panel in zip(panels, PANELS, strict=True):
        shown = set()
        for place, line in enumerate(done):
            color, marker = STYLES[int("delta" in line)]
            if panel.key in line:
                kind = panel.over_seeds if line.get(panel.over_seeds[1]) is not None else panel.over_sentences
                drawn = axis.errorbar(
                    line[panel.key], place, xerr=line.get(kind[1]), color=color, marker=marker, capsize=3
                )
                if kind[1] in line:
                    shown.add(kind)
                    drawn[2][0].set_linestyle("-" if kind is panel.over_seeds else SENTENCES)
            if panel.key == "bleu":
                seeds = [summary["metrics"]["bleu"] for summary in summaries[line["row"]]]
                axis.plot(seeds, [place] * len(seeds), "o", color=color, fillstyle="none", markersize=4)
        bars = [panel.over_seeds[0]] * (panel.over_seeds in shown)
        bars += [f"{panel.over_sentences[0]} over test sentences (dotted)"] * (panel.over_sentences in shown)
        axis.set_xlabel("\n".join([panel.name, *(f"bar: {bar}" for bar in bars)]))
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(done)), [line["row"] for line in done], parse_math=False)
    panels[0].set_ylim(len(done) - 0.5, -0.5)
    panels[1].axvline(0, color="gray", linewidth=0.8)
    return figure
