"""Disagreement regularization of any criterion (Li et al., 2021, section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.logging import metrics

from fairseq_diverse.attention.placements import parse_placement
from fairseq_diverse.attention.plan import AttentionPlan
from fairseq_diverse.attention.request import AttentionRequest, parse_terms
from fairseq_diverse.criterions.observed import ObservedModel
from fairseq_diverse.support.errors import UserError

NOT_MEASURED = "--arch: disagreement needs a model that measures its heads, such as diverse_transformer"
TERMS_HELP = "terms to add to the loss, comma-separated: subspace, position, output, difference"
WEIGHT_HELP = (
    "weight of the terms (lambda in the paper), at least 0, of their mean over the components; or one for each "
    "component, such as encoder:1,cross:0.5,decoder:0.5, whose means are then added"
)
CENTRE_HELP = (
    "subtract each head's mean over the batch before computing cosines; for the subspace and output terms; not in the "
    "paper"
)


@dataclass
class DisagreementConfig:
    """Flags of the regularizer; the dataclass of a criterion inherits them."""

    disagreement: str = field(default="output", metadata={"help": TERMS_HELP})
    disagreement_on: str = field(
        default="encoder,cross,decoder", metadata={"help": "placement of disagreement regularization"}
    )
    disagreement_weight: str = field(default="1.0", metadata={"help": WEIGHT_HELP})
    disagreement_centre: bool = field(default=False, metadata={"help": CENTRE_HELP})


def parse_weights(text: str, components: Sequence[str]) -> dict[str, float] | None:
    """The weight of each component, such as ``encoder:1,cross:0.5``; None if the text is one number for all. Raises
    ``UserError``: a weight is not a number of at least 0, or the components are not those of ``--disagreement-on``."""
    parts = [part.strip().rpartition(":")[::2] for part in text.split(",")]
    try:
        numbers = [float(number) for _, number in parts]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= number < float("inf") for number in numbers):
        raise UserError(f"--disagreement-weight {text}: must be a number >= 0, or one for each component")
    if len(parts) == 1 and not parts[0][0]:
        return None
    if sorted(name for name, _ in parts) != sorted(components):
        wanted = f"give one weight for each component of --disagreement-on: {', '.join(components)}"
        raise UserError(f"--disagreement-weight {text}: {wanted}")
    return {name: number for (name, _), number in zip(parts, numbers, strict=True)}


class DisagreementMixin(FairseqCriterion):
    """Adds the regularizer to a criterion that calls ``model(**sample["net_input"])``.

        loss = likelihood + lambda * count * sum over terms of agreement

    ``agreement`` is the mean over components, and lambda one weight; with weights of each component, lambda is their
    sum, and the mean is weighted by them: together the weighted sum of the components' agreement.
    ``count`` is the number of terms in the likelihood's sum: target tokens, or examples for a classifier. lambda is
    therefore relative to the likelihood of one token, also with ``--sentence-avg``. Two exceptions:

    - A criterion that sums more terms than its ``sample_size``, such as fairseq's R-Drop, which reads each sentence
      twice: lambda has proportionally less weight.
    - A criterion that calls the model several times: only the agreement of the last call counts.

    In a class statement, put it before the criterion, and ``DisagreementConfig`` into the bases of the criterion's
    dataclass. The logged ``loss`` is the likelihood alone. Also logged are ``disagreement_<term>``, D of each term, in
    [-1, 0], of difference in [0, 2], and ``disagreement``, their unweighted sum.

    Source: Li et al. (2021), section 3.1, which maximises D = -agreement.

    Raises:
        UserError: when built, for an unknown term, a bad placement, a negative weight or a centred position term; at
            the first forward, for a layer out of range or a model that cannot measure its heads.
    """

    @classmethod
    def request_of(cls, cfg: Any) -> AttentionRequest:
        """The request for what the model must measure.

        Raises:
            UserError: as ``build_criterion``.
        """
        terms = parse_terms("--disagreement", cfg.disagreement)
        if not (on := parse_placement("--disagreement-on", cfg.disagreement_on)):
            raise UserError("--disagreement-on '': names no attention; choose another criterion to train without")
        # fairseq's alignment criterion reads the map that the decoder always makes; the others drop it
        reads_alignment = issubclass(cls, LabelSmoothedCrossEntropyCriterionWithAlignment)
        shares, centre = parse_weights(str(cfg.disagreement_weight), list(on)), cfg.disagreement_centre
        return AttentionRequest(terms, cfg.disagreement_on, centre=centre, alignment=reads_alignment, shares=shares)

    @classmethod
    def check_model(cls, cfg: Any, model: type, plan: AttentionPlan | None) -> None:
        """See that a model that is not built yet has what the criterion measures.

        Args:
            plan: of the model's mechanisms; None for a model that is not this package's.

        Raises:
            UserError: it has not, or a flag of the criterion has no such value.
        """
        if plan is not None:
            sizes = plan.components.items()
            layers, heads = ({name: getattr(of, size) for name, of in sizes} for size in ("layers", "heads"))
            cls.request_of(cfg).resolve(layers, heads)
        elif model.__module__.startswith("fairseq."):  # a user's own model may measure its heads
            raise UserError(NOT_MEASURED)

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> "DisagreementMixin":
        request = cls.request_of(cfg)
        criterion = super().build_criterion(cfg, task)
        criterion.request = request
        shares = request.shares
        criterion.disagreement_weight = float(cfg.disagreement_weight) if shares is None else sum(shares.values())
        return criterion

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, Any, dict[str, Any]]:
        observed = ObservedModel(model, attention_request=self.request)
        try:
            loss, sample_size, log = super().forward(observed, sample, reduce=reduce)
        except TypeError as error:
            if "attention_request" not in str(error):
                raise
            raise UserError(NOT_MEASURED) from None
        if observed.extra is None:
            raise UserError(f"--criterion {type(self).__name__}: this criterion does not call the model")
        if "agreement" not in observed.extra:  # fairseq's roberta ignores requests
            raise UserError(NOT_MEASURED)
        agreement = observed.extra["agreement"]  # (K,)
        if reduce:
            count = sample["ntokens"] if getattr(self, "sentence_avg", False) else sample_size
            loss = loss + self.disagreement_weight * count * agreement.sum()
        for term, figure in zip(self.request.terms, agreement.detach(), strict=True):
            log[f"disagreement_{term}"] = -figure * sample_size
        return loss, sample_size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        terms = [key for key in (logging_outputs[0] if logging_outputs else {}) if key.startswith("disagreement_")]
        values = {term: sum(log.get(term, 0) for log in logging_outputs) / sample_size for term in terms}
        if terms:
            values["disagreement"] = sum(values.values())
        for name, value in values.items():
            metrics.log_scalar(name, value, sample_size, round=4)
