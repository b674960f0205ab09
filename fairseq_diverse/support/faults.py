"""Combinations of fairseq's flags that train something else than they say, without an error: corrected or refused."""

import functools
from typing import Any

from fairseq_diverse.support.errors import UserError


def unscale_amp_once() -> None:
    """Let --amp divide gradients by the loss scale once. Idempotent.

    fairseq unscales those of the torch optimizer to clip them, and then has its own wrapper stepped, which torch's
    ``GradScaler`` takes for another optimizer: the gradients were divided again, by 128 at first, by more later.
    """
    from fairseq.optim import AMPOptimizer

    if not hasattr(AMPOptimizer.step, "__wrapped__"):
        AMPOptimizer.step = _of_torch(AMPOptimizer.step)


def _of_torch(step: Any) -> Any:
    @functools.wraps(step)
    def of_torch(self: Any) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    return of_torch


def refuse_wrong_trainings() -> None:
    """Make a training with flags that fairseq cannot combine end in one line before it starts. Idempotent."""
    from fairseq.trainer import Trainer

    if not hasattr(Trainer.__init__, "__wrapped__"):
        Trainer.__init__ = _checked(Trainer.__init__)


def _checked(init: Any) -> Any:
    @functools.wraps(init)
    def checked(self: Any, cfg: Any, *args: Any, **flags: Any) -> None:
        check_training(cfg)
        init(self, cfg, *args, **flags)

    return checked


def check_training(cfg: Any) -> None:
    """Raise ``UserError`` for flags with which fairseq trains with wrong weights or gradients.

    Args:
        cfg: of ``fairseq-train``.
    """
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
