"""One function over many lines, in this process or in several."""

import multiprocessing
import multiprocessing.pool
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fairseq_diverse.support.processes import STOPS, die_with_parent, signals_deferred

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]  # of a worker process: sent once, not with every item
_context: Any = multiprocessing.get_context()
SIGNALS = (signal.SIGINT, *STOPS)  # the parent's to handle: a worker that dies of one leaves the pool waiting for it


class _Worker(_context.Process):
    terminate = _context.Process.kill  # it ignores what the pool would send


class _Context(type(_context)):
    Process = _Worker


@contextmanager
def parallel_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[Iterator[R]]:
    """``map(function, items)``, in order, by so many processes; none is left when the block ends."""
    if workers == 1:
        yield map(function, items)
    else:
        pool = None
        try:
            with signals_deferred():
                pool = multiprocessing.pool.Pool(workers, _start_worker, (function,), context=_Context())
            yield pool.imap(_call, items, chunksize=200)
        finally:
            if pool is not None:
                with signals_deferred():
                    pool.terminate()


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    die_with_parent()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _call(item: Any) -> Any:
    return _function(item)
