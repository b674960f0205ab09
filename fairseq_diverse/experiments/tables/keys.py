"""The keys of table and size files, each read and checked."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_diverse.checkpoints.settings import unsafe_setting
from fairseq_diverse.data.probing import TASKS
from fairseq_diverse.experiments.rows import ENCODER, TREES
from fairseq_diverse.preparation import glue
from fairseq_diverse.support.paths import config_names, runs_dir
from fairseq_diverse.support.yaml_files import check_text, parse_value, read_yaml, shown
from fairseq_diverse.syntax.makers import named_makers

TEXT_FIGURE = re.compile(r"[\d.,]+[KMGT]?(/[\d.,]+)*")
POSITIVE = ("batch-size", "beam", "max-sentences", "max-tokens", "max-update", "nbest", "update-freq")
PUBLISHED_KEYS = (
    *("bleu", "ter", "wer-li2022", "meteor", "rouge-l", "cider", "yisi"),
    *TASKS,
    *(*glue.TASKS, "average"),
    *("parameters", "flops", "added-parameters", "speed", "relative-speed", "epoch-minutes"),
)
AVERAGE_KEYS = ("last", "best", "every", "by")
FLAG = re.compile(r"[A-Za-z][\w-]*", re.ASCII)

Flags = dict[str, Any]


def read_keys(path: Path, known: tuple[str, ...]) -> Flags:
    content = read_yaml(path)
    if not isinstance(content, dict | None):
        raise ValueError(f"{path}: holds no `key: value` pairs; known keys: {', '.join(known)}")
    named = {str(key): value for key, value in (content or {}).items()}
    refuse_unknown(named, known, str(path))
    return named


def entries(content: Flags, key: str, path: Path) -> Flags:
    section = content.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ValueError(f"{path}: {key}: is not a list of `key: value`")
    return section


def text_of(content: Mapping[str, Any], key: str, path: Path) -> str:
    """One value as text; empty where there is none."""
    value = content.get(key)
    if isinstance(value, list | dict | bool):
        raise ValueError(f"{path}: {key}: text expected, not {shown(value)}")
    return "" if value is None else str(value)


def refuse_unknown(content: Flags, known: tuple[str, ...], where: str) -> None:
    unknown = [shown(key) for key in content if key not in known]
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; known: {', '.join(known)}")


def metrics_of(content: Flags, path: Path) -> tuple[str, ...]:
    from fairseq_diverse.metrics.catalogue import chosen

    text = text_of(content, "metrics", path)
    try:
        return tuple(chosen(text)) if "metrics" in content else ()
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).removeprefix('--').split())}") from None


def parsers_of(keys: Flags, path: Path, task: Any) -> dict[str, str]:
    """The parsers that a row names, by kind of tree; none where it reads no trees."""
    text = text_of(keys, "parser", path).replace(" ", "")
    makers = named_makers(f"{path}: parser:", text) if text else {}
    return makers if task == TREES else {}


def place_of(keys: Flags, key: str, path: Path) -> str:
    """A row's data or size, a name or a path, from the current folder or the table's; empty where there is none."""
    text = text_of(keys, key, path)
    if len(text) > 1000 or any(len(part.encode()) > 255 for part in Path(text).parts):
        raise ValueError(f"{path}: {key}: {shown(text)}: longer than a file's name can be")
    beside = path.parent / text
    here = Path(text).exists() or (runs_dir() / "data" / text).exists() or text in config_names(key)
    return str(beside) if text and not here and beside.exists() else text


def published_figures(row: Flags, path: Path, name: str, tests: tuple[str, ...]) -> Flags:
    """A paper's figures: numbers, besides probing accuracies also text such as 12.6M; by name those of ``tests``."""
    published = entries(row, "published", path)
    refuse_unknown(published, (*PUBLISHED_KEYS, *tests), f"{path}: published figures of row {name}")
    of_tests = {test: entries(published, test, path) for test in tests if test in published}
    for figures in of_tests.values():
        refuse_unknown(figures, PUBLISHED_KEYS, f"{path}: published figures of row {name}")
    plain = [(key, value) for key, value in published.items() if key not in of_tests]
    for key, value in plain + [pair for figures in of_tests.values() for pair in figures.items()]:
        if isinstance(value, bool) or not isinstance(value, int | float if key in TASKS else int | float | str):
            raise ValueError(f"{path}: row {name}: published {key}: {shown(value)} is not a figure")
        if isinstance(value, str) and not TEXT_FIGURE.fullmatch(value):
            raise ValueError(f"{path}: row {name}: published {key}: {shown(value)}: write 27.3, 12.6M or 90.9/87.0")
    return published


def check_average(average: Any, override: Flags, path: Path) -> Flags:
    """``none``, ``{last: N, every: UPDATES}`` or ``{best: N, every: UPDATES, by: METRIC}``, overridden key by key."""
    average = {} if average == "none" else average
    forms = "none, {last: N, every: UPDATES}, or {best: N, every: UPDATES, by: loss or nll_loss}"
    if not isinstance(average, dict):
        raise ValueError(f"{path}: average: {shown(average)}; allowed: {forms}")
    others = {"last": {"best", "by"}, "best": {"last"}}  # that a new kind replaces
    replaced = set().union(*(others.get(key, set()) for key in override))
    average = {key: value for key, value in average.items() if key not in replaced} | override
    refuse_unknown(average, AVERAGE_KEYS, f"{path}: average")
    if not average or 0 in (average.get("last"), average.get("best")):
        return {}
    numbers = [value for key, value in average.items() if key != "by"]
    if (
        set(average) not in ({"last", "every"}, {"best", "every", "by"})
        or not all(type(value) is int and value > 0 for value in numbers)
        or average.get("by", "loss") not in ("loss", "nll_loss")
    ):
        raise ValueError(f"{path}: average: {shown(average)}; allowed, with whole numbers above 0: {forms}")
    return average


def parse_settings(settings: list[str]) -> dict[str, Flags]:
    sections: dict[str, Flags] = {"train": {}, "generate": {}, "average": {}}
    for setting in settings:
        flag, equals, text = setting.partition("=")
        section, dot, rest = flag.lstrip("-").partition(".")
        if not equals or not flag or (dot and section not in sections):
            raise ValueError(
                f"--set {shown(setting)}: write flag=value, generate.flag=value, average.last=N, average.best=N, "
                "average.every=UPDATES or average.by=METRIC"
            )
        sections[section if dot else "train"][rest if dot else section] = parse_value(text)
    return sections


def gpus_of(content: Flags, path: Path) -> int:
    gpus = content.get("gpus", 0)
    if type(gpus) is not int or gpus < 0:
        raise ValueError(f"{path}: gpus: {shown(gpus)}: the number of GPUs that the batch is for expected")
    return gpus


def test_sets(content: Flags, where: str) -> tuple[str, ...]:
    """The names under ``tests``; ``find_runs`` compares them with those of the data."""
    names = content.get("tests") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"{where}: tests: {shown(names)}: a list of different names expected, [valid, test] for example"
        )
    return tuple(names)


def measures_heads(content: Flags, where: str) -> bool:
    heads = content.get("heads", False)
    if not isinstance(heads, bool):
        raise ValueError(f"{where}: heads: {shown(heads)}: true or false expected")
    return heads


def evaluated_split(content: Flags, tests: tuple[str, ...], where: str) -> str:
    """The split that rows are evaluated on: test, or valid alone."""
    split = content.get("split", "test")
    if split not in ("test", "valid"):
        raise ValueError(f"{where}: split: {shown(split)}: test or valid expected")
    if split == "valid" and tests:
        raise ValueError(f"{where}: tests: {', '.join(tests)}: not with split: valid, which reads no test set")
    return str(split)


def length_penalties(generate: Flags, where: str) -> tuple[str, ...]:
    """Take a list of length penalties, to be chosen from on the validation split, out of ``generate``."""
    if not isinstance(given := generate.get("lenpen"), list):
        return ()
    values = [str(int(v) if isinstance(v, float) and v.is_integer() else v) for v in given if type(v) in (int, float)]
    if not len(given) == len(values) == len(set(values)) > 1 or not all(math.isfinite(float(v)) for v in values):
        raise ValueError(f"{where}: generate: lenpen: {shown(given)}: a number or a list of different ones expected")
    del generate["lenpen"]
    return tuple(values)


OUTSIDE = {  # flags by which fairseq starts a program or writes somewhere, and what to use
    **dict.fromkeys(("post-save-script", "plasma-path", "use-plasma-view", "aim-repo"), ""),
    "log-file": "; train.log in the run's folder has what fairseq says",
    "results-path": "; the run's folder has its translations",
    "tensorboard-logdir": "; give `fairseq-diverse run` --tensorboard",
}


def command_line_values(flags: Flags, where: str) -> dict[str, str | bool]:
    """Typed YAML values as a command line has them; flags that are false or null are left out.

    Raises:
        ValueError: names the flag; a name or value that is not a flag's, or one that fairseq would run as code.
    """
    values: dict[str, str | bool] = {}
    for name, value in flags.items():
        flag = str(name)
        if not FLAG.fullmatch(flag):
            raise ValueError(f"{where}: {shown(flag)} is not the name of a flag")
        if isinstance(value, dict | list):
            raise ValueError(f"{where}: {flag}: one value expected, not {shown(value)}; write lists as text: 'a,b'")
        if value is None or value is False:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{where}: {flag}: {value}: a finite number expected")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        text = str(value)
        check_text(text, f"{where}: {flag}: ")
        if flag in OUTSIDE:
            raise ValueError(f"{where}: {flag}: a table names no program and no file to write{OUTSIDE[flag]}")
        if re.match(r"-(?!\.?[0-9])", text):
            raise ValueError(f"{where}: {flag}: {shown(text)} would be read as another flag")
        if flag in POSITIVE and re.fullmatch(r"-.*|[0.]+", text):
            raise ValueError(f"{where}: {flag}: {text}: a number above 0 expected")
        problem = unsafe_setting(flag.replace("-", "_"), text) or ("is not a plain value" if "**" in text else "")
        if problem and flag not in ENCODER:
            raise ValueError(f"{where}: {flag}: {shown(text)} {problem}; write the value itself")
        values[flag] = True if value is True else text
    return values
