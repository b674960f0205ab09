import gc
import os
import signal

# before NumPy is imported, and for every program that a test starts: the workers of -n 2 must not fight for cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Triton kernels run on CPU tensors in its interpreter, which must be chosen before Triton is imported
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# a background process ignores Ctrl-C, and so would every command that a test starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# forked commands (tests/integration/commands.py) must not inherit a thread pool
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()  # thousands of imported and collected objects, searched again and again otherwise
