"""Averages of checkpoints, taken one checkpoint at a time."""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_diverse.checkpoints import loading
from fairseq_diverse.checkpoints.settings import printable
from fairseq_diverse.checkpoints.shared import owners

logger = logging.getLogger(__name__)

EPOCHS = re.compile(r"checkpoint(\d+)\.pt")
UPDATES = re.compile(r"checkpoint_\d+_(\d+)\.pt")
BEST = re.compile(r"checkpoint\.best_(.+)_(-?\d+(?:\.\d+)?)\.pt")
LOWER_IS_BETTER = re.compile(r".*loss|ppl|ter|wer|cer")
HIGHER_IS_BETTER = re.compile(r"bleu|chrf|accuracy|mcc|(acc_and_)?f1|pearson|(pearson_and_)?spearman")


@dataclass(frozen=True)
class Checkpoint:
    """A file that may be averaged; ``number`` is its epoch or update, ``value`` its metric, if one is read."""

    path: Path
    number: int = 0
    value: float | None = None

    def __str__(self) -> str:
        return self.path.name if self.value is None else f"{self.path.name} ({self.value:.4g})"


def checkpoint_files(paths: Iterable[Path]) -> list[Path]:
    """The ``.pt`` files among ``paths`` and in the directories among them. Raises ``ValueError``: a path that does not
    exist, or none holds a ``.pt`` file."""
    paths = list(paths)
    if absent := [path for path in paths if not path.exists()]:
        raise ValueError(f"{absent[0]}: no such file or directory")
    files = [file for path in paths for file in (sorted(path.glob("*.pt")) if path.is_dir() else [path])]
    if not files:
        raise ValueError(f"{', '.join(map(str, paths))}: no checkpoint (*.pt)")
    return list(dict.fromkeys(files))


def numbered(files: Sequence[Path], unit: str | None = None) -> list[Checkpoint]:
    """The checkpoints of epochs (``checkpoint7.pt``) or of updates (``checkpoint_2_500.pt``), in their order; ``unit``
    says which, by default the kind that the folder has. Raises ``ValueError``: it has both, or none."""
    kinds: dict[str, list[Checkpoint]] = {}
    for name, pattern in (("epochs", EPOCHS), ("updates", UPDATES)):
        matches = [(path, pattern.fullmatch(path.name)) for path in files]
        kind = [Checkpoint(path, int(match[1])) for path, match in matches if match]
        kinds[name] = sorted(kind, key=lambda checkpoint: checkpoint.number)
    if unit is None and all(kinds.values()):
        raise ValueError("there are checkpoints of epochs and of updates; choose with --epochs or --updates")
    checkpoints = kinds[unit] if unit else kinds["epochs"] or kinds["updates"]
    if not checkpoints:
        wanted = {"epochs": "checkpointN.pt", "updates": "checkpoint_EPOCH_N.pt"}
        raise ValueError(f"no {wanted[unit] if unit else ' or '.join(wanted.values())}; found {_names(files)}")
    return checkpoints


def in_range(checkpoints: Sequence[Checkpoint], first: int, final: int) -> list[Checkpoint]:
    """The numbered checkpoints from ``first`` to ``final``, both included. Raises ``ValueError``: there is none."""
    chosen = [checkpoint for checkpoint in checkpoints if first <= checkpoint.number <= final]
    if not chosen:
        raise ValueError(f"no checkpoint from {first} to {final}; found {', '.join(map(str, checkpoints))}")
    return chosen


def best(files: Sequence[Path], count: int, metric: str) -> list[Checkpoint]:
    """The ``count`` checkpoints with the best value of ``metric``, or all if there are fewer, the best first.

    Copies of one model in a folder count once. A checkpoint whose value is not finite is not chosen.

    The value is the one in the checkpoint, if ``--best-checkpoint-metric`` named this metric, or else the one in its
    name (``checkpoint.best_bleu_36.70.pt``). Averages are not candidates. Raises ``ValueError``: none of them holds the
    metric, or no value is finite.
    """
    if not (checkpoints := _by_metric(files, metric)):
        raise ValueError(f"no checkpoint holds a finite {metric}: training diverged")
    return checkpoints[:count]


def _by_metric(files: Sequence[Path], metric: str) -> list[Checkpoint]:
    by_update: dict[Any, Checkpoint] = {}
    higher: bool | None = None
    for path in files:
        state = loading.load_checkpoint(path, mmap=True, verify=False)  # what is chosen is verified when it is averaged
        if "averaged" in (state.get("extra_state") or {}):
            continue
        try:
            value, maximized = _metric(path, state, metric)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a fairseq checkpoint: its figures are damaged ({error})") from None
        if value is not None:
            higher = maximized if higher is None else higher
            number = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
            key = path if number is None else (path.parent, number)
            by_update.setdefault(key, Checkpoint(path, number or 0, value))
    if not by_update:
        tracked = "training tracks only --best-checkpoint-metric"
        raise ValueError(f"no checkpoint holds {metric} ({tracked}); found {_names(files)}")
    sign = -1 if higher else 1
    finite = [item for item in by_update.values() if item.value is not None and math.isfinite(item.value)]
    return sorted(finite, key=lambda item: (sign * (item.value or 0.0), -item.number))


def drop_worse(folder: Path, count: int, metric: str) -> None:
    """Delete the checkpoints of updates that are neither the newest nor among the ``count`` best by ``metric``.

    Repeated while a training saves them, this leaves those that ``best`` would take of all. Raises ``ValueError``: they
    do not hold the metric.
    """
    paths = [path for path in folder.glob("checkpoint_*_*.pt") if UPDATES.fullmatch(path.name)]
    if len(paths) > count + 1:
        newest = numbered(paths, "updates")[-1].path
        for path in set(paths) - {newest, *(checkpoint.path for checkpoint in _by_metric(paths, metric)[:count])}:
            path.unlink(missing_ok=True)


def average_checkpoints(paths: Sequence[Path], out: Path) -> None:
    """Write the mean of the checkpoints' parameters to ``out``, a checkpoint for fairseq-generate.

    Integers and everything besides the parameters are those of the last checkpoint, without the optimizer's state and
    moving averages. Only one checkpoint and the sum are in memory. Sums are float64 (float32 for half precision), means
    have the checkpoints' type. Tensors that share memory (tied embeddings) are averaged once and share it in ``out``.
    A checksum of the parameters is stored in ``extra_state`` and compared whenever the file is loaded.

    Raises:
        ValueError: a checkpoint cannot be loaded, is damaged, or has other parameters, dictionaries or another seed
            than the first.
        OSError: ``out`` cannot be written.
    """
    sums: dict[str, Tensor] = {}
    layout: dict[str, tuple] = {}
    words: dict[str, str] = {}
    first: tuple[str, str] | None = None  # training
    for path in tqdm(paths, desc="average", unit="checkpoint", disable=None):
        state = loading.load_checkpoint(path, mmap=True)
        model = state["model"]
        layout = _same_layout(path, _layout(path, model), paths[0], layout)
        if difference := loading.other_dictionaries(loading.dictionary_digests(state), words):
            raise ValueError(f"{path}: does not fit {paths[0]}: {difference}")
        common, saved = (loading.settings_of(group, state) for group in ("common", "checkpoint"))
        seed, folder = printable(str(common.get("seed"))), printable(str(saved.get("save_dir")))
        first_seed, first_folder = first = first or (seed, folder)
        if seed != first_seed:
            seeds = f"--seed {seed}, not {first_seed}"
            raise ValueError(f"{path}: of another training than {paths[0]}, {seeds}: their average is no model")
        if folder != first_folder:
            folders = f"{path} was saved in {folder}, {paths[0]} in {first_folder}"
            logger.warning(f"warning: {folders}: the average of two trainings is no model")
        words = loading.dictionary_digests(state) | words
        for key, (owner, *_) in layout.items():
            if key != owner:
                continue
            value = model[key].detach()
            if not value.is_floating_point():
                sums[key] = value.clone()
            elif key in sums:
                sums[key] += value
            else:
                sums[key] = value.to(torch.float32 if value.element_size() < 4 else torch.float64, copy=True)
    for key, (owner, _, dtype) in layout.items():
        if key == owner and dtype.is_floating_point:
            sums[key] = sums[key].div_(len(paths)).to(dtype)
        model[key] = sums[owner]
    for key in ("last_optimizer_state", "optimizer"):
        state.pop(key, None)
    extra = {key: value for key, value in (state.get("extra_state") or {}).items() if not key.startswith("ema")}
    state["extra_state"] = {**extra, "averaged": [path.name for path in paths], "checksum": loading.checksum(model)}
    loading.save_checkpoint(state, out)


def _layout(path: Path, model: Mapping[str, Tensor]) -> dict[str, tuple]:
    """Of each parameter: the first one that shares its memory (itself, most often), its shape and its type."""
    if wrong := [key for key, value in model.items() if not isinstance(value, Tensor)]:
        raise ValueError(f'{path}: not a fairseq checkpoint: "{wrong[0]}" of its model is not a tensor')
    return {key: (owner, tuple(model[key].shape), model[key].dtype) for key, owner in owners(model).items()}


def _same_layout(path: Path, layout: dict[str, tuple], first: Path, expected: dict[str, tuple]) -> dict[str, tuple]:
    """``layout``, which must be that of the first checkpoint (``expected``; empty before it is known)."""
    if not expected or layout == expected:
        return layout
    for key in [*expected, *layout]:
        if key not in layout or key not in expected:
            raise ValueError(f"{path}: {key} is {'new' if key in layout else 'missing'}, compared with {first}")
        if layout[key] != expected[key]:
            (owner, shape, dtype), (first_owner, first_shape, first_dtype) = layout[key], expected[key]
            if (shape, dtype) != (first_shape, first_dtype):
                raise ValueError(f"{path}: {key} is {dtype} {shape}, but {first_dtype} {first_shape} in {first}")
            raise ValueError(f"{path}: {key} is tied to {owner}, but to {first_owner} in {first}")
    return layout  # the same parameters in another order


def _metric(path: Path, state: Mapping[str, Any], metric: str) -> tuple[float | None, bool]:
    """The value of a metric in a checkpoint (None: it holds none), and whether higher is better."""
    settings = loading.settings_of("checkpoint", state)
    extra = state.get("extra_state") or {}
    ours = settings.get("best_checkpoint_metric") == metric
    maximized = bool(settings.get("maximize_best_checkpoint_metric")) if ours else True
    if HIGHER_IS_BETTER.fullmatch(metric) or LOWER_IS_BETTER.fullmatch(metric):
        maximized = not LOWER_IS_BETTER.fullmatch(metric)
    if ours and extra.get("val_loss") is not None:
        return float(extra["val_loss"]), maximized
    match = BEST.fullmatch(path.name)
    return (float(match[2]), maximized) if match and match[1] == metric else (None, maximized)


def _names(files: Sequence[Path]) -> str:
    return ", ".join(path.name for path in files)
