"""Scorers for ``fairseq-generate --scoring``: metrics of ``fairseq-diverse score`` that fairseq lacks.

Those that need neither another program nor a model: they compare what fairseq prints as ``D-`` lines with its
references, split into words at spaces, or by the rules of ``--scoring-language``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

from fairseq_diverse.metrics import words
from fairseq_diverse.metrics.scores import Result, sacrebleu_result


@dataclass
class WordScorerConfig(FairseqDataclass):
    scoring_language: str = field(
        default="", metadata={"help": "target language, for its tokenization rules (default: split at spaces)"}
    )


class WordScorer(BaseScorer):
    """The score of all sentences together."""

    name: str
    compute: Callable[[list[str], list[str]], Result]

    def score(self) -> float:
        if not self.ref:
            return 0.0
        language = self.cfg.scoring_language
        hypotheses, references = (
            [words.tokenize(line, language) if language else " ".join(line.split()) for line in side]
            for side in (self.pred, self.ref)
        )
        return self.compute(hypotheses, references).score

    def result_string(self) -> str:
        return f"{self.name}: {self.score():.2f}"


@register_scorer("multi_bleu", dataclass=WordScorerConfig)
class MultiBleuScorer(WordScorer):
    name, compute = "multi-bleu", staticmethod(words.multi_bleu)


@register_scorer("rouge_l", dataclass=WordScorerConfig)
class RougeLScorer(WordScorer):
    name, compute = "ROUGE-L", staticmethod(words.rouge_l)


@register_scorer("cider", dataclass=WordScorerConfig)
class CiderScorer(WordScorer):
    name, compute = "CIDEr", staticmethod(words.cider)


@dataclass
class TerScorerConfig(FairseqDataclass):
    pass


@register_scorer("ter", dataclass=TerScorerConfig)
class TerScorer(BaseScorer):
    """sacreBLEU's TER, which takes detokenized text."""

    def score(self) -> float:
        return sacrebleu_result("ter", self.pred, self.ref, "").score if self.ref else 0.0

    def result_string(self) -> str:
        return f"TER: {self.score():.2f}"
