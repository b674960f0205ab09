"""The batches of a split that a model is measured on."""

from collections.abc import Iterator
from typing import Any

from fairseq_diverse.host.data import to_device


def evaluation_batches(model: Any, task: Any, split: str, max_tokens: int) -> Iterator[dict[str, Any]]:
    """fairseq's samples, every example once, on the model's device; the model is put in evaluation mode.

    Args:
        task: with the split loaded.
        max_tokens: per batch; a longer example is a separate batch.
    """
    model.eval()
    dataset = task.dataset(split)
    max_tokens = max(max_tokens, max(map(dataset.num_tokens, range(len(dataset)))))
    device = next(model.parameters()).device
    for sample in task.get_batch_iterator(dataset, max_tokens=max_tokens).next_epoch_itr(shuffle=False):
        yield to_device(sample, device.type == "cuda")
