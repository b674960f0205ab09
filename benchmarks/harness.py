"""Two sides measured alternately in one process, and the confidence interval of their ratio."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Sample = Callable[[], float]

LEVEL = 0.95


def alternate(
    make_ours: Callable[[], Sample],
    make_reference: Callable[[], Sample],
    pairs: int,
    warm_up: int = 0,
    blocks: int = 1,
    done: Callable[[], object] = lambda: None,
) -> list[tuple[float, float]]:
    """(ours, reference) of each pair.

    The order alternates from pair to pair, so that drift affects both sides equally. Both are created again for every
    block, in alternating order: the position of a model in memory changes its speed by 1-2% on a CPU.

    Args:
        warm_up: samples of each side that are discarded at the start of a block.
        done: called after each pair.
    """
    samples = []
    for block in range(blocks):
        if block % 2:
            reference = make_reference()
            ours = make_ours()
        else:
            ours = make_ours()
            reference = make_reference()
        for _ in range(warm_up):
            ours()
            reference()
        for pair in range(pairs * block // blocks, pairs * (block + 1) // blocks):
            if pair % 2:
                theirs = reference()
                samples.append((ours(), theirs))
            else:
                samples.append((ours(), reference()))
            done()
        del ours, reference  # before the next ones are created
    return samples


class Interval(NamedTuple):
    """A confidence interval and its exact coverage."""

    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float]) -> Interval:
    """Distribution-free interval of the median: from the k-th smallest to the k-th largest of n values.

        coverage = 1 - 2 P(Binomial(n, 1/2) < k),  k the largest with coverage >= 0.95

    Source: order statistics (the sign test inverted). Fewer than 6 values cannot reach 0.95: the interval is then from
    the smallest to the largest value, with its ``coverage``.
    """
    ordered, n = sorted(values), len(values)
    tails = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n // 2 + 2)]  # P(Binomial < k)
    k = max(1, *(k for k, tail in enumerate(tails) if 1 - 2 * tail >= LEVEL))
    return Interval(ordered[k - 1], ordered[n - k], max(0.0, 1 - 2 * tails[k]))


def timed(action: Callable[[], object], device: str) -> Sample:
    """A sample: the seconds of ``action`` by ``clock``; a CUDA device is synchronized before and after."""
    now = getattr(time, clock(device))
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None

    def sample() -> float:
        finish()
        start = now()
        action()
        finish()
        return now() - start

    return sample


def clock(device: str) -> str:
    """``process_time`` for one CPU thread (less affected by other processes), else ``perf_counter``."""
    return "process_time" if device == "cpu" and torch.get_num_threads() == 1 else "perf_counter"


def kept_for_backward(forward: Callable[[], Tensor], model: nn.Module | None = None) -> float:
    """Bytes that autograd saves in a forward pass for the backward pass.

    Every storage counts once, whatever its number of views; parameters and buffers of the model do not count. Tensors
    that a custom function stores without ``save_for_backward`` are not counted.
    """
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # a reference, so that its address is not used again
        return storage.data_ptr()

    def unpack(address: int) -> Tensor:
        raise RuntimeError("this graph is only for counting")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        forward()
    own = [] if model is None else [*model.parameters(), *model.buffers()]
    addresses = {tensor.untyped_storage().data_ptr() for tensor in own}
    return sum(storage.nbytes() for address, storage in kept.items() if address not in addresses)


def peak_of_cuda(make_step: Callable[[], Callable[[], object]]) -> float:
    """Peak bytes on the CUDA device during a step, including everything that ``make_step`` builds."""
    before = torch.cuda.memory_allocated()
    step = make_step()
    step()  # the first step also creates the optimizer's state
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before
