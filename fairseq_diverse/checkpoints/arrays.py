"""Substitutes for NumPy's names in a checkpoint, which accept numbers only (``loading`` says why)."""

from pickle import UnpicklingError
from typing import Any

import numpy as np

NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def _refusal(name: str) -> UnpicklingError:
    return UnpicklingError(f"GLOBAL {name} refused")  # "GLOBAL" as in torch's messages


class _Number:
    """Substitute for ``numpy.dtype``: a number's type; pickled flags, fields and sizes are ignored."""

    def __init__(self, code: str, *_: bool):
        if code not in NUMBERS:
            raise _refusal(f"numpy.dtype({code!r})")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """Substitute for ``numpy.ndarray``: accepts only numbers; pickled again as a plain ``ndarray``."""

    def __new__(cls) -> "_Array":
        return super().__new__(cls, 0)

    def __setstate__(self, state: tuple) -> None:
        _, shape, number, fortran, data = state
        if not (isinstance(number, _Number) and isinstance(data, bytes)):
            raise _refusal("a numpy.ndarray of objects")
        array = np.frombuffer(data, number.dtype).reshape(shape)
        checked: Any = (1, array.shape, number.dtype, bool(fortran), data)
        super().__setstate__(checked)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _array(*_: Any) -> _Array:
    """Substitute for ``numpy.core.multiarray._reconstruct``: an empty array, to be filled by ``__setstate__``."""
    return _Array()


def _scalar(number: _Number, data: bytes) -> np.generic:
    """Substitute for ``numpy.core.multiarray.scalar``."""
    if not (isinstance(number, _Number) and isinstance(data, bytes)):
        raise _refusal("a NumPy scalar that is not a number")
    return np.frombuffer(data, number.dtype, count=1)[0]


# NumPy 1 wrote numpy.core, NumPy 2 writes numpy._core.
SUBSTITUTES: list[Any] = [
    (_Number, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
