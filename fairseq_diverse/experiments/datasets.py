"""The prepared data set that a row names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_diverse.data.plain import PLAIN_DATA
from fairseq_diverse.preparation import glue
from fairseq_diverse.support.paths import config_names, config_path, runs_dir


@dataclass(frozen=True)
class DataSet:
    """A prepared data set; ``hash`` is None while it is not prepared (for ``--dry-run``).

    ``tests`` are its test sets by name, the first one first, each with its own hash where it has one. ``glue`` is the
    task of GLUE that it is, empty for other data.
    """

    name: str
    path: Path
    source: str
    target: str
    hash: str | None
    tests: Mapping[str, str | None] = field(default_factory=lambda: {"test": None})
    glue: str = ""

    @property
    def subsets(self) -> dict[str, str]:
        """The splits that can be translated, by name; the first test set is also called test."""
        return {"valid": "valid", "test": "test"} | {name: f"test{n or ''}" for n, name in enumerate(self.tests)}


def find_data(name: str, dry: bool = False, root: Path | None = None) -> DataSet:
    """The prepared data set that a name or a path means.

    Raises:
        ValueError: it is not prepared (unless ``dry``), or unknown; says what to do.
    """
    from fairseq_diverse.preparation import DataConfig
    from fairseq_diverse.preparation.pipeline import FILE, entry, glue_task, languages, read_record, test_sets

    by_name = (root or runs_dir()) / "data" / name
    for path in (by_name, Path(name).resolve()):
        if (path / FILE).is_file():
            record = read_record(path)
            text_hash, task = entry(path, record, "hash"), glue_task(record) or ""
            if task and task not in glue.TASKS:
                raise ValueError(f"{path / FILE}: {task!r} is no task of GLUE that this version knows")
            return DataSet(path.name, path, *languages(path, record), text_hash, test_sets(path, record), task)
        for plain in PLAIN_DATA.values():
            found = [file for file in plain.files if (path / file).is_file()]
            if found and len(found) < len(plain.files):
                missing = ", ".join(file for file in plain.files if file not in found)
                raise ValueError(f"data set {name}: {path} lacks {missing}, {plain.origin}")
            if found:
                content = b"".join((path / file).read_bytes() for file in plain.files)
                return DataSet(path.name, path, "", "", hashlib.sha256(content).hexdigest())
    if name in PLAIN_DATA and dry:
        return DataSet(name, by_name, "", "", hash=None)
    if name in PLAIN_DATA:
        raise ValueError(
            f"data set {name} is not prepared; run: fairseq-diverse prepare {name} --archives DIR --out {by_name} "
            f"(downloads {len(PLAIN_DATA[name].files)} files), or give their folder as --data"
        )
    if of_glue := glue.split_name(name):
        if dry:
            return DataSet(name, by_name, "en", "", hash=None, glue=of_glue[0].name)
        raise ValueError(
            f"data set {name} is not prepared; run: fairseq-diverse prepare {name} --raw DIR --out {by_name} "
            f"(DIR has GLUE's files, {glue.ORIGIN})"
        )
    if name not in config_names("data"):
        raise ValueError(
            f"data set {name}: neither a known name nor a folder made by `fairseq-diverse prepare`; "
            f"known: {', '.join(config_names('data'))}"
        )
    if not dry:
        raise ValueError(
            f"data set {name} is not prepared; run: fairseq-diverse prepare {name} --raw RAW_DIR --out {by_name}"
        )
    config = DataConfig.load(config_path("data", name))
    source, target = config.languages if config.translates else (config.languages[0], "")
    return DataSet(name, by_name, source, target, hash=None, tests=dict.fromkeys(config.tests))
