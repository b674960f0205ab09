"""Data sets that are trained on as they are: files of fixed names, downloaded or brought."""

import filecmp
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairseq_diverse.data.logic import MOST_OPERATORS, read_pairs
from fairseq_diverse.data.probing import ORIGIN, TASKS, read_probing
from fairseq_diverse.preparation.download import fetch
from fairseq_diverse.preparation.prepare import alone, put_in_place

GITHUB = "https://raw.githubusercontent.com"
PROBING = f"{GITHUB}/facebookresearch/SentEval/main/data/probing"
# the files that the papers on logical inference share, at a commit that does not change
LOGIC = f"{GITHUB}/yikangshen/Ordered-Neurons/9d193144971aa0f3f13a5f1b5246cf97477dc2f6/data/propositionallogic"


@dataclass(frozen=True)
class PlainData:
    """``files`` are at ``address``; ``read`` refuses a bad file."""

    address: str
    files: list[str]
    origin: str
    read: Callable[[Path], object]


PLAIN_DATA = {
    "propositional_logic": PlainData(
        LOGIC,
        [f"{split}{n}" for split in ("train", "test") for n in range(MOST_OPERATORS + 1)],
        "of Bowman et al. (2015), or those that `fairseq-diverse logic` wrote",
        read_pairs,
    ),
    "probing": PlainData(
        PROBING,
        [f"{task}.txt" for task in TASKS],
        f"of SentEval ({ORIGIN}), or those that `fairseq-diverse toy --probing` wrote",
        lambda path: read_probing(path.parent, path.stem),
    ),
}


def download_plain(data: PlainData, folder: Path, download: bool = True) -> None:
    """Bring the files into ``folder``; arguments and errors as of ``fetch``."""
    fetch({name: f"{data.address}/{name}" for name in data.files}, {}, folder, download, "file")


def put_plain(data: PlainData, raw: Path, out: Path, overwrite: bool = False) -> bool:
    """Copy the files of ``raw`` to ``out``, all of them or none, once each can be read; returns whether that was
    needed. Raises ``ValueError``: files are missing or wrong; ``out`` holds something else."""
    if missing := [name for name in data.files if not (raw / name).is_file()]:
        raise ValueError(f"{raw}: lacks {', '.join(missing)}, {data.origin}")
    for name in data.files:
        data.read(raw / name)
    with alone(out) as work:
        if out.is_dir() and filecmp.cmpfiles(raw, out, data.files, shallow=False)[0] == data.files:
            return False
        if out.is_file() or (out.is_dir() and {path.name for path in out.iterdir()} - {*data.files}):
            raise ValueError(f"{out}: exists and is something else; choose another --out")
        if not overwrite and out.is_dir() and any(out.iterdir()):
            raise ValueError(f"{out}: holds other files of these names; choose another --out or add --overwrite")
        work.mkdir()
        for name in data.files:
            shutil.copyfile(raw / name, work / name)
        put_in_place(work, out)
    return True
