import os
import signal

import torch

# Triton kernels run on CPU tensors in its interpreter, which must be chosen before Triton is imported
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# a background process ignores Ctrl-C, and so would every command that a test starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# forked commands (tests/integration/commands.py) must not inherit a thread pool, and -n 2 workers must not fight for
# cores
torch.set_num_threads(1)
