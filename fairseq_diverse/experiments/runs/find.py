"""The data sets and runs that the rows of a table mean, and the commands that prepare what runs lack."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_diverse.experiments.inputs import kept_digests, read_by, refused_trees, trees_read_by
from fairseq_diverse.experiments.kinds.kind import KINDS, kind_of
from fairseq_diverse.experiments.kinds.lines import grouped
from fairseq_diverse.experiments.run import NAME_BYTES, TREES, DataSet, Row, Run, Tracking
from fairseq_diverse.preparation import DataConfig, glue
from fairseq_diverse.preparation.pipeline import FILE, entry, glue_task, languages, read_record, test_sets
from fairseq_diverse.support.paths import config_names, config_path, folders_of_data, runs_dir
from fairseq_diverse.syntax.makers import copy_for, other_grammar, other_makers
from fairseq_diverse.syntax.parsers import PARSERS

NOT_IN_PATHS = re.compile(rf"{os.pathsep}|\$\{{|[\x00-\x1f\x7f\ud800-\udfff]")
UNPREPARED = "unprepared"  # in place of a key, which needs the data


def find_data(name: str, dry: bool = False, root: Path | None = None) -> DataSet:
    """The data set that a name or a path means. Raises ValueError: it is not prepared (unless ``dry``), or unknown;
    says what to do."""
    folders = folders_of_data(name, root)
    for path in folders:
        if (path / FILE).is_file():
            record = read_record(path)
            text_hash, task = entry(path, record, "hash"), glue_task(record) or ""
            if task and task not in glue.TASKS:
                raise ValueError(f"{path / FILE}: {task!r} is no task of GLUE that this version knows")
            return DataSet(path.name, path, *languages(path, record), text_hash, test_sets(path, record), task)
    data = next((data for kind in KINDS.values() if (data := kind.find_data(name, folders))), None)
    if data is None:
        if name not in config_names("data"):
            wanted = "neither a known name nor a folder made by `fairseq-diverse prepare`, or with pictures "
            wanted += f"(train/CLASS and val/CLASS or test/CLASS); known: {', '.join(config_names('data'))}"
            raise ValueError(f"data set {name}: {wanted}")
        config = DataConfig.load(config_path("data", name))
        source, target = config.languages if config.translates else (config.languages[0], "")
        how = f"--raw RAW_DIR --out {folders[0]}"
        data = DataSet(name, folders[0], source, target, None, dict.fromkeys(config.tests), preparation=how)
    if data.hash is None and not dry:
        refuse_by_hand(data)
        raise ValueError(f"data set {name} is not prepared; run: fairseq-diverse prepare {name} {data.preparation}")
    return data


def with_trees_of(row: Row, data: DataSet) -> DataSet:
    """The data set, or its copy for the row's parsers, where it has no trees of theirs and there is one."""
    copy = copy_for(data.path, row.parser)
    if copy == data.path or not refused_trees(row, data) or not (copy / FILE).is_file():
        return data
    return find_data(str(copy))


def refuse_by_hand(data: DataSet) -> None:
    """Raise ``ValueError`` where no command prepares a data set that is missing."""
    if data.hash is None and not data.preparation.startswith("--"):
        raise ValueError(f"data set {data.name} is missing; {data.preparation}")


def with_first(runs: Iterable[Run]) -> list[Run]:
    """The runs, each behind the one that it is pre-trained by."""
    return [each for run in runs for each in (run.first, run) if each]


def joined(runs: Iterable[Run], tracking: Tracking) -> list[Run]:
    """Of equal rows one run, scored as all of them want."""
    once: dict[Path, Run] = {}
    for run in runs:
        row = run.row.with_scores_of(once.get(run.directory, run).row)
        once[run.directory] = replace(run, row=row, tracking=tracking)
    return list(once.values())


def find_runs(
    rows: Sequence[Row], seeds: Sequence[int], dry: bool = False, root: Path | None = None, cpu: bool | None = None
) -> list[Run]:
    """The runs of rows and seeds, row by row; an equal earlier run's directory is used, whatever its row was called.

    Args:
        dry: accept data sets that are known but not prepared.
        root: the folder of runs (default: ``runs_dir()``).
        cpu: run without a GPU; by default where torch, which takes a second to import, finds none.
    """
    root = root or runs_dir()
    every = [*rows, *(row.first for row in rows if row.first)]
    by_name = {name: find_data(name, dry, root) for name in dict.fromkeys(row.data for row in every)}
    data_of_row = {(row.name, row.data): with_trees_of(row, by_name[row.data]) for row in every}
    for row in every:
        first = data_of_row[row.first.name, row.first.data] if row.first and not dry else None
        kind_of(row).check_data(row, data_of_row[row.name, row.data], first)
        if not dry:
            refuse_lacking_start(row)
    if cpu is None:
        import torch

        cpu = not torch.cuda.is_available()
    read = read_by(every)
    folders_by_key = grouped((path.name.rpartition("-")[2], path) for path in sorted(root.glob("*-*")))

    def runs_of(row: Row) -> list[Run]:
        data, first = data_of_row[row.name, row.data], row.first
        by_flag = read[row.name]
        if first:
            files = [digest for name, digest in read[first.name].items() if name != "user-dir"]  # the row's, too
            by_flag = by_flag | {"pretrained": "".join([data_of_row[first.name, first.data].hash or "", *files])}
        trees, direction = trees_read_by(row, data), "".join(kind_of(row).languages(data))
        start, name = (re.sub(r"[^\w.+=,-]", "_", data.name + rest) for rest in ("", f"-{row.size}-{row.name}"))
        name = name.encode()[:NAME_BYTES].decode(errors="ignore")

        def key_of(digests: Mapping[str, str], direction: str) -> str:
            return row.key("".join([str(data.hash), direction, trees, *digests.values()])) if data.hash else UNPREPARED

        possible = [*kept_digests(by_flag, root, name), by_flag]  # of files that are gone since, and those of now
        keys = {key_of(digests, direction): "" for digests in possible}
        keys |= {key_of(digests, ""): f"{start}-" for digests in possible if direction}  # once without direction
        key = key_of(by_flag, direction)
        new, equal = root / f"{name}-{key}", f"*-{key}" if data.hash else f"{name}-{key}"
        existing: list[Path] = []
        for key, beginning in keys.items() if data.hash else ():
            if existing := [path for path in folders_by_key.get(key, ()) if path.name.startswith(beginning)]:
                equal = f"{beginning}*-{key}"
                break
        parent = parents.setdefault(equal, existing[0] if existing else new)
        for path in (data.path, parent, row.pretrained if isinstance(row.pretrained, str) else ""):
            if NOT_IN_PATHS.search(str(path)):
                wrong = f"{os.pathsep}, ${{ or control characters; choose another folder"
                raise ValueError(f"{ascii(str(path))[1:-1]}: fairseq cannot read a path with {wrong}")
        row_runs = []
        for seed, first_run in zip(seeds, runs_of(first) if first else [None] * len(seeds), strict=True):
            folder = next((path for path in existing if (path / f"seed{seed}").is_dir()), parent)
            row_runs.append(Run(row, seed, data, cpu, folder / f"seed{seed}", first_run, read=by_flag, equal=equal))
        return row_runs

    parents: dict[str, Path] = {}  # of equal rows one
    runs: list[Run] = []
    for row in rows:
        runs += runs_of(row)
        if not dry:
            refuse_other_trees(row, runs[-1].data)
    return runs


def refuse_lacking_start(row: Row) -> None:
    """Raise ``ValueError`` where the checkpoint that a row starts from is missing."""
    if isinstance(row.pretrained, str) and row.pretrained and not Path(row.pretrained).is_file():
        wrong = f"{row.pretrained}: neither a row of this table nor a checkpoint"
        raise ValueError(f"row {row.name}: pretrained: {wrong}; give one with --set pretrained=FILE")


def refuse_other_trees(row: Row, data: DataSet) -> None:
    """Raise ``ValueError`` where the data's trees are not by the parsers that a row names."""
    if why := refused_trees(row, data):
        raise ValueError(f"row {row.name}: {why}")


FILES = {"dependency": "conllu", "constituency": "ptb"}


def preparations(runs: Sequence[Run], flags: Sequence[str], again: bool = False) -> Iterator[list[str]]:
    """The commands of ``fairseq-diverse`` that prepare what runs lack, to be carried out one after the other: missing
    data sets, and trees of data that rows read trees of, by the parsers of ``DEPENDENCY_MODEL`` and
    ``CONSTITUENCY_MODEL``. For rows whose parser is another one of ``parse``, such as pcfg with the grammar
    ``PCFG_MODEL``, a copy of the data has the trees.

    Args:
        runs: found with ``dry``.
        flags: of ``fairseq-diverse prepare``.
        again: also prepare GLUE's tasks that are there, which says if they have other subwords.

    Raises:
        ValueError: something that no command prepares is missing, or trees are of another grammar.
    """
    folders: dict[Path, tuple[Path, dict[str, str]]] = {}  # by folder for trees: of the data, and the row's parsers
    for run in runs:
        refuse_by_hand(run.data)
        refuse_lacking_start(run.row)
        makers = other_makers(run.row.parser)
        known = makers and all(name in PARSERS[kind] for kind, name in makers.items())
        if known and (why := refused_trees(run.row, run.data)):
            if "pcfg" in makers.values() and not os.environ.get("PCFG_MODEL"):
                todo = "give PCFG_MODEL=GRAMMAR, a file that `fairseq-diverse parse --train-pcfg TREES` writes"
                raise ValueError(f"row {run.row.name}: reads trees by pcfg, which has no default model; {todo}; {why}")
            folders[copy_for(run.data.path, makers)] = run.data.path, makers
            continue
        refuse_other_trees(run.row, run.data)
        if "pcfg" in makers.values() and (why := other_grammar(run.data.path, run.data.source)):
            raise ValueError(f"row {run.row.name}: {why}")
        if run.row.train.get("task") == TREES:
            folders.setdefault(run.data.path, (run.data.path, {}))
    lacking = {run.data.name for run in runs if run.data.hash is None or (again and run.data.glue)}
    if names := sorted(lacking, key=lambda name: ("@" in name, name)):  # NAME@DATA has the dictionary of DATA
        yield ["prepare", *names, *flags, "--workers", str(os.cpu_count() or 1)]
    for folder, (data, makers) in sorted(folders.items()):
        if not any(folder.glob("test.*.syntax.json")):
            yield from _trees(data, folder, makers)


def _trees(data: Path, folder: Path, makers: dict[str, str]) -> Iterator[list[str]]:
    """Trees for ``folder``, which is that of the data or a copy, by the usual parsers except for ``makers``."""
    record = read_record(data)
    language, splits = record["source"], ["--splits", ",".join(record["splits"])]
    text, files = f"{data}/text/tok.{{split}}.{language}", []
    for kind, ending in FILES.items():
        out = f"{folder if kind in makers else data}/trees/{{split}}.{language}.{ending}"
        model = os.environ.get(f"{makers.get(kind, kind).upper()}_MODEL")
        options = ["--kind", kind, "--language", language, *(["--parser", makers[kind]] if kind in makers else [])]
        yield ["parse", *options, *(["--model", model] if model else []), *splits, "--input", text, "--out", out]
        files += [f"--{kind}", out]
    yield ["binarize-syntax", "--data", str(data), *(["--copy", str(folder)] if makers else []), *splits, *files]
