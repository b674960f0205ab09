import gc
import os
import signal
from collections.abc import Callable

# before NumPy is imported, and for every program that a test starts: the workers of -n 2 must not fight for cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from fairseq_diverse.cli import main

# Triton kernels run on CPU tensors in its interpreter, which must be chosen before Triton is imported
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# a background process ignores Ctrl-C, and so would every command that a test starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# forked commands (tests/integration/commands.py) must not inherit a thread pool
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name != "test_triton.py")  # long, and last by its name: one worker would wait


def pytest_collection_finish() -> None:
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()  # thousands of imported and collected objects, searched again and again otherwise


@pytest.fixture
def output_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints that ends well."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert not main([*map(str, words)])
        return capsys.readouterr().out

    return run


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line of a command that refuses what it is asked."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        return error

    return run
