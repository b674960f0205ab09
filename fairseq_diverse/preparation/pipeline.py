"""The preparation steps of a data set, read from its ``preprocess.json``, for single lines."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation.config import TEST_NAME
from fairseq_diverse.preparation.subwords import Subwords
from fairseq_diverse.preparation.tokens import Tokens
from fairseq_diverse.support.files import read_json

FILE = "preprocess.json"
FORMAT = "fairseq-diverse preprocessing"
SCHEMA = 1
TRUECASING, MOSES = "truecasing", "moses"  # of data prepared before, a record says nothing
AGAIN = "prepare the data again (with --overwrite)"


def read_record(data_dir: str | Path) -> dict[str, Any]:
    """``preprocess.json`` of a prepared directory. Raises ``ValueError``: missing, truncated, from another program or
    of a newer schema; names the file."""
    path = Path(data_dir) / FILE
    if (record := read_json(path, AGAIN)) is None:
        raise ValueError(f"{path}: cannot be read (no such file); was {data_dir} written by `fairseq-diverse prepare`?")
    if record.get("format") != FORMAT or not isinstance(record.get("schema"), int):
        raise ValueError(f"{path}: not written by `fairseq-diverse prepare`")
    if record["schema"] > SCHEMA:
        raise ValueError(f"{path}: schema {record['schema']} is newer than this version's {SCHEMA}; update the package")
    return record


def lowercased(data_dir: str | Path, side: str = "target") -> bool:
    """Whether a side was lower-cased; translations must then be compared with lower-cased references. Raises
    ``ValueError``: as ``read_record``."""
    return entry(data_dir, read_record(data_dir), "config", "sides", side, "lowercase")


def entry(data_dir: str | Path, record: Any, *keys: str) -> Any:
    """The value of nested keys in a prepared directory's record. Raises ``ValueError``: a key is missing, or a language
    is not valid; names the file."""
    path = Path(data_dir) / FILE
    for key in keys:
        if not isinstance(record, dict) or key not in record:
            raise ValueError(f"{path}: incomplete ({key}); {AGAIN}")
        record = record[key]
    if keys[-1] == "target" and record == "":
        raise ValueError(f"{path}: the data are of one language; data with a target are needed")
    if keys[-1] in ("source", "target") and not (isinstance(record, str) and record.isidentifier()):
        raise ValueError(f"{path}: {keys[-1]}: {record!r} is not a language; {AGAIN}")
    if keys[-1] == "hash" and not isinstance(record, str):
        raise ValueError(f"{path}: damaged (hash); {AGAIN}")
    return record


def languages(data_dir: str | Path, record: Any) -> tuple[str, str]:
    """Source and target language of a prepared directory; the target is empty where there is one language. Raises
    ``ValueError``: as ``entry``."""
    target = "" if isinstance(record, dict) and record.get("target") == "" else entry(data_dir, record, "target")
    return entry(data_dir, record, "source"), target


def glue_task(record: Any) -> str | None:
    """The task of GLUE of a prepared directory, None for other data."""
    config = record.get("config") if isinstance(record, dict) else None
    task = config.get("glue") if isinstance(config, dict) else None
    return task if isinstance(task, str) else None


def test_sets(data_dir: str | Path, record: Any) -> dict[str, str | None]:
    """Names of a prepared directory's test sets, in the order of test, test1, ..., with the hashes that the record has.
    Raises ``ValueError``: they are damaged; names the file."""
    tests = record.get("tests", {"test": None})
    if not isinstance(tests, dict) or not tests or not all(map(TEST_NAME.fullmatch, tests)):
        raise ValueError(f"{Path(data_dir) / FILE}: damaged (tests); {AGAIN}")
    return tests


@dataclass(frozen=True)
class Preprocessing:
    """The preparation steps of a prepared data set, to apply to new text.

    Args:
        source, target: languages; the target is empty for data in one language.
        hash: identifies the prepared text and the models.
        record: the contents of ``preprocess.json``.
        tokens, subwords: the steps of each side.
    """

    source: str
    target: str
    hash: str
    record: dict[str, Any]
    tokens: dict[str, Tokens]
    subwords: dict[str, Subwords]

    @classmethod
    def load(cls, data_dir: str | Path) -> "Preprocessing":
        """Read ``preprocess.json`` of a prepared folder, and the models that it names.

        Raises:
            ValueError: as ``read_record``, or a model is missing.
        """
        data_dir = Path(data_dir)
        record = read_record(data_dir)
        source, target = languages(data_dir, record)
        try:
            config, bpe = record["config"], record["bpe"]
            tokens, subwords = {}, {}
            for side, steps in config["sides"].items():
                names = record["truecaser"][side], bpe["model"][side], bpe["vocabulary"][side]
                truecaser, model, vocabulary = (name and inside(data_dir, name) for name in names)
                tokens[side] = Tokens(steps, truecaser, record.get(TRUECASING) == MOSES, bpe["kind"])
                subwords[side] = Subwords(bpe["kind"], model, vocabulary, bpe["threshold"])
            return cls(source, target, record["hash"], record, tokens, subwords)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{data_dir / FILE}: incomplete ({error}); {AGAIN}") from None
        except OSError as error:
            raise ValueError(f"{error.filename}: cannot be read ({error.strerror}); {FILE} names it") from None

    def of_model(self, task: Any) -> "Preprocessing":
        """The steps for a model's task: with the sides swapped if it translates from target to source."""
        if (task.cfg.source_lang, task.cfg.target_lang) != (self.target, self.source):
            return self
        tokens = {"source": self.tokens["target"], "target": self.tokens["source"]}
        subwords = {"source": self.subwords["target"], "target": self.subwords["source"]}
        return replace(self, source=self.target, target=self.source, tokens=tokens, subwords=subwords)

    def encode(self, line: str, side: str = "source") -> str:
        """Turn raw text into subwords joined by spaces, as in the binarized data."""
        return self.subwords[side].segment(self.tokens[side].tokenize(line))

    def decode(self, line: str, side: str = "target") -> str:
        """Turn subwords as ``fairseq-generate`` prints them, with or without BPE marks, into detokenized text."""
        return self.tokens[side].detokenize(self.subwords[side].join(line.strip()))


def inside(data_dir: Path, name: str) -> Path:
    """A file named in the record; it must be in the record's directory."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{data_dir / FILE}: {name!r} is outside the directory; {AGAIN}")
    return data_dir / name
