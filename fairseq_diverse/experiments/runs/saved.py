"""The summaries of a table's rows: of its runs, or of saved copies, by which several machines can share a table."""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.inputs import differing, read_by, refused_trees, trees_read_by
from fairseq_diverse.experiments.kinds.kind import Summary, kind_of
from fairseq_diverse.experiments.records import write_copy
from fairseq_diverse.experiments.run import Row, Run
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import folders_by_seed, read_summary, summary_of
from fairseq_diverse.experiments.runs.provenance import collect, commits_of, machine, starts_of
from fairseq_diverse.support.files import RUN_AGAIN
from fairseq_diverse.support.paths import data_name


def figures_by_test(summary: Summary) -> dict[str, Summary]:
    """What a run measured on each test set, by its name, the first one first."""
    return {summary.get("test", "test"): summary, **summary.get("tests", {})}


def from_runs(rows: Sequence[Row], root: Path | None = None, named: bool = True) -> dict[str, list[Summary]]:
    """The summaries of every row's finished runs in a folder of runs, all seeds that there are. ``named``: by the user;
    of other rows those that cannot be run as configured have no runs, and nothing is said."""
    summaries: dict[str, list[Summary]] = {row.name: [] for row in rows}
    for run in (runs_of if named else _runs_of_usable)(rows, root):
        folders, refused = folders_by_seed(run), refused_trees(run.row, run.data)
        if refused and folders and named:
            print(f"row {run.row.name} is left out: {refused}", file=sys.stderr)
        for seed, folder in {}.items() if refused else folders.items():
            summary = read_summary(folder / "summary.json", RUN_AGAIN)
            if summary["seed"] != seed:
                raise ValueError(f"{folder}: is a copy of the run of seed {summary['seed']}; delete or rename it")
            summaries[run.row.name].append(summary)
    return summaries


def runs_of(rows: Sequence[Row], root: Path | None = None) -> list[Run]:
    """One run of each row, in whose folder those of every seed are; nothing of it has to exist."""
    return find_runs(rows, [0], dry=True, root=root, cpu=True)


def _runs_of_usable(rows: Sequence[Row], root: Path | None) -> list[Run]:
    """As `runs_of`, without the rows that cannot be run; by halves, since a call reads every data set's record once."""
    try:
        return runs_of(rows, root)
    except ValueError:
        half = len(rows) // 2
        return _runs_of_usable(rows[:half], root) + _runs_of_usable(rows[half:], root) if half else []


def with_other_settings(rows: Sequence[Row], root: Path | None = None) -> list[str]:
    """How many finished runs in a folder of runs have the names of rows, their data and size, and other settings, and
    the first difference of each."""
    texts = []
    for run in _runs_of_usable(rows, root):
        parent = run.directory.parent
        paths = parent.parent.glob(f"{parent.name.rpartition('-')[0]}-*/seed*/summary.json")
        counts: Counter[str] = Counter()
        for path in sorted(paths):
            with suppress(ValueError):  # damaged ones
                counts[difference(read_summary(path, RUN_AGAIN), run.row)] += 1
        texts += [f"{run.row.name} ({count}): {why}" for why, count in counts.items() if why]
    return texts


def from_results(folder: Path, rows: Sequence[Row], named: bool = True) -> dict[str, list[Summary]]:
    """As `from_runs`, from the copies that ``save`` made; of rows that are not ``named``, only runs as configured.
    Raises ValueError: the folder has none, a file is not a summary, or one has a row's name and is not of that row."""
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
            problem = problem or _input_difference(read()[name], kept)
        if problem and not named:
            continue
        if problem:
            raise ValueError(f"{path}: not row {name} of this table as configured: {problem}")
        if seed in paths[name]:
            raise ValueError(f"{path}: seed {seed} of row {name} is {paths[name][seed]} already")
        paths[name][seed] = path
    if not summaries:
        raise ValueError(f"{folder}: no saved summaries; `fairseq-diverse report TABLE --save {folder}` writes them")
    return {name: [summaries[path] for _, path in sorted(by_seed.items())] for name, by_seed in paths.items()}


def difference(summary: Summary, row: Row) -> str:
    """The first difference between the settings of a summary and those of a row; empty if it is a run of that row."""
    if summary["data"] != (name := data_name(row.data)):
        return f"its data are {summary['data']}, not {name}"
    before, after = summary["row"], kind_of(row).settings(row)
    if changed_flag := _flag_difference(before["train"], after["train"]):
        return f"it was trained with {changed_flag}"
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
    changed_flag = _flag_difference(before.get("generate", {}), after.get("generate", {}))
    return f"it was translated with {changed_flag}" if changed_flag else ""


def _flag_difference(before: Mapping[str, str | bool], after: Mapping[str, str | bool]) -> str:
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


def _input_difference(digests: Mapping[str, str], kept: Mapping[str, str]) -> str:
    """What differs between the digests of what a row reads here and of what a run read; empty if nothing does."""
    name = differing(digests, kept)
    return f"it was run with another {name}" if name else ""


def refuse_replacing(folder: Path, rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> None:
    """Raise ``ValueError`` where ``save`` would replace a copy of a run with other settings or of other data."""
    for row, summary in [(each, summary) for each in rows for summary in summaries[each.name]]:
        path = copy_path(folder, row.name, summary["seed"])
        try:
            copy = read_summary(path, "")
        except ValueError:  # none is there, or what is there is damaged
            continue
        problem = difference(copy, row) or _input_difference(summary.get("read", {}), copy.get("read", {}))
        if copy.get("data_hash") != summary.get("data_hash"):
            problem = problem or "its data are others of this name"
        if problem:
            raise ValueError(f"{path}: {problem}; save to another folder, or delete this file")


def copy_path(folder: Path, row: str, seed: int) -> Path:
    return folder / f"{row}-seed{seed}.json"


def save(folder: Path, summaries: Mapping[str, list[Summary]]) -> list[Path]:
    """Copy summaries to ``<folder>/<row>-seed<S>.json``."""
    paths = []
    for name, row_summaries in summaries.items():
        for summary in row_summaries:
            paths.append(copy_path(folder, name, summary["seed"]))
            write_copy(paths[-1], summary | {"system": name})
    return paths


class Copies:
    """A folder of summaries: runs whose copies are there are finished, others are copied when they are. Raises
    ValueError: a copy is of a row with other settings or files, or any copy there is of other data of the same name, or
    of other trees, than the runs read."""

    def __init__(self, folder: Path, runs: Sequence[Run]) -> None:
        self.folder = folder
        self.names: dict[Path, set[str]] = {}  # of equal rows
        for run in runs:
            if (path := copy_path(folder, run.row.name, run.seed)).is_symlink():
                raise ValueError(f"{path}: a link; delete it, or give another --save")
        paths = sorted(folder.glob("*.json"))
        copies = from_results(folder, [run.row for run in runs]) if paths else {}
        self.summaries = [read_summary(path, RUN_AGAIN) for path in paths]  # of every row: all are to be compared
        by_seed = {(name, copy["seed"]): copy for name, row_copies in copies.items() for copy in row_copies}
        self.finished: set[Path] = set()  # directories of runs whose copies have all that their rows ask for
        self.lacking: set[Path] = set()  # of those that lack a test set, a metric or the figures of heads
        for run in {run.data.path: run for run in runs if run.data.hash}.values():
            self._refuse_other(run, "data_hash", run.data.hash, "data")
        trees = {run.data.path: (run, digest) for run in runs if (digest := trees_read_by(run.row, run.data))}
        for run, digest in trees.values():
            self._refuse_other(run, "trees", digest, "trees")
        for run in runs:
            self.names.setdefault(run.directory, set()).add(run.row.name)
            if copy := by_seed.get((run.row.name, run.seed)):
                if changed := differing(run.read, copy.get("read", {})):
                    wrong = f"the copy of {run.name} is of another {changed} than there is here"
                    raise ValueError(f"{folder}: {wrong}; bring it from where it was trained, or give another --save")
                again = run.checkpoint.is_file()  # it is scored
                complete = kind_of(run.row).is_complete(run, copy, tried=not again)
                (self.finished if complete else self.lacking).add(run.directory)
        needed = {run.first.directory for run in runs if run.first and run.directory not in self.finished}
        self.finished -= needed  # checkpoints are not copied: what others are to start from is trained again

    def _refuse_other(self, run: Run, key: str, digest: str | None, what: str) -> None:
        for copy in self.summaries:
            if copy["data"] == run.data.name and copy.get(key, digest) != digest:
                of = f"the copy of {copy['system']} seed {copy['seed']} is of other {what} than {run.data.path}"
                todo = f"bring the {what} from where it was trained, or give another --save"
                raise ValueError(f"{self.folder}: {of}; {todo}")

    def open_runs(self, runs: Sequence[Run], say: Callable[[str], None]) -> list[Run]:
        """The runs that have no complete copy; says which have, and which are trained again for what theirs lack."""
        for run in runs:
            if run.directory in self.finished:
                say(f"{run.name}: done before, {self.folder}")
            elif run.directory in self.lacking and not run.directory.exists():
                why = "its copy lacks a test set, a metric or the figures of heads, and its checkpoint is not here"
                say(f"{run.name}: {why}: trained again")
        return [run for run in runs if run.directory not in self.finished]

    def differences(self, environment: dict[str, str]) -> list[str]:
        """How commit, versions and machine of the copies differ from those of runs with this environment."""
        if not self.summaries:
            return []
        aspects: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "another commit": lambda start: commits_of([dict(start)])[0],
            "other versions": lambda start: ", ".join(f"{name} {v}" for name, v in start.get("versions", {}).items()),
            "another machine": machine,
        }
        here = collect(environment)
        there = [start for summary in self.summaries for start in starts_of(summary)]
        lines = []
        for name, aspect in aspects.items():
            if values := dict.fromkeys(aspect(start) for start in there if aspect(start) != aspect(here)):
                lines.append(f"{self.folder} has runs of {name}: {'; '.join(values)}; here: {aspect(here)}")
        return lines

    def add(self, run: Run) -> None:
        """Copy the summary of a finished run, for each row that it is the run of."""
        if summary := summary_of(run):
            save(self.folder, {name: [summary] for name in self.names[run.directory]})
