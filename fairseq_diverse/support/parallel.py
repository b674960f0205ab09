"""Apply a function to many items, in one or several processes."""

import collections
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import ForkContext, ForkProcess, SpawnContext, SpawnProcess
from typing import Any, TypeVar

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.processes import STOPS, die_with_parent, signals_deferred

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]  # in a worker process: sent once, not with every chunk
CHUNK = 200  # items
SIGNALS = (signal.SIGINT, *STOPS)  # ignored by workers, which end with the parent


class _Forked(ForkProcess):
    """Of a broken pool, Python 3.12 and newer terminate the other workers and wait for them; these ignore that."""

    terminate = ForkProcess.kill


class _Spawned(SpawnProcess):
    terminate = SpawnProcess.kill


class _Fork(ForkContext):
    Process = _Forked


class _Spawn(SpawnContext):
    Process = _Spawned


@contextmanager
def parallel_map(
    function: Callable[[T], R], items: Iterable[T], workers: int, renewed: int | None = None
) -> Iterator[Iterator[R]]:
    """``map(function, items)``, in order, with ``workers`` processes, which end with the block. ``renewed``: a new
    Python process for each worker, also for one, and another after so many items; by default the workers are forks of
    this process. Raises UserError: a process was killed."""
    if workers == 1 and not renewed:
        yield map(function, items)
        return
    how = {"mp_context": _Spawn() if renewed else _Fork(), "max_tasks_per_child": renewed}
    pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(function,), **how)  # type: ignore[arg-type]
    try:
        yield _results(pool, iter(items), workers, 1 if renewed else CHUNK)
    finally:
        with signals_deferred():
            pool.shutdown(cancel_futures=True)


def _results(pool: ProcessPoolExecutor, items: Iterator[Any], workers: int, size: int) -> Iterator[Any]:
    waiting: collections.deque[Future[list[Any]]] = collections.deque()
    try:
        while chunk := [*itertools.islice(items, size)]:
            with signals_deferred():  # the first call starts the processes
                waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError("a process died, out of memory?; start again with fewer --workers") from None


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    die_with_parent()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _work(chunk: list[Any]) -> list[Any]:
    return [*map(_function, chunk)]
