"""Table and size files as they are written: keys, values, and the rows that grids make of theirs."""

import itertools
import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from fairseq_diverse.checkpoints.settings import unsafe_setting
from fairseq_diverse.data.probing import TASKS
from fairseq_diverse.experiments.kinds.kind import KINDS
from fairseq_diverse.experiments.run import ENCODER, NAME_BYTES
from fairseq_diverse.support.typed import check_text, parse_value, read_yaml, refuse_unknown, shown, typed

Flags = dict[str, Any]
Text = str | int | float | None  # 4 is a number in YAML
Scalar = str | int | float | bool | None
IN_GRIDS = ("data", "size", "parser", "pretrained")  # of the keys that are not flags
NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\xa0\u2028\u2029]")
TEXT_FIGURE = re.compile(r"[\d.,]+[KMGT]?(/[\d.,]+)*")
OF_COST = ("parameters", "flops", "added-parameters", "speed", "relative-speed", "epoch-minutes")  # published
AVERAGE_KEYS = ("last", "best", "every", "by")
FLAG = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
EPOCHS = re.compile(r"([1-9][0-9]{,3}) epochs?")
PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")


class RowKeys(msgspec.Struct, kw_only=True, rename="kebab"):
    """The keys of a row that are not flags; a table has them for all its rows, but ``published``."""

    data: Text = None
    size: Text = None
    parser: Text = None
    pretrained: Text = None
    generate: Flags | None = None
    average: Any = None
    baseline: Text = None
    grid: dict[str, Annotated[list[Scalar], msgspec.Meta(min_length=1)]] | None = None
    metrics: Text | dict[str, Text] = None
    published: dict[str, float | str | dict[str, float | str]] | None = None
    tests: list[str] | None = None
    heads: bool = False


class TableFile(RowKeys, kw_only=True, rename="kebab"):
    """A table; its ``rows`` are lists of flags and of `RowKeys`."""

    rows: dict[str, Flags | None] | None = None
    title: Text = None
    note: Text = None
    user_dir: Text = None
    flags: Flags | None = None
    data_flags: dict[str, Flags | None] | None = None
    split: str = "test"
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    x: Text = None
    cited: dict[str, dict[str, float | str]] | None = None


class SizeFile(msgspec.Struct):
    """A size: model, training and translation."""

    train: Flags | None = None
    generate: Flags | None = None
    average: Any = None
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0


ROW_KEYS = RowKeys.__struct_encode_fields__
TABLE_KEYS = tuple(key for key in TableFile.__struct_encode_fields__ if key != "published")
T = TypeVar("T", bound=msgspec.Struct)


def read_file(path: Path, kind: type[T], known: Collection[str]) -> tuple[Flags, T]:
    """The values of a file, plain and typed. Raises ValueError: names the file, the key and the value."""
    content = read_yaml(path)
    if not isinstance(content, dict | None):
        raise ValueError(f"{path}: holds no `key: value` pairs; known keys: {', '.join(known)}")
    refuse_unknown(content or {}, known, str(path))
    return content or {}, typed(content or {}, kind, str(path))


def points(content: Flags, table: TableFile, path: Path, fixed: Container[str]) -> dict[str, tuple[str, Flags]]:
    """The file's row that each row comes from, and its keys, ``baseline`` among them.

    Without a grid a row comes from itself; with one, the table's or its own, it becomes a row for each combination of
    the grid's values, named ``row-flag=value-...`` and compared with its baseline at the same values of the flags that
    the baseline's grid has, too. Grids have no flag that is ``fixed``.
    """
    rows = {name: row or {} for name, row in (table.rows or {}).items()}
    grids: dict[str, dict[str, list[Any]]] = {}
    for name, row in rows.items():
        _refuse_name(name, path)
        keys = typed({key: row[key] for key in ROW_KEYS if key in row}, RowKeys, f"{path}: row {name}")
        grid = (keys.grid if "grid" in row else table.grid) or {}
        if wrong := next((flag for flag in grid if flag in ROW_KEYS and flag not in IN_GRIDS), None):
            raise ValueError(f"{path}: grid: {wrong}: not a flag of a program; write rows for it")
        grids[name] = {flag: values for flag, values in grid.items() if flag not in fixed}
    rows_of_points: dict[str, tuple[str, Flags]] = {}
    for name, row in rows.items():
        if twice := next((flag for flag in grids[name] if flag in row), None):
            raise ValueError(f"{path}: row {name}: {twice}: the grid has it, too; give the row a grid of its own")
        baseline = str({"baseline": next(iter(rows)), **content, **row}["baseline"])
        for values in itertools.product(*grids[name].values()):
            chosen = dict(zip(grids[name], values, strict=True))
            point = f"{name}{_suffix(chosen)}"
            _refuse_name(point, path)
            if point in rows_of_points:
                raise ValueError(f"{path}: two rows would be called {point}")
            shared = {flag: chosen[flag] for flag in grids.get(baseline, grids[name]) if flag in chosen}
            rows_of_points[point] = name, {**row, **chosen, "baseline": f"{baseline}{_suffix(shared)}"}
    return rows_of_points


def _refuse_name(name: str, path: Path) -> None:
    if not name.strip() or name != name.strip() or name[0] == "." or NOT_IN_NAMES.search(name):
        wanted = "one line of text without / and \\, that neither starts with a dot nor starts or ends with a space"
        raise ValueError(f"{path}: row '{shown(name)}': a row's name is part of names of files: {wanted}")
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"{path}: row {shown(name)}: a name of {len(name.encode())} bytes; at most {NAME_BYTES}")


def _suffix(values: Flags) -> str:
    return NOT_IN_NAMES.sub("_", "".join(f"-{flag}={value}" for flag, value in values.items()))


class Settings(NamedTuple):
    """What ``--set`` replaces in every row: flags, the averaging, and keys that are not flags."""

    train: Flags
    generate: Flags
    average: Flags
    keys: Flags


def parse_settings(settings: Sequence[str]) -> Settings:
    sections: dict[str, Flags] = {"train": {}, "generate": {}, "average": {}}
    for setting in settings:
        flag, equals, text = setting.partition("=")
        section, dot, rest = flag.lstrip("-").partition(".")
        if not equals or not flag or (dot and section not in sections):
            averages = "average.last=N, average.best=N, average.every=UPDATES or average.by=METRIC"
            raise ValueError(f"--set {shown(setting)}: write flag=value, generate.flag=value, {averages}")
        sections[section if dot else "train"][rest if dot else section] = parse_value(text)
    train = sections["train"]
    keys: Flags = {key: train.pop(key) for key in ("parser", "pretrained") if key in train}
    return Settings(**sections, keys=keys)


def published_figures(published: Mapping[str, Any], where: str, tests: Sequence[str]) -> Flags:
    """A paper's figures: numbers, besides probing accuracies also text such as 12.6M; by name those of ``tests``."""
    known = (*(key for kind in KINDS.values() for key in kind.published), *OF_COST, *tests)
    for name, value in published.items():
        if name in tests and isinstance(value, dict):
            published_figures(value, where, ())
            continue
        refuse_unknown([name], known, f"{where}: published")
        if not isinstance(value, int | float if name in TASKS else int | float | str):
            raise ValueError(f"{where}: published {name}: {shown(value)} is not a figure")
        if isinstance(value, str) and not TEXT_FIGURE.fullmatch(value):
            raise ValueError(f"{where}: published {name}: {shown(value)}: write 27.3, 12.6M or 90.9/87.0")
    return dict(published)


def averaged(average: Any, override: Flags, where: str) -> Flags:
    """``none``, ``{last: N, every: UPDATES}`` or ``{best: N, every: UPDATES, by: METRIC}``, overridden key by key; for
    none, empty."""
    metrics = dict.fromkeys(metric for kind in KINDS.values() for metric in kind.losses)
    forms = f"none, {{last: N, every: UPDATES}}, or {{best: N, every: UPDATES, by: {' or '.join(metrics)}}}"
    average = {} if average in (None, "none") else average
    if not isinstance(average, dict):
        raise ValueError(f"{where}: average: {shown(average)}; allowed: {forms}")
    conflicting = {"last": {"best", "by"}, "best": {"last"}}  # that a new kind replaces
    replaced = set().union(*(conflicting.get(key, set()) for key in override))
    average = {key: value for key, value in average.items() if key not in replaced} | override
    refuse_unknown(average, AVERAGE_KEYS, f"{where}: average")
    if not average or 0 in (average.get("last"), average.get("best")):
        return {}
    whole = all(type(value) is int and value > 0 for key, value in average.items() if key != "by")
    known = set(average) in ({"last", "every"}, {"best", "every", "by"}) and average.get("by", "loss") in metrics
    if not (whole and known):
        raise ValueError(f"{where}: average: {shown(average)}; allowed, with whole numbers above 0: {forms}")
    return average


def length_penalties(generate: Flags, where: str) -> tuple[str, ...]:
    """Take a list of length penalties, to be chosen from on the validation split, out of ``generate``."""
    if not isinstance(items := generate.get("lenpen"), list):
        return ()
    values = [str(int(v) if isinstance(v, float) and v.is_integer() else v) for v in items if type(v) in (int, float)]
    if not len(items) == len(values) == len(set(values)) > 1 or not all(math.isfinite(float(v)) for v in values):
        raise ValueError(f"{where}: generate: lenpen: {shown(items)}: a number or a list of different ones expected")
    del generate["lenpen"]
    return tuple(values)


def in_updates(train: Flags, examples: int | None, gpus: int, where: str) -> Flags:
    """The flags with ``max-update: 3 epochs`` and ``warmup-updates: 6%`` or ``total-num-update: 100%`` (of
    max-update) as numbers of updates.

    An epoch has as many updates as training has batches, of ``gpus`` together where their number is given.
    """
    if epochs := EPOCHS.fullmatch(str(train.get("max-update"))):
        batch, setting = [train.get("batch-size"), train.get("update-freq", 1)], f"{where}: max-update: {epochs[0]}"
        if not examples:
            raise ValueError(f"{setting}: of data whose training examples are not known; give updates")
        if not all(type(number) is int and number > 0 for number in batch):
            raise ValueError(f"{setting}: needs batch-size, and update-freq as one number")
        if conflict := next((flag for flag in ("max-sentences", "max-tokens") if flag in train), ""):
            raise ValueError(f"{setting}: not with {conflict}; give batch-size alone, or updates")
        sentences, batches = int(batch[0]), int(batch[1]) * max(1, gpus)
        train = train | {"max-update": int(epochs[1]) * math.ceil(math.ceil(examples / sentences) / batches)}
    for flag in ("warmup-updates", "total-num-update"):
        if percent := PERCENT.fullmatch(str(train.get(flag))):
            if not str(train.get("max-update")).isdecimal():
                raise ValueError(f"{where}: {flag}: {percent[0]}: needs max-update")
            train = train | {flag: round(float(percent[1]) / 100 * int(train["max-update"]))}
    return train


OUTSIDE = {  # flags by which fairseq starts a program or writes somewhere, and what to use
    **dict.fromkeys(("post-save-script", "plasma-path", "use-plasma-view", "aim-repo"), ""),
    "log-file": "; train.log in the run's folder has what fairseq says",
    "results-path": "; the run's folder has its translations",
    "tensorboard-logdir": "; give `fairseq-diverse run` --tensorboard",
}


def command_line_values(flags: Flags, where: str) -> dict[str, str | bool]:
    """Typed YAML values as a command line has them; flags that are false or null are left out. Raises ValueError: names
    the flag; a name or value that is not a flag's, or one that fairseq would run as code."""
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
        problem = unsafe_setting(flag.replace("-", "_"), text) or ("is not a plain value" if "**" in text else "")
        if problem and flag not in ENCODER:
            raise ValueError(f"{where}: {flag}: {shown(text)} {problem}; write the value itself")
        values[flag] = True if value is True else text
    return values
