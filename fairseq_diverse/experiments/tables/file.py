"""Table and size files as they are written, and the rows that grids make of theirs."""

import itertools
import re
from collections.abc import Collection, Container
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from fairseq_diverse.experiments.run import NAME_BYTES
from fairseq_diverse.support.typed import read_yaml, refuse_unknown, shown, typed

Flags = dict[str, Any]
Text = str | int | float | None  # 4 is a number in YAML
Scalar = str | int | float | bool | None
IN_GRIDS = ("data", "size", "parser", "pretrained")  # of the keys that are not flags
NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\xa0\u2028\u2029]")


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
    """Raise ``ValueError`` for a row's name that cannot be part of a file's name."""
    if not name.strip() or name != name.strip() or name[0] == "." or NOT_IN_NAMES.search(name):
        wanted = "one line of text without / and \\, that neither starts with a dot nor starts or ends with a space"
        raise ValueError(f"{path}: row '{shown(name)}': a row's name is part of names of files: {wanted}")
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"{path}: row {shown(name)}: a name of {len(name.encode())} bytes; at most {NAME_BYTES}")


def _suffix(values: Flags) -> str:
    """What a grid's values add to the name of a row."""
    return NOT_IN_NAMES.sub("_", "".join(f"-{flag}={value}" for flag, value in values.items()))
