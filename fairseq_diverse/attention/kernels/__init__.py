"""C and Triton kernels."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For the ``backward`` of a function that cannot be differentiated twice.

    With torch's ``once_differentiable``, ``torch.autograd.grad`` leaves out the function's part of a second derivative.

    Raises:
        RuntimeError: ``create_graph=True``.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            name = backward.__qualname__.partition(".")[0]
            raise RuntimeError(f"{name} has no second derivative: create_graph=True is not possible")
        return backward(ctx, *grads)

    return checked
