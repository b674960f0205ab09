"""The summaries of a table's rows: of its runs, or of saved copies; and saving them."""

import functools
import itertools
import os
import re
import shlex
import sys
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.runs.flags import averaging, common, defaults, machinery, of_glue, translation
from fairseq_diverse.experiments.runs.inputs import differing, read_by
from fairseq_diverse.experiments.runs.records import AGAIN, read_summary, write_copy
from fairseq_diverse.experiments.runs.run import Run, find_runs
from fairseq_diverse.experiments.tables.rows import Row
from fairseq_diverse.preparation.glue import TASKS

Summary = dict[str, Any]


def figures_by_test(summary: Summary) -> dict[str, Summary]:
    """What a run measured on each test set, by its name, the first one first."""
    return {summary.get("test", "test"): summary, **summary.get("tests", {})}


def from_runs(rows: Sequence[Row], root: Path | None = None, asked: bool = True) -> dict[str, list[Summary]]:
    """The summaries of every row's finished runs in a folder of runs, all seeds that there are.

    Args:
        asked: by the user; of other rows those that cannot be run as configured have no runs, and nothing is said.
    """
    found: dict[str, list[Summary]] = {row.name: [] for row in rows}
    for run in (runs_of if asked else _possible)(rows, root):
        folders = run.of_seeds()
        if run.refused and folders and asked:
            print(f"row {run.row.name} is left out: {run.refused}", file=sys.stderr)
        for seed, folder in {}.items() if run.refused else folders.items():
            summary = read_summary(folder / "summary.json", AGAIN)
            if summary["seed"] != seed:
                raise ValueError(f"{folder}: is a copy of the run of seed {summary['seed']}; delete or rename it")
            found[run.row.name].append(summary)
    return found


def runs_of(rows: Sequence[Row], root: Path | None = None) -> list[Run]:
    """One run of each row, in whose folder those of every seed are; nothing of it has to exist.

    Raises:
        ValueError: a row cannot be run as configured.
    """
    return find_runs(rows, [0], dry=True, root=root, cpu=True)


def _possible(rows: Sequence[Row], root: Path | None) -> list[Run]:
    """The same without the rows that cannot be run; halves, since a call reads every data set's record once."""
    try:
        return runs_of(rows, root)
    except ValueError:
        half = len(rows) // 2
        return _possible(rows[:half], root) + _possible(rows[half:], root) if half else []


def from_results(folder: Path, rows: Sequence[Row], asked: bool = True) -> dict[str, list[Summary]]:
    """The same from the copies that ``save`` made; of rows that were not asked for, only runs as configured.

    Raises:
        ValueError: the folder has none, a file is not a summary, or one has a row's name and is not of that row.
    """
    found: dict[str, dict[int, Path]] = {row.name: {} for row in rows}
    summaries: dict[Path, Summary] = {}
    by_name = {row.name: row for row in rows}
    read = functools.cache(lambda: read_by(rows))
    for path in sorted(folder.glob("*.json")):
        try:
            summaries[path] = summary = read_summary(path, "save it again")
        except ValueError as error:
            problem = str(error).removeprefix(f"{path}: ")
            raise ValueError(
                f"{path}: not a summary that `fairseq-diverse report TABLE --save` wrote: {problem}"
            ) from None
        name, seed = summary["system"], summary["seed"]
        if name not in by_name:
            continue
        difference = _difference(summary, by_name[name])
        if kept := summary.get("read"):
            difference = difference or _of_other_files(read()[name], kept)
        if difference:
            if not asked:
                continue
            raise ValueError(f"{path}: not row {name} of this table as configured: {difference}")
        if seed in found[name]:
            raise ValueError(f"{path}: seed {seed} of row {name} is {found[name][seed]} already")
        found[name][seed] = path
    if not summaries:
        raise ValueError(f"{folder}: no saved summaries; `fairseq-diverse report TABLE --save {folder}` writes them")
    return {name: [summaries[path] for _, path in sorted(of_row.items())] for name, of_row in found.items()}


def _difference(summary: Summary, row: Row) -> str:
    """The difference between a saved run and its row; empty if it is a run of that row."""
    if summary["data"] != Path(row.data).name:
        return f"its data are {summary['data']}, not {Path(row.data).name}"
    commands = [shlex.split(_portable(line)) for line in summary["commands"]]
    trained, own = _flags(commands[0]), machinery(row, 0, Path())
    others = {**common("", "", True), **own, **defaults(cpu=True), "best-checkpoint-metric": ""}
    if row.kind == "glue":
        others |= {**of_glue(next(iter(TASKS.values()))), **({"finetune-from-model": ""} if row.pretrained else {})}
    if other := _other_flag(trained, row.train, others):
        return f"it was trained with {other}"
    if row.first and summary.get("pretrained") != row.first.key(""):
        return f"it was not pre-trained as row {row.first.name}"
    averaged = next((_flags(words) for words in commands if words[:2] == ["fairseq-diverse", "average"]), {})
    before, after = _evaluated(averaged, trained), _evaluated(averaging(row), own)
    if before != after:
        values = {"every": trained.get("save-interval-updates"), "by": averaged.get("metric")}
        values = {"last": averaged.get("last"), "best": averaged.get("best"), **values} if averaged else {"last": "0"}
        shows = " ".join(f"--set average.{key}={value}" for key, value in values.items() if value)
        return f"it evaluates {before}, not {after}; {shows} shows it"
    if (alone := summary.get("test") == "valid") != (row.split == "valid"):
        return "it was evaluated on {}, not on {}".format(*(("valid", "test") if alone else ("test", "valid")))
    generated = [_flags(words) for words in commands if words[:1] == ["fairseq-generate"]]
    of_split = [flags for flags in generated if flags.get("gen-subset") == row.split]
    if not (translated := [flags for flags in of_split if "score-reference" not in flags]):
        return ""
    others = {**common("", "", True), **translation(row, Path()), "batch-size": "", "max-tokens": ""}
    chosen = summary.get("chosen", {}).get("valid_bleu", {})
    if set(chosen) != set(row.lenpen):
        tried = (", ".join(values) or "none" for values in (chosen, row.lenpen))
        return "its length penalty was chosen from {}, not from {}".format(*tried)
    other = _other_flag(translated[0], row.generate, others | ({"lenpen": ""} if chosen else {}))
    return f"it was translated with {other}" if other else ""


def _of_other_files(own: dict[str, str], kept: dict[str, str]) -> str:
    """What differs between the digests of what a row reads here and of what a run read; empty if nothing does."""
    other = differing(own, kept)
    return f"it was run with another {other}" if other else ""


def _flags(words: Sequence[str]) -> dict[str, str]:
    return {
        word.removeprefix("--"): "" if following.startswith("--") else following
        for word, following in itertools.pairwise([*words, "--"])
        if word.startswith("--") and word != "--"
    }


def _other_flag(before: Mapping[str, str], row: Mapping[str, str | bool], others: Container[str]) -> str:
    """The first flag that differs between a run and its row, in words; ``others`` are flags that are not compared."""
    wanted = {flag: "" if value is True else _portable_word(str(value)) for flag, value in row.items()}
    for flag in {**wanted, **before}:
        if (flag in wanted or flag not in others) and before.get(flag) != wanted.get(flag):
            values = before.get(flag), wanted.get(flag)
            shown = ["no " * (value is None) + f"--{flag} {value or ''}".rstrip() for value in values]
            return f"{shown[0]}, not {shown[1]}"
    return ""


def _evaluated(average: Mapping[str, str | bool], train: Mapping[str, str | bool]) -> str:
    """Which checkpoint of a run is evaluated, in words."""
    if not average:
        return "the last checkpoint"
    which = f"best {average['best']} checkpoints by {average.get('metric')}" if "best" in average else ""
    which = which or f"last {average.get('last')} checkpoints"
    return f"the average of the {which}, one every {train.get('save-interval-updates')} updates"


def refuse_replacing(folder: Path, rows: Sequence[Row], summaries: Mapping[str, list[Summary]]) -> None:
    """Raise ``ValueError`` where ``save`` would replace a copy of a run with other settings or of other data."""
    for row, own in [(each, own) for each in rows for own in summaries[each.name]]:
        path = copy_path(folder, row.name, own["seed"])
        try:
            copy = read_summary(path, "")
        except ValueError:  # none is there, or what is there is damaged
            continue
        problem = _difference(copy, row) or _of_other_files(own.get("read", {}), copy.get("read", {}))
        if copy.get("data_hash") != own.get("data_hash"):
            problem = problem or "its data are others of this name"
        if problem:
            raise ValueError(f"{path}: {problem}; save to another folder, or delete this file")


def copy_path(folder: Path, row: str, seed: int) -> Path:
    return folder / f"{row}-seed{seed}.json"


def save(folder: Path, summaries: Mapping[str, list[Summary]]) -> list[Path]:
    """Copy summaries to ``<folder>/<row>-seed<S>.json``, with the commands' paths replaced by what they stand for."""
    paths = []
    for name, of_row in summaries.items():
        for summary in of_row:
            path = copy_path(folder, name, summary["seed"])
            commands = [_portable(line) for line in summary["commands"]]
            write_copy(path, summary | {"system": name, "commands": commands})
            paths.append(path)
    return paths


def _portable(line: str) -> str:
    """``.../python -m fairseq_cli.train .../DATA`` -> ``fairseq-train DATA``, without the paths of this machine."""
    words = shlex.split(line)
    if "-m" not in words:  # saved before
        return line
    words = words[words.index("-m") + 1 :]
    words[0] = words[0].replace("fairseq_cli.", "fairseq-").replace("fairseq_diverse.cli", "fairseq-diverse")
    return shlex.join(map(_portable_word, words))


def _portable_word(word: str) -> str:
    if named := re.fullmatch(r"([^/=]+=)(/.*)", word):
        return named[1] + _portable_word(named[2])
    if not os.path.isabs(word):
        return word
    inside = re.search(r"checkpoints(/[^/]+)?$", word)
    return f"RUN/{inside[0]}" if inside else os.path.basename(word)
