"""Progress bars over lines."""

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

from fairseq_diverse.support.processes import signals_deferred

INTERVAL = 0.2 if sys.stderr.isatty() else 10  # seconds; longer if the output is a file
T = TypeVar("T")


def bar(lines: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    with signals_deferred():  # a bar that is half made complains when it is deleted
        return tqdm(lines, what, total, unit="line", mininterval=INTERVAL)
