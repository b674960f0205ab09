"""What classifiers predict for a split."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairseq_diverse.host.data import to_device
from fairseq_diverse.host.programs import generation_settings

ANSWER = 50  # subwords at most


def _batches(model: Any, task: Any, split: str, max_tokens: int) -> Iterator[dict[str, Any]]:
    """fairseq's samples, every example once, on the model's device; the model is put in evaluation mode."""
    model.eval()
    dataset = task.dataset(split)
    max_tokens = max(max_tokens, max(map(dataset.num_tokens, range(len(dataset)))))
    device = next(model.parameters()).device
    for sample in task.get_batch_iterator(dataset, max_tokens=max_tokens).next_epoch_itr(shuffle=False):
        yield to_device(sample, device.type == "cuda")


@torch.no_grad()
def classified(model: Any, task: Any, split: str, max_tokens: int, done: Callable[[int], object]) -> str:
    """1 for each example of a loaded split that is classified correctly, else 0. An example longer than ``max_tokens``
    is a batch of its own; ``done`` is called with the number of examples after each batch."""
    hits = ["0"] * len(task.dataset(split))
    for sample in _batches(model, task, split, max_tokens):
        predicted = model(**sample["net_input"])[0].argmax(-1)
        for i in sample["id"][predicted == sample["target"]].tolist():
            hits[i] = "1"
        done(sample["nsentences"])
    return "".join(hits)


@torch.no_grad()
def predict(
    model: Any, task: Any, split: str, max_tokens: int, done: Callable[[int], object]
) -> tuple[list[float], list[float]]:
    """The number of the most likely class of every example of a split, or its predicted value, and the targets, which
    are empty where the split has none; arguments as of `classified`, for fairseq's ``sentence_prediction``."""
    examples = len(task.dataset(split))
    predictions, targets, labelled = [0.0] * examples, [0.0] * examples, True
    for sample in _batches(model, task, split, max_tokens):
        head = task.cfg.classification_head_name
        logits = model(**sample["net_input"], features_only=True, classification_head_name=head)[0].float()
        values = logits.view(-1) if task.cfg.regression_target else logits.argmax(-1)
        labelled = "target" in sample
        labels = sample["target"].view(-1) if labelled else values
        for i, value, target in zip(sample["id"].tolist(), values.tolist(), labels.tolist(), strict=True):
            predictions[i], targets[i] = value, target
        done(len(values))
    return predictions, targets if labelled else []


@torch.no_grad()
def answers(model: Any, task: Any, split: str, max_tokens: int, done: Callable[[int], object]) -> list[str]:
    """The subwords that a model of text to text writes for each example of a split, by greedy decoding; arguments as of
    `classified`."""
    generator = task.build_generator([model], generation_settings(beam=1, max_len_b=ANSWER))
    lines = [""] * len(task.dataset(split))
    for sample in _batches(model, task, split, max_tokens):
        written = task.inference_step(generator, [model], sample)
        for number, (best, *_) in zip(sample["id"].tolist(), written, strict=True):
            lines[number] = task.target_dictionary.string(best["tokens"])
        done(sample["nsentences"])
    return lines
