"""Translations of the rows of a table, sentence by sentence, and the words by which they differ from others."""

import difflib
import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.folder import folders_by_seed
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.support.tables import one_line, readable


@dataclass(frozen=True)
class Sentence:
    """A test sentence, by its number from 1, and its translation by every row that has one."""

    number: int
    source: str
    reference: str
    translations: dict[str, str]

    def as_text(self) -> str:
        texts = {"source": self.source, "reference": self.reference, **self.translations}
        lines = {one_line(name): readable(text) for name, text in texts.items()}
        width = max(map(len, lines))
        return "\n".join([f"sentence {self.number}", *(f"  {name:<{width}}  {line}" for name, line in lines.items())])


@dataclass(frozen=True)
class SideBySide:
    """Sentences of a test set, of ``total`` ones, and the seed that each row's translations are of."""

    sentences: list[Sentence]
    total: int
    seeds: dict[str, int]


def side_by_side(runs: Sequence[Run], count: int, test: str = "test") -> SideBySide:
    """``count`` sentences, evenly spread over a test set, as the first finished seed of each row translates them; only
    of rows on the data of the first run that has that test set. Raises ValueError: a run's translations do not belong
    to the test set that the data has now; names the file."""
    having = [run for run in runs if test in run.further]
    runs, name = having or runs, test if having else "test"
    data, split = runs[0].data, runs[0].split_of(test)
    texts = [data.path / "text" / f"{split}.{language}" for language in (data.source, data.target)]
    folders = {run.row.name: folders_by_seed(run).items() for run in runs if run.data.path == data.path}
    files = {row: {seed: folder / f"{name}.hyp" for seed, folder in by_seed} for row, by_seed in folders.items()}
    existing = {row: {seed: file for seed, file in by_seed.items() if file.is_file()} for row, by_seed in files.items()}
    if not any(existing.values()) or not all(path.is_file() for path in texts):
        return SideBySide([], 0, {})
    source, reference = map(read_lines, texts)
    chosen = {row: min(by_seed) for row, by_seed in existing.items() if by_seed}
    translated = {row: read_lines(existing[row][seed]) for row, seed in chosen.items()}
    for row, lines in translated.items():
        if len(lines) != len(reference):
            path = existing[row][chosen[row]]
            raise ValueError(f"{path}: {len(lines)} translations of the {len(reference)} sentences of {texts[1]}")
    count = min(count, len(reference))
    shown = [
        Sentence(i + 1, source[i], reference[i], {row: lines[i] for row, lines in translated.items()})
        for i in (number * len(reference) // count for number in range(count))
    ]
    return SideBySide(shown, len(reference), chosen)


SINGLE = ("CJK UNIFIED", "CJK COMPATIBILITY", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # no spaces


class Part(NamedTuple):
    """Words of a translation that differ from the same texts, and what is missing before them."""

    text: str
    kinds: tuple[str, ...]  # of "reference" and "baseline": in which text they are not
    missing: Mapping[str, str]  # by kind


def words(text: str) -> list[str]:
    """Words, spaces and punctuation marks, which together are the text; letters of scripts without spaces are words."""
    groups = ((kind, "".join(group)) for kind, group in itertools.groupby(text, _kind))
    return [word for kind, group in groups for word in (group if kind == "single" else [group])]


def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    if unicodedata.category(character)[0] in "PS" or unicodedata.name(character, "").startswith(SINGLE):
        return "single"
    return "word"


def compare(text: str, others: Mapping[str, str]) -> list[Part]:
    """The text in parts whose words are all in the same of the others (texts by kind), or all missing there."""
    tokens = words(text)
    places = [i for i, token in enumerate(tokens) if not token.isspace()]
    kinds: list[tuple[str, ...]] = [()] * len(tokens)
    missing: list[dict[str, str]] = [{} for _ in range(len(tokens) + 1)]
    for kind, other_text in others.items():
        other_words = [token for token in words(other_text) if not token.isspace()]
        matcher = difflib.SequenceMatcher(None, other_words, [tokens[i] for i in places], autojunk=False)
        for operation, start, end, first, last in matcher.get_opcodes():
            if operation == "delete":
                missing[places[first] if first < len(places) else len(tokens)][kind] = " ".join(other_words[start:end])
            elif operation != "equal":
                for i in places[first:last]:
                    kinds[i] += (kind,)
    for before, space, after in zip(places, (i + 1 for i in places), places[1:], strict=False):
        if space < after and kinds[before] == kinds[after]:
            kinds[space] = kinds[before]
    parts: list[Part] = []
    for token, token_kinds, gap in itertools.zip_longest(tokens, kinds, missing):
        if parts and token is not None and not gap and token_kinds == parts[-1].kinds:
            parts[-1] = parts[-1]._replace(text=parts[-1].text + token)
        elif token is not None or gap:
            parts.append(Part(token or "", token_kinds or (), gap))
    return parts
