"""When Triton kernels are used. Triton comes with torch's CUDA builds.

Only the files ``*_triton.py`` import it, and they are imported only where ``available`` says so.
"""

import functools
import importlib.util
import logging
import os

import torch
from torch import Tensor

from fairseq_diverse.attention.kernels import cpu

logger = logging.getLogger(__name__)

TYPES = (torch.float16, torch.bfloat16, torch.float32)


def available(*inputs: Tensor) -> bool:
    """Whether Triton kernels run here and take these: float16, bfloat16 or float32, all on one NVIDIA GPU."""
    device = inputs[0].device
    if device.type != "cuda" or not cpu.enabled():
        return False
    return all(x.dtype in TYPES and x.device == device for x in inputs) and _works_here(device)


def _works_here(device: torch.device) -> bool:
    return _works(device)


# torch.compile asks once and does not trace it; what torch.compiler.assume_constant_result does, which imports Dynamo
_works_here._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether a first kernel runs on the device."""
    off = os.environ.get("FAIRSEQ_DIVERSE_KERNELS") == "0"
    if off or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):  # older ones lack bfloat16; nothing is compiled for them
        return False
    if importlib.util.find_spec("triton") is None:
        logger.warning("triton is not installed: torch does the work of the kernels (docs/gpu.md), many times slower")
        return False
    try:
        from fairseq_diverse.attention.kernels.routing_simple_triton import simple_forward

        return simple_forward(torch.zeros(1, 2, 2, device=device), 1)[0].eq(0).all().item()
    except Exception as error:  # whatever Triton, its compiler or the driver raises
        said = str(error).strip().partition("\n")[0]
        logger.warning(f"Triton kernels do not run here, torch does the work: {type(error).__name__}: {said}")
        return False
