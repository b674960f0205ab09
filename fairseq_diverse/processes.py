"""Child processes that do not outlive their parent."""

import ctypes
import signal
import sys

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """In a child process: ask Linux to kill it when its parent dies, so that nothing works on unseen."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
