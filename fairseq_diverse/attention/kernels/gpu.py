"""When Triton kernels are used, and how they are launched. Triton comes with torch's CUDA builds.

Only the files ``*_triton.py`` import it, and they are imported only where ``available`` says so.
"""

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fairseq_diverse.attention.kernels import cpu

logger = logging.getLogger(__name__)

OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # of Triton's compiler
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def available(*inputs: Tensor) -> bool:
    """Whether Triton kernels run here and take these: float16, bfloat16 or float32, all on one NVIDIA GPU."""
    device = inputs[0].device
    types = all(x.dtype in TYPES and x.device == device for x in inputs)
    return device.type == "cuda" and types and cpu.enabled() and _works_here(device)


def _works_here(device: torch.device) -> bool:
    return _works(device)


# torch.compile asks once and does not trace it; what torch.compiler.assume_constant_result does, which imports Dynamo
_works_here._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether a first kernel runs on the device."""
    off = os.environ.get("FAIRSEQ_DIVERSE_KERNELS") == "0"
    if off or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):  # older ones lack bfloat16; nothing is compiled for them
        return False
    if importlib.util.find_spec("triton") is None:
        logger.warning(
            "triton is not installed: routing, interacting heads and disagreement run on torch, many times slower"
        )
        return False
    try:
        from fairseq_diverse.attention.kernels.routing_simple_triton import simple_forward

        return simple_forward(torch.zeros(1, 2, 2, device=device), 1)[0].eq(0).all().item()
    except Exception as error:  # whatever Triton, its compiler or the driver raises
        said = str(error).strip().partition("\n")[0]
        logger.warning(f"Triton kernels do not run here, torch does the work: {type(error).__name__}: {said}")
        return False


class Launch(NamedTuple):
    """What one launch was given."""

    kernel: Any
    programs: int
    warps: int
    arguments: tuple[Any, ...]
    options: dict[str, Any]  # of Triton's compiler, besides ``OPTIONS``


_library = torch.library.Library("fairseq_diverse", "FRAGMENT")
_watching: list[list[Launch]] = []


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """The list of what is launched inside, of fake and meta tensors too."""
    seen: list[Launch] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. (Triton's own, and its ``next_power_of_2``, take the host a microsecond.)"""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least ``n``; of a symbolic size a symbolic one."""
    n -= 1
    for shift in (1, 2, 4, 8, 16):
        n |= n >> shift
    return n + 1


def launch(kernel: Any, programs: int, warps: int, *arguments: Any, **options: Any) -> None:
    """Run ``programs`` programs of a kernel on the device of its arguments."""
    for seen in _watching:
        seen.append(Launch(kernel, programs, warps, arguments, options))
    first = next(x for x in arguments if isinstance(x, Tensor))
    if isinstance(first, FakeTensor) or first.is_meta or programs == 0:
        return
    elsewhere = first.is_cuda and first.get_device() != torch.cuda.current_device()
    with torch.cuda.device(first.device) if elsewhere else nullcontext():
        kernel[(programs,)](*arguments, num_warps=warps, **(OPTIONS | options))


def operator(function: Callable[..., Any], fake: Callable[..., Any] | None = None) -> Any:
    """``function``, which launches kernels, as one operator: what torch's tracers and compilers see.

    Args:
        fake: makes its results without values; by default ``function`` itself, on fake tensors.
    """
    name = function.__name__
    _library.define(name + torch.library.infer_schema(function, mutates_args=()))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fairseq_diverse::{name}", fake or function, lib=_library)
    return getattr(torch.ops.fairseq_diverse, name)


def opaque(fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: an operator while torch compiles what calls it, the function itself otherwise."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = operator(function, fake)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return compiled(*arguments) if torch.compiler.is_compiling() else function(*arguments)

        return call

    return decorate
