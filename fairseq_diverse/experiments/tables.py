"""Table and size files: from YAML to the flags of one run."""

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_diverse.paths import config_path
from fairseq_diverse.probing import TASKS

TABLE_KEYS = (
    *("title", "note", "data", "size", "flags", "generate", "average"),
    *("baseline", "grid", "metrics", "x", "rows"),
)
SIZE_KEYS = ("train", "generate", "average")
ROW_KEYS = ("data", "size", "generate", "average", "baseline", "published")
PUBLISHED_KEYS = (
    *("bleu", "ter", "meteor", "rouge-l", "cider", "yisi"),
    *TASKS,
    *("parameters", "flops", "added-parameters", "speed", "relative-speed", "epoch-minutes"),
)
AVERAGE_KEYS = ("last", "every")

Flags = dict[str, Any]

ENCODER = ("from-checkpoint", "checkpoint-data")  # where an encoder lies that is probed


@dataclass(frozen=True)
class Row:
    """One row of a table with everything resolved: what is trained, on what, and how it is translated.

    ``train`` and ``generate`` hold flags of fairseq-train and fairseq-generate as they stand on a command line
    (``True``: a flag without a value); ``average`` is empty, or the number of checkpoints (``last``) and the
    updates between them (``every``). ``baseline`` is the row that it is compared with; ``published`` holds a paper's
    figures, measured on the data set ``published_on``. ``family`` is the row of the file that a grid made this one of.
    ``metrics`` are those of ``fairseq-diverse score`` that translations are scored by besides BLEU, chrF and TER.
    """

    name: str
    data: str
    size: str
    train: dict[str, str | bool]
    generate: dict[str, str | bool]
    average: dict[str, int]
    baseline: str
    published: Flags
    published_on: str
    family: str
    metrics: tuple[str, ...] = ()

    @property
    def max_update(self) -> int:
        return int(self.train["max-update"])

    def key(self, data_hash: str) -> str:
        """Ten hexadecimal digits that equal runs share: data, flags and averaging, but not the seed.

        Args:
            data_hash: of all that is read, a probed encoder too: where that lies is not in the key.
        """
        train = {flag: value for flag, value in self.train.items() if flag not in ENCODER}
        content = {"data": data_hash, "train": train, "generate": self.generate, "average": self.average}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Table:
    """A file's rows. ``x`` are the flags against which its figures are drawn: the first, and those that go with it."""

    name: str
    title: str
    note: str
    x: tuple[str, ...]
    rows: dict[str, Row]


def load_table(name: str, data: str | None = None, size: str | None = None, settings: list[str] | None = None) -> Table:
    """Read a table file and resolve its rows: size, then the table's flags, the row's and ``settings``.

    Args:
        name: a table's name in ``configs/tables``, or the path of a YAML file.
        data: the data set of every row instead of the file's; of rows that it makes equal, the first remains.
        size: the size of every row instead of the file's.
        settings: ``flag=value`` for every row; ``generate.flag=value`` and ``average.last=N`` reach those sections.

    Raises:
        ValueError: names the file and the key that is wrong, and what is known.
    """
    path = config_path("tables", name)
    content = _read(path, TABLE_KEYS)
    overrides = _parse_settings(settings or [])
    metrics = _metrics(content, path)
    rows = {}
    for row_name, (family, row) in _points(content, path).items():
        flags = {key: value for key, value in row.items() if key not in ROW_KEYS}
        published = _section(row, "published", path)
        _refuse_unknown(published, PUBLISHED_KEYS, f"{path}: published figures of row {row_name}")
        chosen_data, chosen_size = (
            data or row.get("data", content.get("data")),
            size or row.get("size", content.get("size")),
        )
        if not chosen_data or not chosen_size:
            raise ValueError(f"{path}: row {row_name} has no `data` or no `size`")
        size_path = config_path("size", str(chosen_size))
        base = _read(size_path, SIZE_KEYS)
        train = _section(base, "train", size_path) | _section(content, "flags", path) | flags | overrides["train"]
        generate: Flags = {}
        for source, source_path in ((base, size_path), (content, path), (row, path)):
            generate |= _section(source, "generate", source_path)
        average = next((s["average"] for s in (row, content, base) if "average" in s), None) or {}
        rows[str(row_name)] = Row(
            name=str(row_name),
            data=str(chosen_data),
            size=size_path.stem,
            train=_command_line_values(train, path),
            generate=_command_line_values(generate | overrides["generate"], path),
            average=_check_average(average, overrides["average"], path),
            baseline=str(row["baseline"]),
            published=published,
            published_on=str(row.get("data", content.get("data"))),
            family=family,
            metrics=metrics,
        )
        for needed in ("arch", "max-update"):
            if needed not in rows[str(row_name)].train:
                raise ValueError(f"{path}: row {row_name} and size {size_path.stem} set no `{needed}`")
        if not rows[str(row_name)].train["max-update"].isdigit():  # type: ignore[union-attr]
            raise ValueError(f"{path}: row {row_name}: max-update: {train['max-update']} is not a number of updates")
        _refuse_too_few_updates(rows[str(row_name)], path)
    if not rows:
        raise ValueError(f"{path}: no rows")
    for name, resolved in rows.items():
        if resolved.baseline not in rows:
            raise ValueError(f"{path}: row {name}: baseline {resolved.baseline} is no row; rows: {', '.join(rows)}")
    if data:
        rows = _different(rows)
    x = tuple(flag.strip() for flag in str(content["x"]).split(",")) if "x" in content else ()
    return Table(path.stem, str(content.get("title", path.stem)), str(content.get("note", "")), x, rows)


def _different(rows: dict[str, Row]) -> dict[str, Row]:
    """The rows without those that train and translate as an earlier one."""
    first: dict[str, str] = {}
    same = {name: first.setdefault(row.key(row.data), name) for name, row in rows.items()}
    return {name: replace(row, baseline=same[row.baseline]) for name, row in rows.items() if same[name] == name}


def _refuse_too_few_updates(row: Row, path: Path) -> None:
    if row.average and row.average["last"] * row.average["every"] > row.max_update:
        raise ValueError(
            f"{path}: row {row.name}: average: the last {row.average['last']} checkpoints of every "
            f"{row.average['every']} updates, but only {row.max_update} updates; give others with --set "
            "average.every=N, or --set average.last=0 for none"
        )


def select_rows(table: Table, names: str | None) -> list[Row]:
    """The rows that a comma-separated list names; all of them for None."""
    if names is None:
        return list(table.rows.values())
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in table.rows]
    if unknown or not chosen:
        raise ValueError(f"--rows {names}: no row {', '.join(unknown)} in {table.name}; rows: {', '.join(table.rows)}")
    return [table.rows[name] for name in chosen]


def to_arguments(flags: dict[str, str | bool]) -> list[str]:
    """``{"arch": "transformer", "fp16": True}`` -> ``["--arch", "transformer", "--fp16"]``."""
    return [
        part for flag, value in flags.items() for part in ((f"--{flag}",) if value is True else (f"--{flag}", value))
    ]


def _metrics(content: Flags, path: Path) -> tuple[str, ...]:
    from fairseq_diverse.evaluation.catalogue import chosen

    try:
        return tuple(chosen(str(content["metrics"]))) if "metrics" in content else ()
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix('--')}") from None


def _points(content: Flags, path: Path) -> dict[str, tuple[str, Flags]]:
    """The file's row that each row comes from, and its keys, ``baseline`` among them.

    Without a grid a row comes from itself; with one it becomes a row for each combination of the grid's values, named
    ``row-flag=value-...`` and compared with its baseline at the same values.
    """
    rows, grid = _section(content, "rows", path), _section(content, "grid", path)
    for flag, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{path}: grid: {flag}: a list of values expected, such as [0.1, 0.2]")
    points = {}
    for name, row in rows.items():
        row = {} if row is None else row
        if not isinstance(row, dict):
            raise ValueError(f"{path}: row {name} is not a list of `flag: value`")
        baseline = row.get("baseline", content.get("baseline", next(iter(rows))))
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            suffix = "".join(f"-{flag}={value}" for flag, value in chosen.items())
            points[f"{name}{suffix}"] = str(name), {**row, **chosen, "baseline": f"{baseline}{suffix}"}
    return points


def _read(path: Path, known: tuple[str, ...]) -> Flags:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not valid YAML ({getattr(error, 'problem', error)})") from None
    except (OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds no `key: value` pairs; known keys: {', '.join(known)}")
    named = {str(key): value for key, value in content.items()}
    _refuse_unknown(named, known, str(path))
    return named


def _section(content: Flags, key: str, path: Path) -> Flags:
    section = content.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ValueError(f"{path}: {key}: is not a list of `key: value`")
    return section


def _refuse_unknown(content: Flags, known: tuple[str, ...], where: str) -> None:
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; known: {', '.join(known)}")


def _check_average(average: Any, override: Flags, path: Path) -> dict[str, int]:
    """``none`` or ``{last: N, every: UPDATES}``, overridden key by key."""
    average = {} if average == "none" else average
    if not isinstance(average, dict):
        raise ValueError(f"{path}: average: {average}; allowed: none, or {{last: N, every: UPDATES}}")
    average = average | override
    _refuse_unknown(average, AVERAGE_KEYS, f"{path}: average")
    if average.get("last") == 0:
        return {}
    if average and (
        set(average) != set(AVERAGE_KEYS) or not all(isinstance(v, int) and v > 0 for v in average.values())
    ):
        raise ValueError(
            f"{path}: average: needs `last` (checkpoints) and `every` (updates), both whole numbers above 0"
        )
    return average


def _parse_settings(settings: list[str]) -> dict[str, Flags]:
    sections: dict[str, Flags] = {"train": {}, "generate": {}, "average": {}}
    for setting in settings:
        flag, equals, text = setting.partition("=")
        section, dot, rest = flag.lstrip("-").partition(".")
        if not equals or not flag or (dot and section not in sections):
            raise ValueError(
                f"--set {setting}: write flag=value, generate.flag=value, average.last=N or average.every=UPDATES"
            )
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        sections[section if dot else "train"][rest if dot else section] = value
    return sections


def _command_line_values(flags: Flags, path: Path) -> dict[str, str | bool]:
    """Typed YAML values as a command line has them; flags that are false or null are left out."""
    values: dict[str, str | bool] = {}
    for flag, value in flags.items():
        if isinstance(value, dict | list):
            raise ValueError(f"{path}: {flag}: one value expected, not {value}; write lists as text: 'a,b'")
        if value is None or value is False:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        values[str(flag)] = True if value is True else str(value)
    return values
