"""The flags that every run sets by itself, and command lines of flags."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from fairseq_diverse.experiments.run import Row, Run
from fairseq_diverse.support.paths import PACKAGE

Flags = dict[str, str | bool]  # True: a flag without a value; False: left out, and no row may give it


def common(source: str, target: str, cpu: bool, user_dir: str = "") -> Flags:
    """The run's own flags of every fairseq program; without languages for all but translation."""
    languages = {"source-lang": source or False, "target-lang": target or False}
    return {"user-dir": user_dir or str(PACKAGE), "cpu": cpu, **languages}


def machinery(row: Row, seed: int, checkpoints: Path) -> Flags:
    """The run's own flags of a row's training: seed, what is saved and logged, from where it is resumed."""
    validations = 10 if row.max_update < 500 else 30  # of short trainings they would take most of the time
    every = row.average.get("every") or min(1000, max(1, -(-row.max_update // validations)))
    # of the best, run deletes the others: fairseq's --keep-best-checkpoints may keep fewer or others
    best = {"best-checkpoint-metric": row.average["by"]} if "by" in row.average else {}
    return {
        "seed": str(seed),
        "save-dir": str(checkpoints),
        "save-interval": "1" if row.ends_early else "1000000",  # else the end of the last epoch would not be saved
        "save-interval-updates": str(every),
        "keep-interval-updates": "-1" if best else str(row.average.get("last", 1)),
        **best,
        "validate-interval": "1000000",
        "no-epoch-checkpoints": True,
        "log-format": "json",
        "log-interval": str(min(100, max(1, row.max_update // 100))),
        **dict.fromkeys(("restore-file", "checkpoint-suffix", "reset-optimizer", "reset-lr-scheduler"), False),
        **dict.fromkeys(("reset-meters", "reset-dataloader", "no-save", "no-save-optimizer-state"), False),
        **dict.fromkeys(("no-last-checkpoints", "write-checkpoints-asynchronously", "continue-once"), False),
    }


def to_arguments(flags: Mapping[str, str | bool]) -> list[str]:
    """``{"arch": "transformer", "fp16": True}`` -> ``["--arch", "transformer", "--fp16"]``; without those off."""
    words = {flag: [] if value is True else [str(value)] for flag, value in flags.items() if value is not False}
    return [word for flag, values in words.items() for word in (f"--{flag}", *values)]


def portable(word: str) -> str:
    """A word of a command without the folders of this machine: the name of a file, ``RUN/checkpoints/NAME`` of a
    run's."""
    if named := re.fullmatch(r"([^/=]+=)(/.*)", word):
        return named[1] + portable(named[2])
    if not os.path.isabs(word):
        return word
    inside = re.search(r"checkpoints(/[^/]+)?$", word)
    return f"RUN/{inside[0]}" if inside else os.path.basename(word)


def without_folders(flags: Mapping[str, str | bool]) -> dict[str, str | bool]:
    return {flag: portable(value) if isinstance(value, str) else value for flag, value in flags.items()}


def own_command(command: str, run: Run, *words: str) -> list[str]:
    """A command of ``fairseq-diverse`` on the run's data, as words for Python."""
    user_dir = ["--user-dir", run.row.user_dir] if run.row.user_dir else []
    return ["-m", "fairseq_diverse.cli", command, *words, *user_dir]
