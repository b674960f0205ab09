"""From raw text to a directory for ``fairseq-train``, written completely or not at all."""

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.pipeline import FILE, FORMAT, MOSES, SCHEMA, TRUECASING, entry, read_record
from fairseq_diverse.preparation.raw import count_sentences, file_hash, sides
from fairseq_diverse.preparation.steps import Steps, binarize, segment, tokenize, truecase
from fairseq_diverse.preparation.tokens import TOKENIZED, Tokens, spaced_stops
from fairseq_diverse.support.errors import warn
from fairseq_diverse.support.files import iterate_lines, link_or_copy, temporary_path
from fairseq_diverse.support.installed import FAIRSEQ, versions
from fairseq_diverse.support.languages import TOKENIZERS, base_language
from fairseq_diverse.support.processes import locked

PACKAGES = (*FAIRSEQ, "sacremoses", "subword-nmt", "sentencepiece")
TREES = "trees"  # that data-prep/add-trees.sh makes in a data set
# names in a data set that `prepare`, fairseq-preprocess and binarize-syntax write; those of killed processes are hidden
OURS = re.compile(
    r"text|trees|label|input\d|preprocess\.(json|log)|dict\.(.+\.)?txt|(train|valid|test)\d*\.(.+\.)?(bin|idx)"
    r"|(train|valid|test)\d*\..+\.(syntax\.json|conllu)|\..+\.(part|tmp|old)"
    r"|\.DS_Store|\._.+|\.nfs.+"  # of systems
)
CEILING, CHECKED = 99.0, 1000  # BLEU of detokenized references below which a warning says so; lines of valid
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
    resumes: bool = False,
    encoding: Encoding | None = None,
    beside: Sequence[str] = (),
    say: Say = print,
) -> bool:
    """Clean, filter, tokenize, segment and binarize ``raw`` into ``out``.

    Everything is written next to ``out`` and renamed at the end, so ``out`` is either complete or unchanged.

    Args:
        raw: folder of the files that ``config.files`` names.
        strict: refuse training pairs with an empty side and lines with line separators or NUL, instead of dropping or
            fixing them.
        workers: number of processes for tokenization, segmentation and binarization.
        overwrite: replace a data set that was prepared from other files or settings.
        hold_out: N = every N-th training pair after filtering is the validation split, which then needs no raw files;
            0 = off.
        resumes: keep an interrupted preparation next to ``out``, and resume it; by default nothing is kept.
        encoding: subwords and dictionary to use, which must agree with ``config``; by default they are learned.
        beside: names of further files of ``raw`` that go to ``text/`` as they are.
        say: called with each line of the summary: one per split and one at the end.

    Returns:
        False if ``out`` already has this configuration and these raw files, True if it was written.

    Raises:
        ValueError: raw files are missing, of unequal length, not plain text in UTF-8 or (strict) unclean, or a split is
            the training text; ``out`` has other contents, holds raw files or is a mount point; another process is
            preparing it.
    """
    prefixes = {split: prefix for split, prefix in config.splits.items() if not (hold_out and split == "valid")}
    files = {split: sides(raw, prefix, config.endings) for split, prefix in prefixes.items()}
    labelled = config.glue and not config.translates
    copied = [*(f"{split}.label" for split in files if labelled and split[:4] != "test"), *beside]
    read = dict(chain(*files.values(), ((name, raw / name) for name in copied)))
    wanted = _wanted(config, read, encoding, hold_out)
    if _up_to_date(out, wanted, strict, overwrite):
        return False
    if overwrite:
        _refuse_losses(out, read.values())
    if os.path.ismount(out):
        raise ValueError(f"{out}: a mount point, which cannot be replaced; choose a folder inside it as --out")
    tokens = tuple(Tokens(side, subwords=config.bpe["kind"]) for side in config.sides.values())
    paths = {split: tuple(path for _, path in pair) for split, pair in files.items()}
    for split, pair in paths.items():  # `_warn_of_overlap` names equal text in other files
        if split != "train" and all(map(os.path.samefile, pair, paths["train"])):
            raise ValueError(f"{pair[0]}: the {split} split is the training text, {paths['train'][0]}")
    totals = {split: count_sentences(pair, config.endings) for split, pair in paths.items()}
    packages = [*PACKAGES, *["tokenizers"] * (config.bpe["kind"] == "wordpiece")]
    installed = {"python": platform.python_version()} | versions(packages)
    with alone(out, resumes) as work:
        if _up_to_date(out, wanted, strict, overwrite):  # by a process that had the lock before
            return False
        steps = Steps(work, [wanted, installed, strict])
        text = work / "text"
        text.mkdir(exist_ok=True)
        counts: dict[str, dict[str, int]] = {}
        for split, pair in paths.items():
            arguments = (config, tokens, split, pair, totals[split], text, strict, workers, hold_out)
            counts |= steps(f"tokenize {split}", tokenize, *arguments)
        for path in [raw / name for name in copied] + (encoding.files if encoding else []):
            shutil.copyfile(path, text / path.name)
        entries: dict[str, Any] = {"truecaser": truecase(config, work, workers, steps, encoding)}
        entries |= {"bpe": segment(config, work, workers, steps, encoding), "splits": counts}
        binarize(config, work, workers, encoding)
        record = _record(config, text, wanted | entries, installed)
        (work / FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        steps.path.unlink(missing_ok=True)
        if _wanted(config, read, encoding, hold_out) != wanted:
            raise ValueError(f"{raw}: its files were changed while they were prepared; start again")
        put_in_place(work, out, kept=TREES)
    for line in _summary(config, counts):
        say(line)
    folder = out / config.languages[0] if labelled else out
    files_of = {end: f"dict.{end}.txt" for end in config.languages} if config.translates else {"": "dict.txt"}
    sizes = (f"{language} {sum(1 for _ in iterate_lines(folder / name)):,}" for language, name in files_of.items())
    say(f"prepared {out}: dictionary {', '.join(map(str.strip, sizes))}; hash {record['hash'][:12]}")
    if config.translates and not config.glue:
        _warn_of_ceiling(config, tokens[-1], out)
        _warn_of_overlap(config, out)
    return True


def _wanted(config: DataConfig, read: Mapping[str, Path], encoding: Encoding | None, hold_out: int) -> dict[str, Any]:
    """What decides the result: settings, and the hashes of the files that are read, by name."""
    wanted: dict[str, Any] = {"config": config.as_dict(), "raw": {name: file_hash(read[name]) for name in read}}
    wanted |= {"encoding": {path.name: file_hash(path) for path in encoding.files}} if encoding else {}
    wanted |= {"hold-out": hold_out} if hold_out else {}
    if any(side["truecase"] for side in config.sides.values()) and (encoding is None or encoding.moses):
        wanted[TRUECASING] = MOSES
    return wanted


def _record(config: DataConfig, text: Path, entries: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    kinds = [*product(("", "tok.", "bpe."), config.languages)]  # cleaned, tokenized, in subwords
    others = [split for split in config.splits if split not in ("train", "valid")]
    tests = [[text / f"{kind}{split}.{language}" for kind, language in kinds] for split in others]
    shared = set(text.iterdir())
    if config.translates:  # a further test set leaves runs what they are
        shared = shared.difference(*tests[1:])
    name = os.fsencode(config.name).decode(errors="replace")  # a file name, in any locale
    source, target = next(iter(config.sides.values()))["language"], config.languages[1] if config.translates else ""
    record = {"format": FORMAT, "schema": SCHEMA, "name": name, "source": source, "target": target, **entries}
    record["hash"] = _text_hash(shared)
    if config.named:
        record["tests"] = dict(zip(config.tests, map(_text_hash, tests), strict=True))
    return record | {"versions": versions}


def _warn_of_ceiling(config: DataConfig, tokens: Tokens, out: Path) -> None:
    """Say so where tokenizing and detokenizing changes the references, which no translation can then reach."""
    from sacrebleu import corpus_bleu

    steps = config.sides["target"]
    tokenizer = TOKENIZERS.get(base_language(steps["language"]), "13a")
    if "mecab" in tokenizer:  # its dictionaries may not be installed
        return
    ends = (f"{kind}valid.{config.languages[1]}" for kind in ("", "tok."))
    references, tokenized = (list(islice(iterate_lines(out / "text" / name), CHECKED)) for name in ends)
    back = list(map(tokens.detokenize, tokenized))
    if steps["lowercase"]:
        references = [line.lower() for line in references]
    bleu = corpus_bleu(back, [references], tokenize=tokenizer, force=True).score
    pairs = zip((" ".join(line.split()) for line in references), back, strict=True)
    remedy = TOKENIZED.format(base_language(steps["language"]))
    changed = [(before, after) for before, after in pairs if before != after]
    if changed and bleu < CEILING:  # without 4-grams, BLEU is 0 for equal lines, too
        text = f"tokenized and detokenized, the validation references have BLEU {bleu:.1f}, the most one can reach"
        warn(f"{text}; {changed[0][0]!r} becomes {changed[0][1]!r}" + f"; {remedy}" * spaced_stops(references))
    elif spaced_stops(references):
        warn(f"the validation references have spaces before full stops; {remedy}")


def _warn_of_overlap(config: DataConfig, out: Path) -> None:
    """Say so where half of a validation or test set is in the training text, too."""

    def pairs(split: str) -> Iterable[tuple[str, ...]]:
        return zip(*(iterate_lines(out / f"text/{split}.{language}") for language in config.languages), strict=True)

    others = {split: [*pairs(split)] for split in config.splits if split != "train"}
    known = set(chain(*others.values())).intersection(pairs("train"))
    for split, split_pairs in others.items():
        if 2 * (count := sum(pair in known for pair in split_pairs)) >= len(split_pairs):
            share = f"{count:,} of {len(split_pairs):,} pairs of {split} are in the training text, too"
            warn(f"{share}: figures on them say little")


def wrong_pairs(config: DataConfig, out: Path) -> list[str]:
    """Differences between the pairs kept in ``out`` and the counts in ``config.sources``, one text per split."""
    record = read_record(out)
    return [
        f"{split}: {kept:,} pairs kept, {count:,} are expected"
        for split, count in (config.sources.counts if config.sources else {}).items()
        if (kept := entry(out, record, "splits", split, "kept")) != count
    ]


def _up_to_date(out: Path, wanted: dict[str, Any], strict: bool, overwrite: bool) -> bool:
    """Whether ``out`` is already up to date; raises if it must not be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / FILE).is_file():
        raise ValueError(f"{out}: exists and is not a prepared data set; choose another --out")
    if overwrite:
        return False
    record = read_record(out)
    recorded = {key: record[key] for key in (*wanted, "encoding") if key in record}
    if record["schema"] == SCHEMA and recorded == wanted:
        empty = entry(out, record, "splits", "train", "empty") and record.get("target")  # only pairs are dropped
        unclean = empty or any(entry(out, record, "splits", split, "replaced") for split in record["splits"])
        return not (strict and unclean)  # if unclean, preparing again refuses the line before replacing anything
    difference = "prepared from another configuration or other raw files"
    raise ValueError(f"{out}: {difference}; choose another --out or add --overwrite")


def _refuse_losses(out: Path, read: Iterable[Path]) -> None:
    """Raise ``ValueError`` where replacing ``out`` would delete raw files, or what `prepare` did not write."""
    others = [path.name for path in (out.iterdir() if out.is_dir() else ()) if not OURS.fullmatch(path.name)]
    if others:
        raise ValueError(f"{out}: has {', '.join(sorted(others))}, which --overwrite would delete; move it elsewhere")
    if inside := [path for path in read if out.resolve() in path.resolve().parents]:
        raise ValueError(f"{inside[0]}: inside {out}, which --overwrite would delete; move it elsewhere")


@contextmanager
def alone(out: Path, resumes: bool = False) -> Iterator[Path]:
    """A folder next to ``out`` to work in, which no other process has meanwhile (else ``Busy`` is raised), and which is
    removed at the end; ``resumes``: if the block fails, it is kept for the next one that resumes. An ``OSError`` of the
    block names ``out``."""
    part = out.with_name(f".{out.name}.part")
    work = part / "data"
    with locked(part):
        try:
            if not resumes:
                shutil.rmtree(work, ignore_errors=True)
            yield work
        except OSError as error:  # for example a full disk, for which Python names no file
            raise OSError(f"{out}: not prepared: {error}") from None
        finally:
            if not (resumes and work.exists()):
                shutil.rmtree(part, ignore_errors=True)


def put_in_place(work: Path, out: Path, kept: str = "") -> None:
    """Rename ``work`` to ``out``, in the place of what is there; a folder ``kept`` stays, whatever interrupts."""
    old = temporary_path(out).with_suffix(".old")
    if kept and (out / kept).is_dir():
        shutil.rmtree(work / kept, ignore_errors=True)
        shutil.copytree(out / kept, work / kept, copy_function=link_or_copy)
    if out.exists():
        os.replace(out, old)
    try:
        os.replace(work, out)
    except OSError:
        if old.exists():
            os.replace(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _summary(config: DataConfig, counts: dict[str, dict[str, int]]) -> Iterator[str]:
    named = {f"test{number or ''}": f" ({name})" for number, name in enumerate(config.tests) if config.named}
    for split, count in counts.items():
        dropped = "dropped" if split == "train" and config.translates else "kept"
        parts = [f"{split}{named.get(split, '')}: {count['kept']:,} of {count['read']:,} {config.unit} kept"]
        parts += [f"{count['empty']:,} empty {dropped}"]
        parts += [f"{count['duplicates']:,} duplicates dropped"] if "duplicates" in count else []
        parts += [f"{count['filtered']:,} dropped by length"] if split == "train" and not config.glue else []
        yield ", ".join([*parts, f"line separators or NUL replaced in {count['replaced']:,} lines"])


def _text_hash(paths: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of text, models and vocabularies."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path.name} {file_hash(path)}\n".encode())
    return total.hexdigest()
