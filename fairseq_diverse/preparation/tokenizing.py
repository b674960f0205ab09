"""Raw text to ``text/SPLIT.LANG`` (cleaned) and ``text/tok.SPLIT.LANG`` (tokenized), filtered by length."""

from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import IO, Any

from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.progress import bar
from fairseq_diverse.preparation.raw import place, sentences
from fairseq_diverse.preparation.tokens import Tokens, clean
from fairseq_diverse.support.parallel import parallel_map

RESERVED = ("<s>", "<pad>", "</s>")  # <unk> in a text means the same
Made = tuple[list[bool], list[str], list[str]]  # for both sides: changed by cleaning, cleaned, tokenized


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
        made = stack.enter_context(parallel_map(partial(_make, tokens), pairs, workers))
        kept = 0
        for changed, cleaned, tokenized in bar(made, f"tokenize {split}", total):
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
            what = "a line separator or NUL inside the line" if has_special else "empty"
            raise ValueError(f"{place(path, number)}: {what}; fix the file or leave out --strict")


def _refuse_marks(config: DataConfig, paths: tuple[Path, ...], number: int, tokenized: list[str]) -> None:
    """Of text that is not tokenized, refuse words that mean something else to fairseq or to subword-nmt."""
    for path, side, line in zip(paths, config.sides.values(), tokenized, strict=True):
        if side["tokenizer"] != "none" or config.bpe["kind"] != "subword-nmt" or not ("@@" in line or "<" in line):
            continue
        if found := [word for word in line.split() if word in RESERVED or word.endswith("@@")]:
            text = f"the word {found[0]!r} is a mark of fairseq's or of subwords"
            raise ValueError(f"{place(path, number)}: {text}; write it otherwise, or set tokenizer: moses")


def _within(tok: list[str], limits: dict[str, Any]) -> bool:
    lengths = sorted(text.count(" ") + 1 for text in tok)
    short, long = lengths[0], lengths[-1]
    if short < limits["min-length"] or (limits["max-length"] and long > limits["max-length"]):
        return False
    return not limits["max-ratio"] or long <= limits["max-ratio"] * short


def _make(tokens: tuple[Tokens, ...], pair: tuple[str, ...]) -> Made:
    cleaned, changed = zip(*map(clean, pair), strict=True)
    return list(changed), list(cleaned), [side.tokenize(line) for side, line in zip(tokens, cleaned, strict=True)]
