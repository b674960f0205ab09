"""C kernels, compiled once by the machine's own compiler; without one the torch functions do the same work."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Compiled with fast mathematics (no NaN or infinity comes in), linked without: linking with it would switch off
# subnormal numbers for the whole process.
COMPILE = ["-O3", "-march=native", "-ffast-math", "-fno-reciprocal-math", "-fPIC", "-c"]
LINK = ["-shared"]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fairseq_diverse"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()


@functools.cache
def library(name: str) -> Any:
    """The compiled ``name.c``, or None where there is no compiler; ``FAIRSEQ_DIVERSE_KERNELS=0`` switches all off."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if os.environ.get("FAIRSEQ_DIVERSE_KERNELS") == "0" or compiler is None or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    key = hashlib.sha256("\0".join([source.read_text(), compiler, _processor(), *COMPILE]).encode()).hexdigest()[:16]
    try:
        compiled = _cache() / f"{name}-{key}.so"
        if not compiled.exists():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=compiled.parent) as folder:
                made, linked = f"{folder}/{name}.o", f"{folder}/{name}.so"
                subprocess.run([compiler, *COMPILE, str(source), "-o", made], check=True, capture_output=True)
                subprocess.run([compiler, *LINK, made, "-o", linked, "-lm"], check=True, capture_output=True)
                os.replace(linked, compiled)
        return ctypes.CDLL(str(compiled))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # RuntimeError: no home directory
        logger.info(f"{name} runs without its C kernel: {error}")
        return None


_enabled = True


@contextmanager
def disabled() -> Iterator[None]:
    """Let torch do the work, where its operations are counted."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def available(name: str, *inputs: Tensor) -> bool:
    """Whether the kernel is there and takes these: float32 on a CPU."""
    return _enabled and all(x.is_cpu and x.dtype == torch.float32 for x in inputs) and library(name) is not None


def share(items: int) -> int:
    """How many threads a kernel shares the items among."""
    return min(torch.get_num_threads(), items)


def in_threads(items: int, part: Callable[[int, int, int], int]) -> None:
    """Run ``part(thread, start, stop)`` over the items, a share of them in each of torch's threads.

    Raises:
        MemoryError: a part returned something else than 0.
    """
    threads = share(items)
    if threads <= 1:
        failures = [part(0, 0, items)] if items else []
    else:
        edges = [items * edge // threads for edge in range(threads + 1)]
        failures = list(_pool(threads, os.getpid()).map(part, range(threads), edges[:-1], edges[1:]))
    if any(failures):
        raise MemoryError("C kernel: out of memory")


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)  # a forked process needs its own


def pointer(x: Tensor | None) -> ctypes.c_void_p | None:
    """The address of a contiguous tensor."""
    return None if x is None else ctypes.c_void_p(x.data_ptr())


# ---- routing ----


def usable(votes: Tensor) -> bool:
    """Whether the kernel takes these votes: float32, capsules of width 1, on a CPU."""
    return votes.size(-1) == 1 and available("routing", votes)


def _call(function: Any, votes: Tensor, iterations: int, *others: Tensor | None, shared: int = 0) -> None:
    """Run a routing kernel over the tokens.

    Args:
        votes: (tokens, H, N).
        others: the kernel's other arguments: the first ``shared`` are given whole, the rest split by their first
        dimension.
    """
    tokens, heads, capsules = votes.shape
    threads = share(tokens)

    def part(thread: int, start: int, stop: int) -> int:
        pointers = [
            pointer(x if i < shared or x is None else x[x.size(0) * thread // threads :]) for i, x in enumerate(others)
        ]
        return function(pointer(votes[start:]), stop - start, heads, capsules, iterations, *pointers)

    in_threads(tokens, part)


Betas = tuple[Tensor, Tensor] | None


def em_forward(votes: Tensor, betas: Betas, iterations: int) -> Tensor:
    """(tokens, N) capsules of votes (tokens, H, N)."""
    out = votes.new_empty(votes.size(0), votes.size(2))
    _call(library("routing").em_forward, votes, iterations, *(betas or (None, None)), out, shared=2)
    return out


def em_backward(votes: Tensor, betas: Betas, iterations: int, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the votes and of both betas, given that of the capsules."""
    grad_votes = torch.empty_like(votes)
    grad_betas = [votes.new_zeros(max(1, share(votes.size(0))), votes.size(2)) for _ in range(2)]
    shared = betas or (None, None)
    _call(library("routing").em_backward, votes, iterations, *shared, grad, grad_votes, *grad_betas, shared=2)
    return grad_votes, grad_betas[0].sum(0), grad_betas[1].sum(0)


def simple_forward(votes: Tensor, iterations: int) -> Tensor:
    """(tokens, N) capsules of votes (tokens, H, N)."""
    out = votes.new_empty(votes.size(0), votes.size(2))
    _call(library("routing").simple_forward, votes, iterations, out)
    return out


def simple_backward(votes: Tensor, iterations: int, grad: Tensor) -> Tensor:
    """Gradient of the votes, given that of the capsules."""
    grad_votes = torch.empty_like(votes)
    _call(library("routing").simple_backward, votes, iterations, grad, grad_votes)
    return grad_votes
