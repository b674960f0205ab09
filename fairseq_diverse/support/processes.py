"""Clean ends of stopped processes and their children; locks on folders."""

import ctypes
import errno
import functools
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
STOPS = (signal.SIGTERM, signal.SIGHUP)
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of Lustre and NFS mounts without flock


class Busy(ValueError):
    """Another process is using the folder."""


class Stopped(KeyboardInterrupt):
    """A signal in ``STOPS`` was received; the argument is its number."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise ``Stopped`` in the block on SIGTERM and SIGHUP, so that it cleans up as on Ctrl-C.

    Signals that are ignored (by ``nohup``) or have a handler are not changed. Forked processes die of the signals.
    """
    process = os.getpid()
    in_main_thread = threading.current_thread() is threading.main_thread()
    taken = [number for number in STOPS if in_main_thread and signal.getsignal(number) == signal.SIG_DFL]

    last = -math.inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif time.monotonic() - last > 1:  # `timeout` sends it twice
            last = time.monotonic()
            raise Stopped(number)

    try:
        for number in taken:
            signal.signal(number, stop)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Delay Ctrl-C and the signals in ``STOPS`` until the end of the block, so that it is not left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, frame: came.append(n)) for number in (signal.SIGINT, *STOPS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in came:
            signal.raise_signal(received)


def cores() -> int:
    """The number of cores that this process may use, or of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_names() -> list[str]:
    """The GPUs that torch sees, by their names in ``CUDA_VISIBLE_DEVICES``, else by their numbers."""
    import torch

    count = torch.cuda.device_count()
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()][:count]
    return visible if len(visible) == count else [str(number) for number in range(count)]


def alive(process: int) -> bool:
    """Whether a process of that number runs on this machine; zombies do not count."""
    import psutil  # here, since `doctor` runs without it

    try:
        return psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def die_with_parent(parent: int | None = None) -> None:
    """In a child process: ask Linux to kill it when its parent dies; end at once if it has died. ``parent``: number of
    its process; None in one that multiprocessing started."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent is None:
            parent = multiprocessing.parent_process().pid  # type: ignore[union-attr]
        if os.getppid() != parent:
            os._exit(1)


def run_to_end(command: Sequence[str], timeout: float | None = None, **more: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` that kills the command's children, too, on interruption or at the TimeoutExpired it raises."""
    die = functools.partial(die_with_parent, os.getpid())
    more |= {"stdin": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": die}
    with subprocess.Popen(command, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def is_locked(directory: Path) -> bool:
    """Whether a process holds a folder's lock, as far as this machine knows."""
    if not directory.is_dir():
        return False
    try:
        with locked(directory):
            return False
    except Busy:
        return True


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold a folder's lock; yields its open file.

    The system releases the lock when every process that has the file open has ended. On a file system without such
    locks, a file ``lock.owner`` names the process that holds it and its machine; there a lock of a process that died on
    another machine stays. Raises Busy: another process holds it."""
    import filelock

    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        stack.callback(os.close, lock)
        advice = ""
        try:
            free = filelock.lock_descriptor(lock, blocking=False)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            owner = filelock.SoftFileLock(directory / "lock.owner", thread_local=False)
            try:
                stack.enter_context(owner.acquire(blocking=False))
                free = True
            except filelock.Timeout:
                free, advice = False, f"; if it died on another machine, delete {owner.lock_file}"
        if not free:
            raise Busy(f"process {os.read(lock, 20).decode()} is working on {directory}{advice}")
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        yield lock
