"""What the runs of a table need before they train: prepared data, and trees."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_diverse.experiments.rows import TREES
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.find import refuse_by_hand, refuse_lacking_start, refuse_other_trees

FILES = {"dependency": "conllu", "constituency": "ptb"}


def preparations(runs: Sequence[Run], flags: Sequence[str], again: bool = False) -> Iterator[list[str]]:
    """The commands of ``fairseq-diverse`` that prepare what runs lack, to be carried out one after the other: missing
    data sets, and trees of data that rows read trees of, by the parsers of ``DEPENDENCY_MODEL`` and
    ``CONSTITUENCY_MODEL``.

    Args:
        runs: found with ``dry``.
        flags: of ``fairseq-diverse prepare``.
        again: also prepare GLUE's tasks that are there, which says if they have other subwords.

    Raises:
        ValueError: something that no command prepares is missing.
    """
    for run in runs:
        refuse_by_hand(run.data)
        refuse_lacking_start(run.row)
        refuse_other_trees(run.row, run.data)
    names = sorted({run.data.name for run in runs if run.data.hash is None or (again and run.data.glue)})
    if names:
        yield ["prepare", *names, *flags, "--workers", str(os.cpu_count() or 1)]
    for folder in sorted({run.data.path for run in runs if run.row.train.get("task") == TREES}):
        if not any(folder.glob("test.*.syntax.json")):
            yield from _trees(folder)


def _trees(folder: Path) -> Iterator[list[str]]:
    record = json.loads((folder / "preprocess.json").read_text(encoding="utf-8"))
    language, splits = record["source"], ["--splits", ",".join(record["splits"])]
    text, files = f"{folder}/text/tok.{{split}}.{language}", []
    for kind, ending in FILES.items():
        out = f"{folder}/trees/{{split}}.{language}.{ending}"
        model = os.environ.get(f"{kind.upper()}_MODEL")
        which = ["--kind", kind, "--language", language, *(["--model", model] if model else [])]
        yield ["parse", *which, *splits, "--input", text, "--out", out]
        files += [f"--{kind}", out]
    yield ["binarize-syntax", "--data", str(folder), *splits, *files]
