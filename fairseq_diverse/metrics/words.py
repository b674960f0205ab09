"""Metrics of tokenized text: multi-bleu, WER, TER as Li and Luo (2022) took it, ROUGE-L, CIDEr.

Their arguments are tokenized lines, tokens joined by spaces (`tokenize`); they compare tokens as they are, with case.
All raise a ``ValueError`` where the package that computes them is not installed."""

import locale
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

from fairseq_diverse.metrics.scores import Lines, Result, result_by, sacrebleu_metric
from fairseq_diverse.preparation.tokens import clean
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.support.languages import TOKENIZERS, base_language

COMPOUND = re.compile(r"(\S)-(\S)")


@lru_cache(maxsize=1 << 18)
def tokenize(line: str, language: str) -> str:
    """Raw text to tokens: Moses' rules of the language (no escapes, no dash splitting), sacreBLEU's for zh, ja and ko.
    Raises ``ValueError``: no language is named, or sacreBLEU's tokenizer for it is not installed."""
    if not language:
        raise ValueError("needs the target language, for its tokenizer; give --language (or --data)")
    line = clean(line)[0]
    code = base_language(language)
    if code in TOKENIZERS:
        return " ".join(sacrebleu_metric("bleu", code).tokenizer(line).split())
    return " ".join(_moses(code).tokenize(line, escape=False))


def tokenizer_name(language: str) -> str:
    """What `tokenize` does, for signatures."""
    code = base_language(language)
    if code in TOKENIZERS:
        return f"sacreBLEU's {TOKENIZERS[code]}"
    return f"Moses {code}" if code in _moses_languages().values() else f"Moses {code}, which has the rules of en"


def check_language(language: str) -> None:
    """Raise ``ValueError`` for a code whose language no one knows: metrics would take it for one without rules.

    Known are the codes of the system's locales, of Moses' rules and of sacreBLEU's tokenizers, with or without a region
    or script: ``pt-BR``, ``zh_Hant``.
    """
    code, *_ = parts = re.split("[-_]", language)
    locales = {name.split("_")[0] for name in locale.locale_alias.values() if "_" in name}
    known = {*locales, *TOKENIZERS, *_moses_languages().values()}
    if code.lower() in known and all(re.fullmatch("[A-Za-z0-9]{2,8}", part) for part in parts):
        return
    meant = f"give one such as {_moses_languages().get(code.lower(), 'de')}, with a region or not (pt-BR)"
    raise ValueError(f"--language {language}: not a known language code; {meant}")


def multi_bleu(hypotheses: Lines, references: Lines, compounds: bool = False) -> Result:
    """BLEU of tokenized text, from 0 to 100, as multi-bleu.perl of Moses has it: cased, without smoothing; by sacreBLEU
    with ``tokenize=none`` and ``smooth_method=none``. ``compounds``: split words at hyphens first (`split_compounds`).
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    if compounds:
        hypotheses, references = ([split_compounds(line) for line in side] for side in (hypotheses, references))
    return result_by(metric, hypotheses, references, note="|compounds:split" * compounds)


def split_compounds(line: str) -> str:
    """``well-known`` to ``well ##AT##-##AT## known``.

    Source: get_ende_bleu.sh of tensor2tensor, the code of Vaswani et al. (2017), before multi-bleu of English-German.
    """
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def word_error_rate(hypotheses: Lines, references: Lines) -> Result:
    """Substitutions, deletions and insertions by words of the references, times 100, of all sentences; by jiwer."""
    jiwer = _package("jiwer")
    counts = []
    for out in map(jiwer.process_words, references, hypotheses):
        missed = out.substitutions + out.deletions
        counts.append((100 * (missed + out.insertions), out.hits + missed))
    return Result.of(counts, ratio, f"jiwer {version('jiwer')}")


def ter_of_li2022(hypotheses: Lines, references: Lines) -> Result:
    """What Li and Luo (2022) call WER: TER (pyter's), edits with shifts by words of the references, times 100.

    Of the tokens, with case, by sacreBLEU; the paper's package pyter sometimes misses the shortest way to the
    reference. In which unit the paper gives it (2.25 to 81.56) is not known.
    """
    from sacrebleu.metrics import TER

    return result_by(TER(case_sensitive=True), hypotheses, references)


def rouge_l(hypotheses: Lines, references: Lines) -> Result:
    """Mean of the sentences' ROUGE-L, times 100; by pycocoevalcap.

        F = (1 + b^2) P R / (R + b^2 P),   P = LCS / |hypothesis|,  R = LCS / |reference|,  b = 1.2

    Source: Lin (2004); LCS is the length of the longest common subsequence of the tokens.
    """
    scorer = _package("pycocoevalcap.rouge.rouge", "pycocoevalcap").Rouge()
    scores = [scorer.calc_score([h], [r]) for h, r in zip(hypotheses, references, strict=True)]
    return mean_of(100 * np.array(scores), f"pycocoevalcap {version('pycocoevalcap')}|beta:1.2")


def cider(hypotheses: Lines, references: Lines) -> Result:
    """Mean of the sentences' CIDEr-D, from 0 to 10; by pycocoevalcap.

    Source: Vedantam et al. (2015): clipped cosine of tf-idf vectors of 1- to 4-grams, with a penalty for unequal
    lengths; document frequencies are those of the references given. The tests of significance keep them. Raises
    ``ValueError``: no reference has a word.
    """
    scorer = _package("pycocoevalcap.cider.cider", "pycocoevalcap").Cider()
    if not any(references):
        raise ValueError("no reference has a word")
    texts = [{number: [line] for number, line in enumerate(lines)} for lines in (references, hypotheses)]
    return mean_of(scorer.compute_score(*texts)[1], f"pycocoevalcap {version('pycocoevalcap')}|idf:these references")


def mean_of(scores: Sequence[float] | np.ndarray, signature: str) -> Result:
    scores = np.asarray(scores, dtype=np.float64)
    return Result.of(np.stack([scores, np.ones_like(scores)], axis=1), ratio, signature)


def ratio(sums: np.ndarray) -> float:
    return float(sums[0] / max(sums[1], 1.0))


@cache
def _moses_languages() -> dict[str, str]:
    """Codes of the languages that Moses has rules for, by code and by name."""
    from sacremoses.corpus import NonbreakingPrefixes

    return NonbreakingPrefixes().available_langs


@cache
def _moses(language: str) -> Any:
    import sacremoses

    return sacremoses.MosesTokenizer(language)


def _package(module: str, name: str = "") -> Any:
    return needed(module, f"the package {name or module} is not installed; run: {install('metrics')}")
