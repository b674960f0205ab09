"""Criterions of fairseq with disagreement regularization (Li et al., 2021, section 3.1); see ``DisagreementMixin``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion

from fairseq_diverse.criterions.disagreement import DisagreementConfig, DisagreementMixin


@dataclass
class LabelSmoothedCrossEntropyWithDisagreementConfig(DisagreementConfig, LabelSmoothedCrossEntropyCriterionConfig):
    """Flags of both."""


@register_criterion(
    "label_smoothed_cross_entropy_with_disagreement", dataclass=LabelSmoothedCrossEntropyWithDisagreementConfig
)
class LabelSmoothedCrossEntropyWithDisagreement(DisagreementMixin, LabelSmoothedCrossEntropyCriterion):
    """likelihood + lambda * agreement of the heads."""


@dataclass
class MaskedLmWithDisagreementConfig(DisagreementConfig, MaskedLmConfig):
    """Flags of both; language models have an encoder only."""

    disagreement_on: str = "encoder"


@register_criterion("masked_lm_with_disagreement", dataclass=MaskedLmWithDisagreementConfig)
class MaskedLmWithDisagreement(DisagreementMixin, MaskedLmLoss):
    """likelihood of the masked tokens + lambda * agreement of the heads, multiplied by the number of masked tokens."""


@dataclass
class SentencePredictionWithDisagreementConfig(DisagreementConfig, SentencePredictionConfig):
    """Flags of both."""

    disagreement_on: str = "encoder"


@register_criterion("sentence_prediction_with_disagreement", dataclass=SentencePredictionWithDisagreementConfig)
class SentencePredictionWithDisagreement(DisagreementMixin, SentencePredictionCriterion):
    """cross-entropy of the class, or squared error, + lambda * agreement of the heads, multiplied by the examples."""
