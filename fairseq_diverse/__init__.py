"""Attention diversity for neural machine translation: a fairseq plugin.

``--user-dir fairseq_diverse`` imports this package. It registers its models, criterions and tasks with fairseq, and the
classes in fairseq's checkpoints with torch.
"""

import sys

__version__ = "0.1.0"


def register() -> None:
    """Register everything with fairseq and torch; idempotent."""
    from fairseq_diverse.checkpoints.dictionaries import keep_dictionaries
    from fairseq_diverse.checkpoints.loading import register_safe_globals
    from fairseq_diverse.checkpoints.resuming import keep_batches_when_resumed, keep_precision_when_resumed
    from fairseq_diverse.criterions import (  # noqa: F401
        classification,
        label_smoothed_cross_entropy_with_disagreement,
        language_model,
    )
    from fairseq_diverse.criterions.gathering import gather_predictions
    from fairseq_diverse.models import architectures  # noqa: F401
    from fairseq_diverse.support.errors import check_learned_positions, install_error_hook
    from fairseq_diverse.support.faults import (
        align_fewer_than_the_beam,
        average_weights_from_the_start,
        block_repeated_ngrams,
        check_before_training,
        combine_without_upsampling,
        count_whole_updates,
        diversify_by_sentence,
        read_all_targets,
        read_cached_data_anywhere,
        refuse_empty_data,
        refuse_ignored_flags,
        refuse_missing_constraints,
        refuse_wrong_searches,
        refuse_wrong_trainings,
        unscale_amp_once,
    )
    from fairseq_diverse.support.logs import log_batches_once
    from fairseq_diverse.tasks import logical_inference, sentence_probing, translation_with_syntax  # noqa: F401

    register_safe_globals()
    keep_dictionaries()
    keep_batches_when_resumed()
    keep_precision_when_resumed()
    unscale_amp_once()
    average_weights_from_the_start()
    count_whole_updates()
    check_before_training()
    refuse_wrong_trainings()
    refuse_empty_data()
    combine_without_upsampling()
    read_cached_data_anywhere()
    diversify_by_sentence()
    read_all_targets()
    align_fewer_than_the_beam()
    block_repeated_ngrams()
    refuse_missing_constraints()
    refuse_wrong_searches()
    refuse_ignored_flags()
    gather_predictions()
    install_error_hook()
    check_learned_positions()
    log_batches_once()


# The attention core works without fairseq.
if sys.modules.get("fairseq") is not None:
    register()
