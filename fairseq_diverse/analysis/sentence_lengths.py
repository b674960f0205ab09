"""The distribution of sentence lengths of training sets, drawn."""

from collections.abc import Mapping

import numpy as np

from fairseq_diverse.support.pictures import STYLES, Figure, legend_above, panels

MOST_BARS = 60


def draw_sentence_lengths(token_counts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """A panel a training set: source lengths as bars, target lengths as a line, the mean of the source dashed (Li and
    Luo, 2022, Fig. 3); ``token_counts``: of every source and target sentence, by name."""
    figure, axes = panels(len(token_counts), max(4.8, 4.2 * len(token_counts)), 3.4)
    for axis, (name, (source, target)) in zip(axes, token_counts.items(), strict=True):
        longest = int(max(source.max(), target.max()))
        step = -(-(longest + 1) // MOST_BARS)
        edges = np.arange(0, longest + step + 1, step)
        bars, line = (100 * np.histogram(lengths, edges)[0] / len(lengths) for lengths in (source, target))
        middle = edges[:-1] + (step - 1) / 2
        axis.bar(middle, bars, width=0.9 * step, color=STYLES[5][0], label="source")
        axis.plot(middle, line, color=STYLES[1][0], label="target")
        axis.axvline(source.mean(), color=STYLES[0][0], linestyle="--", label="source mean")
        axis.set_title(name, fontsize="small")
        axis.set_xlabel("tokens a sentence" + (f", {step} a bar" if step > 1 else ""))
        axis.set_ylabel("% of the training sentences")
    legend_above(figure)
    return figure
