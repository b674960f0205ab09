"""How Triton kernels are launched: watched by tests and benchmarks, and opaque to torch's tracers and compilers."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # of Triton's compiler


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
