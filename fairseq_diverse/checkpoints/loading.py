"""Load fairseq checkpoints without running code from them.

torch unpickles with ``weights_only=True``: only listed names resolve. fairseq's checkpoints need a few more; only these
are added here:
- ``argparse.Namespace``: the model's flags. It only takes attributes.
- NumPy arrays and scalars: the counts of ``--eval-bleu``. Allowing NumPy's classes is not safe: a pickle may clear the
  flags of ``dtype('O')`` and then fill an array of object pointers with chosen bytes. The names are therefore bound to
  substitutes that accept numbers only.

fairseq also calls ``eval`` on strings in a checkpoint's configuration (for example ``adaptive_softmax_cutoff``). Its
modules get `literal` in place of ``eval``, and a checkpoint in which such a setting is not a literal is refused.

Checksums of torch and of ``average`` are compared, and the size of every weight is checked.
"""

import hashlib
import re
import sys
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.attention.warm_start import NotTrained, only_trained
from fairseq_diverse.checkpoints.dictionaries import OtherDictionaries
from fairseq_diverse.checkpoints.settings import literal, printable, unsafe_setting
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.support.patching import patch

NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
MAX_WEIGHT = 65504.0  # of float16: trained weights are smaller; a flipped bit makes values such as 1e30
# Files that fairseq reads to initialize parameters; the checkpoint replaces these parameters.
INITIAL_FILES = (
    "encoder_embed_path",
    "decoder_embed_path",
    "load_pretrained_encoder_from",
    "load_pretrained_decoder_from",
)


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


# Objects for the names in a checkpoint. NumPy 1 wrote numpy.core, NumPy 2 writes numpy._core.
SAFE_GLOBALS: list[Any] = [
    (Namespace, "argparse.Namespace"),
    (_Number, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def register_safe_globals() -> None:
    """Let fairseq load its checkpoints under ``weights_only=True``, with one-line errors. Idempotent.

    This extends torch's allow-list and wraps the functions of ``fairseq.checkpoint_utils`` with which fairseq-train,
    fairseq-generate and ``from_pretrained`` read every checkpoint.
    """
    from fairseq import checkpoint_utils
    from fairseq.distributed import utils as distributed_utils

    torch.serialization.add_safe_globals([*SAFE_GLOBALS, distributed_utils._TensorPlaceholder])  # an index, in messages
    patch(checkpoint_utils, "load_checkpoint_to_cpu", _with_checks)
    patch(checkpoint_utils, "load_model_ensemble_and_task", _with_readable_errors)
    patch(distributed_utils, "broadcast_object", _without_config)
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] == "fairseq":
            vars(module)["eval"] = literal


def load_checkpoint(path: str | Path, mmap: bool = False, verify: bool = True) -> dict[str, Any]:
    """Load a checkpoint of fairseq to the CPU, as a dictionary: ``model``, ``cfg`` or ``args``, ``extra_state``, ...

    Args:
        mmap: read tensors from the file only when they are used (files written by torch >= 1.6).
        verify: read the whole file and compare its checksums; check that every weight is a number below 65504.

    Raises:
        UserError: (a ValueError) the file is missing, truncated, damaged, not a fairseq checkpoint, or refused because
            it names something that could run code. Nothing in the file is run.
    """
    torch.serialization.add_safe_globals(SAFE_GLOBALS)
    try:
        with warnings.catch_warnings(action="ignore"):  # replaced by the one-line error
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and _is_zip(path))
        if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
            raise UserError(f'{path}: not a fairseq checkpoint: a torch file without a "model" entry')
        _check_settings(path, state)
        _check_types(path, state)
        if verify:
            _check_weights(path, state)
            _check_records(path)
    except (MemoryError, UserError):
        raise
    except Exception as error:
        raise UserError(f"{path}: {_reason(Path(path), error)}") from error
    return state


def settings_of(group: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of one group (``task``, ``checkpoint``) of a checkpoint's configuration, by name.

    Older checkpoints have arguments without groups; all of them are returned.
    """
    settings = (state.get("cfg") or {}).get(group) or state.get("args") or {}
    return settings if isinstance(settings, Mapping) else vars(settings)  # a Namespace of tasks with add_args


def save_checkpoint(state: Mapping[str, Any], out: str | Path) -> None:
    """Write a checkpoint; if that fails, ``out`` does not change.

    Raises:
        OSError: it cannot be written.
    """
    try:
        with atomic_write(out, "wb") as f:
            torch.save(state, f)
    except (OSError, RuntimeError) as error:  # a full disk is one or the other in torch
        raise OSError(f"{out}: cannot be written ({str(error).splitlines()[0]})") from None


def checksum(model: Mapping[str, Tensor]) -> str:
    """SHA-256 of the parameters: their names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, value in model.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refusal(name: str) -> UnpicklingError:
    return UnpicklingError(f"GLOBAL {name} refused")  # "GLOBAL" as in torch's messages


def _reason(path: Path, error: Exception) -> str:
    """The problem with a file that torch could not load."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if match := re.search(r"GLOBAL (.+?)(?= (?:was|whose|refused)|\s*$)", str(error), re.MULTILINE):
        name = printable(match[1])
        return f"refused: it names {name}, which no fairseq checkpoint holds and which may run code; nothing was run"
    with open(path, "rb") as f:
        head = f.read(4)
    if not head:
        return "empty file; writing the checkpoint was interrupted"
    if head == b"PK\3\4":
        try:
            zipfile.ZipFile(path).close()
        except Exception:  # BadZipFile, or an unforeseen type
            return "truncated: the end of the file is missing or damaged; copy it again or use an earlier checkpoint"
    if head != b"PK\3\4" and not head.startswith(b"\x80"):
        return "not a checkpoint: torch.save did not write this file"
    first_sentence = re.split(r"\. |\n", str(error.__context__ or error))[0]
    return f"damaged or not a checkpoint ({type(error).__name__}: {first_sentence})"


def _is_zip(path: str | Path) -> bool:
    """Whether torch >= 1.6 wrote the file; its end may be damaged or missing."""
    with open(path, "rb") as f:
        return f.read(4) == b"PK\3\4"


def _check_settings(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse a configuration with a string that ``eval`` would run or OmegaConf would replace."""
    for name, value in _strings([state.get("args"), state.get("cfg")]):
        if problem := unsafe_setting(name, value):
            setting = printable(f"{name} = {value!r}")
            raise UserError(f"{path}: refused: its setting {setting} {problem}; nothing was run")


def _check_types(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose parts do not have fairseq's types."""
    wrong = [name for name in ("extra_state", "task_state") if not isinstance(state.get(name), Mapping | None)]
    wrong += [key for key in state.get("extra_state") or {} if not wrong and not isinstance(key, str)]
    history = state.get("optimizer_history")
    if not isinstance(history, list | None) or not all(
        isinstance(one, Mapping) and isinstance(one.get("num_updates"), int | None) for one in history or ()
    ):
        wrong.append("optimizer_history")
    for name, value in state["model"].items():
        if isinstance(value, Tensor) and (value.layout != torch.strided or value.device.type != "cpu"):
            wrong.append(f"model {name}")
    if wrong:
        raise UserError(f"{path}: not a fairseq checkpoint: {printable(str(wrong[0]))} is of another type")


def implausible(weights: Mapping[str, Any]) -> tuple[str, float] | None:
    """A tensor of a ``state_dict`` that is not finite or too large for a trained model, and its worst number."""
    for name, value in weights.items():
        private = str(name).rpartition(".")[2].startswith("_")  # fairseq's _float_tensor is never filled
        if private or not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            continue
        low, high = (bound.item() for bound in torch.aminmax(value.detach()))
        if not -MAX_WEIGHT <= low <= high <= MAX_WEIGHT:
            return str(name), low if -low > high else high
    return None


def _check_weights(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse implausible weights, and a wrong checksum."""
    if found := implausible(state["model"]):
        name, worst = found
        raise UserError(
            f"{path}: {printable(name)} is {worst:.3g}, but trained weights are numbers up to {MAX_WEIGHT:.0f}: the "
            "file is damaged or training diverged; copy it again or use an older checkpoint"
        )
    extra = state.get("extra_state")
    if isinstance(extra, Mapping) and "checksum" in extra and extra["checksum"] != checksum(state["model"]):
        raise UserError(
            f"{path}: the checksum of its parameters is not the one that average wrote; write the file again"
        )


def _check_records(path: str | Path) -> None:
    """Compare the checksums that torch wrote into a file; torch itself does not compare them.

    If all are wrong, the file was written without checksums (``torch.serialization.set_crc32_options``).
    """
    if not _is_zip(path):
        return  # of torch < 1.6
    with zipfile.ZipFile(path) as archive:
        records = [record for record in archive.infolist() if record.file_size]
        wrong = [record.filename for record in records if not _is_whole(archive, record)]
    if wrong and len(wrong) < len(records):
        raise UserError(
            f"{path}: damaged: {printable(wrong[0])} in it has a wrong checksum; copy the file again or "
            "use an earlier checkpoint"
        )


def _is_whole(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(record) as f:
            while f.read(1 << 20):
                pass
        return True
    except zipfile.BadZipFile:
        return False


def _strings(config: Any) -> Iterator[tuple[str, str | bytes | bytearray]]:
    """Every string in a configuration, with the name of its setting."""
    todo, seen = [("", config)], set()
    while todo:
        name, value = todo.pop()
        if isinstance(value, str | bytes | bytearray):
            yield name, value
        elif (name, id(value)) not in seen:
            seen.add((name, id(value)))  # a pickled list may contain itself
            if isinstance(value, Namespace | Mapping):
                settings = vars(value) if isinstance(value, Namespace) else value
                todo += [(str(key), setting) for key, setting in settings.items()]
            elif isinstance(value, list | tuple | set):
                todo += [(name, part) for part in value]


def _with_checks(load: Any, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """fairseq's ``load_checkpoint_to_cpu``, after the checks of `load_checkpoint` and with its messages."""
    from fairseq.file_io import PathManager

    load_checkpoint(PathManager.get_local_path(path), mmap=True)
    try:
        return load(path, *args, **kwargs)
    except (MemoryError, UserError):
        raise
    except Exception as error:
        raise UserError(f"{path}: {_reason(Path(path), error)}") from error


def _with_readable_errors(
    load: Any, filenames: list[str], arg_overrides: dict[str, Any] | None = None, *args: Any, **kwargs: Any
) -> Any:
    """fairseq's ``load_model_ensemble_and_task``; errors name the file, and no other checkpoints are read."""
    if not all(filenames):
        raise UserError("the path of the checkpoint is empty; give a file")
    settings = {**(arg_overrides or {}), **dict.fromkeys(INITIAL_FILES)}
    try:
        with only_trained():
            found = load(filenames, settings, *args, **kwargs)
    except (MemoryError, UserError):
        raise
    except Exception as error:
        data = settings.get("data", "the data given")
        raise UserError(_load_problem(", ".join(filenames), data, error)) from error
    _, cfg, task = found
    source, target = (getattr(cfg.task, f"{side}_lang", None) for side in ("source", "target"))
    read = [getattr(getattr(task, "cfg", None), f"{side}_lang", None) for side in ("target", "source")]
    if source != target and read == [source, target]:  # of the data files' names, where no flag gives the languages
        raise UserError(
            f"{filenames[-1]}: translates from {source} to {target}; give --source-lang {source} --target-lang "
            f"{target}, or for a model of both directions --model-overrides \"{{'source_lang': '{target}', "
            f"'target_lang': '{source}'}}\""
        )
    return found


def _load_problem(names: str, data: str, error: Exception) -> str:
    """The problem with readable checkpoints, or with the data folder."""
    lines = [printable(line.strip(), 300) for line in str(error).splitlines()] or [""]
    match error:
        case FileNotFoundError(filename=str(missing)):  # for a missing checkpoint, fairseq raises a plain OSError
            return f"{missing}: missing; is {Path(missing).parent} a folder of prepared data?"
        case OSError():
            return lines[0]
        case AssertionError() | IndexError():  # fairseq fails in its own error message
            return f"{names}: its task or model is in neither fairseq nor this package"
        case RuntimeError() if name := _changed_mechanism(str(error)):
            return (
                f"{names}: its parameters of the mechanism {name!r} do not fit the class; was the code or a setting "
                f"changed after training? {lines[-1]}"
            )
        case RuntimeError() if any("Unexpected key" in line and "_attn." in line for line in lines):
            return (
                f"{names}: has a mechanism that is not registered; give its --user-dir, or the flags of its training: "
                f"{lines[-1]}"
            )
        case NotTrained():
            return (
                f"{names}: was trained without {lines[0]}, which would be drawn at random; train it, from this "
                "checkpoint with --finetune-from-model, or leave the mechanism out"
            )
        case OtherDictionaries():
            return f"{names}: does not fit {data}; was it trained on other data? {lines[0]}"
        case RuntimeError() if "state_dict" in lines[0]:  # the last line names a parameter
            return f"{names}: does not fit {data}; was it trained on other data? {lines[-1]}"
    if type(error) is Exception:  # fairseq's message
        return f"{data}: is it a folder of prepared data for {names}? {lines[0]}"
    return f"{names}: cannot build a model from its settings ({type(error).__name__}: {lines[0]})"


def _changed_mechanism(message: str) -> str | None:
    """The registered mechanism of the last parameter that torch names, if all that it names are of mechanisms."""
    names = {cls.key: name for name, cls in MECHANISMS.items()}
    parameters = re.findall(r"size mismatch for ([\w.]+)|\"([\w.]+)\"", message)
    keys = [re.search(r"_attn\.(\w+)\.", mismatched or absent) for mismatched, absent in parameters]
    owners = [names.get(key[1]) if key else None for key in keys]
    return owners[-1] if owners and all(owners) else None


def _without_config(broadcast: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """fairseq's ``broadcast_object``, with which rank 0 sends a checkpoint to the other ranks on resuming.

    ``cfg`` is left out: the trainer does not use it, and the other ranks would have to unpickle OmegaConf's classes.
    """
    if isinstance(obj, dict) and "cfg" in obj:
        obj = {**obj, "cfg": None}
    return broadcast(obj, *args, **kwargs)
