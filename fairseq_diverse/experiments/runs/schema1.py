"""Summaries of earlier versions, which had no ``schema``: their command lines say what their row was."""

import itertools
import shlex
from collections.abc import Container, Sequence
from typing import Any

from fairseq_diverse.experiments.flags import Flags, portable
from fairseq_diverse.experiments.kinds.kind import DEFAULT_TASK, Summary
from fairseq_diverse.experiments.runs.plan import readable_program
from fairseq_diverse.support.typed import typed

BY_KEY = {"glue": "glue", "pretraining": "pretraining", "accuracy": "classification"}  # kinds, by a key of summaries
PROGRAM = ("user-dir", "cpu", "source-lang", "target-lang", "log-format")  # flags that a run set by itself
TRAINING = (
    *("seed", "save-dir", "save-interval", "save-interval-updates", "keep-interval-updates", "validate-interval"),
    *("no-epoch-checkpoints", "log-interval", "num-workers", "tensorboard-logdir", "wandb-project"),
)
GLUE = ("num-classes", "regression-target", "init-token", "separator-token")
TRANSLATION = ("task", "path", "gen-subset", "required-batch-size-multiple", "batch-size", "max-tokens")


def converted(summary: Summary) -> Summary:
    """The summary as this version writes it: with its kind, its settings (`Kind.settings`) and readable commands."""
    kind = next((kind for key, kind in BY_KEY.items() if key in summary), "translation")
    lines = [_readable(line) for line in typed(summary["commands"], list[str], "commands")]
    trained = _flags(lines[0])
    average = summary.get("average", _average(lines, trained))
    reserved = {*PROGRAM, *TRAINING, *(["best-checkpoint-metric"] if "by" in average else [])}
    if kind == "glue":
        reserved |= {*GLUE, *({"finetune-from-model"} - summary.get("read", {}).keys())}
    row = {"train": {"task": DEFAULT_TASK, **_without(trained, reserved)}, "average": average}
    if kind == "translation":
        row |= _translation(summary, lines)
    if "pretrained" in summary:
        row["pretrained"] = summary["pretrained"]
    names = [key for key in ("system", "data", "data_hash", "size", "seed") if key in summary]
    head = {"schema": 2, "kind": kind} | {key: summary[key] for key in names}
    rest = {key: value for key, value in summary.items() if key not in ("average", "pretrained", "pretraining")}
    return head | {"row": row} | rest | {"commands": [shlex.join(words) for words in lines]}


def _readable(line: str) -> list[str]:
    """``.../python -m fairseq_cli.train .../DATA`` -> ``fairseq-train DATA``, without the folders of a machine."""
    words = shlex.split(line)
    if "-m" not in words:  # of a copy
        return words
    program, *words = words[words.index("-m") + 1 :]
    return [readable_program(program), *map(portable, words)]


def _flags(words: Sequence[str]) -> Flags:
    pairs = [pair for pair in itertools.pairwise([*words, "--"]) if pair[0].startswith("--") and pair[0] != "--"]
    return {word.removeprefix("--"): True if following.startswith("--") else following for word, following in pairs}


def _without(flags: Flags, names: Container[str]) -> Flags:
    return {flag: value for flag, value in flags.items() if flag not in names}


def _average(lines: Sequence[Sequence[str]], trained: Flags) -> dict[str, Any]:
    flags = next((_flags(words) for words in lines if words[:2] == ["fairseq-diverse", "average"]), {})
    counts: dict[str, Any] = {key: int(flags[key]) for key in ("last", "best") if key in flags}
    by = {"by": flags["metric"]} if "metric" in flags else {}
    return {**counts, "every": int(trained["save-interval-updates"]), **by} if counts else {}


def _translation(summary: Summary, lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    split = "valid" if summary.get("test") == "valid" else "test"
    penalties = sorted(summary["chosen"]["valid_bleu"]) if "chosen" in summary else []
    translated = [_flags(words) for words in lines if words[0] == "fairseq-generate"]
    on_split = [flags for flags in translated if flags.get("gen-subset") == split and "score-reference" not in flags]
    reserved = {*PROGRAM, *TRANSLATION, *(["lenpen"] if penalties else [])}
    return {"generate": _without(on_split[0], reserved), "lenpen": penalties, "split": split}
