"""The steps from raw text to what fairseq reads, of which finished ones are not repeated: text that is cleaned
(``text/SPLIT.LANG``), tokenized (``text/tok.SPLIT.LANG``), filtered by length, with cases of a truecaser, in subwords
(``text/bpe.SPLIT.LANG``), and binarized by fairseq-preprocess."""

import io
import json
import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, redirect_stderr
from functools import partial
from hashlib import blake2b
from itertools import product
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO, Any, TypeVar

from fairseq_diverse.host.data import write_dictionary
from fairseq_diverse.host.starting import lighter
from fairseq_diverse.preparation.config import SPLITS, DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.glue import TASKS
from fairseq_diverse.preparation.progress import bar
from fairseq_diverse.preparation.raw import place, sentences
from fairseq_diverse.preparation.subwords import OF_PIECES, Subwords, count_subwords, learn, t5_words
from fairseq_diverse.preparation.tokens import Tokens, clean
from fairseq_diverse.preparation.wordpiece import read_vocabulary, symbols
from fairseq_diverse.support.errors import warn
from fairseq_diverse.support.files import iterate_lines, write_lines, write_text
from fairseq_diverse.support.parallel import parallel_map
from fairseq_diverse.support.processes import run_to_end

T = TypeVar("T")
FILE = "steps.json"
RESERVED = ("<s>", "<pad>", "</s>")  # <unk> in a text means the same
Made = tuple[list[bool], list[str], list[str]]  # for both sides: changed by cleaning, cleaned, tokenized
T5_NAME = "sentencepiece.model"  # of a model that was learned here


class Steps:
    """Results of finished steps by name, stored in ``folder``; a folder with another ``purpose`` is emptied first.

    Steps write files in ``folder`` and can be repeated; their results, and ``purpose``, are JSON values.
    """

    def __init__(self, folder: Path, purpose: Any):
        self.path = folder / FILE
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # missing or damaged
            kept = None
        if not isinstance(kept, dict) or kept.get("purpose") != purpose or not isinstance(kept.get("done"), dict):
            shutil.rmtree(folder, ignore_errors=True)
            kept = {"purpose": purpose, "done": {}}
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = kept

    def __call__(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """The result of ``function(*args)``, from an earlier run if the step is finished."""
        if name not in self.kept["done"]:
            self.kept["done"][name] = function(*args)
            write_text(self.path, json.dumps(self.kept))
        return self.kept["done"][name]


def tokenize(
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
    dedup = split == "train" and config.filter["dedup"]
    made_splits = [split, "valid"] if hold_out else [split]
    counts = {name: dict.fromkeys(("read", "kept", "empty", "filtered", "replaced"), 0) for name in made_splits}
    count = counts[split] = counts[split] | ({"duplicates": 0} if dedup else {})
    drops = split == "train" and config.translates  # in text of one language an empty line ends a document
    with ExitStack() as stack:
        files: dict[str, list[IO[str]]] = {}
        for name, kind, language in product(made_splits, ("", "tok."), config.languages):
            file = open(text / f"{kind}{name}.{language}", "w", encoding="utf-8", newline="\n")  # noqa: SIM115
            files.setdefault(name, []).append(stack.enter_context(file))
        pairs = sentences(paths, config.endings)
        seen = set[bytes]()  # of pairs of training, digests of 8 bytes
        results = stack.enter_context(parallel_map(partial(_clean_and_tokenize, tokens), pairs, workers))
        kept = 0
        for changed, cleaned, tokenized in bar(results, f"tokenize {split}", total):
            count["read"] += 1
            count["replaced"] += sum(changed)
            _refuse_marks(config, paths, count["read"], tokenized)
            empty = [not line for line in tokenized]
            if strict:
                _refuse_unclean(paths, count["read"], changed, empty if drops else [False] * len(empty))
            count["empty"] += any(empty)
            if split == "train":
                if drops and any(empty):
                    continue
                if dedup and not any(empty):
                    digest = blake2b("\n".join(tokenized).encode(), digest_size=8).digest()
                    if digest in seen:
                        count["duplicates"] += 1
                        continue
                    seen.add(digest)
                if not any(empty) and not _within(tokenized, config.filter):
                    count["filtered"] += 1
                    continue
            kept += 1
            name = "valid" if hold_out and kept % hold_out == 0 else split
            counts[name]["kept"] += 1
            for out, line in zip(files[name], cleaned + tokenized, strict=True):
                out.write(line + "\n")
    for name in made_splits:
        if not counts[name]["kept"]:
            raise ValueError(f"{' and '.join(map(str, paths))}: no {config.unit} remain for {name}")
    if hold_out:
        counts["valid"]["read"] = counts["valid"]["kept"]
    return counts


def _refuse_unclean(paths: tuple[Path, ...], number: int, changed: list[bool], empty: list[bool]) -> None:
    for path, has_special, is_empty in zip(paths, changed, empty, strict=True):
        if has_special or is_empty:
            problem = "a line separator or NUL inside the line" if has_special else "empty"
            raise ValueError(f"{place(path, number)}: {problem}; fix the file or leave out --strict")


def _refuse_marks(config: DataConfig, paths: tuple[Path, ...], number: int, tokenized: list[str]) -> None:
    """Of text that is not tokenized, refuse words that mean something else to fairseq or to subword-nmt."""
    for path, side, line in zip(paths, config.sides.values(), tokenized, strict=True):
        if side["tokenizer"] != "none" or config.bpe["kind"] != "subword-nmt" or not ("@@" in line or "<" in line):
            continue
        if marks := [word for word in line.split() if word in RESERVED or word.endswith("@@")]:
            text = f"the word {marks[0]!r} is a mark of fairseq's or of subwords"
            raise ValueError(f"{place(path, number)}: {text}; write it otherwise, or set tokenizer: moses")


def _within(tok: list[str], limits: dict[str, Any]) -> bool:
    lengths = sorted(text.count(" ") + 1 for text in tok)
    short, long = lengths[0], lengths[-1]
    if short < limits["min-length"] or (limits["max-length"] and long > limits["max-length"]):
        return False
    return not limits["max-ratio"] or long <= limits["max-ratio"] * short


def _clean_and_tokenize(tokens: tuple[Tokens, ...], pair: tuple[str, ...]) -> Made:
    cleaned, changed = zip(*map(clean, pair), strict=True)
    return list(changed), list(cleaned), [side.tokenize(line) for side, line in zip(tokens, cleaned, strict=True)]


def truecase(config: DataConfig, work: Path, workers: int, steps: Steps, encoding: Encoding | None) -> dict[str, Any]:
    """Train truecasers on the training text and apply them to ``text/tok.*``, if configured."""
    names: dict[str, str | None] = dict.fromkeys(config.sides)
    for (side, side_steps), language in zip(config.sides.items(), config.languages, strict=True):
        if side_steps["truecase"]:
            trained = encoding and encoding.truecaser
            model = work / "text" / (trained.name if trained else f"truecase.{language}")
            names[side] = f"text/{model.name}"
            if not trained:
                steps(f"train {model.name}", _train_truecaser, work / f"text/tok.train.{language}", model)
            tokens = Tokens(side_steps, model, not trained or bool(encoding and encoding.moses))
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
    end = "sentencepiece.model" if bpe["kind"] in OF_PIECES else "bpe.codes"
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
            segmenter = Subwords(bpe["kind"], text / models[language])
            vocabulary[language] = counted = f"bpe.vocab.{language}"
            steps(f"count {counted}", _count, text / f"tok.train.{language}", segmenter, text / counted, workers)
        allowed = text / name if (name := vocabulary[language]) else None
        segmenter = Subwords(bpe["kind"], text / models[language], allowed, bpe["threshold"])
        for split in config.splits:
            out = text / f"bpe.{split}.{language}"
            steps(f"segment {out.name}", _apply, text / f"tok.{split}.{language}", segmenter, out, workers)
    sides = dict(zip(config.sides, languages, strict=True))
    files: dict[str, dict[str, Any]] = {"model": {**models}, "vocabulary": vocabulary}
    named = {key: {side: of[end] and f"text/{of[end]}" for side, end in sides.items()} for key, of in files.items()}
    return bpe | named


def _learn(bpe: dict[str, Any], paths: list[Path], model: Path) -> None:
    print(f"learn {bpe['kind']} ({bpe['size']:,})", file=sys.stderr)
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):  # hides the learner's progress bar
        learned = learn(bpe["kind"], paths, bpe["size"], model)
    if learned < bpe["size"]:
        why = "no other pair of symbols occurs twice in the training text"
        warn(f"{learned:,} merges in place of {bpe['size']:,}: {why}")


def _count(path: Path, segmenter: Subwords, counted: Path, workers: int) -> None:
    with parallel_map(segmenter.segment, bar(iterate_lines(path), f"count {counted.name}"), workers) as segmented:
        count_subwords(segmented, counted)


def _apply(path: Path, segmenter: Subwords, out: Path, workers: int) -> None:
    with parallel_map(segmenter.segment, bar(iterate_lines(path), f"segment {out.name}"), workers) as segmented:
        write_lines(out, segmented)


def binarize(config: DataConfig, work: Path, workers: int, encoding: Encoding | None) -> None:
    print("fairseq-preprocess", file=sys.stderr)
    for dictionary in work.glob("dict.*"):  # from an interrupted run; fairseq-preprocess does not replace them
        dictionary.unlink()
    kind = config.bpe["kind"]
    if kind in ("wordpiece", "t5"):
        model = work / "text" / (encoding.model.name if encoding else T5_NAME)
        words = symbols(read_vocabulary(model)) if kind == "wordpiece" else t5_words(Subwords("t5", model).pieces)
        write_lines(work / "text/dict.txt", (f"{word} 1" for word in words[4:]))  # after fairseq's own
    srcdict = ["--srcdict", "text/dict.txt"] if encoding or kind == "t5" else []
    if config.translates:
        source, target = config.languages
        files = _prefixes({split: f"text/bpe.{split}" for split in config.splits})
        joined = ["--joined-dictionary"] if config.joined_dictionary else []
        _preprocess(work, workers, ["--source-lang", source, "--target-lang", target, *files], ".", [*joined, *srcdict])
    elif config.glue:
        _binarize_glue(config, work, workers, encoding)
    else:
        _preprocess(work, workers, _source_only(config, config.languages[0]), ".", srcdict)


def _binarize_glue(config: DataConfig, work: Path, workers: int, encoding: Encoding | None) -> None:
    """``input0``, ``input1`` and ``label`` as ``sentence_prediction`` reads them, the inputs with one dictionary."""
    if not encoding:
        write_dictionary((work / f"text/bpe.train.{suffix}" for suffix in config.languages), work / "text/dict.txt")
    for suffix in config.languages:
        _preprocess(work, workers, _source_only(config, suffix), suffix, ["--srcdict", "text/dict.txt"])
    labels = [split for split in config.splits if not split.startswith("test")]
    if TASKS[config.glue].regression:
        (work / "label").mkdir(exist_ok=True)
        for split in labels:
            shutil.copyfile(work / f"text/{split}.label", work / f"label/{split}.label")
        return
    write_lines(work / "text/label.txt", (f"{label} 1" for label in TASKS[config.glue].labels))
    files = _prefixes({split: f"text/{split}.label" for split in labels})
    _preprocess(work, workers, ["--only-source", *files], "label", ["--srcdict", "text/label.txt"])


def _source_only(config: DataConfig, suffix: str) -> list[str]:
    return ["--only-source", *_prefixes({split: f"text/bpe.{split}.{suffix}" for split in config.splits})]


def _prefixes(files: dict[str, str]) -> list[str]:
    """Flags of fairseq-preprocess for files by split."""
    kinds = {kind: [path for split, path in files.items() if split.startswith(kind)] for kind in SPLITS}
    return [word for kind, paths in kinds.items() if paths for word in (f"--{kind}pref", ",".join(paths))]


def _preprocess(work: Path, workers: int, files: list[str], out: str, dictionary: list[str]) -> None:
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *files]
    command += ["--destdir", out, "--workers", str(workers), *dictionary]
    done = run_to_end(lighter(command), cwd=work, stdout=PIPE, stderr=STDOUT, encoding="utf-8", errors="replace")
    if done.returncode:
        last = done.stdout.strip().rpartition("\n")[2] or "no output"
        raise OSError(f"fairseq-preprocess failed with exit code {done.returncode}: {last}")
