"""Subwords and dictionary that a data set takes over, so that a model trained on other data reads it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation import pipeline
from fairseq_diverse.preparation.config import SIDE_DEFAULTS, DataConfig
from fairseq_diverse.preparation.subwords import Subwords, t5_words
from fairseq_diverse.preparation.wordpiece import VOCABULARY, read_vocabulary

T5_MODEL = "spiece.model"
GPT2_ORIGIN = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe"
RAW = {**SIDE_DEFAULTS, "normalize": False, "tokenizer": "raw"}


@dataclass(frozen=True)
class Encoding:
    """``steps``: the keys of ``SIDE_DEFAULTS``; ``bpe``: those of ``BPE_DEFAULTS``; the others are files."""

    steps: dict[str, Any]
    bpe: dict[str, Any]
    dictionary: Path
    model: Path
    vocabulary: Path | None = None
    truecaser: Path | None = None
    moses: bool = True  # see ``Tokens``

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.model, self.vocabulary, self.dictionary, self.truecaser) if path]

    def applied(self, config: DataConfig) -> DataConfig:
        """The configuration with these steps in place of its own. Raises ``ValueError``: it has two languages, or files
        of GPT-2 are missing."""
        if config.translates:
            flag = {"wordpiece": "--wordpiece", "t5": "--sentencepiece"}.get(self.bpe["kind"], "--gpt2-bpe")
            raise ValueError(f"{flag}: for text of one language and GLUE; {config.name} has two, add --monolingual")
        if self.steps is RAW and (missing := [path.name for path in self.files if not path.is_file()]):  # of GPT-2
            raise ValueError(f"--gpt2-bpe {self.model.parent}: lacks {', '.join(missing)}, from {GPT2_ORIGIN}")
        sides = {}
        for side, settings in config.sides.items():
            sides[side] = {key: settings[key] for key in ("language", "raw", "suffix") if key in settings} | self.steps
        return replace(config, sides=sides, bpe=self.bpe)


def _pretrained(kind: str, dictionary: Path, model: Path, vocabulary: Path | None = None) -> Encoding:
    return Encoding(RAW, {"kind": kind, "size": 0, "joint": True, "threshold": 0}, dictionary, model, vocabulary)


def of_gpt2(folder: Path) -> Encoding:
    """GPT-2's byte-level BPE, which fairseq's RoBERTa checkpoints read, from a folder of its three files."""
    return _pretrained("gpt2", folder / "dict.txt", folder / "encoder.json", folder / "vocab.bpe")


def of_wordpiece(folder: Path) -> Encoding:
    """BERT's WordPiece, from a folder with its vocabulary, of which the dictionary is made. Raises ``ValueError``: as
    ``read_vocabulary``."""
    read_vocabulary(path := folder / VOCABULARY)
    return _pretrained("wordpiece", path, path)


def of_t5(folder: Path) -> Encoding:
    """T5's SentencePiece, from a folder with its model, of which the dictionary is made. Raises ``ValueError``: there
    is no model, or it is damaged or not T5's."""
    if not (path := folder / T5_MODEL).is_file():
        raise ValueError(f"--sentencepiece {folder}: no {T5_MODEL}, the model of a T5's subwords")
    t5_words(Subwords("t5", path).pieces)
    return _pretrained("t5", path, path)


def of_data(folder: Path) -> Encoding:
    """Those of a prepared data set of one language. Raises ``ValueError``: it is not prepared, damaged, or of two
    languages."""
    record = pipeline.read_record(folder)
    if pipeline.languages(folder, record)[1]:
        raise ValueError(f"{folder}: of two languages; take one prepared with --monolingual")
    try:
        side, side_steps = next(iter(record["config"]["sides"].items()))
        bpe, names = record["bpe"], (record["bpe"]["model"], record["bpe"]["vocabulary"], record["truecaser"])
        model, vocabulary, truecaser = (by_side[side] and pipeline.inside(folder, by_side[side]) for by_side in names)
        rules = {"rules": side_steps["rules"]} if "rules" in side_steps else {}
        steps = {key: side_steps[key] for key in ("language", *SIDE_DEFAULTS)} | rules
        settings = {key: value for key, value in bpe.items() if key not in ("model", "vocabulary")}
        dictionary = folder / (f"{side}/dict.txt" if pipeline.glue_task(record) else "dict.txt")
        moses = record.get(pipeline.TRUECASING) == pipeline.MOSES
        return Encoding(steps, settings, dictionary, model, vocabulary, truecaser, moses)
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{folder / pipeline.FILE}: incomplete ({error}); {pipeline.AGAIN}") from None
