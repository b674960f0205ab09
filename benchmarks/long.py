"""``python -m benchmarks.long``: a training step with long sentences, with and without --recompute-maps."""

import argparse
import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from benchmarks import gpu_rows, sides

SIZE = sides.Size(2, 256, 512, 4, 200, sentences=1, steps=1)
NAMES = ("off", "talking", "relative", "evolving", "localness", "differential", "interacting sum")


class _Peak(TorchDispatchMode):
    """The most bytes of operators' results that live at a time, from when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.now, self.peak = dict[int, int](), 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(made) if isinstance(x, Tensor)):
            if storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, storage._cdata)
        return made

    def _gone(self, storage: int) -> None:
        self.now -= self.live.pop(storage)


def peak(step: Callable[[], Tensor]) -> int:
    """Bytes at the peak of forward and backward, without parameters and their gradients."""
    step().backward()
    with _Peak() as seen:
        step().backward()
    return seen.peak


def step_of(name: str, recomputes: bool, length: int) -> Callable[[], Tensor]:
    """The forward pass of a training step on one pair of sentences; the mechanism wherever it is defined."""
    places = ",".join(gpu_rows.components(gpu_rows.VARIANTS[name])) if name != "off" else ""
    flags = gpu_rows.placed(name, places) if places else {}
    side = sides.Side(flags={**flags, "recompute_maps": recomputes})
    size = replace(SIZE, tokens=length, length=length)
    return sides.likelihood(side, size, sides.build_model(side, size), "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024], help="words of a sentence")
    parser.add_argument("--pairs", type=int, default=10, help="steps of each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| words | mechanism | peak, MiB | recomputed | time of a step / off | recomputed |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for length in args.lengths:
        kinds = [("off", False), *((name, again) for name in NAMES[1:] for again in (False, True))]
        steps = {kind: step_of(*kind, length) for kind in kinds}
        peaks = {kind: peak(step) / 2**20 for kind, step in steps.items()}
        times = {kind: list[float]() for kind in kinds}
        for _ in tqdm(range(args.pairs), leave=False):
            for kind, step in steps.items():
                start = time.process_time()
                step().backward()
                times[kind].append(time.process_time() - start)
        print(f"| {length:,} | off | {peaks['off', False]:.0f} | | 1.00 | |")
        for name in NAMES[1:]:
            both = [(name, again) for again in (False, True)]
            ratios = [
                statistics.median(a / b for a, b in zip(times[x], times["off", False], strict=True)) for x in both
            ]
            cells = *(f"{peaks[x]:.0f}" for x in both), *(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {length:,} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
