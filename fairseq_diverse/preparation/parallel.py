"""Apply a function to many lines, in one or several processes."""

import multiprocessing
import multiprocessing.pool
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fairseq_diverse.support.processes import STOPS, die_with_parent, signals_deferred

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]  # in a worker process: sent once, not with every item
_context: Any = multiprocessing.get_context()
SIGNALS = (signal.SIGINT, *STOPS)  # ignored by workers: the pool would wait for a worker that dies of a signal


class _Worker(_context.Process):
    terminate = _context.Process.kill  # workers ignore SIGTERM


class _Context(type(_context)):
    Process = _Worker


@contextmanager
def parallel_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[Iterator[R]]:
    """``map(function, items)``, in order, with ``workers`` processes, which end with the block."""
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
