"""Two sides measured in turn in one process, and what the ratio of their samples is worth."""

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

    Who goes first changes from pair to pair, so that drift hits both alike. Both are made anew for every block, and who
    is made first changes too: where a model happens to lie in memory is worth 1-2% on a CPU.

    Args:
        warm_up: samples of each side at the start of a block that are thrown away.
        done: called after every pair.
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
        del ours, reference  # before the next are made
    return samples


class Interval(NamedTuple):
    """A confidence interval and the confidence that it really has."""

    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Distribution-free interval of the median: from the k-th smallest to the k-th largest of n values.

        coverage = 1 - 2 P(Binomial(n, 1/2) < k),  k the largest with coverage >= level

    Source: order statistics (the sign test inverted). With fewer than 6 values 0.95 is out of reach: the interval is
    then from the smallest to the largest, and ``coverage`` says what that is worth.
    """
    ordered, n = sorted(values), len(values)
    tails = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n // 2 + 2)]  # P(Binomial < k)
    k = max(1, *(k for k, tail in enumerate(tails) if 1 - 2 * tail >= level))
    return Interval(ordered[k - 1], ordered[n - k], max(0.0, 1 - 2 * tails[k]))


def timed(action: Callable[[], object], device: str) -> Sample:
    """A sample that is the seconds ``action`` takes by ``clock``; a CUDA device's queue is emptied before and after."""
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
    """``process_time`` for one CPU thread (what else runs on the machine disturbs it less), else ``perf_counter``."""
    return "process_time" if device == "cpu" and torch.get_num_threads() == 1 else "perf_counter"


def kept_for_backward(forward: Callable[[], Tensor], model: nn.Module | None = None) -> float:
    """Bytes that autograd keeps from a forward pass to its backward pass.

    Every storage counts once, however many views of it are kept; the model's own parameters and buffers do not count.
    What a custom function puts on its context without ``save_for_backward`` is not seen.
    """
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # holding it keeps its address from being used again
        return storage.data_ptr()

    def unpack(address: int) -> Tensor:
        raise RuntimeError("this graph is for counting only")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        forward()
    own = [] if model is None else [*model.parameters(), *model.buffers()]
    addresses = {tensor.untyped_storage().data_ptr() for tensor in own}
    return sum(storage.nbytes() for address, storage in kept.items() if address not in addresses)


def peak_of_cuda(make_step: Callable[[], Callable[[], object]]) -> float:
    """Peak bytes on the CUDA device while a step runs, with everything that ``make_step`` builds for it."""
    before = torch.cuda.memory_allocated()
    step = make_step()
    step()  # the first step also makes the optimizer's state
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before
