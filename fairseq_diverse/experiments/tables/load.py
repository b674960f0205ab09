"""Tables: the rows of a file, with everything resolved."""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.experiments.kinds.kind import KINDS, kind_of, kind_of_task
from fairseq_diverse.experiments.run import TREES, Row
from fairseq_diverse.experiments.tables import file
from fairseq_diverse.experiments.tables.file import ROW_KEYS, Flags, RowKeys, SizeFile, TableFile, Text
from fairseq_diverse.host.programs import import_user_dir
from fairseq_diverse.metrics.catalogue import chosen
from fairseq_diverse.support.paths import config_names, config_path, data_name, runs_dir
from fairseq_diverse.support.typed import shown, typed
from fairseq_diverse.syntax.makers import named_makers


@dataclass(frozen=True)
class Table:
    """A file's rows."""

    name: str
    title: str
    note: str
    x: tuple[str, ...]  # the flags against which its figures are drawn: the first, and those that go with it
    rows: dict[str, Row]
    changed: tuple[str, ...] = ()  # flags of the command line that change its rows
    cited: Mapping[str, Flags] = field(default_factory=dict)  # published figures of other systems


Settings = Sequence[str] | None


class _TableSource(NamedTuple):
    """A file, and what the command line says in place of it."""

    path: Path
    content: Flags
    table: TableFile
    data: str
    size: str
    settings: file.Settings
    user_dir: str


def load_table(
    name: str, data: str | None = None, size: str | None = None, settings: Settings = None, user_dir: str | None = None
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
    content, table = file.read_file(path, TableFile, file.TABLE_KEYS)
    replaced = file.parse_settings(settings or [])
    if user_dir is None and table.user_dir:
        user_dir = str(path.parent / str(table.user_dir))
        import_user_dir(user_dir, f"{path}: user-dir")  # it may have the kind of its rows
    folder = os.path.abspath(user_dir) if user_dir else ""
    source = _TableSource(path, content, table, data or "", size or "", replaced, folder)
    fixed = {*replaced.train, *replaced.keys, *(key for key in ("data", "size") if getattr(source, key))}
    rows = {point: _resolved(point, *of, source) for point, of in file.points(content, table, path, fixed).items()}
    if not rows:
        raise ValueError(f"{path}: no rows")
    known = {row.data for row in rows.values()}
    if not data and (unused := [name for name in table.data_flags or {} if name not in known]):
        there = f"no row's data; there are: {', '.join(sorted(known))}"
        raise ValueError(f"{path}: data-flags: {', '.join(unused)}: {there}")
    generate = {**(table.generate or {}), **replaced.generate}
    if generate and not any(kind_of(row).generates for row in rows.values()):
        raise ValueError(f"{path}: generate: {', '.join(generate)}: no row uses it")
    rows = {name: _with_other_rows(row, rows, path) for name, row in rows.items()}
    changed = tuple(f"--{name} {value}" for name, value in (("data", data), ("size", size)) if value)
    changed += tuple(f"--set {setting}" for setting in settings or [])
    title, note, x = (" ".join(_text(value).split()) for value in (table.title, table.note, table.x))
    axes = tuple(flag.strip() for flag in x.split(",")) if x else ()
    systems = (table.cited or {}).items()
    cited = {" ".join(name.split()): file.published_figures(of, f"{path}: cited: {name}", ()) for name, of in systems}
    return Table(path.stem, title or path.stem, note, axes, _without_repeats(rows) if data else rows, changed, cited)


def _resolved(name: str, family: str, row: Flags, source: _TableSource) -> Row:
    """One row with everything resolved but the other rows that it names."""
    path, table, settings = source.path, source.table, source.settings
    where = f"{path}: row {name}"
    written = {key: value for key, value in {**source.content, **row, **settings.keys}.items() if key in ROW_KEYS}
    keys = typed(written, RowKeys, where)
    data_of_file = _resolved_path(keys.data, "data", path)
    data, size_name = source.data or data_of_file, source.size or _resolved_path(keys.size, "size", path)
    if not data or not size_name:
        raise ValueError(f"{where} has no `data` or no `size`")
    try:
        size_path = config_path("size", size_name)
    except ValueError as error:
        raise ValueError(f"{where}: size {' '.join(str(error).split())}") from None
    size = _read_size(size_path, size_path.stat().st_mtime_ns)
    data_flags = table.data_flags or {}
    row_flags = {flag: value for flag, value in row.items() if flag not in ROW_KEYS}
    flags_of_data = data_flags.get(data, data_flags.get(data_name(data))) or {}
    layers = [size.train or {}, table.flags or {}, flags_of_data, row_flags, settings.train]
    train = {flag: value for layer in layers for flag, value in layer.items()}
    gpus = size.gpus if source.size else table.gpus or size.gpus
    kind = kind_of_task(train.get("task"))
    given = {flag for layer in layers for flag, value in layer.items() if value is not None and value is not False}
    train = file.in_updates(train, kind.examples(data), gpus, where)
    generate = {**(size.generate or {}), **(table.generate or {}), **(row.get("generate") or {}), **settings.generate}
    lenpen, tests = file.length_penalties(generate, where), tuple(keys.tests or ())
    average = keys.average if "average" in written else size.average
    parsers = named_makers(f"{path}: parser:", names) if (names := _text(keys.parser).replace(" ", "")) else {}
    resolved = Row(
        name=name,
        data=data,
        size=size_path.stem,
        train=file.command_line_values(train, where),
        generate=file.command_line_values(generate, f"{where}: generate"),
        average=file.averaged(average, settings.average, str(path)),
        baseline=str(row["baseline"]),
        published=file.published_figures(row.get("published") or {}, where, tests),
        published_on=data_of_file,
        family=family,
        metrics=_metrics(keys.metrics, path),
        user_dir=source.user_dir,
        lenpen=lenpen,
        tests=tests,
        gpus=gpus,
        parser=parsers if train.get("task") == TREES else {},
        pretrained=_text(keys.pretrained) if "pretrained" in kind.keys else "",
        heads=keys.heads,
        off=tuple(flag for flag in train if flag not in given),
        split=table.split,
    )
    _refuse_wrong(resolved, row, train, path)
    return resolved


def _with_other_rows(row: Row, rows: dict[str, Row], path: Path) -> Row:
    """The row with the row that it is pre-trained by, if that is one that pre-trains."""
    where = f"{path}: row {row.name}"
    if row.baseline not in rows:
        raise ValueError(f"{where}: baseline {shown(row.baseline)} is not a row; rows: {', '.join(rows)}")
    first = rows.get(str(row.pretrained))
    if first and kind_of(first) is not KINDS["pretraining"]:
        raise ValueError(f"{where}: pretrained: row {first.name} does not pre-train")
    return replace(row, pretrained=first) if first else row


def _without_repeats(rows: dict[str, Row]) -> dict[str, Row]:
    """The rows without those that train and translate as an earlier one, which gets their metrics and test sets."""
    first: dict[str, str] = {}
    checkpoints = {name: row.pretrained if isinstance(row.pretrained, str) else "" for name, row in rows.items()}
    same = {name: first.setdefault(row.key(row.data + checkpoints[name]), name) for name, row in rows.items()}
    joined: dict[str, Row] = {}
    for name, row in rows.items():
        kept = joined.get(same[name])
        joined[same[name]] = kept.with_scores_of(row) if kept else replace(row, baseline=same[row.baseline])
    return joined


def _refuse_wrong(row: Row, keys: Flags, train: Flags, path: Path) -> None:
    """Raise ``ValueError`` where a row lacks a setting, or two do not go together; ``keys`` are its keys in the file,
    ``train`` its flags of training as they were typed."""
    where = f"{path}: row {row.name}"
    for needed in ("arch", "max-update"):
        if needed not in row.train:
            raise ValueError(f"{where} and size {row.size} set no `{needed}`")
    if not re.fullmatch("[1-9][0-9]{,11}", str(row.train["max-update"])):
        raise ValueError(f"{where}: max-update: {shown(train['max-update'])} is not a number of updates above 0")
    which = "best" if "best" in row.average else "last"
    if row.average and row.average[which] * row.average["every"] > row.max_update:
        wanted = f"the {which} {row.average[which]} checkpoints of every {row.average['every']} updates"
        todo = "give others with --set average.every=N"
        todo += ", or --set average.last=0 for none" * ("by" not in row.average)  # which may need other flags
        raise ValueError(f"{where}: average: {wanted}, but only {row.max_update} updates; {todo}")
    kind = kind_of(row)
    if (by := row.average.get("by", "loss")) not in kind.losses:
        raise ValueError(f"{where}: average: by: {by}: rows of kind {kind.name} have {', '.join(kind.losses)} only")
    limited = {"metrics": row.metrics, "tests": row.tests, "heads": row.heads, "split": row.split != "test"}
    limited["pretrained"] = "pretrained" in keys
    limited["generate"] = bool(keys.get("generate")) and not kind.generates
    if row.split not in ("test", "valid"):
        raise ValueError(f"{where}: split: {shown(row.split)}: test or valid expected")
    if len(set(row.tests)) < len(row.tests):
        raise ValueError(f"{where}: tests: {', '.join(row.tests)}: one of them twice")
    if row.tests and row.split == "valid":
        raise ValueError(f"{where}: tests: {', '.join(row.tests)}: not with split: valid, which reads no test set")
    for key in (key for key, value in limited.items() if value and key not in kind.keys):
        raise ValueError(f"{where}: {key}: not for rows of kind {kind.name} (task {train.get('task')})")
    if row.pretrained and "finetune-from-model" in row.train:
        raise ValueError(f"{where}: pretrained and finetune-from-model: one of them only")
    for section, reserved in kind.own_flags(row).items():
        if taken := [flag for flag in getattr(row, section) if flag in reserved]:
            name = taken[0] if section == "train" else f"{section}.{taken[0]}"
            instead = "--seeds, another data set by --data, the folder of runs by $FAIRSEQ_DIVERSE_RUNS"
            todo = f"`fairseq-diverse run` sets this flag by itself; leave it out (seeds are given by {instead})"
            raise ValueError(f"{where}: {name}: {todo}")


def select_rows(table: Table, names: str | None, flag: str = "--rows") -> list[Row]:
    """The rows that a comma-separated list names, themselves or as the file's row of a grid; all of them for None."""
    if names is None:
        return list(table.rows.values())
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    rows_by_name = {name: [row for row in table.rows.values() if name in (row.name, row.family)] for name in chosen}
    unknown = [name for name, rows in rows_by_name.items() if not rows]
    if unknown or not chosen:
        known = ", ".join(dict.fromkeys(row.family for row in table.rows.values()))  # not every point of a grid
        raise ValueError(f"{flag}: no row {', '.join(unknown) or repr(names)} in {table.name}; rows: {known}")
    return list({row.name: row for rows in rows_by_name.values() for row in rows}.values())


@functools.cache
def _read_size(path: Path, modified: int) -> SizeFile:
    return file.read_file(path, SizeFile, SizeFile.__struct_encode_fields__)[1]


def _text(value: Text) -> str:
    return "" if value is None else str(value)


def _resolved_path(value: Text, key: str, path: Path) -> str:
    """A row's data or size, a name or a path, from the current folder or the table's; empty where there is none."""
    text = _text(value)
    beside = path.parent / text
    if not text or not beside.exists():
        return text
    here = Path(text).exists() or (runs_dir() / "data" / text).exists() or text in config_names(key)
    return text if here else str(beside)


def _metrics(text: Text | dict[str, Text], path: Path) -> tuple[str, ...]:
    """Of names, or of names with the models of neural ones."""
    if isinstance(text, dict):
        text = ",".join(name if model is None else f"{name}:{model}" for name, model in text.items())
    try:
        return () if text is None else tuple(chosen(str(text)))
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).removeprefix('--').split())}") from None
