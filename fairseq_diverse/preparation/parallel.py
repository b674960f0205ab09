"""Apply a function to many lines, in one or several processes."""

import collections
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, TypeVar

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.processes import STOPS, die_with_parent, signals_deferred

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]  # in a worker process: sent once, not with every chunk
CHUNK = 200  # items
SIGNALS = (signal.SIGINT, *STOPS)  # ignored by workers, which end with the parent


class _Worker(ForkProcess):
    """Of a broken pool, Python 3.12 and newer terminate the other workers and wait for them; these ignore that."""

    def terminate(self) -> None:
        self.kill()


class _Fork(ForkContext):
    Process = _Worker


@contextmanager
def parallel_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[Iterator[R]]:
    """``map(function, items)``, in order, with ``workers`` processes, which end with the block.

    Raises:
        UserError: a process was killed.
    """
    if workers == 1:
        yield map(function, items)
        return
    pool = ProcessPoolExecutor(workers, _Fork(), _start_worker, (function,))
    try:
        yield _results(pool, iter(items), workers)
    finally:
        with signals_deferred():
            pool.shutdown(cancel_futures=True)


def _results(pool: ProcessPoolExecutor, items: Iterator[Any], workers: int) -> Iterator[Any]:
    waiting: collections.deque[Future[list[Any]]] = collections.deque()
    try:
        while chunk := [*itertools.islice(items, CHUNK)]:
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
