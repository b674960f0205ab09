"""Read translations from text or from the output of fairseq-generate, and score them with sacreBLEU."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.subwords import SPACE_MARK
from fairseq_diverse.preparation.tokens import spaced_stops
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.support.languages import TOKENIZERS, base_language

Lines = Sequence[str]  # of a text
METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
# A line of fairseq-generate, perhaps after a progress bar: S-7 <tab> source, H-7 or D-7 <tab> score <tab> hypothesis
GENERATED = re.compile(r"(?:^|[^\w-])([SHD])-(\d+)\t([^\t]*)(?:\t(.*))?$")
SCRIPTS = {  # letters of languages whose words 13a does not find
    "ja": re.compile("[\u3040-\u30ff\uff66-\uff9f]"),
    "zh": re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "ko": re.compile("[\u1100-\u11ff\uac00-\ud7af]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
    "lo": re.compile("[\u0e80-\u0eff]"),
    "my": re.compile("[\u1000-\u109f]"),
    "km": re.compile("[\u1780-\u17ff]"),
    "bo": re.compile("[\u0f00-\u0fff]"),
}
# Characters without a shape that are not of Unicode's category Cf, and a hyphen that is drawn as -
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2010\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
DRAWN_ALIKE = re.compile("<(compat|initial|medial|final|isolated|noBreak)> (?!0020)")  # as what they stand for
QUOTES = set("\u2018\u2019\u201a\u201c\u201d\u201e\xab\xbb")
COLUMNS = re.compile(r"(?:D-)?\d+\t-?[\d.]+(?:e-?\d+)?\t")  # its D lines without the others, or translate --scores


@dataclass(frozen=True)
class Scores:
    """A system's scores by sacreBLEU, and the counts of each sentence, for bootstrap resampling.

    Attributes:
        bleu, chrf, ter: from 0 to 100 (TER may be higher); TER ignores case, as in sacreBLEU.
        length_ratio: tokens of the hypotheses divided by tokens of the references, with BLEU's tokenization.
        signatures: metric -> sacreBLEU's signature.
        statistics: metric -> (sentences, n) counts.
    """

    bleu: float
    chrf: float
    ter: float
    length_ratio: float
    signatures: dict[str, str]
    statistics: dict[str, np.ndarray] = field(repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the statistics, ready for JSON."""
        scores = {name: round(getattr(self, name), 4) for name in (*METRICS, "length_ratio")}
        return {**scores, "signatures": self.signatures}


@dataclass(frozen=True)
class Result:
    """The score of a system by one metric.

    Attributes:
        score: of the whole test set, in the metric's own range.
        signature: how it was computed.
        statistics: (sentences, n) counts; empty where the score of a part of the sentences cannot be had.
        combine: makes the counts' sum over any sentences the score of these.
    """

    score: float
    signature: str
    statistics: np.ndarray = field(default_factory=lambda: np.empty((0, 0)), repr=False, compare=False)
    combine: Callable[[np.ndarray], float] = field(default=float, repr=False, compare=False)

    @classmethod
    def of(cls, statistics: Sequence[Any] | np.ndarray, combine: Callable[[np.ndarray], float], signature: str) -> Self:
        """The score that ``combine`` gives to the sum of all sentences' counts."""
        counts = np.asarray(statistics, dtype=np.float64)
        return cls(combine(counts.sum(0)), signature, counts, combine)


def score(hypotheses: Lines, references: Lines, language: str = "", lowercase: bool = False) -> Scores:
    """BLEU, chrF2, TER and length ratio of detokenized text.

    Args:
        language: code of the target language ("zh", "ja_JP"), which selects the tokenizer; "" for sacreBLEU's 13a.
        lowercase: compare lower-cased text.

    Raises:
        ValueError: there are no sentences, their numbers differ, or the tokenizer is not installed.
    """
    if not references or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references; equal numbers are needed")
    results = {name: sacrebleu_result(name, hypotheses, references, language, lowercase) for name in METRICS}
    length, reference_length = results["bleu"].statistics.sum(0)[:2]
    return Scores(
        **{name: result.score for name, result in results.items()},
        length_ratio=float(length / max(reference_length, 1)),
        signatures={name: result.signature for name, result in results.items()},
        statistics={name: result.statistics for name, result in results.items()},
    )


def sacrebleu_result(
    name: str, hypotheses: Lines, references: Lines, language: str, lowercase: bool = False, more: Sequence[Lines] = ()
) -> Result:
    """``bleu``, ``chrf`` or ``ter`` by itself; arguments and errors as for `score`; ``more``: further references."""
    return result_by(sacrebleu_metric(name, language, lowercase), hypotheses, references, *more)


def result_by(metric: Any, hypotheses: Lines, *references: Lines, note: str = "") -> Result:
    """The score by a metric of sacreBLEU's; ``note`` ends its signature."""
    statistics = metric._extract_corpus_statistics(list(hypotheses), list(map(list, references)))
    signature = f"{metric.get_signature()}{note}"  # complete once there were references
    return Result.of(statistics, lambda sums: float(metric._compute_score_from_stats(list(sums)).score), signature)


@cache
def sacrebleu_metric(name: str, language: str, lowercase: bool = False) -> Any:
    """sacreBLEU's metric with the defaults of its command line and the language's tokenizer."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    language = base_language(language)
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "ter":
        asian = language in TOKENIZERS
        return TER(normalized=asian, asian_support=asian)
    try:
        return BLEU(tokenize=TOKENIZERS.get(language, "13a"), lowercase=lowercase, force=True)
    except (ImportError, RuntimeError):
        todo = f'pip install "sacrebleu[{TOKENIZERS[language][:2]}]"'
        raise ValueError(f"language {language}: BLEU needs its tokenizer; install it with: {todo}") from None


def read_translations(path: str | Path, data: str | Path | None = None, side: str = "target") -> list[str]:
    """Detokenized translations in the order of the test set.

    Args:
        path: plain text, one translation a line, or the output of fairseq-generate.
        data: prepared data set, to undo subwords and tokenization in the output of fairseq-generate; may be None if
            fairseq did so itself (``--bpe``, ``--tokenizer``).
        side: side of the data set that is translated into: source if the model translates from target to source.

    Raises:
        ValueError: the file is missing, empty, not UTF-8, lacks sentences, or needs ``data``.
    """
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path}: empty file")
    if not any(match and match[1] == "H" for match in map(GENERATED.search, lines)):
        if all(map(COLUMNS.match, lines)):
            todo = "give the whole output of fairseq-generate, or the last column, in the order of the references"
            raise ValueError(f"{path}: lines with a number and a score, not text; {todo}")
        if has_columns(lines):
            raise ValueError(f"{path}: columns, with a tab in every line; give the one with the translations")
        return lines
    best = _best_lines(path, lines)
    tokens = _complete(path, best, "H")
    if data is not None:
        prepared = Preprocessing.load(data)
        return [prepared.decode(line, side) for line in tokens]
    text = _complete(path, best, "D") if best["D"] else tokens  # none in logs of old versions, or by grep ^H
    if tokens == text:
        todo = "give --data DIR, the prepared data, to undo them; for data that `prepare` did not make, "
        todo += "give fairseq-generate --bpe and --tokenizer, then its D- lines are text"
        raise ValueError(f"{path}: output of fairseq-generate, in tokens; {todo}")
    return text


def marks(lines: Lines) -> set[str]:
    """What shows that lines are in subwords or in tokens, in words; empty for text."""
    signs = set()
    if 10 * sum("@@ " in f"{line} " or SPACE_MARK in line for line in lines) > len(lines):
        signs.add("subwords")
    if spaced_stops(lines):
        signs.add("spaces before full stops")
    return signs


def quoted(lines: Lines) -> int:
    """The number of lines with quotes or apostrophes of typography, such as \u201e or \u2019."""
    return sum(not QUOTES.isdisjoint(line) for line in lines)


def has_columns(lines: Lines) -> bool:
    texts = [line for line in lines if line.strip()]
    return bool(texts) and all("\t" in line for line in texts)


def composed(lines: Lines) -> tuple[list[str], int]:
    """The lines with a letter and its accents as one character where there is one (NFC), and how many lines changed."""
    shown = [unicodedata.normalize("NFC", line) for line in lines]
    return shown, sum(map(str.__ne__, lines, shown))


def unseen(lines: Lines, others: Lines) -> dict[str, int]:
    """Characters that no eye tells from others, or from nothing, and the number of lines with them, where the others
    have them in less than half as many lines; spaces are none, at which all metrics split."""
    here, there = (Counter(c for line in side for c in set(line) if c > "~" and _hidden(c)) for side in (lines, others))
    return {letter: count for letter, count in here.items() if count > 2 * there[letter]}


@cache
def _hidden(letter: str) -> bool:
    alike = UNSEEN.match(letter) or DRAWN_ALIKE.match(unicodedata.decomposition(letter))
    return bool(alike) or unicodedata.category(letter) == "Cf"


def language_by_script(lines: Lines) -> str:
    """The code of the language of ``SCRIPTS`` that most letters are of; empty where there is none."""
    text = "".join(lines)
    counts = {language: len(script.findall(text)) for language, script in SCRIPTS.items()}
    if 10 * counts["ja"] > counts["zh"]:  # Japanese has Chinese characters, too
        counts["ja"] += counts["zh"]
    language = max(counts, key=counts.__getitem__)
    return language if 2 * counts[language] > sum(map(str.isalpha, text)) else ""


def _best_lines(path: str | Path, lines: Iterable[str]) -> dict[str, dict[int, tuple[float, str]]]:
    """The best of the ``H-`` lines of each sentence and its score, and the same of the ``D-`` lines."""
    best: dict[str, dict[int, tuple[float, str]]] = {"H": {}, "D": {}}
    sources = set()
    for match in filter(None, map(GENERATED.search, lines)):
        kind, number = match[1], int(match[2])
        if kind == "S":
            if number in sources:
                twice = "is this the output of two runs of fairseq-generate?"
                raise ValueError(f"{path}: sentence {number} comes twice; {twice}")
            sources.add(number)
            continue
        try:
            value = float(match[3])
        except ValueError:
            raise ValueError(f"{path}: {kind}-{number}: the score {match[3]!r} is not a number") from None
        if number not in best[kind] or value > best[kind][number][0]:
            best[kind][number] = (value, match[4] or "")
    return best


def _complete(path: str | Path, best: dict[str, dict[int, tuple[float, str]]], kind: str) -> list[str]:
    """The texts of one kind of lines, in the order of the sentences."""
    numbers = range(max(best["H"]) + 1)  # of a damaged line it may be huge
    if missing := len(numbers) - sum(number in numbers for number in best[kind]):
        first = itertools.islice((number for number in numbers if number not in best[kind]), 5)
        shown = ", ".join(map(str, first)) + ", ..." * (missing > 5)
        flags = "with --required-batch-size-multiple 1 and without --skip-invalid-size-inputs-valid-test"
        raise ValueError(f"{path}: {missing} sentences have no {kind}- line ({shown}); translate all of them, {flags}")
    return [best[kind][number][1] for number in sorted(best[kind])]
