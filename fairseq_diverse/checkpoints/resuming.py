"""Exact resuming: a resumed training has the same batches and weights as an uninterrupted one.

fairseq-fixed makes the batches once, in a random order seeded by ``seed + epoch`` of the epoch in which the process
started. A process that resumes in epoch 3 would have other batches than an uninterrupted one, with some pairs twice and
others not at all in that epoch; fairseq itself (0.12.2) uses ``seed`` only.

In half precision, fairseq trains a float32 copy of the weights but does not save it, so resuming would start from
rounded weights.
"""

from typing import Any

from fairseq_diverse.support.patching import patch


def keep_batches_when_resumed() -> None:
    """Make the batches that fairseq keeps for all epochs with the seed of the first epoch. Idempotent.

    Uninterrupted training does not change, nor do batches that are made again for every epoch.
    """
    from fairseq.tasks import FairseqTask

    patch(FairseqTask, "get_batch_iterator", _from_first_epoch)


def _from_first_epoch(make: Any, self: Any, dataset: Any, *args: Any, epoch: int = 1, **flags: Any) -> Any:
    anew = flags.get("disable_iterator_cache") or flags.get("update_epoch_batch_itr")
    kept = not (anew or getattr(self.cfg, "rebuild_batches", False)) and self.can_reuse_epoch_itr(dataset)
    if not kept or dataset in self.dataset_to_epoch_iter:
        return make(self, dataset, *args, epoch=epoch, **flags)
    iterator = make(self, dataset, *args, epoch=1, **flags)
    dataset.set_epoch(epoch)
    iterator.epoch = max(epoch, 1)
    return iterator


def keep_precision_when_resumed() -> None:
    """Save the float32 copy of half-precision weights with the optimizer's state. Idempotent.

    It is loaded if it rounds to the weights of the model. fairseq without the plugin ignores it.
    """
    from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin as Optimizer

    patch(Optimizer, "state_dict", _with_copy)
    patch(Optimizer, "load_state_dict", _from_copy)


def _copies(optimizer: Any) -> list[Any]:
    """The float32 copy: one tensor per parameter, or one per device."""
    copies = optimizer.fp32_params
    return [copy.data for copy in (copies.values() if isinstance(copies, dict) else copies)]


def _with_copy(state_dict: Any, self: Any) -> dict[str, Any]:
    return {**state_dict(self), "fp32_params": _copies(self)}


def _from_copy(load: Any, self: Any, state_dict: dict[str, Any], *args: Any, **flags: Any) -> None:
    load(self, {key: value for key, value in state_dict.items() if key != "fp32_params"}, *args, **flags)
    half = self.fp16_params[0].dtype
    for rounded, saved in zip(_copies(self), state_dict.get("fp32_params", ()), strict=False):
        if saved.to(rounded.device, half).float().equal(rounded):
            rounded.copy_(saved)
