"""Every metric of ``fairseq-diverse score`` by its name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fairseq_diverse.metrics import programs, words, yisi
from fairseq_diverse.metrics.scores import METRICS, Result, sacrebleu_result


@dataclass
class Texts:
    """What metrics read: raw text, one sentence an item, and the settings that only some need.

    ``model``: of COMET or MetricX; ``others``: further references; ``lowercase``: all sides are lower-cased;
    ``composed``: `composed` changed some.
    """

    hypotheses: Sequence[str]
    references: Sequence[str]
    language: str = ""
    sources: Sequence[str] | None = None
    yisi_model: Path | None = None
    yisi_layer: int = -1
    model: str | None = None
    lowercase: bool = False
    others: Sequence[Sequence[str]] = ()
    composed: bool = False

    def __post_init__(self) -> None:
        if self.lowercase:
            sides = (self.hypotheses, self.references, *self.others)
            self.hypotheses, self.references, *self.others = ([s.lower() for s in side] for side in sides)

    @cached_property
    def tokens(self) -> tuple[list[str], list[str]]:
        sides = (self.hypotheses, self.references)
        hypotheses, references = ([words.tokenize(line, self.language) for line in side] for side in sides)
        return hypotheses, references


@dataclass(frozen=True)
class Metric:
    """``heading`` names its column; ``formula`` raises a ``ValueError`` that says what it lacks; ``neural``: it is a
    mean over sentences, by a model that can be chosen, and reports compare it with the baseline's."""

    heading: str
    formula: Callable[[Texts], Result]
    digits: int = 2
    several: bool = False  # whether it takes several references
    neural: bool = False
    lower: bool = False  # is better, of neural ones

    def compute(self, texts: Texts) -> Result:
        if texts.others and not self.several:
            raise ValueError("compares with one reference; give one --ref")
        result = self.formula(texts)
        notes = "|lower-cased" * (texts.lowercase and "case:lc" not in result.signature) + "|NFC" * texts.composed
        return replace(result, signature=result.signature + notes) if notes else result


def _sacrebleu(name: str) -> Metric:
    def compute(t: Texts) -> Result:
        return sacrebleu_result(name, t.hypotheses, t.references, t.language, t.lowercase, t.others)

    return Metric(METRICS[name], compute, several=True)


def _tokenized(heading: str, compute: Callable[..., Result], **options: bool) -> Metric:
    def of_tokens(texts: Texts) -> Result:
        result = compute(*texts.tokens, **options)
        return replace(result, signature=f"{result.signature}|tokens:{words.tokenizer_name(texts.language)}")

    return Metric(heading, of_tokens)


def _neural(heading: str, compute: Callable[..., Result], lower: bool = False) -> Metric:
    def with_model(t: Texts) -> Result:
        return compute(t.hypotheses, t.references, t.sources, t.model)

    return Metric(heading, with_model, digits=4, neural=True, lower=lower)


CATALOGUE = {
    **{name: _sacrebleu(name) for name in METRICS},
    "multi-bleu": _tokenized("multi-bleu", words.multi_bleu),
    "multi-bleu-compounds": _tokenized("multi-bleu, compounds", words.multi_bleu, compounds=True),
    "wer": _tokenized("WER", words.word_error_rate),
    "wer-li2022": _tokenized("WER (Li 2022: TER)", words.ter_of_li2022),
    "meteor": Metric("METEOR", lambda t: programs.meteor(t.hypotheses, t.references, t.language)),
    "meteor-en": _tokenized("METEOR-en (Li 2022)", programs.meteor_of_li2022),
    "rouge-l": _tokenized("ROUGE-L", words.rouge_l),
    "cider": _tokenized("CIDEr", words.cider),
    "yisi-0": _tokenized("YiSi-0", yisi.yisi_0),
    "yisi-1": Metric("YiSi-1", lambda t: yisi.yisi_1(t.hypotheses, t.references, t.yisi_model, t.yisi_layer)),
    "comet": _neural("COMET", programs.comet),
    "metricx": _neural("MetricX", programs.metricx, lower=True),
}

# Headings of published figures that their key does not say
PUBLISHED = {"bleu": "BLEU", "wer-li2022": "WER (unit not stated)"}


def find(name: str) -> Metric:
    """The metric of a name in the catalogue, or of a neural one and its model, ``comet:MODEL``."""
    base, _, model = name.partition(":")
    metric = CATALOGUE[base]
    if not model:
        return metric
    heading = f"{metric.heading} ({model.rpartition('/')[2]})"
    return replace(metric, heading=heading, formula=lambda texts: metric.formula(replace(texts, model=model)))


def chosen(names: str) -> list[str]:
    """The metrics of a list separated by commas, of which neural ones may name their model, ``comet:MODEL``; ``all`` is
    all of the catalogue. Raises ``ValueError``: one is not known."""
    listed = list(dict.fromkeys(name.strip() for name in names.split(",")))
    listed = list(CATALOGUE) if "all" in listed else listed
    if unknown := [name for name in listed if name.partition(":")[0] not in CATALOGUE]:
        raise ValueError(f"--metrics {', '.join(unknown)}: not known; choose from {', '.join(CATALOGUE)}, or all")
    if with_model := [name for name in listed if ":" in name and not CATALOGUE[name.partition(":")[0]].neural]:
        raise ValueError(f"--metrics {with_model[0]}: takes no model; comet and metricx do")
    return listed
