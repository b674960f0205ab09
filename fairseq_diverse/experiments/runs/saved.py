"""The summaries of a table's rows: of its runs, or of saved copies; and saving them."""

import functools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.inputs import differing, read_by, refused_trees
from fairseq_diverse.experiments.kinds.kind import Summary, kind_of
from fairseq_diverse.experiments.records import AGAIN, write_copy
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import folders_by_seed
from fairseq_diverse.experiments.runs.summary import read_summary


def figures_by_test(summary: Summary) -> dict[str, Summary]:
    """What a run measured on each test set, by its name, the first one first."""
    return {summary.get("test", "test"): summary, **summary.get("tests", {})}


def from_runs(rows: Sequence[Row], root: Path | None = None, asked: bool = True) -> dict[str, list[Summary]]:
    """The summaries of every row's finished runs in a folder of runs, all seeds that there are. ``asked``: by the user;
    of other rows those that cannot be run as configured have no runs, and nothing is said."""
    summaries: dict[str, list[Summary]] = {row.name: [] for row in rows}
    for run in (runs_of if asked else _possible)(rows, root):
        folders, refused = folders_by_seed(run), refused_trees(run.row, run.data)
        if refused and folders and asked:
            print(f"row {run.row.name} is left out: {refused}", file=sys.stderr)
        for seed, folder in {}.items() if refused else folders.items():
            summary = read_summary(folder / "summary.json", AGAIN)
            if summary["seed"] != seed:
                raise ValueError(f"{folder}: is a copy of the run of seed {summary['seed']}; delete or rename it")
            summaries[run.row.name].append(summary)
    return summaries


def runs_of(rows: Sequence[Row], root: Path | None = None) -> list[Run]:
    """One run of each row, in whose folder those of every seed are; nothing of it has to exist."""
    return find_runs(rows, [0], dry=True, root=root, cpu=True)


def _possible(rows: Sequence[Row], root: Path | None) -> list[Run]:
    """The same without the rows that cannot be run; halves, since a call reads every data set's record once."""
    try:
        return runs_of(rows, root)
    except ValueError:
        half = len(rows) // 2
        return _possible(rows[:half], root) + _possible(rows[half:], root) if half else []


def with_other_settings(rows: Sequence[Row], root: Path | None = None) -> list[str]:
    """How many finished runs in a folder of runs have the names of rows, their data and size, and other settings, and
    the first difference of each."""
    texts = []
    for run in _possible(rows, root):
        parent = run.directory.parent
        paths = parent.parent.glob(f"{parent.name.rpartition('-')[0]}-*/seed*/summary.json")
        found: Counter[str] = Counter()
        for path in sorted(paths):
            with suppress(ValueError):  # damaged ones
                found[difference(read_summary(path, AGAIN), run.row)] += 1
        texts += [f"{run.row.name} ({count}): {why}" for why, count in found.items() if why]
    return texts


def from_results(folder: Path, rows: Sequence[Row], asked: bool = True) -> dict[str, list[Summary]]:
    """The same from the copies that ``save`` made; of rows that were not asked for, only runs as configured. Raises
    ValueError: the folder has none, a file is not a summary, or one has a row's name and is not of that row."""
    paths: dict[str, dict[int, Path]] = {row.name: {} for row in rows}
    summaries: dict[Path, Summary] = {}
    by_name = {row.name: row for row in rows}
    read = functools.cache(lambda: read_by(rows))
    for path in sorted(folder.glob("*.json")):
        try:
            summaries[path] = summary = read_summary(path, "save it again")
        except ValueError as error:
            wanted = "not a summary that `fairseq-diverse report TABLE --save` wrote"
            raise ValueError(f"{path}: {wanted}: {str(error).removeprefix(f'{path}: ')}") from None
        name, seed = summary["system"], summary["seed"]
        if name not in by_name:
            continue
        problem = difference(summary, by_name[name])
        if kept := summary.get("read"):
            problem = problem or _other_file(read()[name], kept)
        if problem and not asked:
            continue
        if problem:
            raise ValueError(f"{path}: not row {name} of this table as configured: {problem}")
        if seed in paths[name]:
            raise ValueError(f"{path}: seed {seed} of row {name} is {paths[name][seed]} already")
        paths[name][seed] = path
    if not summaries:
        raise ValueError(f"{folder}: no saved summaries; `fairseq-diverse report TABLE --save {folder}` writes them")
    return {name: [summaries[path] for _, path in sorted(of_row.items())] for name, of_row in paths.items()}


def difference(summary: Summary, row: Row) -> str:
    """The first difference between the settings of a summary and those of a row; empty if it is a run of that row."""
    if summary["data"] != Path(row.data).name:
        return f"its data are {summary['data']}, not {Path(row.data).name}"
    before, after = summary["row"], kind_of(row).settings(row)
    if other := _other_flag(before["train"], after["train"]):
        return f"it was trained with {other}"
    if before.get("pretrained") != after.get("pretrained"):
        return f"it was not pre-trained as row {row.first.name}" if row.first else "it was pre-trained as another row"
    if before["average"] != after["average"]:
        shows = " ".join(f"--set average.{key}={value}" for key, value in (before["average"] or {"last": 0}).items())
        return f"it evaluates {_evaluated(before['average'])}, not {_evaluated(after['average'])}; {shows} shows it"
    if before.get("split") != after.get("split"):
        return f"it was evaluated on {before.get('split')}, not on {after.get('split')}"
    if before.get("lenpen") != after.get("lenpen"):
        tried = (", ".join(settings.get("lenpen") or ["none"]) for settings in (before, after))
        return "its length penalty was chosen from {}, not from {}".format(*tried)
    other = _other_flag(before.get("generate", {}), after.get("generate", {}))
    return f"it was translated with {other}" if other else ""


def _other_flag(before: Mapping[str, str | bool], after: Mapping[str, str | bool]) -> str:
    """The first flag that differs between a run and its row, in words."""
    for flag in {**after, **before}:
        if before.get(flag) != after.get(flag):
            had, wanted = (to_arguments({flag: flags[flag]}) if flag in flags else [] for flags in (before, after))
            return f"{' '.join(had) or f'no --{flag}'}, not {' '.join(wanted) or f'no --{flag}'}"
    return ""


def _evaluated(average: Mapping[str, Any]) -> str:
    """Which checkpoint of a run is evaluated, in words."""
    if not average:
        return "the last checkpoint"
    which = "best {best} checkpoints by {by}" if "best" in average else "last {last} checkpoints"
    return f"the average of the {which}, one every {{every}} updates".format(**average)


def _other_file(own: Mapping[str, str], kept: Mapping[str, str]) -> str:
    """What differs between the digests of what a row reads here and of what a run read; empty if nothing does."""
    other = differing(own, kept)
    return f"it was run with another {other}" if other else ""


def refuse_replacing(folder: Path, rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> None:
    """Raise ``ValueError`` where ``save`` would replace a copy of a run with other settings or of other data."""
    for row, own in [(each, own) for each in rows for own in summaries[each.name]]:
        path = copy_path(folder, row.name, own["seed"])
        try:
            copy = read_summary(path, "")
        except ValueError:  # none is there, or what is there is damaged
            continue
        problem = difference(copy, row) or _other_file(own.get("read", {}), copy.get("read", {}))
        if copy.get("data_hash") != own.get("data_hash"):
            problem = problem or "its data are others of this name"
        if problem:
            raise ValueError(f"{path}: {problem}; save to another folder, or delete this file")


def copy_path(folder: Path, row: str, seed: int) -> Path:
    return folder / f"{row}-seed{seed}.json"


def save(folder: Path, summaries: Mapping[str, list[Summary]]) -> list[Path]:
    """Copy summaries to ``<folder>/<row>-seed<S>.json``."""
    paths = []
    for name, of_row in summaries.items():
        for summary in of_row:
            paths.append(copy_path(folder, name, summary["seed"]))
            write_copy(paths[-1], summary | {"system": name})
    return paths
