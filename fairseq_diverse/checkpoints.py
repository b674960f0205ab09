"""Loading fairseq checkpoints without running anything that they hold.

torch unpickles with ``weights_only=True``: only listed names resolve. fairseq's checkpoints need a few more, and these
are the only ones added here:

- ``argparse.Namespace``: the model's flags. It only takes attributes.
- NumPy arrays and scalars: the counts of ``--eval-bleu``. NumPy's own classes are not safe to allow: a pickle may clear
  the flags of ``dtype('O')`` and then have an array of object pointers filled from bytes of its choice. The names are
  therefore bound to stand-ins that accept numbers only.

fairseq also calls ``eval`` on strings of a checkpoint's configuration (``adaptive_softmax_cutoff``, for example), so
that a checkpoint whose configuration holds a call is refused as well.
"""

import ast
import functools
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from fairseq_diverse.errors import UserError

NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
# Names in a configuration whose values are paths or free text: "runs (2)" is no call. None is evaluated by fairseq.
FREE_TEXT = re.compile(r"data|.*(dir|file|path|project|from_model|from|prefix|suffix)")


class _Number:
    """Stands for ``numpy.dtype``: a number's type; its pickled flags, fields and sizes are not looked at."""

    def __init__(self, code: str, *_: bool):
        if code not in NUMBERS:
            raise _refusal(f"numpy.dtype({code!r})")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """Stands for ``numpy.ndarray``: filled only with numbers, and pickled again as a plain ``ndarray``."""

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
    """Stands for ``numpy.core.multiarray._reconstruct``: the empty array that a state is given to."""
    return _Array()


def _scalar(number: _Number, data: bytes) -> np.generic:
    """Stands for ``numpy.core.multiarray.scalar``."""
    if not (isinstance(number, _Number) and isinstance(data, bytes)):
        raise _refusal("a NumPy scalar that is no number")
    return np.frombuffer(data, number.dtype, count=1)[0]


# What a checkpoint's name means when it is loaded. NumPy 1 wrote numpy.core, NumPy 2 writes numpy._core.
SAFE_GLOBALS: list[Any] = [
    (Namespace, "argparse.Namespace"),
    (_Number, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def register_safe_globals() -> None:
    """Let fairseq load its checkpoints under ``weights_only=True``, and say in one line why one cannot be loaded.

    Besides torch's allow-list this covers the functions of ``fairseq.checkpoint_utils`` through which fairseq-train,
    fairseq-generate and ``from_pretrained`` read every checkpoint. Called again, it changes nothing.
    """
    from fairseq import checkpoint_utils
    from fairseq.distributed import utils as distributed_utils

    torch.serialization.add_safe_globals([*SAFE_GLOBALS, distributed_utils._TensorPlaceholder])  # an index, in messages
    if not hasattr(checkpoint_utils.load_checkpoint_to_cpu, "__wrapped__"):
        checkpoint_utils.load_checkpoint_to_cpu = _guarded(checkpoint_utils.load_checkpoint_to_cpu)
        checkpoint_utils.load_model_ensemble_and_task = _naming(checkpoint_utils.load_model_ensemble_and_task)
        distributed_utils.broadcast_object = _without_config(distributed_utils.broadcast_object)


def load_checkpoint(path: str | Path, mmap: bool = False) -> dict[str, Any]:
    """The dictionary that fairseq saved, on the CPU: ``model``, ``cfg`` or ``args``, ``extra_state``, ...

    Args:
        mmap: leave the tensors in the file until they are used (files written by torch >= 1.6).

    Raises:
        UserError: a ValueError; the file is missing, truncated, no fairseq checkpoint, or refused because it
            names something that could run code. Nothing in the file is run.
    """
    torch.serialization.add_safe_globals(SAFE_GLOBALS)
    try:
        with warnings.catch_warnings(action="ignore"):  # what they say is said below, in one line
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and zipfile.is_zipfile(path))
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(f"{path}: {_reason(Path(path), error)}") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        raise UserError(f'{path}: no fairseq checkpoint: a torch file without a "model" entry')
    _refuse_calls(path, state)
    return state


def _refusal(name: str) -> UnpicklingError:
    return UnpicklingError(f"GLOBAL {name} refused")  # "GLOBAL", as torch words its own refusals


def _reason(path: Path, error: Exception) -> str:
    """What is wrong with a file that torch could not load."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if match := re.search(r"GLOBAL (.+?)(?= (?:was|whose|refused)|\s*$)", str(error), re.MULTILINE):
        name = _printable(match[1])
        return f"refused: it names {name}, which no fairseq checkpoint holds and which may run code; nothing was run"
    with open(path, "rb") as f:
        head = f.read(4)
    if not head:
        return "empty file; the checkpoint was never written to the end"
    if head == b"PK\3\4" and not zipfile.is_zipfile(path):
        return "truncated: the end of the file is missing; copy it again or use an earlier checkpoint"
    if head != b"PK\3\4" and not head.startswith(b"\x80"):
        return "not a checkpoint: torch.save did not write this file"
    first_sentence = re.split(r"\. |\n", str(error.__context__ or error))[0]
    return f"damaged or not a checkpoint ({type(error).__name__}: {first_sentence})"


def _refuse_calls(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse a configuration with a string that would run code in ``eval``: a call, or an interpolation of one."""
    config = state.get("cfg") if state.get("args") is None else state["args"]  # with "args", "cfg" is made from it
    for name, value in _strings(config):
        if not FREE_TEXT.fullmatch(name) and _may_call(value):
            setting = _printable(f"{name} = {value!r}")
            raise UserError(f"{path}: refused: its setting {setting} would be run by fairseq; nothing was run")


def _strings(config: Any, name: str = "") -> Iterator[tuple[str, str | bytes | bytearray]]:
    """Every string in a configuration, with the name of the setting that holds it."""
    if isinstance(config, str | bytes | bytearray):
        yield name, config
    elif isinstance(config, Namespace):
        yield from _strings(vars(config), name)
    elif isinstance(config, Mapping):
        for key, value in config.items():
            yield from _strings(value, str(key))
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _strings(value, name)


def _may_call(value: str | bytes | bytearray) -> bool:
    if not isinstance(value, str) or "${" in value:
        return True  # fairseq writes neither; eval takes bytes, too
    if "(" not in value:
        return False
    try:
        return any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(value.lstrip(" \t"), mode="eval")))
    except (SyntaxError, ValueError):
        return False  # eval would not run it either
    except (RecursionError, MemoryError):
        return True  # too deeply nested to tell


def _printable(text: str) -> str:
    """Text of a file that is not trusted, short and without control characters."""
    text = text.encode("unicode_escape").decode()
    return text if len(text) <= 100 else f"{text[:100]}..."


def _guarded(load: Any) -> Any:
    """fairseq's ``load_checkpoint_to_cpu``, with the checks and messages of `load_checkpoint`."""
    from omegaconf import OmegaConf

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            state = load(path, *args, **kwargs)
        except Exception:
            load_checkpoint(path)  # says what is wrong with the file, if anything is
            raise
        config = OmegaConf.to_container(state["cfg"]) if OmegaConf.is_config(state.get("cfg")) else None  # as written
        _refuse_calls(path, {"args": state.get("args"), "cfg": config})
        return state

    return load_checkpoint_to_cpu


def _naming(load: Any) -> Any:
    """fairseq's ``load_model_ensemble_and_task``, whose ``OSError`` about an absent file is the user's to mend.

    A ``FileNotFoundError`` is about the data; for an absent checkpoint fairseq raises a plain ``OSError``.
    """

    @functools.wraps(load)
    def load_model_ensemble_and_task(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **kwargs)
        except OSError as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and error.filename:
                text = f"{error.filename}: missing; is {Path(error.filename).parent} a folder of prepared data?"
            raise UserError(text) from error

    return load_model_ensemble_and_task


def _without_config(broadcast: Any) -> Any:
    """fairseq's ``broadcast_object``, by which rank 0 gives a checkpoint to the other ranks when training is resumed.

    They would have to unpickle OmegaConf's classes for ``cfg``, which the trainer does not look at.
    """

    @functools.wraps(broadcast)
    def broadcast_object(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, dict) and "cfg" in obj:
            obj = {**obj, "cfg": None}
        return broadcast(obj, *args, **kwargs)

    return broadcast_object
