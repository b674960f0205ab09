"""Training: flags that would train wrongly, gradients and averages, and exact resuming."""

import os
from argparse import Namespace
from functools import partial
from typing import Any

from torch import Tensor

from fairseq_diverse.attention.registry import MECHANISMS, active, own_names
from fairseq_diverse.checkpoints.averaging import HIGHER_IS_BETTER, LOWER_IS_BETTER
from fairseq_diverse.checkpoints.loading import dictionary_digests, other_dictionaries
from fairseq_diverse.host.dictionaries import digests_of
from fairseq_diverse.host.loading import State, after_reading
from fairseq_diverse.support.errors import UserError


def make_trainer(init: Any, self: Any, cfg: Any, *args: Any, **flags: Any) -> None:
    """As ``Trainer.__init__``; ``UserError`` for flags with which the wrong model is kept or none is trained."""
    metric, maximized = cfg.checkpoint.best_checkpoint_metric, cfg.checkpoint.maximize_best_checkpoint_metric
    if not maximized and HIGHER_IS_BETTER.fullmatch(metric):
        raise UserError(f"--best-checkpoint-metric {metric}: higher is better; add --maximize-best-checkpoint-metric")
    if maximized and LOWER_IS_BETTER.fullmatch(metric):
        raise UserError(f"--maximize-best-checkpoint-metric: lower is better for {metric}; leave it out")
    if metric == "bleu" and not getattr(cfg.task, "eval_bleu", True):
        raise UserError("--best-checkpoint-metric bleu: add --eval-bleu, which computes it")
    if getattr(cfg.lr_scheduler, "_name", "") == "inverse_sqrt" and not cfg.lr_scheduler.warmup_updates:
        raise UserError("--warmup-updates 0: --lr-scheduler inverse_sqrt needs at least 1")
    if cfg.ema.store_ema and (cfg.common.fp16 or cfg.common.bf16) and not cfg.ema.ema_fp32:
        raise UserError("--store-ema: half types lose such small steps; add --ema-fp32")
    init(self, cfg, *args, **flags)


def load_training(load: Any, self: Any, filename: str, *args: Any, **flags: Any) -> Any:
    """As ``Trainer.load_checkpoint``; ``--store-ema`` begins with the weights of a checkpoint that has no average.

    Raises:
        UserError: the checkpoint was trained with other dictionaries, or with other mechanisms and its optimizer is
            used; ``--restore-file`` is missing, except that of ``--save-dir``, which is absent in the first run of a
            script that resumes; validation does not compute ``--best-checkpoint-metric``.
    """
    goes_on = not (args[0] if args else flags.get("reset_optimizer", False))
    with after_reading(partial(_prepare_state, self, filename, goes_on)):
        loaded = load(self, filename, *args, **flags)
    flag, last = self.cfg.checkpoint.restore_file, os.path.join(self.cfg.checkpoint.save_dir, "checkpoint_last.pt")
    chosen = flag != "checkpoint_last.pt" and os.path.abspath(flag) != os.path.abspath(last)
    if chosen and not os.path.isfile(filename):
        raise UserError(f"--restore-file {flag}: no such file")
    metric = self.cfg.checkpoint.best_checkpoint_metric
    if not self.cfg.dataset.disable_validation and metric not in ("loss", "bleu"):
        _check_metric(self, metric)
    return loaded


def _prepare_state(trainer: Any, filename: str, goes_on: bool, state: State) -> None:
    """Compare the dictionaries and, where a training goes on, the mechanisms, some of which have no parameters; make
    the state what fairseq's trainer needs in all processes."""
    if difference := other_dictionaries(digests_of(trainer.task), dictionary_digests(state)):
        todo = "prepare them with the dictionaries of its training (--srcdict, --tgtdict)"
        raise UserError(f"{filename}: does not fit these data: {difference}; {todo}")
    before, now = (state.get("cfg") or {}).get("model"), trainer.cfg.model
    ours = hasattr(now, "evolving_on")  # no other model of fairseq
    if goes_on and ours and isinstance(before, Namespace) and state.get("last_optimizer_state"):
        was, has = (", ".join(_mechanisms(args)) or "no mechanism" for args in (before, now))
        if was != has:
            todo = "give another --save-dir and --finetune-from-model FILE, or add --reset-optimizer"
            raise UserError(f"{filename}: was trained with {was}, but this training has {has}: {todo}")
    if trainer.cfg.ema.store_ema:
        state["extra_state"].setdefault("ema", dict(state["model"]))
    state["cfg"] = None  # not used; other processes would unpickle OmegaConf's classes


def _mechanisms(args: Namespace) -> list[str]:
    """The flags of the mechanisms that a model has on, and the names of those that are not registered."""
    own = own_names(getattr(args, "own_mechanisms", None))
    return active(args) + [name for name in own if name not in MECHANISMS]


def _check_metric(trainer: Any, metric: str) -> None:
    """Raise ``UserError`` if the validation of one batch does not compute a metric."""
    from fairseq.logging import metrics

    trainer.begin_valid_epoch(1)
    batch = trainer.get_valid_iterator(trainer.cfg.dataset.valid_subset.split(",")[0]).first_batch
    with metrics.aggregate(new_root=True) as computed:
        trainer.valid_step(batch)
    names = computed.get_smoothed_values().keys()
    if metric not in names:
        known = ", ".join(sorted(names - {"bsz", "wpb", "wps"}))
        raise UserError(f"--best-checkpoint-metric {metric}: not computed in validation; give one of {known}")


def train_step(train_step: Any, self: Any, samples: list[Any], *args: Any, **flags: Any) -> Any:
    """As ``Trainer.train_step``, without the empty batches of a process at the end of an epoch.

    Raises:
        UserError: the gradients are not finite.
    """
    if not self.is_fsdp:  # whose processes need equal numbers of batches
        samples = [sample for sample in samples if sample is not None and len(sample)] or samples
    try:
        return train_step(self, samples, *args, **flags)
    except (FloatingPointError, StopIteration) as error:  # the latter of torch, where fairseq looks for the layer
        cause = error if isinstance(error, FloatingPointError) else error.__context__
        if not isinstance(cause, FloatingPointError) or "inconsistent between workers" in str(cause):
            raise
        advice = "lower --lr, or give more --warmup-updates or a --clip-norm"
        raise UserError(f"training diverged after {self.get_num_updates()} updates ({cause}); {advice}") from None


def step_amp(_: Any, self: Any) -> None:
    """``AMPOptimizer.step`` with the torch optimizer, whose gradients fairseq has unscaled to clip them.

    fairseq has its own wrapper stepped, which torch's ``GradScaler`` takes for another optimizer.
    """
    self.scaler.step(self.optimizer)
    self.scaler.update()


def start_average(init: Any, self: Any, model: Any, *args: Any, **flags: Any) -> None:
    """As ``EMA.__init__``; whole numbers are copied, not averaged."""
    init(self, model, *args, **flags)
    tensors = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    self.skip_keys |= {key for key, value in tensors.items() if not value.is_floating_point()}


def _copies(optimizer: Any) -> list[Tensor]:
    """The float32 copy of half-precision weights: one tensor per parameter, or one per device."""
    copies = optimizer.fp32_params
    return [copy.data for copy in (copies.values() if isinstance(copies, dict) else copies)]


def optimizer_state(state_dict: Any, self: Any) -> State:
    """As the half-precision ``state_dict``, with the float32 copy; fairseq without the plugin ignores it."""
    return {**state_dict(self), "fp32_params": _copies(self)}


def load_optimizer_state(load: Any, self: Any, state_dict: State, *args: Any, **flags: Any) -> None:
    """As the half-precision ``load_state_dict``; the copy is used if it rounds to the weights of the model."""
    load(self, {key: value for key, value in state_dict.items() if key != "fp32_params"}, *args, **flags)
    half = self.fp16_params[0].dtype
    for rounded, saved in zip(_copies(self), state_dict.get("fp32_params", ()), strict=False):
        if saved.to(rounded.device, half).float().equal(rounded):
            rounded.copy_(saved)


def predictions_are_summed(_: Any, self: Any) -> bool:
    """Whether logging outputs can be summed over processes: not if they hold lists of predictions."""
    return not self.keep_pred_and_targ
