"""Child processes that do not outlive their parent, and folders in which one process works at a time."""

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Busy(ValueError):
    """Another process is working there."""


def die_with_parent() -> None:
    """In a child process: ask Linux to kill it when its parent dies, so that nothing works on unseen."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold a folder's lock; the system gives it back when every process that has it open is gone, however it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"process {os.read(lock, 20).decode()} is working on {directory}") from None
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        yield lock
    finally:
        os.close(lock)
