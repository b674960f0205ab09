"""Attention diversity for neural machine translation: a fairseq plugin.

``--user-dir fairseq_diverse`` imports this package, which registers its models, criterions and tasks with fairseq and
the globals that fairseq's checkpoints hold with torch.
"""

import sys

__version__ = "0.1.0"


def register() -> None:
    """Register everything with fairseq and torch; idempotent."""
    from fairseq_diverse.checkpoints.loading import register_safe_globals
    from fairseq_diverse.checkpoints.resuming import keep_batches_when_resumed, keep_precision_when_resumed
    from fairseq_diverse.criterions import classification, label_smoothed_cross_entropy_with_disagreement  # noqa: F401
    from fairseq_diverse.metrics import fairseq_scorers as scoring  # noqa: F401
    from fairseq_diverse.models import architectures  # noqa: F401
    from fairseq_diverse.support.errors import refuse_positions_that_were_not_learned, show_user_errors_in_one_line
    from fairseq_diverse.tasks import logical_inference, sentence_probing, translation_with_syntax  # noqa: F401

    register_safe_globals()
    keep_batches_when_resumed()
    keep_precision_when_resumed()
    show_user_errors_in_one_line()
    refuse_positions_that_were_not_learned()


# Without fairseq the attention core works all the same.
if sys.modules.get("fairseq") is not None:
    register()
