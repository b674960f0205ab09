"""What a run reads besides its data: code, checkpoints and other files; others of the same name make another run."""

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fairseq_diverse.experiments.run import ENCODER, TREES, DataSet, Row
from fairseq_diverse.preparation.pipeline import read_record
from fairseq_diverse.support.files import read_json, sha256_of
from fairseq_diverse.syntax.makers import other_trees, recorded_makers

TRAIN = ("finetune-from-model", "encoder-embed-path", "decoder-embed-path", "quantization-config-path")
GENERATE = ("lm-path",)
DIGEST = re.compile("[0-9a-f]{64,}")


def read_by(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """By row, the digest of each thing that it reads, by key or flag of the table, in the order of the run's key.

    Of a file that is missing it is the path, so that training says that it is missing.
    """
    code = functools.cache(_code_digest)
    digests = {}
    for row in rows:
        probed = _encoder_digest(*(str(row.train.get(flag, "")) for flag in ENCODER))
        read = {ENCODER[0]: probed, "user-dir": code(row.user_dir)}
        read["pretrained"] = _file_digest(row.pretrained) if isinstance(row.pretrained, str) else ""
        for names, flags in ((TRAIN, row.train), (GENERATE, row.generate)):
            read |= {name: _file_digest(str(flags[name])) for name in names if name in flags}
        digests[row.name] = {name: value for name, value in read.items() if value}
    return digests


def kept_digests(read: Mapping[str, str], root: Path, called: str) -> Iterator[dict[str, str]]:
    """Where files are missing, with their digests in place of the paths: those that finished runs of this name kept."""
    missing = [name for name, digest in read.items() if not DIGEST.fullmatch(digest)]
    for path in sorted(root.glob(f"{called}-*/seed*/summary.json")) if missing else ():
        with contextlib.suppress(ValueError):
            kept = (read_json(path) or {}).get("read")
            if isinstance(kept, dict) and all(isinstance(kept.get(name), str) for name in missing):
                yield {**read, **{name: kept[name] for name in missing}}


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    """The first thing that both read and that is not the same; empty where there is none."""
    both = [name for name in first if DIGEST.fullmatch(first[name]) and DIGEST.fullmatch(second.get(name, ""))]
    return next((name for name in both if first[name] != second[name]), "")


def trees_read_by(row: Row, data: DataSet, splits: Sequence[str] = ("train", "valid", "test")) -> str:
    """The hash of what ``binarize-syntax`` added to the splits, if the row reads it; other trees make another run."""
    if row.train.get("task") != TREES:
        return ""
    records = sorted(path for split in splits for path in data.path.glob(f"{split}.*.{data.source}.syntax.json"))
    return hashlib.sha256(b"".join(path.name.encode() + _description(path) for path in records)).hexdigest()


def refused_trees(row: Row, data: DataSet) -> str:
    """Why the data's trees are not by the parsers that a row names; empty where they are, or it names none."""
    return other_trees(data.path, data.source, row.parser) if row.parser else ""


def parsers_of_trees(row: Row, data: DataSet) -> dict[str, str]:
    """By kind, the parser that made the trees of the test set that a row reads."""
    paths = sorted(data.path.glob(f"test.*.{data.source}.syntax.json")) if row.train.get("task") == TREES else []
    return next(map(recorded_makers, paths), {})


def _description(path: Path) -> bytes:
    """A description of trees without what made them, as earlier versions wrote it."""
    content = path.read_bytes()
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(content)
        if isinstance(record, dict) and "parsers" in record:
            return json.dumps({key: value for key, value in record.items() if key != "parsers"}).encode()
    return content


def _code_digest(user_dir: str) -> str:
    """The digest of a folder's code, not of what editors leave there: ``.#file.py``, links to nothing, and pipes."""
    files = {path.relative_to(user_dir): path for path in sorted(Path(user_dir).rglob("*.py"))} if user_dir else {}
    read = {name: path for name, path in files.items() if "/." not in f"/{name}" and path.is_file()}
    digests = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in read.items()]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""


def _encoder_digest(checkpoint: str, data: str) -> str:
    digest = _file_digest(checkpoint)
    if digest == checkpoint or not Path(data).is_dir():  # training says what is missing
        return checkpoint
    return digest + read_record(data)["hash"]


def _file_digest(path: str) -> str:
    try:
        known = os.stat(path)
        return _cached_digest(path, known.st_mtime_ns, known.st_size)
    except OSError:
        return path


@functools.cache
def _cached_digest(path: str, modified: int, size: int) -> str:
    """The digest of a file until it is modified: rows share large files, and copies are compared with them again."""
    return sha256_of(path)
