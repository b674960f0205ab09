"""Training loss against updates and against time, from fairseq's logs."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_diverse.experiments.logs import statistics
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import STYLES, legend_above, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """One value a logged interval."""

    updates: list[int]
    minutes: list[float]  # spent in training updates so far
    losses: list[float]  # of the interval, as fairseq logs it: bits a token


def read_curve(path: Path, metric: str = "loss") -> Curve:
    """The curve of a log that fairseq-train wrote with ``--log-format json``.

    What a run that was resumed did again counts once. fairseq rounds the time spent in updates to seconds at every
    interval; its words a second, which count loading too, say where within.

    Args:
        path: the log, or a folder with ``train.log``.
        metric: loss or nll_loss.

    Raises:
        UserError: the file does not exist or has no statistics.
    """
    path = path / "train.log" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    logged: dict[int, dict[str, Any]] = {}
    for kind, stats in statistics(text.splitlines()):
        if kind == "train_inner" and metric in stats:
            logged[int(stats["num_updates"])] = stats
    if not logged:
        raise UserError(f"{path}: no training statistics; fairseq-train writes them with --log-format json")
    curve, seconds = Curve([], [], []), 0.0
    for before, update in itertools.pairwise([0, *sorted(logged)]):
        rounded, words, speed = (float(logged[update].get(key, 0)) for key in ("train_wall", "wpb", "wps"))
        seconds += min(max((update - before) * words / speed, rounded - 0.5), rounded + 0.5) if speed else rounded
        curve.updates.append(update)
        curve.minutes.append(seconds / 60)
        curve.losses.append(float(logged[update][metric]))
    return curve


def draw_learning_curves(curves: Mapping[str, Sequence[Curve]], metric: str) -> "Figure":
    """Two panels, against updates and against minutes; the curves of one name share a colour.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = new_figure(8.4, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    for number, (name, of_name) in enumerate(curves.items()):
        color, _ = STYLES[number % len(STYLES)]
        for axis, field in zip(panels, ("updates", "minutes"), strict=True):
            for i, curve in enumerate(of_name):
                axis.plot(
                    getattr(curve, field), curve.losses, color=color, linewidth=1, label=None if i else name,
                    linestyle=("-", "--", "-.", ":")[number % 4],
                )  # fmt: skip
    for axis, label in zip(panels, ("updates", "minutes of training"), strict=True):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    panels[0].set_ylabel(f"training {metric}, bits a token")
    legend_above(figure)
    return figure
