"""Every change to fairseq, in one table; ``register`` applies it, and ``docs/host.md`` shows it."""

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairseq_diverse.host import batches, decoding, dictionaries, loading, training

EVERYBODY, ISSUES = "everybody", "https://github.com/facebookresearch/fairseq/issues/"


@dataclass(frozen=True)
class Change:
    """A function of fairseq that is replaced.

    Args:
        place: its name, with module and class.
        replacement: gets the function that was there, and then its arguments.
        without: what goes wrong without the change.
        users: who needs it: flags, or everybody.
        tests: tests that fail without it.
        report: number of the issue of fairseq, if there is one.
    """

    place: str
    replacement: Callable[..., Any]
    without: str
    users: str
    tests: str
    report: int | None = None

    @property
    def row(self) -> str:
        """The row of the table in ``docs/host.md``."""
        report = f" ([#{self.report}]({ISSUES}{self.report}))" if self.report else ""
        return f"| `{self.place}` | {self.without}{report} | {self.users} | {self.tests} |"


CHANGES = (
    Change(
        "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
        loading.load_to_cpu,
        "no checkpoint of fairseq loads under torch's `weights_only`; settings in it are evaluated",
        EVERYBODY,
        "test_fairseq_loads_through_the_same_checks",
        5610,
    ),
    Change(
        "fairseq.checkpoint_utils.load_model_ensemble_and_task",
        loading.load_ensemble,
        "files named in a checkpoint are read; the other direction is translated; parameters that are missing are "
        "drawn; errors do not name the file",
        EVERYBODY,
        "test_fairseq_reads_no_file_to_initialize_loaded_parameters, test_the_other_direction_is_refused",
    ),
    Change(
        "fairseq.options.parse_args_and_arch",
        loading.parse_args,
        "a flag that is no literal, as `--adam-betas 0.9,x`, is run as Python or ends in a stack trace",
        "rows of tables, `--adam-betas` and other flags",
        "test_flags_that_fairseq_evaluates_are_literals",
    ),
    Change(
        "fairseq.tasks.fairseq_task.FairseqTask.state_dict",
        dictionaries.task_state,
        "a checkpoint has no digest of its dictionaries",
        EVERYBODY,
        "test_other_dictionaries_of_the_same_size_are_refused",
    ),
    Change(
        "fairseq.tasks.fairseq_task.FairseqTask.load_state_dict",
        dictionaries.load_task_state,
        "a model translates nonsense with other dictionaries of the same size",
        EVERYBODY,
        "test_other_dictionaries_of_the_same_size_are_refused",
    ),
    Change(
        "fairseq.tasks.fairseq_task.FairseqTask.get_batch_iterator",
        batches.batch_iterator,
        "a resumed epoch has other batches than the interrupted one",
        "resumed training",
        "test_killed_and_resumed_gives_the_same_losses",
    ),
    Change(
        "fairseq.tasks.fairseq_task.FairseqTask.filter_indices_by_size",
        batches.short_enough,
        "data of which no sentence is short enough end in an IndexError",
        "`--max-source-positions`, `--max-tokens`",
        "test_impossible_flags_of_decoding_are_one_line",
    ),
    Change(
        "fairseq.tasks.translation.TranslationTask.__init__",
        batches.translation_task,
        "`train` and `train1` cannot be combined with the default of `--upsample-primary`",
        "data in several parts",
        "test_train1_and_valid1_without_upsampling",
        3644,
    ),
    Change(
        "fairseq.modules.learned_positional_embedding.LearnedPositionalEmbedding.forward",
        batches.learned_positions,
        "a sentence that is too long is an error of an index that does not name its length",
        "language models, `--encoder-learned-pos`",
        "test_a_sentence_beyond_the_learned_positions_is_one_line",
    ),
    Change(
        "fairseq.trainer.Trainer.__init__",
        training.make_trainer,
        "the worst checkpoint is kept as the best with a metric that is maximized; half types lose the steps of "
        "`--store-ema`",
        "`--best-checkpoint-metric`, `--store-ema`, `--warmup-updates 0`",
        "test_flags_that_fairseq_trains_wrong_with_are_refused",
    ),
    Change(
        "fairseq.trainer.Trainer.load_checkpoint",
        training.load_training,
        "training goes on with other dictionaries, or anew if `--restore-file` is missing; `--store-ema` fails with a "
        "checkpoint that has no average; a metric that validation does not compute is a KeyError after the first one",
        "`--restore-file`, `--finetune-from-model`, `--store-ema`, `--best-checkpoint-metric`",
        "test_training_goes_on_with_the_same_dictionaries_only, "
        "test_an_average_starts_from_weights_and_copies_whole_numbers, "
        "test_flags_that_fairseq_trains_wrong_with_are_refused, test_resume_in_two_processes_and_then_in_one",
        3881,
    ),
    Change(
        "fairseq.trainer.Trainer.train_step",
        training.train_step,
        "the sum of the gradients is divided by too small a number if a process has an empty batch",
        "`--update-freq` in several processes",
        "test_an_incomplete_update_in_two_processes_equals_that_of_one",
    ),
    Change(
        "fairseq.models.ema.ema.EMA.__init__",
        training.start_average,
        "whole numbers, such as buffers of mechanisms, are multiplied by the decay: a RuntimeError",
        "`--store-ema` with differential attention",
        "test_an_average_starts_from_weights_and_copies_whole_numbers",
    ),
    Change(
        "fairseq.optim.amp_optimizer.AMPOptimizer.step",
        training.step_amp,
        "gradients are divided by the loss scale twice, by 128 at first and by more later",
        "`--amp`",
        "test_amp_divides_gradients_by_the_loss_scale_once",
    ),
    Change(
        "fairseq.optim.fp16_optimizer._FP16OptimizerMixin.state_dict",
        training.optimizer_state,
        "the float32 weights of a half-precision training are not saved",
        "resumed training with `--fp16` or `--bf16`",
        "test_resumed_half_precision_has_the_trained_weights",
    ),
    Change(
        "fairseq.optim.fp16_optimizer._FP16OptimizerMixin.load_state_dict",
        training.load_optimizer_state,
        "a resumed training starts from rounded weights",
        "resumed training with `--fp16` or `--bf16`",
        "test_resumed_half_precision_has_the_trained_weights",
    ),
    Change(
        "fairseq.criterions.sentence_prediction.SentencePredictionCriterion.logging_outputs_can_be_summed",
        training.predictions_are_summed,
        "lists of predictions are summed over processes: a TypeError",
        "`--report-mcc` and similar flags in several processes",
        "test_predictions_are_not_summed_over_processes",
    ),
    Change(
        "fairseq.ngram_repeat_block.NGramRepeatBlock._no_repeat_ngram",
        decoding.block_repeated,
        "n-grams are repeated if fairseq's CUDA extension is not built, as in wheels",
        "`--no-repeat-ngram-size`",
        "test_no_ngram_is_repeated_after_a_prefix",
        5206,
    ),
)


def apply_changes() -> None:
    """Replace the functions in ``CHANGES``; idempotent."""
    for change in CHANGES:
        owner, _, name = change.place.rpartition(".")
        place, original = pkgutil.resolve_name(owner), pkgutil.resolve_name(change.place)
        if not hasattr(original, "replaced_by"):
            setattr(place, name, _bound(original, change.replacement))


def _bound(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replaced(*args: Any, **flags: Any) -> Any:
        return replacement(original, *args, **flags)

    replaced.replaced_by = replacement  # type: ignore[attr-defined]
    return replaced
