"""Validation with predictions.

With ``--report-mcc``, ``--report-acc-and-f1`` or ``--report-pearson-and-spearman``, fairseq's criterion of sentence
prediction logs lists of predictions, but says that its logging outputs can be summed over processes: TypeError. Labels
that are no numbers are a ValueError after the first epoch, and several classes of scores a RuntimeError.
"""

import re
from typing import Any

import torch

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.patching import patch


def gather_predictions() -> None:
    """Let fairseq gather logging outputs that hold predictions, on CPUs too, and check the labels. Idempotent."""
    from fairseq.criterions.sentence_prediction import SentencePredictionCriterion
    from fairseq.distributed import utils as distributed_utils

    SentencePredictionCriterion.logging_outputs_can_be_summed = _holds_no_predictions
    patch(SentencePredictionCriterion, "__init__", _with_numbers_as_labels)
    patch(distributed_utils, "all_gather_list", _without_cuda)


def _holds_no_predictions(criterion: Any) -> bool:
    return not criterion.keep_pred_and_targ


def _with_numbers_as_labels(init: Any, self: Any, cfg: Any, task: Any) -> None:
    init(self, cfg, task)
    if self.regression_target and (classes := getattr(task.cfg, "num_classes", 1)) != 1:
        raise UserError(f"--num-classes {classes}: must be 1 with --regression-target")
    if not self.keep_pred_and_targ or self.regression_target:
        return
    labels = self.label_dict.symbols[self.label_dict.nspecial :]
    known = re.compile("[0-9]+|madeupword.*|<mask>")  # fairseq adds symbols of its own
    if wrong := [label for label in labels if not known.fullmatch(label)]:
        raise UserError(
            f"--report-mcc, --report-acc-and-f1: for the labels 0, 1, ...; label/dict.txt has {wrong[0]!r}; leave "
            "them out: the accuracy is shown anyway"
        )


def _without_cuda(gather: Any, data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """fairseq's ``all_gather_list``, which needs a CUDA device."""
    if torch.cuda.is_available():
        return gather(data, group, max_size)
    gathered: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(gathered, data, group)
    return gathered
