"""``text/bpe.SPLIT.LANG`` to what fairseq reads, by fairseq-preprocess."""

import shutil
import subprocess
import sys
from pathlib import Path

from fairseq_diverse.host.data import write_dictionary
from fairseq_diverse.host.starting import lighter
from fairseq_diverse.preparation.config import SPLITS, DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.glue import TASKS
from fairseq_diverse.preparation.subwords import Subwords, t5_words
from fairseq_diverse.preparation.wordpiece import read_vocabulary, symbols
from fairseq_diverse.support.files import write_lines
from fairseq_diverse.support.processes import run_to_end

T5_NAME = "sentencepiece.model"  # of a model that was learned here


def binarize(config: DataConfig, work: Path, workers: int, encoding: Encoding | None) -> None:
    print("fairseq-preprocess", file=sys.stderr)
    for dictionary in work.glob("dict.*"):  # from an interrupted run; fairseq-preprocess does not replace them
        dictionary.unlink()
    kind = config.bpe["kind"]
    if kind in ("wordpiece", "t5"):
        model = work / "text" / (encoding.model.name if encoding else T5_NAME)
        words = symbols(read_vocabulary(model)) if kind == "wordpiece" else t5_words(Subwords("t5", model).pieces)
        write_lines(work / "text/dict.txt", (f"{word} 1" for word in words[4:]))  # after fairseq's own
    given = ["--srcdict", "text/dict.txt"] if encoding or kind == "t5" else []
    if config.translates:
        source, target = config.languages
        files = _prefixes({split: f"text/bpe.{split}" for split in config.splits})
        joined = ["--joined-dictionary"] if config.joined_dictionary else []
        _preprocess(work, workers, ["--source-lang", source, "--target-lang", target, *files], ".", [*joined, *given])
    elif config.glue:
        _binarize_glue(config, work, workers, encoding)
    else:
        _preprocess(work, workers, _one_side(config, config.languages[0]), ".", given)


def _binarize_glue(config: DataConfig, work: Path, workers: int, encoding: Encoding | None) -> None:
    """``input0``, ``input1`` and ``label`` as ``sentence_prediction`` reads them, the inputs with one dictionary."""
    if not encoding:
        write_dictionary((work / f"text/bpe.train.{suffix}" for suffix in config.languages), work / "text/dict.txt")
    for suffix in config.languages:
        _preprocess(work, workers, _one_side(config, suffix), suffix, ["--srcdict", "text/dict.txt"])
    labels = [split for split in config.splits if not split.startswith("test")]
    if TASKS[config.glue].regression:
        (work / "label").mkdir(exist_ok=True)
        for split in labels:
            shutil.copyfile(work / f"text/{split}.label", work / f"label/{split}.label")
        return
    write_lines(work / "text/label.txt", (f"{label} 1" for label in TASKS[config.glue].labels))
    files = _prefixes({split: f"text/{split}.label" for split in labels})
    _preprocess(work, workers, ["--only-source", *files], "label", ["--srcdict", "text/label.txt"])


def _one_side(config: DataConfig, suffix: str) -> list[str]:
    return ["--only-source", *_prefixes({split: f"text/bpe.{split}.{suffix}" for split in config.splits})]


def _prefixes(files: dict[str, str]) -> list[str]:
    """Flags of fairseq-preprocess for files by split."""
    kinds = {kind: [path for split, path in files.items() if split.startswith(kind)] for kind in SPLITS}
    return [word for kind, paths in kinds.items() if paths for word in (f"--{kind}pref", ",".join(paths))]


def _preprocess(work: Path, workers: int, files: list[str], out: str, dictionary: list[str]) -> None:
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *files]
    command += ["--destdir", out, "--workers", str(workers), *dictionary]
    done = run_to_end(
        lighter(command), cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        last = done.stdout.strip().rpartition("\n")[2] or "no output"
        raise OSError(f"fairseq-preprocess failed with exit code {done.returncode}: {last}")
