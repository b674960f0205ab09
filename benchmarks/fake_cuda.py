"""CUDA tensors without memory and without a GPU: shapes, types and devices as a GPU would have them."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.cpp_extension import include_paths

from fairseq_diverse.attention.kernels import gpu
from fairseq_diverse.support.errors import UserError

SOURCE = Path(__file__).with_name("fake_cuda.cpp")


@functools.cache
def _library() -> Any:
    """``fake_cuda.cpp``, compiled for this process: a few seconds."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise UserError("fake CUDA tensors need a C++ compiler: install g++")
    libraries = Path(torch.__file__).parent / "lib"
    includes = [argument for path in include_paths() for argument in ("-isystem", path)]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "fake_cuda.so")
        command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", *includes, str(SOURCE), "-o", str(made)]
        done = subprocess.run([*command, f"-L{libraries}", "-lc10", "-ltorch_cpu"], capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{SOURCE.name}: {compiler} cannot compile it: {done.stderr.strip().splitlines()[0]}")
        return ctypes.CDLL(str(made))


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Tensors made in this context with ``device="cuda"`` are fake; their backward passes run too.

    A tensor on another device, or one whose values the host reads, raises an error, as torch's fake tensors do.
    With a GPU, torch's own mode is enough; without, torch gets a device from ``fake_cuda.cpp``, for as long as the
    context lasts.
    """
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            torch.zeros((), requires_grad=True).backward()  # an engine that starts later would start a device's thread
            stack.callback(_library().present, False)
            _library().present(True)
            stack.enter_context(mock.patch("torch.cuda.default_generators", (torch.Generator(),)))
            stack.enter_context(mock.patch("torch.cuda.current_device", lambda: 0))
        # a first kernel cannot be tried; where Triton is installed, a GPU runs its kernels
        stack.enter_context(mock.patch.object(gpu, "_works", lambda device: find_spec("triton") is not None))
        # fairseq makes a tensor of a shape, on the host, and reads it there
        stack.enter_context(mock.patch("torch.onnx.operators.shape_as_tensor", lambda tensor: tensor.shape))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield stack.enter_context(FakeTensorMode())


def move(module: nn.Module, dtype: torch.dtype) -> Any:
    """Give a module fake CUDA tensors for those it has; what floats gets this type, shared ones stay shared."""
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            new = torch.empty(tensor.shape, dtype=kind, device="cuda")
            made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
        return made[id(tensor)]

    for part in module.modules():
        for tensors in (part._parameters, part._buffers, vars(part)):
            tensors.update({name: fake(x) for name, x in tensors.items() if isinstance(x, torch.Tensor)})
    return module
