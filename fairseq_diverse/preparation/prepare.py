"""From raw text to a directory for ``fairseq-train``, written completely or not at all."""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext, redirect_stderr, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from fairseq_diverse.preparation import subwords
from fairseq_diverse.preparation.config import SPLITS, DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.parallel import parallel_map
from fairseq_diverse.preparation.pipeline import FILE, FORMAT, SCHEMA, read_record
from fairseq_diverse.preparation.progress import INTERVAL
from fairseq_diverse.preparation.steps import Steps
from fairseq_diverse.preparation.tokens import Tokens, clean
from fairseq_diverse.support.files import iterate_lines, temporary_path
from fairseq_diverse.support.processes import run_to_end, signals_deferred

PACKAGES = ("fairseq-fixed", "sacremoses", "subword-nmt", "sentencepiece")
T = TypeVar("T")
Say = Callable[[str], None]


def prepare(
    config: DataConfig,
    raw: Path,
    out: Path,
    *,
    strict: bool = False,
    workers: int = 1,
    overwrite: bool = False,
    hold_out: int = 0,
    work: Path | None = None,
    encoding: Encoding | None = None,
    say: Say = print,
) -> bool:
    """Clean, filter, tokenize, segment and binarize ``raw`` into ``out``.

    Everything is written next to ``out`` and renamed at the end, so ``out`` is either complete or unchanged.

    Args:
        config: the data set.
        raw: directory of the files that ``config.files`` names.
        out: directory to write.
        strict: refuse training pairs with an empty side and lines with line separators or NUL, instead of fixing them.
        workers: processes for tokenization, segmentation and binarization.
        overwrite: replace a data set that was prepared differently.
        hold_out: use every N-th training pair after filtering for validation, which then has no raw files; 0 = off.
        work: directory next to ``out`` for an interrupted preparation, to be resumed; by default nothing is kept.
        encoding: subwords and dictionary to take, with whose settings ``config`` agrees; by default they are learned.
        say: called with one line per split and one at the end.

    Returns:
        False if ``out`` already has this configuration and these raw files, True if it was written.

    Raises:
        ValueError: raw files are missing, of unequal length, not UTF-8 or (strict) unclean; ``out`` has other contents
            or is a mount point.
    """
    temporary = temporary_path(out)
    names = {
        split: [f"{prefix}.{language}" for language in config.languages]
        for split, prefix in config.splits.items()
        if not (hold_out and split == "valid")
    }
    raw_hashes = {name: _file_hash(raw / name) for pair in names.values() for name in pair}
    labels = [f"{split}.label" for split in names if config.glue and not split.startswith("test")]
    raw_hashes |= {name: _file_hash(raw / name) for name in labels}
    wanted: dict[str, Any] = {"config": config.as_dict(), "raw": raw_hashes}
    wanted |= {"encoding": {path.name: _file_hash(path) for path in encoding.files}} if encoding else {}
    wanted |= {"hold-out": hold_out} if hold_out else {}
    if _existing(out, wanted, strict, overwrite):
        return False
    if _is_mount(out):
        raise ValueError(f"{out}: a mount point, which cannot be replaced; choose a folder inside it as --out")
    pairs = {split: tuple(raw / name for name in of_split) for split, of_split in names.items()}
    tokens = tuple(map(Tokens, config.sides.values()))
    totals = {split: _equal_lengths(*paths) for split, paths in pairs.items()}
    versions = {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}
    keep, work = work is not None, work or temporary
    try:
        steps = Steps(work, [wanted, versions, strict])
        text = work / "text"
        text.mkdir(exist_ok=True)
        counts: dict[str, dict[str, int]] = {}
        for split, paths in pairs.items():
            arguments = (config, tokens, split, paths, totals[split], text, strict, workers, hold_out)
            counts |= steps(f"tokenize {split}", _tokenize, *arguments)
        for path in [raw / name for name in labels] + (encoding.files if encoding else []):
            shutil.copyfile(path, text / path.name)
        truecaser = _truecase(config, work, workers, steps, encoding)
        bpe = _segment(config, work, workers, steps, encoding)
        _binarize(config, work, workers, encoding)
        of_tests = [_texts(text, config, split) for split in config.splits if split not in ("train", "valid")]
        shared = set(text.iterdir())
        if config.translates:  # a further test set leaves runs what they are
            shared = shared.difference(*of_tests[1:])
        record: dict[str, Any] = {
            "format": FORMAT,
            "schema": SCHEMA,
            "name": os.fsencode(config.name).decode(errors="replace"),  # a file name, in any locale
            "source": next(iter(config.sides.values()))["language"],
            "target": config.languages[1] if config.translates else "",
            **wanted,
            "truecaser": truecaser,
            "bpe": bpe,
            "splits": counts,
            "hash": _text_hash(shared),
            **({"tests": dict(zip(config.tests, map(_text_hash, of_tests), strict=True))} if config.named else {}),
            "versions": versions,
        }
        (work / FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        steps.path.unlink(missing_ok=True)
        put_in_place(work, out)
    except OSError as error:  # for example a full disk, for which Python names no file
        raise OSError(f"{out}: not prepared: {error}") from None
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    called = {f"test{number or ''}": f" ({name})" for number, name in enumerate(config.tests) if config.named}
    for split, count in counts.items():
        say(_summary(config, split, count, called.get(split, "")))
    sizes = ", ".join(f"{language} {size:,}".strip() for language, size in _dictionary_sizes(config, out).items())
    say(f"prepared {out}: dictionary {sizes}; hash {record['hash'][:12]}")
    return True


def wrong_pairs(config: DataConfig, out: Path) -> list[str]:
    """Differences between the pairs kept in ``out`` and the counts in ``config.sources``, one text per split."""
    splits = read_record(out)["splits"]
    expected = config.sources.counts if config.sources else {}
    return [
        f"{split}: {splits[split]['kept']:,} pairs kept, {count:,} are expected"
        for split, count in expected.items()
        if splits[split]["kept"] != count
    ]


def _existing(out: Path, wanted: dict[str, Any], strict: bool, overwrite: bool) -> bool:
    """Whether ``out`` is already up to date; raises if it must not be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / FILE).is_file():
        raise ValueError(f"{out}: exists and is not a prepared data set; choose another --out")
    if overwrite:
        return False
    record = read_record(out)
    if record["schema"] == SCHEMA and {key: record.get(key) for key in wanted} == wanted:
        empty = record["splits"]["train"]["empty"] and record["target"]  # only pairs are dropped
        unclean = empty or any(count["replaced"] for count in record["splits"].values())
        return not (strict and unclean)  # if unclean, preparing again refuses the line before replacing anything
    raise ValueError(
        f"{out}: prepared from another configuration or other raw files; choose another --out or add --overwrite"
    )


def _is_mount(out: Path) -> bool:
    """As ``os.path.ismount``, but also for mounts of a folder of the same file system."""
    mounts = set()
    for path in (out, out.parent):
        with suppress(OSError):
            opened = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
            try:
                described = Path(f"/proc/self/fdinfo/{opened}").read_text(encoding="utf-8")
            finally:
                os.close(opened)
            mounts |= {line for line in described.splitlines() if line.startswith("mnt_id")}
    return os.path.ismount(out) or len(mounts) == 2


def put_in_place(work: Path, out: Path) -> None:
    """Rename ``work`` to ``out``, in the place of what is there."""
    old = temporary_path(out).with_suffix(".old")
    if out.exists():
        os.replace(out, old)
    os.replace(work, out)
    shutil.rmtree(old, ignore_errors=True)


# --- cleaning and tokenization ---


def _tokenize(
    config: DataConfig,
    tokens: tuple[Tokens, ...],
    split: str,
    paths: tuple[Path, ...],
    total: int,
    text: Path,
    strict: bool,
    workers: int,
    hold_out: int,
) -> dict[str, dict[str, int]]:
    """Write ``SPLIT.LANG`` (cleaned) and ``tok.SPLIT.LANG`` into ``text``; returns the counts by split."""
    hold_out = hold_out if split == "train" else 0
    made_splits = [split, "valid"] if hold_out else [split]
    counts = {name: dict.fromkeys(("read", "kept", "empty", "filtered", "replaced"), 0) for name in made_splits}
    count = counts[split]
    drops = split == "train" and config.translates  # in text of one language an empty line ends a document
    with ExitStack() as stack:
        files = {
            name: [
                stack.enter_context(open(text / f"{kind}{name}.{language}", "w", encoding="utf-8", newline="\n"))
                for kind in ("", "tok.")
                for language in config.languages
            ]
            for name in made_splits
        }
        pairs = zip(*map(iterate_lines, paths), strict=True)
        made = stack.enter_context(parallel_map(partial(_make, tokens), pairs, workers))
        kept = 0
        for changed, cleaned, tokenized in _bar(made, f"tokenize {split}", total):
            count["read"] += 1
            count["replaced"] += sum(changed)
            empty = [not line for line in tokenized]
            if strict:
                _refuse_unclean(paths, count["read"], changed, empty if drops else [False] * len(empty))
            count["empty"] += any(empty)
            if split == "train":
                if drops and any(empty):
                    continue
                if not _within(tokenized, config.filter):
                    count["filtered"] += 1
                    continue
            kept += 1
            name = "valid" if hold_out and kept % hold_out == 0 else split
            counts[name]["kept"] += 1
            for file, line in zip(files[name], cleaned + tokenized, strict=True):
                file.write(line + "\n")
    for name in made_splits:
        if not counts[name]["kept"]:
            raise ValueError(f"{' and '.join(map(str, paths))}: no {_unit(config)} remain for {name}")
    if hold_out:
        counts["valid"]["read"] = counts["valid"]["kept"]
    return counts


def _refuse_unclean(paths: tuple[Path, ...], number: int, changed: list[bool], empty: list[bool]) -> None:
    for path, has_special, is_empty in zip(paths, changed, empty, strict=True):
        if has_special or is_empty:
            what = "a line separator or NUL inside the line" if has_special else "empty"
            raise ValueError(f"{path}, line {number}: {what}; fix the file or leave out --strict")


def _unit(config: DataConfig) -> str:
    """What a line of each side is."""
    return "pairs" if config.translates else "examples" if config.glue else "lines"


def _summary(config: DataConfig, split: str, counts: dict[str, int], called: str) -> str:
    dropped = "dropped" if split == "train" and config.translates else "kept"
    parts = [
        f"{split}{called}: {counts['kept']:,} of {counts['read']:,} {_unit(config)} kept",
        f"{counts['empty']:,} empty {dropped}",
    ]
    parts += [f"{counts['filtered']:,} dropped by length"] if split == "train" and not config.glue else []
    return ", ".join([*parts, f"line separators or NUL replaced in {counts['replaced']:,} lines"])


def _within(tok: list[str], limits: dict[str, Any]) -> bool:
    lengths = sorted(text.count(" ") + 1 for text in tok)
    short, long = lengths[0], lengths[-1]
    if short < limits["min-length"] or (limits["max-length"] and long > limits["max-length"]):
        return False
    return not limits["max-ratio"] or long <= limits["max-ratio"] * short


Made = tuple[list[bool], list[str], list[str]]  # for both sides: changed by cleaning, cleaned, tokenized


def _make(tokens: tuple[Tokens, ...], pair: tuple[str, ...]) -> Made:
    cleaned, changed = zip(*map(clean, pair), strict=True)
    return list(changed), list(cleaned), [side.tokenize(line) for side, line in zip(tokens, cleaned, strict=True)]


def _bar(lines: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    with signals_deferred():  # a bar that is half made complains when it is deleted
        return tqdm(lines, what, total, unit="line", mininterval=INTERVAL)


def _equal_lengths(*paths: Path) -> int:
    """The number of lines of one file, or of two that are sides of one text."""
    lines = [sum(1 for _ in iterate_lines(path)) for path in paths]
    if lines[0] != lines[-1]:
        raise ValueError(
            f"{paths[0]} has {lines[0]:,} lines and {paths[1]} {lines[1]:,}; they are not two sides of one text"
        )
    return lines[0]


# --- truecaser, subwords, binarization ---


def _truecase(
    config: DataConfig, work: Path, workers: int, steps: Steps, encoding: Encoding | None
) -> dict[str, str | None]:
    """Train truecasers on the training text and apply them to ``text/tok.*``, if configured."""
    names: dict[str, str | None] = dict.fromkeys(config.sides)
    for (side, side_steps), language in zip(config.sides.items(), config.languages, strict=True):
        if side_steps["truecase"]:
            given = encoding and encoding.truecaser
            names[side] = f"text/{given.name if given else f'truecase.{language}'}"
            model = work / f"{names[side]}"
            if not given:
                steps(f"train {model.name}", _train_truecaser, work / f"text/tok.train.{language}", model)
            for split in config.splits:
                path = work / f"text/tok.{split}.{language}"
                steps(f"truecase {path.name}", _apply_truecaser, path, Tokens(side_steps, model), workers)
    return names


def _train_truecaser(train: Path, model: Path) -> None:
    import sacremoses

    documents = (line.split(" ") for line in _bar(iterate_lines(train), f"train {model.name}"))
    sacremoses.MosesTruecaser().train(documents, save_to=str(model))
    model.chmod(0o644)  # sacremoses makes it readable for its owner only


def _apply_truecaser(path: Path, tokens: Tokens, workers: int) -> None:
    """Idempotent."""
    with parallel_map(tokens.truecase, _bar(iterate_lines(path), f"truecase {path.name}"), workers) as lines:
        _write(path.with_name("cased"), lines)
    os.replace(path.with_name("cased"), path)


def _segment(config: DataConfig, work: Path, workers: int, steps: Steps, encoding: Encoding | None) -> dict[str, Any]:
    """Learn subwords on the training text, or take those of ``encoding``, and write ``text/bpe.SPLIT.LANG``; returns
    ``bpe`` for the record."""
    text, languages, bpe = work / "text", config.languages, config.bpe
    end = "sentencepiece.model" if bpe["kind"] == "sentencepiece" else "bpe.codes"
    models = {language: end if bpe["joint"] else f"{end}.{language}" for language in languages}
    vocabulary: dict[str, str | None] = dict.fromkeys(languages)
    if encoding:
        models = dict.fromkeys(languages, encoding.model.name)
        vocabulary = dict.fromkeys(languages, f"text/{encoding.vocabulary.name}" if encoding.vocabulary else None)
    else:
        for model in sorted(set(models.values())):
            paths = [text / f"tok.train.{language}" for language in languages if models[language] == model]
            steps(f"learn {model}", _learn, bpe, paths, text / model)
    for language in languages:
        if bpe["threshold"] and not encoding:
            segmenter = subwords.Subwords(bpe["kind"], text / models[language])
            vocabulary[language] = f"text/bpe.vocab.{language}"
            counted = text / f"bpe.vocab.{language}"
            steps(f"count {counted.name}", _count, text / f"tok.train.{language}", segmenter, counted, workers)
        allowed = vocabulary[language]
        segmenter = subwords.Subwords(
            bpe["kind"], text / models[language], work / allowed if allowed else None, bpe["threshold"]
        )
        for split in config.splits:
            made = text / f"bpe.{split}.{language}"
            steps(f"segment {made.name}", _apply, text / f"tok.{split}.{language}", segmenter, made, workers)
    sides = dict(zip(config.sides, languages, strict=True))
    return {
        **bpe,
        "model": {side: f"text/{models[language]}" for side, language in sides.items()},
        "vocabulary": {side: vocabulary[language] for side, language in sides.items()},
    }


def _learn(bpe: dict[str, Any], paths: list[Path], model: Path) -> None:
    print(f"learn {bpe['kind']} ({bpe['size']:,})", file=sys.stderr)
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):  # hides the learner's progress bar
        lines = (line for path in paths for line in iterate_lines(path))
        learned = subwords.learn(bpe["kind"], lines, bpe["size"], model)
    if learned < bpe["size"]:
        why = "no other pair of symbols occurs twice in the training text"
        print(f"warning: {learned:,} merges in place of {bpe['size']:,}: {why}", file=sys.stderr)


def _count(path: Path, segmenter: subwords.Subwords, counted: Path, workers: int) -> None:
    with parallel_map(segmenter.segment, _bar(iterate_lines(path), f"count {counted.name}"), workers) as segmented:
        subwords.count_subwords(segmented, counted)


def _apply(path: Path, segmenter: subwords.Subwords, made: Path, workers: int) -> None:
    with parallel_map(segmenter.segment, _bar(iterate_lines(path), f"segment {made.name}"), workers) as segmented:
        _write(made, segmented)


def _binarize(config: DataConfig, work: Path, workers: int, encoding: Encoding | None) -> None:
    print("fairseq-preprocess", file=sys.stderr)
    for dictionary in work.glob("dict.*"):  # from an interrupted run; fairseq-preprocess does not replace them
        dictionary.unlink()
    if config.glue:
        _binarize_glue(config, work, workers, encoding)
        return
    if not config.translates:
        given = ["--srcdict", "text/dict.txt"] if encoding else []
        _preprocess(work, workers, _one_side(config, config.languages[0]), ".", given)
        return
    source, target = config.languages
    tests = ",".join(f"text/bpe.{split}" for split in config.splits if split.startswith("test"))
    files = ["--trainpref", "text/bpe.train", "--validpref", "text/bpe.valid", "--testpref", tests]
    joined = ["--joined-dictionary"] if config.joined_dictionary else []
    _preprocess(work, workers, ["--source-lang", source, "--target-lang", target, *files], ".", joined)


def _binarize_glue(config: DataConfig, work: Path, workers: int, encoding: Encoding | None) -> None:
    """``input0``, ``input1`` and ``label`` as ``sentence_prediction`` reads them, the inputs with one dictionary."""
    from fairseq_diverse.data.glue import TASKS

    if not encoding:
        from fairseq.data import Dictionary
        from fairseq.tokenizer import tokenize_line

        dictionary = Dictionary()
        for suffix in config.languages:
            Dictionary.add_file_to_dictionary(str(work / f"text/bpe.train.{suffix}"), dictionary, tokenize_line, 1)
        dictionary.finalize(padding_factor=8)
        dictionary.save(str(work / "text/dict.txt"))
    for suffix in config.languages:
        _preprocess(work, workers, _one_side(config, suffix), suffix, ["--srcdict", "text/dict.txt"])
    labels = [split for split in config.splits if not split.startswith("test")]
    if TASKS[config.glue].regression:
        (work / "label").mkdir(exist_ok=True)
        for split in labels:
            shutil.copyfile(work / f"text/{split}.label", work / f"label/{split}.label")
        return
    _write(work / "text/label.txt", (f"{label} 1" for label in TASKS[config.glue].labels))  # in the order of classes
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
        command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        last = done.stdout.strip().rpartition("\n")[2] or "no output"
        raise OSError(f"fairseq-preprocess failed with exit code {done.returncode}: {last}")


def _write(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(line + "\n" for line in lines)


def _dictionary_sizes(config: DataConfig, out: Path) -> dict[str, int]:
    """Entries of each dictionary, by language."""
    files = {language: f"dict.{language}.txt" for language in config.languages}
    if not config.translates:
        files = {"": f"{config.languages[0]}/dict.txt" if config.glue else "dict.txt"}
    return {language: sum(1 for _ in iterate_lines(out / name)) for language, name in files.items()}


def _file_hash(path: Path) -> str:
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); are the raw files there?") from None


def _texts(text: Path, config: DataConfig, split: str) -> list[Path]:
    """The files of a split in ``text/``: cleaned, tokenized, in subwords."""
    return [text / f"{kind}{split}.{language}" for kind in ("", "tok.", "bpe.") for language in config.languages]


def _text_hash(paths: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of text, models and vocabularies."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path.name} {_file_hash(path)}\n".encode())
    return total.hexdigest()
