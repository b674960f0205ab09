"""Every function of fairseq that is replaced; ``docs/host.md`` says why, for whom, and which tests need it."""

import functools
import pkgutil
from collections.abc import Callable
from typing import Any

from fairseq_diverse.host import batches, dictionaries, files, graphs, graphs_decoding, loading, training

PREDICTION = "fairseq.criterions.sentence_prediction.SentencePredictionCriterion"

# place -> what is called instead, with the function that was there and then its arguments
CHANGES: dict[str, Callable[..., Any]] = {
    "fairseq.checkpoint_utils.load_checkpoint_to_cpu": loading.load_to_cpu,
    "fairseq.checkpoint_utils.load_model_ensemble_and_task": loading.load_ensemble,
    "fairseq.options.parse_args_and_arch": loading.parse_args,
    "fairseq.data.dictionary.Dictionary.add_from_file": files.read_words,
    "fairseq.data.indexed_dataset.make_dataset": files.open_data,
    "fairseq.data.language_pair_dataset.LanguagePairDataset.__init__": files.pair_sides,
    "fairseq.data.language_pair_dataset.LanguagePairDataset.collater": batches.collate,
    "fairseq.utils.parse_embedding": files.read_embeddings,
    "fairseq.utils.load_embedding": files.put_embeddings,
    "fairseq.tasks.fairseq_task.FairseqTask.state_dict": dictionaries.task_state,
    "fairseq.tasks.fairseq_task.FairseqTask.load_state_dict": dictionaries.load_task_state,
    "fairseq.tasks.fairseq_task.FairseqTask.get_batch_iterator": batches.batch_iterator,
    "fairseq.tasks.fairseq_task.FairseqTask.filter_indices_by_size": batches.short_enough,
    "fairseq.tasks.fairseq_task.FairseqTask.train_step": graphs.train_step,
    "fairseq.tasks.translation.TranslationTask.__init__": batches.translation_task,
    "fairseq.modules.learned_positional_embedding.LearnedPositionalEmbedding.forward": batches.learned_positions,
    "fairseq.trainer.Trainer.__init__": training.make_trainer,
    "fairseq.trainer.Trainer.load_checkpoint": training.load_training,
    "fairseq.trainer.Trainer.train_step": training.train_step,
    "fairseq.models.ema.ema.EMA.__init__": training.start_average,
    "fairseq.optim.amp_optimizer.AMPOptimizer.step": training.step_amp,
    "fairseq.optim.fp16_optimizer._FP16OptimizerMixin.state_dict": training.optimizer_state,
    "fairseq.optim.fp16_optimizer._FP16OptimizerMixin.load_state_dict": training.load_optimizer_state,
    f"{PREDICTION}.logging_outputs_can_be_summed": training.predictions_are_summed,
    "fairseq.sequence_generator.SequenceGenerator.generate": graphs_decoding.generate,
    "fairseq.ngram_repeat_block.NGramRepeatBlock._no_repeat_ngram": batches.block_repeated,
}


def apply_changes() -> None:
    """Replace the functions in ``CHANGES``; idempotent."""
    for place, replacement in CHANGES.items():
        owner, _, name = place.rpartition(".")
        original = pkgutil.resolve_name(place)
        if not hasattr(original, "replaced_by"):
            setattr(pkgutil.resolve_name(owner), name, _bound(original, replacement))


def _bound(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replaced(*args: Any, **flags: Any) -> Any:
        return replacement(original, *args, **flags)

    replaced.replaced_by = replacement  # type: ignore[attr-defined]
    return replaced
