"""Label-smoothed cross-entropy with disagreement regularization."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)

from fairseq_diverse.criterions.disagreement import DisagreementConfig, DisagreementMixin


@dataclass
class LabelSmoothedCrossEntropyWithDisagreementConfig(DisagreementConfig, LabelSmoothedCrossEntropyCriterionConfig):
    """Flags of both."""


@register_criterion(
    "label_smoothed_cross_entropy_with_disagreement", dataclass=LabelSmoothedCrossEntropyWithDisagreementConfig
)
class LabelSmoothedCrossEntropyWithDisagreement(DisagreementMixin, LabelSmoothedCrossEntropyCriterion):
    """likelihood + lambda * agreement of the heads (Li et al., 2021, section 3.1); see ``DisagreementMixin``."""
