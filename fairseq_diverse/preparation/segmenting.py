"""Truecasing and subwords: ``text/tok.SPLIT.LANG`` to ``text/bpe.SPLIT.LANG``."""

import io
import os
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation import subwords
from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.progress import bar
from fairseq_diverse.preparation.steps import Steps
from fairseq_diverse.preparation.tokens import Tokens
from fairseq_diverse.support.errors import warn
from fairseq_diverse.support.files import iterate_lines, write_lines
from fairseq_diverse.support.parallel import parallel_map


def truecase(
    config: DataConfig, work: Path, workers: int, steps: Steps, encoding: Encoding | None
) -> dict[str, str | None]:
    """Train truecasers on the training text and apply them to ``text/tok.*``, if configured."""
    names: dict[str, str | None] = dict.fromkeys(config.sides)
    for (side, side_steps), language in zip(config.sides.items(), config.languages, strict=True):
        if side_steps["truecase"]:
            given = encoding and encoding.truecaser
            model = work / "text" / (given.name if given else f"truecase.{language}")
            names[side] = f"text/{model.name}"
            if not given:
                steps(f"train {model.name}", _train_truecaser, work / f"text/tok.train.{language}", model)
            tokens = Tokens(side_steps, model, not given or bool(encoding and encoding.moses))
            for split in config.splits:
                path = work / f"text/tok.{split}.{language}"
                steps(f"truecase {path.name}", _apply_truecaser, path, tokens, workers)
    return names


def _train_truecaser(train: Path, model: Path) -> None:
    import sacremoses

    caser, casing = sacremoses.MosesTruecaser(), defaultdict[str, Counter[str]](Counter)
    for line in bar(iterate_lines(train), f"train {model.name}"):  # caser.train would hold all words of the text
        for lower, word, weight in caser.learn_truecase_weights(line.split(" ")):
            casing[lower][word] += weight
    caser._save_model_from_casing(casing, str(model))
    model.chmod(0o644)  # sacremoses makes it readable for its owner only


def _apply_truecaser(path: Path, tokens: Tokens, workers: int) -> None:
    """Idempotent."""
    with parallel_map(tokens.truecase, bar(iterate_lines(path), f"truecase {path.name}"), workers) as lines:
        write_lines(path.with_name("cased"), lines)
    os.replace(path.with_name("cased"), path)


def segment(config: DataConfig, work: Path, workers: int, steps: Steps, encoding: Encoding | None) -> dict[str, Any]:
    """Learn subwords on the training text, or take those of ``encoding``, and write ``text/bpe.SPLIT.LANG``; returns
    ``bpe`` for the record."""
    text, languages, bpe = work / "text", config.languages, config.bpe
    end = "sentencepiece.model" if bpe["kind"] in subwords.OF_PIECES else "bpe.codes"
    models = {language: end if bpe["joint"] else f"{end}.{language}" for language in languages}
    vocabulary: dict[str, str | None] = dict.fromkeys(languages)
    if encoding:
        models = dict.fromkeys(languages, encoding.model.name)
        vocabulary = dict.fromkeys(languages, encoding.vocabulary.name if encoding.vocabulary else None)
    for model in [] if encoding else sorted(set(models.values())):
        paths = [text / f"tok.train.{language}" for language in languages if models[language] == model]
        steps(f"learn {model}", _learn, bpe, paths, text / model)
    for language in languages:
        if bpe["threshold"] and not encoding:
            segmenter = subwords.Subwords(bpe["kind"], text / models[language])
            vocabulary[language] = counted = f"bpe.vocab.{language}"
            steps(f"count {counted}", _count, text / f"tok.train.{language}", segmenter, text / counted, workers)
        allowed = text / name if (name := vocabulary[language]) else None
        segmenter = subwords.Subwords(bpe["kind"], text / models[language], allowed, bpe["threshold"])
        for split in config.splits:
            made = text / f"bpe.{split}.{language}"
            steps(f"segment {made.name}", _apply, text / f"tok.{split}.{language}", segmenter, made, workers)
    sides = dict(zip(config.sides, languages, strict=True))
    files: dict[str, dict[str, Any]] = {"model": {**models}, "vocabulary": vocabulary}
    named = {key: {side: of[end] and f"text/{of[end]}" for side, end in sides.items()} for key, of in files.items()}
    return bpe | named


def _learn(bpe: dict[str, Any], paths: list[Path], model: Path) -> None:
    print(f"learn {bpe['kind']} ({bpe['size']:,})", file=sys.stderr)
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):  # hides the learner's progress bar
        learned = subwords.learn(bpe["kind"], paths, bpe["size"], model)
    if learned < bpe["size"]:
        why = "no other pair of symbols occurs twice in the training text"
        warn(f"{learned:,} merges in place of {bpe['size']:,}: {why}")


def _count(path: Path, segmenter: subwords.Subwords, counted: Path, workers: int) -> None:
    with parallel_map(segmenter.segment, bar(iterate_lines(path), f"count {counted.name}"), workers) as segmented:
        subwords.count_subwords(segmented, counted)


def _apply(path: Path, segmenter: subwords.Subwords, made: Path, workers: int) -> None:
    with parallel_map(segmenter.segment, bar(iterate_lines(path), f"segment {made.name}"), workers) as segmented:
        write_lines(made, segmented)
