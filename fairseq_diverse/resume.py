"""Training that is resumed in a later epoch goes on with the batches that it had.

fairseq-fixed makes the batches once, in a random order drawn from ``seed + epoch`` of the epoch in which the process
started. A process that resumes in epoch 3 would hence go on with other batches than one that was never interrupted, and
see some pairs twice and others not at all in that epoch; fairseq itself (0.12.2) draws from ``seed`` alone.
"""

import functools
from typing import Any


def keep_batches_when_resumed() -> None:
    """Make batches that are kept for all epochs as the first epoch does; called again, it changes nothing.

    Training that is not interrupted stays as it is, and so do batches that are made anew for every epoch.
    """
    from fairseq.tasks import FairseqTask

    if not hasattr(FairseqTask.get_batch_iterator, "__wrapped__"):
        FairseqTask.get_batch_iterator = _from_first_epoch(FairseqTask.get_batch_iterator)


def _from_first_epoch(make: Any) -> Any:
    @functools.wraps(make)
    def get_batch_iterator(self: Any, dataset: Any, *args: Any, epoch: int = 1, **flags: Any) -> Any:
        anew = flags.get("disable_iterator_cache") or flags.get("update_epoch_batch_itr")
        kept = not (anew or getattr(self.cfg, "rebuild_batches", False)) and self.can_reuse_epoch_itr(dataset)
        if not kept or dataset in self.dataset_to_epoch_iter:
            return make(self, dataset, *args, epoch=epoch, **flags)
        iterator = make(self, dataset, *args, epoch=1, **flags)
        dataset.set_epoch(epoch)
        iterator.epoch = max(epoch, 1)
        return iterator

    return get_batch_iterator
