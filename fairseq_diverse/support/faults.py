"""Faults of fairseq: flags that train or search something else than they say, and data that it fails to read."""

import os
import sys
from typing import Any

import torch
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.patching import patch


def unscale_amp_once() -> None:
    """Let --amp divide gradients by the loss scale once. Idempotent.

    fairseq unscales those of the torch optimizer to clip them, and then has its own wrapper stepped, which torch's
    ``GradScaler`` takes for another optimizer: the gradients were divided again, by 128 at first, by more later.
    """
    from fairseq.optim import AMPOptimizer

    patch(AMPOptimizer, "step", _step_of_torch)


def _step_of_torch(step: Any, self: Any) -> None:
    self.scaler.step(self.optimizer)
    self.scaler.update()


def count_whole_updates() -> None:
    """Let the last update of an epoch count all its batches, in several processes with --update-freq. Idempotent.

    Where the last batch of a process is empty, fairseq counts none of its others: the sum of the gradients was divided
    by too small a number.
    """
    from fairseq.trainer import Trainer

    patch(Trainer, "train_step", _without_empty_batches)


def _without_empty_batches(train_step: Any, self: Any, samples: list[Any], *args: Any, **flags: Any) -> Any:
    if not self.is_fsdp:  # whose processes need equal numbers of batches
        samples = [one for one in samples if one is not None and len(one)] or samples
    return train_step(self, samples, *args, **flags)


def average_weights_from_the_start() -> None:
    """Let --store-ema copy whole numbers, such as buffers of mechanisms, and begin with the weights of a checkpoint
    that has no average. Idempotent.

    fairseq multiplies every tensor by the decay, and reads the weights from a checkpoint that it has emptied.
    """
    from fairseq.models.ema.ema import EMA
    from fairseq.trainer import Trainer

    patch(EMA, "__init__", _skip_numbers)
    patch(Trainer, "load_checkpoint", _load_and_average)


def _skip_numbers(init: Any, self: Any, model: Any, *args: Any, **flags: Any) -> None:
    init(self, model, *args, **flags)
    tensors = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    self.skip_keys |= {key for key, value in tensors.items() if not value.is_floating_point()}


def _load_and_average(load: Any, self: Any, filename: str, *args: Any, **flags: Any) -> Any:
    from fairseq_diverse.checkpoints.loading import load_checkpoint

    ema = self.cfg.ema
    starts = ema.store_ema and os.path.isfile(filename)
    starts = starts and "ema" not in load_checkpoint(filename, mmap=True, verify=False).get("extra_state", {})
    if starts:
        ema.store_ema = False
    try:
        loaded = load(self, filename, *args, **flags)
    finally:
        ema.store_ema = ema.store_ema or starts
    if starts:
        self._ema = None
        self._build_ema()  # of the loaded model
    return loaded


def read_cached_data_anywhere() -> None:
    """Let data of --dataset-impl cached, once fairseq's default, be read before they are in memory. Idempotent.

    fairseq reads the first batch of a training before that, with a KeyError; so does `heads`, sentence by sentence.
    """
    from fairseq.data.indexed_dataset import IndexedCachedDataset

    patch(IndexedCachedDataset, "__getitem__", _fetch_first)


def _fetch_first(get: Any, self: Any, number: int) -> Any:
    if number not in self.cache_index:
        self.prefetch([number])
    return get(self, number)


def diversify_by_sentence() -> None:
    """Let --diverse-beam-groups keep the penalties of a sentence by its place in the batch. Idempotent.

    fairseq keeps them by its number in the data set: an IndexError, or the penalties of another sentence.
    """
    from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment

    patch(SequenceGenerator, "generate", _generate_without_numbers)
    patch(SequenceGeneratorWithAlignment, "generate", _generate_without_numbers)


def _generate_without_numbers(generate: Any, self: Any, models: Any, sample: Any, *args: Any, **flags: Any) -> Any:
    from fairseq.search import DiverseBeamSearch

    if isinstance(self.search, DiverseBeamSearch):
        sample = {key: value for key, value in sample.items() if key != "id"}
    return generate(self, models, sample, *args, **flags)


def align_fewer_than_the_beam() -> None:
    """Let --print-alignment work where fewer translations than the beam end, as with --constraints. Idempotent.

    fairseq takes the translation of another sentence then, or ends in an IndexError.
    """
    from fairseq.sequence_generator import SequenceGeneratorWithAlignment

    patch(SequenceGeneratorWithAlignment, "_prepare_batch_for_alignment", _fill_the_beam)
    patch(SequenceGeneratorWithAlignment, "generate", _generate_without_filling)


def _fill_the_beam(prepare: Any, self: Any, sample: Any, hypothesis: list[list[dict[str, Any]]]) -> Any:
    for found in hypothesis:
        found += [{**found[-1], "filling": True}] * (self.beam_size - len(found))
    return prepare(self, sample, hypothesis)


def _generate_without_filling(generate: Any, self: Any, *args: Any, **flags: Any) -> list[list[dict[str, Any]]]:
    return [[one for one in found if "filling" not in one] for found in generate(self, *args, **flags)]


def read_all_targets() -> None:
    """Let --score-reference and --prefix-size read what --left-pad-target pads on the left, and let an empty reference
    force no prefix. Idempotent.

    fairseq takes the padding for the first words, and forces the end before the first word: an AssertionError.
    """
    from fairseq.tasks import FairseqTask

    patch(FairseqTask, "inference_step", _infer_from_words)


def _infer_from_words(
    infer: Any, self: Any, generator: Any, models: Any, sample: Any, prefix_tokens: Any = None, **flags: Any
) -> Any:
    if getattr(self.cfg, "left_pad_target", False) and sample.get("target") is not None:
        order = sample["target"].eq(self.target_dictionary.pad()).int().argsort(dim=1, stable=True)
        read = {"prev_output_tokens": sample["net_input"]["prev_output_tokens"].gather(1, order)}
        sample = {**sample, "target": sample["target"].gather(1, order), "net_input": {**sample["net_input"], **read}}
        prefix_tokens = prefix_tokens if prefix_tokens is None else sample["target"][:, : prefix_tokens.size(1)]
    if prefix_tokens is not None:
        words = self.target_dictionary
        prefix_tokens = prefix_tokens.masked_fill(prefix_tokens[:, :1].eq(words.eos()), words.pad())
    return infer(self, generator, models, sample, prefix_tokens, **flags)


def block_repeated_ngrams() -> None:
    """Let --no-repeat-ngram-size block n-grams, except in a prefix that --prefix-size forces. Idempotent.

    Without its CUDA extension, fairseq compares them with the end of the buffer, which is empty until the last steps.
    """
    from fairseq import sequence_generator

    sequence_generator.NGramRepeatBlock = RepeatedNgrams


class RepeatedNgrams(NGramRepeatBlock):
    """A generator's search for n-grams; torch.jit.script can compile it, as fairseq's."""

    def _no_repeat_ngram(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        size = self.no_repeat_ngram_size
        if step < size:
            return lprobs
        written = tokens[:, 1 : step + 1]
        ngrams = written.unfold(1, size, 1)
        begun = (ngrams[:, :, :-1] == written[:, None, step + 1 - size :]).all(2)
        repeated = torch.zeros_like(lprobs).scatter_add(1, ngrams[:, :, -1], begun.to(lprobs)) > 0
        blocked = lprobs.masked_fill(repeated, float("-inf"))
        return blocked.where(blocked.isfinite().any(1, keepdim=True), lprobs)


def refuse_wrong_searches() -> None:
    """Make --lm-path end in one line where the language model numbers words otherwise than the targets, and
    --sampling-topk where there are fewer words. Idempotent.

    fairseq adds the scores of a language model by number: those of other words, or an error where the sizes differ.
    """
    from fairseq.sequence_generator import SequenceGenerator

    patch(SequenceGenerator, "__init__", _check_search)


def _check_search(
    init: Any, self: Any, models: Any, tgt_dict: Any, *args: Any, lm_model: Any = None, **flags: Any
) -> None:
    words = getattr(getattr(lm_model, "decoder", None), "dictionary", tgt_dict)
    if words.symbols != tgt_dict.symbols:
        raise UserError(
            "--lm-path: dict.txt in the data folder has other words than the target dictionary, or in another order; "
            "the language model must be trained with the target dictionary (fairseq-preprocess --srcdict)"
        )
    if (topk := getattr(flags.get("search_strategy"), "sampling_topk", 0)) > len(tgt_dict):
        raise UserError(f"--sampling-topk {topk}: the target dictionary has only {len(tgt_dict)} words")
    init(self, models, tgt_dict, *args, lm_model=lm_model, **flags)


def refuse_missing_constraints() -> None:
    """Make --constraints end in one line where no input has any, as with fairseq-generate. Idempotent."""
    from fairseq.search import LexicallyConstrainedBeamSearch

    patch(LexicallyConstrainedBeamSearch, "init_constraints", _check_constraints)


def _check_constraints(init: Any, self: Any, batch_constraints: Tensor | None, beam_size: int) -> None:
    if batch_constraints is None:
        raise UserError("--constraints: only fairseq-interactive reads them, from the lines of its input, after a tab")
    init(self, batch_constraints, beam_size)


def refuse_ignored_flags() -> None:
    """Make fairseq-interactive end in one line with flags that it would ignore or cannot print. Idempotent."""
    for name in ("fairseq_cli.interactive", "__main__"):
        program = sys.modules.get(name)
        if hasattr(program, "buffered_read"):
            patch(program, "main", _check_interactive)


def _check_interactive(main: Any, cfg: Any) -> None:
    given = getattr(cfg, "generation", cfg)
    for flag, ignored in (
        ("--lm-path", given.lm_path),
        ("--prefix-size", given.prefix_size),
        ("--score-reference", given.score_reference),
        ("--print-alignment soft", given.print_alignment == "soft"),
    ):
        if ignored:
            raise UserError(f"{flag}: not in fairseq-interactive; use fairseq-generate")
    main(cfg)


def combine_without_upsampling() -> None:
    """Let train and train1 be combined without --upsample-primary, and with --combine-val valid and valid1. Idempotent.

    fairseq's default, -1, fails there; valid is read before there is a trainer.
    """
    from fairseq.tasks.translation import TranslationTask

    patch(TranslationTask, "__init__", _upsample_by_one)


def _upsample_by_one(init: Any, self: Any, cfg: Any, *args: Any, **flags: Any) -> None:
    if getattr(cfg, "upsample_primary", None) == -1:
        cfg.upsample_primary = 1
    init(self, cfg, *args, **flags)


def refuse_empty_data() -> None:
    """Make data of which no sentence is short enough end in one line. Idempotent.

    fairseq makes no batches of them: an IndexError.
    """
    from fairseq.tasks import FairseqTask

    patch(FairseqTask, "filter_indices_by_size", _keep_some)


def _keep_some(keep: Any, self: Any, indices: Any, dataset: Any, max_positions: Any = None, *args: Any) -> Any:
    kept = keep(self, indices, dataset, max_positions, *args)
    if not len(kept):
        raise UserError(
            f"none of the {len(indices)} sentences is within the {max_positions} positions of model and task: raise "
            "--max-source-positions and --max-target-positions (--max-positions of a language model), or --max-tokens"
        )
    return kept


def check_before_training() -> None:
    """Make a training end in one line where --restore-file is missing, or the best checkpoint's metric is not computed.
    Idempotent.

    fairseq starts anew without the file, and ends in a KeyError after the first validation.
    """
    from fairseq.trainer import Trainer

    patch(Trainer, "load_checkpoint", _load_and_check)


def _load_and_check(load: Any, self: Any, filename: str, *args: Any, **flags: Any) -> Any:
    loaded = load(self, filename, *args, **flags)
    kept = self.cfg.checkpoint
    last = os.path.join(kept.save_dir, "checkpoint_last.pt")  # absent in the first run of a script that resumes
    asked = kept.restore_file != "checkpoint_last.pt" and os.path.abspath(kept.restore_file) != os.path.abspath(last)
    if asked and not PathManager.isfile(filename):
        raise UserError(f"--restore-file {kept.restore_file}: no such file")
    if not self.cfg.dataset.disable_validation and kept.best_checkpoint_metric not in ("loss", "bleu"):
        _check_metric(self, kept.best_checkpoint_metric)
    return loaded


def _check_metric(trainer: Any, metric: str) -> None:
    """Raise ``UserError`` if the validation of one batch does not compute a metric."""
    batch = trainer.get_valid_iterator(trainer.cfg.dataset.valid_subset.split(",")[0]).first_batch
    with metrics.aggregate(new_root=True) as computed:
        trainer.valid_step(batch)
    names = computed.get_smoothed_values().keys()
    if metric not in names:
        raise UserError(
            f"--best-checkpoint-metric {metric}: not computed in validation; give one of "
            f"{', '.join(sorted(names - {'bsz', 'wpb', 'wps'}))}"
        )


def refuse_wrong_trainings() -> None:
    """Make a training with flags that fairseq cannot combine end in one line before it starts. Idempotent."""
    from fairseq.trainer import Trainer

    patch(Trainer, "__init__", _check_first)


def _check_first(init: Any, self: Any, cfg: Any, task: Any, *args: Any, **flags: Any) -> None:
    check_training(cfg)
    init(self, cfg, task, *args, **flags)


def check_training(cfg: Any) -> None:
    """Raise ``UserError`` for flags with which fairseq trains with wrong weights or gradients, or keeps a wrong model.

    Args:
        cfg: of ``fairseq-train``.
    """
    from fairseq_diverse.checkpoints.averaging import HIGHER_IS_BETTER, LOWER_IS_BETTER

    metric, maximized = cfg.checkpoint.best_checkpoint_metric, cfg.checkpoint.maximize_best_checkpoint_metric
    if not maximized and HIGHER_IS_BETTER.fullmatch(metric):
        raise UserError(f"--best-checkpoint-metric {metric}: higher is better; add --maximize-best-checkpoint-metric")
    if maximized and LOWER_IS_BETTER.fullmatch(metric):
        raise UserError(f"--maximize-best-checkpoint-metric: lower is better for {metric}; leave it out")
    if metric == "bleu" and not getattr(cfg.task, "eval_bleu", True):
        raise UserError("--best-checkpoint-metric bleu: add --eval-bleu, which computes it")
    if getattr(cfg.lr_scheduler, "_name", "") == "inverse_sqrt" and not cfg.lr_scheduler.warmup_updates:
        raise UserError("--warmup-updates 0: --lr-scheduler inverse_sqrt needs at least 1")
    half = cfg.common.fp16 or cfg.common.bf16
    copied = half and not (cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16)
    if getattr(cfg.model, "quant_noise_pq", 0):
        if not copied:
            raise UserError(
                "--quant-noise-pq: fairseq writes the noise into the weights, and only the float32 copy of --fp16 or "
                "--bf16 restores them; add one of these"
            )
        if getattr(cfg.model, "checkpoint_activations", False):
            raise UserError(
                "--quant-noise-pq: does not work with --checkpoint-activations, which adds the noise a second time"
            )
    if cfg.ema.store_ema and half and not cfg.ema.ema_fp32:
        raise UserError("--store-ema: half types lose such small steps; add --ema-fp32")
