import torch

# forked commands (tests/integration/commands.py) must not inherit a thread pool, and -n 2 workers must not fight for
# cores
torch.set_num_threads(1)
