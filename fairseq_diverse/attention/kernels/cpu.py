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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("routing.c")
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
def routing_library() -> Any:
    """The compiled ``routing.c``, or None where there is no compiler; ``FAIRSEQ_DIVERSE_KERNELS=0`` switches it off."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if os.environ.get("FAIRSEQ_DIVERSE_KERNELS") == "0" or compiler is None or os.name != "posix":
        return None
    key = hashlib.sha256("\0".join([SOURCE.read_text(), compiler, _processor(), *COMPILE]).encode()).hexdigest()[:16]
    try:
        library = _cache() / f"routing-{key}.so"
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                made, linked = f"{folder}/routing.o", f"{folder}/routing.so"
                subprocess.run([compiler, *COMPILE, str(SOURCE), "-o", made], check=True, capture_output=True)
                subprocess.run([compiler, *LINK, made, "-o", linked, "-lm"], check=True, capture_output=True)
                os.replace(linked, library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # RuntimeError: no home directory
        logger.info(f"routing runs without its C kernel: {error}")
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


def usable(votes: Tensor) -> bool:
    """Whether the kernel takes these votes: float32, capsules of width 1, on a CPU."""
    return (
        _enabled
        and votes.is_cpu
        and votes.dtype == torch.float32
        and votes.size(-1) == 1
        and routing_library() is not None
    )


def _call(function: Any, votes: Tensor, iterations: int, *others: Tensor | None, shared: int = 0) -> None:
    """Run a kernel over the tokens, a share of them in each of torch's threads.

    Args:
        votes: (tokens, H, N).
        others: the kernel's other arguments: the first ``shared`` are given whole, the rest split by their first
        dimension.
    """
    tokens, heads, capsules = votes.shape
    threads = min(torch.get_num_threads(), tokens)

    def part(thread: int) -> int:
        start, stop = (tokens * edge // threads for edge in (thread, thread + 1))
        pointers = [
            None if x is None else ctypes.c_void_p((x if i < shared else x[x.size(0) * thread // threads :]).data_ptr())
            for i, x in enumerate(others)
        ]
        rows = ctypes.c_void_p(votes[start:].data_ptr())
        return function(rows, stop - start, heads, capsules, iterations, *pointers)

    if threads == 1:
        failures = [part(0)]
    elif threads > 1:
        failures = list(_pool(threads, os.getpid()).map(part, range(threads)))
    else:
        failures = []
    if any(failures):
        raise MemoryError("routing kernel: out of memory")


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)  # a forked process needs its own


Betas = tuple[Tensor, Tensor] | None


def em_forward(votes: Tensor, betas: Betas, iterations: int) -> Tensor:
    """(tokens, N) capsules of votes (tokens, H, N)."""
    out = votes.new_empty(votes.size(0), votes.size(2))
    _call(routing_library().em_forward, votes, iterations, *(betas or (None, None)), out, shared=2)
    return out


def em_backward(votes: Tensor, betas: Betas, iterations: int, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the votes and of both betas, given that of the capsules."""
    grad_votes = torch.empty_like(votes)
    threads = max(1, min(torch.get_num_threads(), votes.size(0)))
    grad_betas = [votes.new_zeros(threads, votes.size(2)) for _ in range(2)]
    shared = betas or (None, None)
    _call(routing_library().em_backward, votes, iterations, *shared, grad, grad_votes, *grad_betas, shared=2)
    return grad_votes, grad_betas[0].sum(0), grad_betas[1].sum(0)


def simple_forward(votes: Tensor, iterations: int) -> Tensor:
    """(tokens, N) capsules of votes (tokens, H, N)."""
    out = votes.new_empty(votes.size(0), votes.size(2))
    _call(routing_library().simple_forward, votes, iterations, out)
    return out


def simple_backward(votes: Tensor, iterations: int, grad: Tensor) -> Tensor:
    """Gradient of the votes, given that of the capsules."""
    grad_votes = torch.empty_like(votes)
    _call(routing_library().simple_backward, votes, iterations, grad, grad_votes)
    return grad_votes
