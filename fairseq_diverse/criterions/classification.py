"""Classification: cross-entropy of the classes, accuracy, and both with disagreement regularization."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics

from fairseq_diverse.criterions.disagreement import DisagreementConfig, DisagreementMixin


@register_criterion("classification", dataclass=FairseqDataclass)
class Classification(FairseqCriterion):
    """Cross-entropy in nats, summed over the examples of a batch; the model returns (B, classes) logits first.

    Logged are ``loss``, nats an example, and ``accuracy``, percent.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, int, dict[str, Any]]:
        logits = model(**sample["net_input"])[0].float()
        target, size = sample["target"], sample["nsentences"]
        loss = F.cross_entropy(logits, target, reduction="sum" if reduce else "none")
        log = {"loss": loss.detach(), "correct": (logits.argmax(-1) == target).sum(), "ntokens": sample["ntokens"]}
        return loss, size, log | {"nsentences": size, "sample_size": size}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        keys = ("loss", "correct", "nsentences")
        loss, correct, examples = (sum(log.get(key, 0) for log in logging_outputs) for key in keys)
        if examples:
            metrics.log_scalar("loss", loss / examples, examples, round=4)
            metrics.log_scalar("accuracy", 100 * correct / examples, examples, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


@dataclass
class ClassificationWithDisagreementConfig(DisagreementConfig, FairseqDataclass):
    """Flags of the regularizer; classifiers have an encoder only."""

    disagreement_on: str = "encoder"


@register_criterion("classification_with_disagreement", dataclass=ClassificationWithDisagreementConfig)
class ClassificationWithDisagreement(DisagreementMixin, Classification):
    """cross-entropy + lambda * agreement of the heads (Li et al., 2021, section 3.1), both an example.

    See ``DisagreementMixin``. The paper's likelihood has one term an example here, so agreement is multiplied by the
    examples; ``--sentence-avg`` changes nothing.
    """
