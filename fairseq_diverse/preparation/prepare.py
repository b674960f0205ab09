"""A raw parallel corpus to a directory that ``fairseq-train`` reads: all of it or nothing."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_diverse.preparation import subwords
from fairseq_diverse.preparation.config import SPLITS, DataConfig
from fairseq_diverse.preparation.pipeline import FILE, FORMAT, SCHEMA, read_record
from fairseq_diverse.preparation.tokens import Tokens, clean

PACKAGES = ("fairseq-fixed", "sacremoses", "subword-nmt", "sentencepiece")
Say = Callable[[str], None]


def prepare(
    config: DataConfig,
    raw: Path,
    out: Path,
    *,
    strict: bool = False,
    workers: int = 1,
    overwrite: bool = False,
    say: Say = print,
) -> bool:
    """Clean, filter, tokenize, segment and binarize ``raw`` into ``out``.

    Everything is written beside ``out`` and renamed at the end, so that ``out`` is complete or as it was before.

    Args:
        config: the data set.
        raw: directory of the files that ``config.files`` names.
        out: directory to make.
        strict: refuse training pairs with an empty side and lines with line separators or NUL, not mend them.
        workers: processes for tokenization and binarization.
        overwrite: replace a data set prepared otherwise.
        say: receives a line for each split and one at the end.

    Returns:
        False where ``out`` already holds the same configuration of the same raw files, True where it was made.

    Raises:
        ValueError: raw files absent, of unequal length, not UTF-8 or (strict) unclean; ``out`` holds something else.
    """
    pairs = {split: [raw / f"{config.files[split]}.{language}" for language in config.languages] for split in SPLITS}
    wanted = {"config": config.as_dict(), "raw": {p.name: _file_hash(p) for pair in pairs.values() for p in pair}}
    if _existing(out, wanted, overwrite):
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    (work / "text").mkdir(parents=True)
    try:
        counts = _tokenize_splits(config, pairs, work, strict, workers, say)
        truecaser = _truecase(config, work)
        bpe = _segment(config, work)
        _binarize(config, work, workers)
        record = {
            "format": FORMAT,
            "schema": SCHEMA,
            "name": config.name,
            "source": config.languages[0],
            "target": config.languages[1],
            **wanted,
            "truecaser": truecaser,
            "bpe": bpe,
            "splits": counts,
            "hash": _text_hash(work / "text"),
            "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        }
        (work / FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _put_in_place(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sizes = ", ".join(f"{language} {_dictionary_size(out, language):,}" for language in config.languages)
    say(f"prepared {out}: dictionary {sizes}; hash {record['hash'][:12]}")
    return True


def _existing(out: Path, wanted: dict[str, Any], overwrite: bool) -> bool:
    """Whether ``out`` already is what is wanted; refuses what must not be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / FILE).is_file():
        raise ValueError(f"{out}: exists and is not a prepared data set; choose another --out")
    if overwrite:
        return False
    record = read_record(out)
    if record["schema"] == SCHEMA and {key: record.get(key) for key in wanted} == wanted:
        return True
    raise ValueError(
        f"{out}: prepared from another configuration or other raw files; choose another --out or add --overwrite"
    )


def _put_in_place(work: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        os.replace(out, old)
    os.replace(work, out)
    shutil.rmtree(old, ignore_errors=True)


# --- cleaning and tokenization ---


def _tokenize_splits(
    config: DataConfig, pairs: dict[str, list[Path]], work: Path, strict: bool, workers: int, say: Say
) -> dict[str, dict[str, int]]:
    """Write ``text/SPLIT.LANG`` (cleaned) and ``text/tok.SPLIT.LANG``; returns the counts of each split."""
    counts = {}
    tokens = tuple(Tokens(config.sides[side]) for side in ("source", "target"))
    for split, paths in pairs.items():
        total = _equal_lengths(*paths)
        train = split == "train"
        seen = dict.fromkeys(("read", "kept", "empty", "filtered", "replaced"), 0)
        names = [work / "text" / f"{kind}{split}.{lang}" for kind in ("", "tok.") for lang in config.languages]
        files = [open(name, "w", encoding="utf-8", newline="\n") for name in names]  # noqa: SIM115 closed below
        try:
            made = _map(tokens, zip(*map(_lines, paths), strict=True), workers)
            for number, (replaced, raw, tok) in enumerate(tqdm(made, f"tokenize {split}", total, unit="pair"), 1):
                empty = [not text for text in tok]
                if strict:
                    for side, path in enumerate(paths):
                        problem = ("has a line separator or NUL" if replaced[side] else "") or (
                            "is empty" if empty[side] and train else ""
                        )
                        if problem:
                            raise ValueError(f"{path}, line {number}: {problem} (--strict)")
                seen["read"] += 1
                seen["replaced"] += sum(replaced)
                if any(empty):
                    seen["empty"] += 1
                    if train:
                        continue
                elif train and not _within(tok, config.filter):
                    seen["filtered"] += 1
                    continue
                seen["kept"] += 1
                for file, text in zip(files, (*raw, *tok), strict=True):
                    file.write(text + "\n")
        finally:
            for file in files:
                file.close()
        if not seen["kept"]:
            raise ValueError(f"{paths[0]} and {paths[1]}: no pair is left")
        say(
            f"{split}: {seen['read']:,} pairs read, {seen['kept']:,} kept; "
            f"{seen['empty']:,} with an empty side {'dropped' if train else 'kept'}"
            + (f", {seen['filtered']:,} dropped by length" if train else "")
            + f"; line separators or NUL replaced in {seen['replaced']:,} lines"
        )
        counts[split] = seen
    return counts


def _within(tok: tuple[str, str], limits: dict[str, Any]) -> bool:
    short, long = sorted(text.count(" ") + 1 for text in tok)
    if short < limits["min-length"] or (limits["max-length"] and long > limits["max-length"]):
        return False
    return not limits["max-ratio"] or long <= limits["max-ratio"] * short


class _Clean:
    """Cleans and tokenizes a pair; a class, so that worker processes can be given it."""

    def __init__(self, tokens: tuple[Tokens, ...]):
        self.tokens = tokens

    def __call__(self, pair: tuple[str, ...]) -> tuple[list[bool], list[str], tuple[str, str]]:
        cleaned = [clean(line) for line in pair]
        texts = [text for text, _ in cleaned]
        source, target = (tokens.tokenize(text) for tokens, text in zip(self.tokens, texts, strict=True))
        return [changed for _, changed in cleaned], texts, (source, target)


def _map(tokens: tuple[Tokens, ...], pairs: Iterable[tuple[str, ...]], workers: int) -> Iterator[Any]:
    if workers == 1:
        yield from map(_Clean(tokens), pairs)
    else:
        with Pool(workers) as pool:
            yield from pool.imap(_Clean(tokens), pairs, chunksize=500)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file one by one, split at newlines only; a carriage return before the newline goes."""
    with open(path, "rb") as f:
        for number, line in enumerate(f, start=1):
            try:
                yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 (byte {error.start + 1}); convert it, for example with iconv"
                ) from None


def _equal_lengths(source: Path, target: Path) -> int:
    lines = [sum(1 for _ in _lines(path)) for path in (source, target)]
    if lines[0] != lines[1]:
        raise ValueError(f"{source} has {lines[0]:,} lines and {target} {lines[1]:,}: not the two sides of one text")
    return lines[0]


# --- truecaser, subwords, binarization ---


def _truecase(config: DataConfig, work: Path) -> dict[str, str | None]:
    """Train truecasers on the training text and apply them to ``text/tok.*`` where the configuration says so."""
    import sacremoses

    names: dict[str, str | None] = dict.fromkeys(config.sides)
    for side, steps in config.sides.items():
        if not steps["truecase"]:
            continue
        language = steps["language"]
        names[side] = f"text/truecase.{language}"
        train = work / "text" / f"tok.train.{language}"
        model = work / f"text/truecase.{language}"
        documents = (line.split(" ") for line in tqdm(_lines(train), f"train truecaser {language}", unit="line"))
        sacremoses.MosesTruecaser().train(documents, save_to=str(model))
        tokens = Tokens(steps, model)
        for split in SPLITS:
            path = work / "text" / f"tok.{split}.{language}"
            cased = path.with_name("cased")
            _write(cased, map(tokens.truecase, _lines(path)))
            os.replace(cased, path)
    return names


def _segment(config: DataConfig, work: Path) -> dict[str, Any]:
    """Learn subwords on the training text and write ``text/bpe.SPLIT.LANG``; returns the record's ``bpe``."""
    text, languages, bpe = work / "text", config.languages, config.bpe
    end = "sentencepiece.model" if bpe["kind"] == "sentencepiece" else "bpe.codes"
    models = {language: end if bpe["joint"] else f"{language}.{end}" for language in languages}
    for model in sorted(set(models.values())):
        print(f"learn {bpe['kind']} ({bpe['size']:,})", file=sys.stderr)
        paths = [text / f"tok.train.{language}" for language in languages if models[language] == model]
        subwords.learn(bpe["kind"], (line for path in paths for line in _lines(path)), bpe["size"], text / model)
    vocabulary: dict[str, str | None] = dict.fromkeys(languages)
    for language in languages:
        segmenter = subwords.Subwords(bpe["kind"], text / models[language])
        if bpe["threshold"]:
            vocabulary[language] = f"text/bpe.vocab.{language}"
            train = map(segmenter.segment, _lines(text / f"tok.train.{language}"))
            subwords.count_subwords(train, work / f"text/bpe.vocab.{language}")
            segmenter = subwords.Subwords(
                bpe["kind"], text / models[language], text / f"bpe.vocab.{language}", bpe["threshold"]
            )
        for split in SPLITS:
            lines = tqdm(_lines(text / f"tok.{split}.{language}"), f"segment {split}.{language}", unit="line")
            _write(text / f"bpe.{split}.{language}", map(segmenter.segment, lines))
    sides = dict(zip(("source", "target"), languages, strict=True))
    return {
        **bpe,
        "model": {side: f"text/{models[language]}" for side, language in sides.items()},
        "vocabulary": {side: vocabulary[language] for side, language in sides.items()},
    }


def _binarize(config: DataConfig, work: Path, workers: int) -> None:
    print("fairseq-preprocess", file=sys.stderr)
    source, target = config.languages
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--source-lang", source, "--target-lang", target]
    for split in SPLITS:
        command += [f"--{split}pref", str(work / "text" / f"bpe.{split}")]
    command += ["--destdir", str(work), "--workers", str(workers)]
    command += ["--joined-dictionary"] if config.joined_dictionary else []
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:] or ["no output"]
        raise ValueError(f"fairseq-preprocess failed (exit code {done.returncode}): {last[0]}")


def _write(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(line + "\n" for line in lines)


def _dictionary_size(out: Path, language: str) -> int:
    return sum(1 for _ in _lines(out / f"dict.{language}.txt"))


def _file_hash(path: Path) -> str:
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); is --raw the directory of the raw files?"
        ) from None


def _text_hash(text: Path) -> str:
    """SHA-256 over the names and contents of everything in ``text/``: text, models, vocabularies."""
    total = hashlib.sha256()
    for path in sorted(text.iterdir()):
        total.update(f"{path.name} {_file_hash(path)}\n".encode())
    return total.hexdigest()
