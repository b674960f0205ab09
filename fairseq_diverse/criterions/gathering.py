"""Validation with predictions in several processes.

With ``--report-mcc``, ``--report-acc-and-f1`` or ``--report-pearson-and-spearman``, fairseq's criterion of sentence
prediction logs lists of predictions, but says that its logging outputs can be summed over processes: TypeError.
"""

import functools
from typing import Any

import torch


def gather_predictions() -> None:
    """Let fairseq gather logging outputs that hold predictions, on CPUs too. Idempotent."""
    from fairseq.criterions.sentence_prediction import SentencePredictionCriterion
    from fairseq.distributed import utils as distributed_utils

    SentencePredictionCriterion.logging_outputs_can_be_summed = _holds_no_predictions
    if not hasattr(distributed_utils.all_gather_list, "__wrapped__"):
        distributed_utils.all_gather_list = _without_cuda(distributed_utils.all_gather_list)


def _holds_no_predictions(criterion: Any) -> bool:
    return not criterion.keep_pred_and_targ


def _without_cuda(gather: Any) -> Any:
    """fairseq's ``all_gather_list``, which needs a CUDA device."""

    @functools.wraps(gather)
    def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
        if torch.cuda.is_available():
            return gather(data, group, max_size)
        gathered: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(gathered, data, group)
        return gathered

    return all_gather_list
