"""The host's part of a step: with tensors this small it is Python, dispatch and autograd, and little else."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import gpu_rows, sides
from benchmarks.harness import Sample

SIZE = sides.Size(6, 32, 32, 4, 50, tokens=16, length=8, sentences=2, steps=8)
STEPS = 4  # of training in a sample
PREFIX = "host "  # of the names of its models in ``sides.SIDES``


def variants() -> dict[str, sides.Side]:
    """By name: a model for every mechanism at every component where it is defined, and at all of them; without any."""
    found = {name: sides.Side(flags=system.flags) for name, system, _ in gpu_rows.attentions() if not system.terms}
    for variant, flags in gpu_rows.VARIANTS.items():
        places = gpu_rows.components(flags) if flags else ()
        if len(places) > 1:
            found[f"{variant} everywhere"] = sides.Side(flags=gpu_rows.placed(variant, ",".join(places)))
    return {name: side for name, side in found.items() if not name.startswith("off ")} | {"off": sides.Side()}


def _training(side: sides.Side, size: sides.Size) -> Callable[[], Any]:
    """Forward and backward of one step: a function that gives the loss."""
    model = sides.build_model(side, size)
    objective = sides.likelihood(side, size, model, "cpu")
    parameters = [*model.parameters()]

    def forward() -> Any:
        for parameter in parameters:
            parameter.grad = None
        return objective()

    return forward


def training(name: str, size: sides.Size, device: str) -> Sample:
    """Seconds of the processor for forward and backward of some steps."""
    forward = _training(sides.SIDES[name], SIZE)

    def sample() -> float:
        start = time.process_time()
        for _ in range(STEPS):
            forward().backward()
        return time.process_time() - start

    return sample


def decoding(name: str, size: sides.Size, device: str) -> Sample:
    """Seconds of the processor for translating with beam 5."""
    return sides.generation(name, SIZE, "cpu")


class _Operators(TorchDispatchMode):
    """Counts calls of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def operators(side: sides.Side, layers: int = SIZE.layers) -> tuple[int, int, int]:
    """Calls of operators in a step of training, forward and backward, and in one step of decoding, the second."""
    size = replace(SIZE, layers=layers)
    forward = _training(side, size)
    with _Operators() as ahead:
        loss = forward()
    with _Operators() as back:
        loss.backward()
    model = sides.build_model(side, size).eval()
    model.make_generation_fast_(beamable_mm_beam_size=5, need_attn=False)
    inputs = sides.batch(size, size.sentences, "cpu", model)["net_input"]
    words = inputs.pop("prev_output_tokens")[:, :2]
    with torch.no_grad():
        encoded, state = model.encoder(**inputs), dict[str, Any]()
        model.decoder(words[:, :1], encoded, incremental_state=state)
        with _Operators() as step:
            model.decoder(words, encoded, incremental_state=state)
    return ahead.calls, back.calls, step.calls
