"""fairseq's criterions of masked language models and sentence prediction, with disagreement regularization."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion

from fairseq_diverse.criterions.disagreement import DisagreementConfig, DisagreementMixin


@dataclass
class MaskedLmWithDisagreementConfig(DisagreementConfig, MaskedLmConfig):
    """Flags of both; language models have an encoder only."""

    disagreement_on: str = "encoder"


@register_criterion("masked_lm_with_disagreement", dataclass=MaskedLmWithDisagreementConfig)
class MaskedLmWithDisagreement(DisagreementMixin, MaskedLmLoss):
    """likelihood of the masked tokens + lambda * agreement of the heads; see ``DisagreementMixin``.

    The likelihood has one term a masked token, so agreement is multiplied by their number.
    """


@dataclass
class SentencePredictionWithDisagreementConfig(DisagreementConfig, SentencePredictionConfig):
    """Flags of both."""

    disagreement_on: str = "encoder"


@register_criterion("sentence_prediction_with_disagreement", dataclass=SentencePredictionWithDisagreementConfig)
class SentencePredictionWithDisagreement(DisagreementMixin, SentencePredictionCriterion):
    """cross-entropy of the class, or squared error, + lambda * agreement of the heads; see ``DisagreementMixin``.

    The likelihood has one term an example, so agreement is multiplied by their number.
    """
