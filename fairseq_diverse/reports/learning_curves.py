"""Training and validation loss against updates and against time, from fairseq's logs."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.logs import statistics
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import STYLES, Figure, legend_above, panels
from fairseq_diverse.support.typed import shown

METRICS = {"loss": "loss, bits a token", "nll_loss": "negative log-likelihood, bits a token"}
OF_CLASSIFIERS = "loss, as logged"  # in bits or nats a sentence, or a squared error
LINES = ("-", "--", "-.", ":")
POINTS = 50  # about as many independent values has a curve that is smoothed by default


class Curve(NamedTuple):
    """One value for each logged interval of training, or for each validation."""

    updates: list[int]
    minutes: list[float]  # spent in training updates so far
    losses: list[float]  # as fairseq logs it: bits a token, but for classifiers


class Training(NamedTuple):
    """What a log says of a training; ``validation`` is empty where none was logged."""

    training: Curve
    validation: Curve
    of_tokens: bool = True  # not of a classifier


def read_training(path: Path, metric: str = "loss") -> Training:
    """The curves of a log that fairseq-train wrote with ``--log-format json``.

    What a run that was resumed did again counts once. fairseq rounds the time spent in updates to seconds at every
    interval; its words a second, which count loading too, say where within. Validations take no time here. The path is
    that of the log, or of a folder with ``train.log``. Raises UserError: the file does not exist or has no statistics,
    or a value is no number."""
    path = path / "train.log" if path.is_dir() else path

    def number(stats: Mapping[str, Any], key: str, kind: type[int] | type[float] = float) -> Any:
        try:
            return kind(float(stats.get(key, 0)))
        except (TypeError, ValueError, OverflowError):  # a NaN loss is a number
            raise UserError(f"{path}: {key} is not a number: {shown(stats[key])}") from None

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    logged: dict[int, dict[str, Any]] = {}
    validated: dict[int, float] = {}
    for kind, stats in statistics(text.splitlines()):
        if kind == "train_inner" and metric in stats:
            logged[number(stats, "num_updates", int)] = stats
        elif kind == "valid" and f"valid_{metric}" in stats:
            validated[number(stats, "valid_num_updates", int)] = number(stats, f"valid_{metric}")
    if not logged:
        raise UserError(f"{path}: no training statistics; fairseq-train writes them with --log-format json")
    curve, seconds = Curve([], [], []), 0.0
    for before, update in itertools.pairwise([0, *sorted(logged)]):
        rounded, words, speed = (number(logged[update], key) for key in ("train_wall", "wpb", "wps"))
        seconds += min(max((update - before) * words / speed, rounded - 0.5), rounded + 0.5) if speed else rounded
        curve.updates.append(update)
        curve.minutes.append(seconds / 60)
        curve.losses.append(number(logged[update], metric))
    updates = sorted(validated)
    minutes = np.interp(updates, [0, *curve.updates], [0.0, *curve.minutes]).tolist()
    validation = Curve(updates, minutes, [validated[update] for update in updates])
    return Training(curve, validation, any("ppl" in stats for stats in logged.values()))


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Running means of ``window`` values, centred; of fewer near the ends, so that every mean is of as many values
    before as after: a straight line stays as it is.
    """
    array, last = np.array(values, float), len(values) - 1
    with np.errstate(invalid="ignore"):  # infinite losses of a training that diverged
        halves = [min(window // 2, middle, last - middle) for middle in range(len(array))]
        return [float(array[middle - half : middle + half + 1].mean()) for middle, half in enumerate(halves)]


def draw_learning_curves(trainings: Mapping[str, Sequence[Training]], metric: str, smooth: int | None = None) -> Figure:
    """Two panels, against updates and against minutes; the curves of one name share a colour. Training is a line over
    the pale values that it smooths, means of ``smooth`` values (rounded up to an odd number; 1: none), by default of so
    many that about ``POINTS`` independent ones remain of the longest curve; validations are hollow dots."""
    all_runs = [run for runs in trainings.values() for run in runs]
    longest = max((len(run.training.losses) for run in all_runs), default=0)
    window = (smooth if smooth is not None else max(1, longest // POINTS)) // 2 * 2 + 1
    figure, axes = panels(2, 8.4, 3.6, sharey=True)
    for number, (name, runs) in enumerate(trainings.items()):
        color, _ = STYLES[number % len(STYLES)]
        line = {"color": color, "linestyle": LINES[number % len(LINES)], "linewidth": 1.2}
        dots = {"color": color, "marker": "o", "markersize": 4, "fillstyle": "none", "linestyle": "none"}
        for i, (training, validation, _) in enumerate(runs):
            means = smoothed(training.losses, window)
            for axis, field in zip(axes, ("updates", "minutes"), strict=True):
                x = getattr(training, field)
                if window > 1:
                    axis.plot(x, training.losses, color=color, linewidth=0.6, alpha=0.25)
                axis.plot(x, means, **line, label=None if i else name)
                axis.plot(getattr(validation, field), validation.losses, **dots)
    for axis, label in zip(axes, ("updates", "minutes of training"), strict=True):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].plot([], [], color="gray", label="training" + f", mean of {window} values" * (window > 1))
    if any(run.validation.losses for run in all_runs):
        axes[0].plot([], [], "o", color="gray", fillstyle="none", markersize=4, label="validation")
    axes[0].set_ylabel(METRICS[metric] if all(run.of_tokens for run in all_runs) else OF_CLASSIFIERS)
    legend_above(figure)
    return figure
