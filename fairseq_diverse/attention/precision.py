"""The type in which sums and exponentials are computed."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 where it is float64."""
    return x if x.dtype == torch.float64 else x.float()
