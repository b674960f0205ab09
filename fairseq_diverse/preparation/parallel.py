"""One function over many lines, in this process or in several."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import Pool
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]  # of a worker process: sent once, not with every item


@contextmanager
def parallel_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[Iterator[R]]:
    """``map(function, items)``, in order, by so many processes; none is left when the block ends."""
    if workers == 1:
        yield map(function, items)
    else:
        # a worker that dies of Ctrl-C while it starts would leave the pool waiting for it
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pool = Pool(workers, _start_worker, (function,))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with pool:
            yield pool.imap(_call, items, chunksize=200)


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle


def _call(item: Any) -> Any:
    return _function(item)
