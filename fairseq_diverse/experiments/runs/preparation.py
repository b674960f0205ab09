"""What the runs of a table need before they train: prepared data, and trees."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_diverse.experiments.inputs import refused_trees
from fairseq_diverse.experiments.run import TREES, Run
from fairseq_diverse.experiments.runs.find import refuse_by_hand, refuse_lacking_start, refuse_other_trees
from fairseq_diverse.syntax.makers import copy_for, other_makers
from fairseq_diverse.syntax.parsers import PARSERS

FILES = {"dependency": "conllu", "constituency": "ptb"}


def preparations(runs: Sequence[Run], flags: Sequence[str], again: bool = False) -> Iterator[list[str]]:
    """The commands of ``fairseq-diverse`` that prepare what runs lack, to be carried out one after the other: missing
    data sets, and trees of data that rows read trees of, by the parsers of ``DEPENDENCY_MODEL`` and
    ``CONSTITUENCY_MODEL``. For rows whose parser is another one of ``parse``, such as pcfg with the grammar
    ``PCFG_MODEL``, a copy of the data has the trees.

    ``runs``: found with ``dry``; ``flags``: of ``fairseq-diverse prepare``; ``again``: also prepare GLUE's tasks that
    are there, which says if they have other subwords. Raises ValueError: something that no command prepares is
    missing."""
    folders: dict[Path, tuple[Path, dict[str, str]]] = {}  # by folder for trees: of the data, and the row's parsers
    for run in runs:
        refuse_by_hand(run.data)
        refuse_lacking_start(run.row)
        others = other_makers(run.row.parser)
        known = others and all(name in PARSERS[kind] for kind, name in others.items())
        if known and (why := refused_trees(run.row, run.data)):
            if "pcfg" in others.values() and not os.environ.get("PCFG_MODEL"):
                todo = "give PCFG_MODEL=GRAMMAR, a file that `fairseq-diverse parse --train-pcfg TREES` writes"
                raise ValueError(f"row {run.row.name}: reads trees by pcfg, which has no default model; {todo}; {why}")
            folders[copy_for(run.data.path, others)] = run.data.path, others
            continue
        refuse_other_trees(run.row, run.data)
        if run.row.train.get("task") == TREES:
            folders.setdefault(run.data.path, (run.data.path, {}))
    lacking = {run.data.name for run in runs if run.data.hash is None or (again and run.data.glue)}
    if names := sorted(lacking, key=lambda name: ("@" in name, name)):  # NAME@DATA has the dictionary of DATA
        yield ["prepare", *names, *flags, "--workers", str(os.cpu_count() or 1)]
    for folder, (data, others) in sorted(folders.items()):
        if not any(folder.glob("test.*.syntax.json")):
            yield from _trees(data, folder, others)


def _trees(data: Path, folder: Path, others: dict[str, str]) -> Iterator[list[str]]:
    """Trees for ``folder``, which is that of the data or a copy, by the usual parsers except for ``others``."""
    record = json.loads((data / "preprocess.json").read_text(encoding="utf-8"))
    language, splits = record["source"], ["--splits", ",".join(record["splits"])]
    text, files = f"{data}/text/tok.{{split}}.{language}", []
    for kind, ending in FILES.items():
        out = f"{folder if kind in others else data}/trees/{{split}}.{language}.{ending}"
        model = os.environ.get(f"{others.get(kind, kind).upper()}_MODEL")
        which = ["--kind", kind, "--language", language, *(["--parser", others[kind]] if kind in others else [])]
        yield ["parse", *which, *(["--model", model] if model else []), *splits, "--input", text, "--out", out]
        files += [f"--{kind}", out]
    yield ["binarize-syntax", "--data", str(data), *(["--copy", str(folder)] if others else []), *splits, *files]
