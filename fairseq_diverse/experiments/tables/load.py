"""Table and size files: from YAML to the flags of one run."""

import itertools
import math
import os
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.kinds.kind import KINDS, kind_of, kind_of_task
from fairseq_diverse.experiments.names import NOT_IN_NAMES, refuse_name
from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.runs.plan import refuse_own
from fairseq_diverse.experiments.tables.keys import (
    Flags,
    check_average,
    command_line_values,
    entries,
    evaluated_split,
    gpus_of,
    length_penalties,
    measures_heads,
    metrics_of,
    parse_settings,
    parsers_of,
    place_of,
    published_figures,
    read_keys,
    test_sets,
    text_of,
)
from fairseq_diverse.support.paths import config_path
from fairseq_diverse.support.yaml_files import shown

TABLE_KEYS = (
    *("title", "note", "data", "size", "user-dir", "parser", "pretrained", "flags", "data-flags", "generate"),
    *("average", "baseline", "grid", "metrics", "tests", "split", "heads", "gpus", "x", "rows"),
)
SIZE_KEYS = ("train", "generate", "average", "gpus")
ROW_KEYS = (
    *("data", "size", "parser", "pretrained", "generate", "average", "baseline", "grid", "metrics", "published"),
    *("tests", "heads"),
)
IN_GRIDS = ("data", "size", "parser", "pretrained")  # of these
MOST_ROWS = 10_000  # that a grid may make
EPOCHS = re.compile(r"([1-9][0-9]{,3}) epochs?")
PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")


@dataclass(frozen=True)
class Table:
    """A file's rows. ``x`` are the flags against which its figures are drawn: the first, and those that go with it.
    ``changed`` are the flags of the command line that change the file's rows."""

    name: str
    title: str
    note: str
    x: tuple[str, ...]
    rows: dict[str, Row]
    changed: tuple[str, ...] = ()


def load_table(
    name: str,
    data: str | None = None,
    size: str | None = None,
    settings: list[str] | None = None,
    user_dir: str | None = None,
) -> Table:
    """Read a table file and resolve its rows: size, then the table's flags, those of the data, the row's and
    ``settings``.

    Args:
        name: a table's name in ``configs/tables``, or the path of a YAML file.
        data: the data set of every row instead of the file's; of rows that it makes equal, the first remains.
        size: the size of every row instead of the file's.
        settings: ``flag=value`` for every row, in place of a grid's values of that flag; ``generate.flag=value`` and
            ``average.last=N`` reach those sections.
        user_dir: a folder of mechanisms instead of the file's ``user-dir``, which is relative to the file.

    Raises:
        ValueError: names the file and the key that is wrong, and what is known.
    """
    path = config_path("tables", name)
    content = read_keys(path, TABLE_KEYS)
    overrides = parse_settings(settings or [])
    fixed = {*overrides["train"], *(key for key, value in (("data", data), ("size", size)) if value)}
    content |= {"parser": overrides["train"].pop("parser")} if (everywhere := "parser" in overrides["train"]) else {}
    checkpoint = text_of(overrides["train"], "pretrained", path)
    overrides["train"].pop("pretrained", None)
    if user_dir is None and "user-dir" in content:
        user_dir = str(path.parent / text_of(content, "user-dir", path))
        if not Path(user_dir, "__init__.py").is_file():
            raise ValueError(f"{path}: user-dir: {user_dir} is not a folder of a Python package")
    user_dir = os.path.abspath(user_dir) if user_dir else ""
    rows: dict[str, Row] = {}
    sizes: dict[Path, Flags] = {}
    of_data = {str(name): flags for name, flags in entries(content, "data-flags", path).items()}
    for row_name, (family, row) in _points(content, path, fixed).items():
        where = f"{path}: row {row_name}"
        flags = {key: value for key, value in row.items() if key not in ROW_KEYS}
        keys = {**content, **row}  # those of the row, where it has none those of all
        own_data = place_of(keys, "data", path)
        chosen_data, chosen_size = data or own_data, size or place_of(keys, "size", path)
        if not chosen_data or not chosen_size:
            raise ValueError(f"{where} has no `data` or no `size`")
        try:
            size_path = config_path("size", chosen_size)
        except ValueError as error:
            raise ValueError(f"{where}: size {' '.join(str(error).split())}") from None
        base = sizes[size_path] if size_path in sizes else sizes.setdefault(size_path, read_keys(size_path, SIZE_KEYS))
        train = entries(base, "train", size_path) | entries(content, "flags", path)
        of_name = chosen_data if chosen_data in of_data else Path(chosen_data).name
        train = train | entries(of_data, of_name, path) | flags | overrides["train"]
        gpus = gpus_of(base, size_path) if size else gpus_of(content, path) or gpus_of(base, size_path)
        kind = kind_of_task(train.get("task"))
        train = _in_updates(train, kind.examples(chosen_data), chosen_data, gpus, where)
        generate: Flags = {}
        for source, source_path in ((base, size_path), (content, path), (row, path)):
            generate |= entries(source, "generate", source_path)
        generate |= overrides["generate"]
        lenpen, tests = length_penalties(generate, where), test_sets(keys, where)
        average = {**base, **keys}.get("average") or {}
        rows[row_name] = Row(
            name=row_name,
            data=chosen_data,
            size=size_path.stem,
            train=command_line_values(train, where),
            generate=command_line_values(generate, f"{where}: generate"),
            average=check_average(average, overrides["average"], path),
            baseline=str(row["baseline"]),
            published=published_figures(row, path, row_name, tests),
            published_on=own_data,
            family=family,
            metrics=metrics_of(keys, path),
            user_dir=user_dir,
            lenpen=lenpen,
            tests=tests,
            gpus=gpus,
            parser=parsers_of(content if everywhere else keys, path, train.get("task")),
            pretrained=(checkpoint or text_of(keys, "pretrained", path)) if "pretrained" in kind.keys else "",
            heads=measures_heads(keys, where),
            split=evaluated_split(content, tests, where),
        )
        _refuse_wrong(rows[row_name], row, train, path)
    if not rows:
        raise ValueError(f"{path}: no rows")
    if not data and (unused := [name for name in of_data if name not in (known := {r.data for r in rows.values()})]):
        raise ValueError(
            f"{path}: data-flags: {', '.join(unused)}: no row's data; there are: {', '.join(sorted(known))}"
        )
    for name, resolved in rows.items():
        if resolved.baseline not in rows:
            raise ValueError(
                f"{path}: row {name}: baseline {shown(resolved.baseline)} is not a row; rows: {', '.join(rows)}"
            )
    for name, resolved in rows.items():
        if isinstance(resolved.pretrained, str) and (first := rows.get(resolved.pretrained)):
            if kind_of(first) is not KINDS["pretraining"]:
                raise ValueError(f"{path}: row {name}: pretrained: row {first.name} does not have the task masked_lm")
            rows[name] = replace(resolved, pretrained=first)
    if data:
        rows = _different(rows)
    x = tuple(flag.strip() for flag in text_of(content, "x", path).split(",")) if "x" in content else ()
    title, note = (" ".join(text_of(content, key, path).split()) for key in ("title", "note"))
    changed = tuple(f"--{name} {value}" for name, value in (("data", data), ("size", size)) if value)
    changed += tuple(f"--set {setting}" for setting in settings or [])
    return Table(path.stem, title or path.stem, note, x, rows, changed)


def _different(rows: dict[str, Row]) -> dict[str, Row]:
    """The rows without those that train and translate as an earlier one, which gets their metrics and test sets."""
    first: dict[str, str] = {}
    same = {}
    for name, row in rows.items():
        checkpoint = row.pretrained if isinstance(row.pretrained, str) else ""
        same[name] = first.setdefault(row.key(row.data + checkpoint), name)
    joined: dict[str, Row] = {}
    for name, row in rows.items():
        kept = joined.get(same[name])
        joined[same[name]] = kept.with_scores_of(row) if kept else replace(row, baseline=same[row.baseline])
    return joined


def _in_updates(train: Flags, examples: int | None, data: str, gpus: int, where: str) -> Flags:
    """The flags with ``max-update: 3 epochs`` and ``warmup-updates: 6%`` or ``total-num-update: 100%`` (of
    max-update) as numbers of updates.

    An epoch has as many updates as training has batches, of ``gpus`` together where their number is given.
    """
    if epochs := EPOCHS.fullmatch(str(train.get("max-update"))):
        batch = [train.get("batch-size"), train.get("update-freq", 1)]
        if not examples:
            raise ValueError(f"{where}: max-update: {epochs[0]}: data set {data} is no task of GLUE; give updates")
        if not all(type(number) is int and number > 0 for number in batch):
            raise ValueError(f"{where}: max-update: {epochs[0]}: needs batch-size, and update-freq as one number")
        if other := next((flag for flag in ("max-sentences", "max-tokens") if flag in train), ""):
            raise ValueError(f"{where}: max-update: {epochs[0]}: not with {other}; give batch-size alone, or updates")
        sentences, batches = int(batch[0]), int(batch[1]) * max(1, gpus)
        train = train | {"max-update": math.ceil(int(epochs[1]) * math.ceil(examples / sentences) / batches)}
    for flag in ("warmup-updates", "total-num-update"):
        if percent := PERCENT.fullmatch(str(train.get(flag))):
            if not str(train.get("max-update")).isdecimal():
                raise ValueError(f"{where}: {flag}: {percent[0]}: needs max-update")
            train = train | {flag: round(float(percent[1]) / 100 * int(train["max-update"]))}
    return train


def _refuse_wrong(row: Row, given: Flags, train: Flags, path: Path) -> None:
    """Raise ``ValueError`` where a row lacks a setting, or two do not go together.

    Args:
        given: its keys in the file.
        train: its flags of training as they were typed.
    """
    where = f"{path}: row {row.name}"
    for needed in ("arch", "max-update"):
        if needed not in row.train:
            raise ValueError(f"{where} and size {row.size} set no `{needed}`")
    if not re.fullmatch("[1-9][0-9]{,11}", str(row.train["max-update"])):
        raise ValueError(f"{where}: max-update: {shown(train['max-update'])} is not a number of updates above 0")
    which = "best" if "best" in row.average else "last"
    if row.average and row.average[which] * row.average["every"] > row.max_update:
        raise ValueError(
            f"{where}: average: the {which} {row.average[which]} checkpoints of every {row.average['every']} updates, "
            f"but only {row.max_update} updates; give others with --set average.every=N, or --set average.last=0 for "
            "none"
        )
    kind = kind_of(row)
    if (by := row.average.get("by", "loss")) not in kind.losses:
        raise ValueError(f"{where}: average: by: {by}: rows of kind {kind.name} have {', '.join(kind.losses)} only")
    values = {"metrics": row.metrics, "tests": row.tests, "heads": row.heads, "split": row.split != "test"}
    values["pretrained"] = "pretrained" in given
    for key in (key for key, value in values.items() if value and key not in kind.keys):
        raise ValueError(f"{where}: {key}: not for rows of kind {kind.name} (task {train.get('task')})")
    if row.pretrained and "finetune-from-model" in row.train:
        raise ValueError(f"{where}: pretrained and finetune-from-model: one of them only")
    try:
        refuse_own(row)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def select_rows(table: Table, names: str | None, flag: str = "--rows") -> list[Row]:
    """The rows that a comma-separated list names, themselves or as the file's row of a grid; all of them for None."""
    if names is None:
        return list(table.rows.values())
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    found = {name: [row for row in table.rows.values() if name in (row.name, row.family)] for name in chosen}
    unknown = [name for name, rows in found.items() if not rows]
    if unknown or not chosen:
        raise ValueError(f"{flag} {names}: no row {', '.join(unknown)} in {table.name}; rows: {', '.join(table.rows)}")
    return list({row.name: row for rows in found.values() for row in rows}.values())


def _points(content: Flags, path: Path, fixed: Container[str]) -> dict[str, tuple[str, Flags]]:
    """The file's row that each row comes from, and its keys, ``baseline`` among them.

    Without a grid a row comes from itself; with one, the table's or its own, it becomes a row for each combination of
    the grid's values, named ``row-flag=value-...`` and compared with its baseline at the same values of the flags that
    the baseline's grid has, too. Grids have no flag that is ``fixed``.
    """
    rows, grids = entries(content, "rows", path), {}
    for name, row in rows.items():
        if not isinstance(row, dict | None):
            raise ValueError(f"{path}: row {shown(name)} is not a list of `flag: value`")
        grid = _grid(row if row and "grid" in row else content, path)
        grids[str(name)] = {flag: values for flag, values in grid.items() if flag not in fixed}
    if (count := sum(math.prod(map(len, grid.values())) for grid in grids.values())) > MOST_ROWS:
        raise ValueError(f"{path}: grid: makes {count:,} rows; at most {MOST_ROWS:,}")
    points: dict[str, tuple[str, Flags]] = {}
    for name, row in rows.items():
        row, grid = row or {}, grids[str(name)]
        refuse_name(str(name), path)
        if twice := [flag for flag in grid if flag in row]:
            raise ValueError(f"{path}: row {name}: {twice[0]}: the grid has it, too; give the row a grid of its own")
        baseline = text_of({"baseline": str(next(iter(rows))), **content, **row}, "baseline", path)
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            point = f"{name}{_suffix(chosen)}"
            refuse_name(point, path)
            if point in points:
                raise ValueError(f"{path}: two rows would be called {point}")
            shared = {flag: chosen[flag] for flag in grids.get(baseline, grid) if flag in chosen}
            points[point] = str(name), {**row, **chosen, "baseline": f"{baseline}{_suffix(shared)}"}
    return points


def _suffix(values: Flags) -> str:
    """What a grid's values add to the name of a row."""
    return NOT_IN_NAMES.sub("_", "".join(f"-{flag}={value}" for flag, value in values.items()))


def _grid(content: Flags, path: Path) -> dict[str, list[Any]]:
    grid = entries(content, "grid", path)
    for flag, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{path}: grid: {shown(flag)}: a list of values expected, such as [0.1, 0.2]")
        if flag in ROW_KEYS and flag not in IN_GRIDS:
            raise ValueError(f"{path}: grid: {flag}: not a flag of a program; write rows for it")
        if any(isinstance(value, list | dict) for value in values):
            raise ValueError(f"{path}: grid: {shown(flag)}: its values are single ones; write lists as text: 'a,b'")
    return grid
