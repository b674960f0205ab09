"""Calls of C kernels: supported tensors, threads."""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fairseq_diverse.attention.kernels.compiler import library

_enabled = True


@contextmanager
def disabled() -> Iterator[None]:
    """Use torch instead of C and Triton kernels, so that its operations can be counted."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def enabled() -> bool:
    return _enabled


def available(name: str, *inputs: Tensor) -> bool:
    """Whether the kernel exists and supports these tensors: float32 on a CPU. torch's compilers cannot trace one, and
    fake tensors have no memory."""
    for x in inputs:
        if not x.is_cpu or x.dtype != torch.float32 or isinstance(x, FakeTensor):
            return False
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return _enabled and not tracing and library(name) is not None


def share(items: int) -> int:
    """The number of threads for this many items."""
    return min(torch.get_num_threads(), items)


def in_threads(items: int, part: Callable[[int, int, int], int]) -> bool:
    """Run ``part(thread, start, stop)`` over the items, split among torch's number of threads.

    Returns:
        Whether every part succeeded; False if one returned 2: it met a number that is NaN, infinite or nearly so. The
        kernels are compiled for finite numbers, so torch computes these.

    Raises:
        MemoryError: a part returned 1.
    """
    threads = share(items)
    if threads <= 1:
        codes = [part(0, 0, items)] if items else []
    else:
        edges = [items * edge // threads for edge in range(threads + 1)]
        codes = list(_pool(threads, os.getpid()).map(part, range(threads), edges[:-1], edges[1:]))
    if 1 in codes:
        raise MemoryError("C kernel: out of memory")
    return 2 not in codes


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)  # a forked process needs its own


def pointer(x: Tensor | None, start: int = 0) -> ctypes.c_void_p | None:
    """The address of a contiguous tensor, or of ``x[start]`` in it."""
    if x is None:
        return None
    return ctypes.c_void_p(x.data_ptr() + (start * x.stride(0) * x.element_size() if start else 0))
