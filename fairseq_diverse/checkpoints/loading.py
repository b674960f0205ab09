"""Load fairseq checkpoints without running code from them.

torch unpickles with ``weights_only=True``: only listed names resolve. fairseq's checkpoints need a few more; only these
are added here:
- ``argparse.Namespace``: the model's flags. It only takes attributes.
- NumPy arrays and scalars: the counts of ``--eval-bleu``. Allowing NumPy's classes is not safe: a pickle may clear the
  flags of ``dtype('O')`` and then fill an array of object pointers with chosen bytes. The names are therefore bound to
  substitutes that accept numbers only.

fairseq also calls ``eval`` on strings in a checkpoint's configuration (for example ``adaptive_softmax_cutoff``). A
checkpoint in which such a setting is not a literal is refused."""

import hashlib
import math
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention.registry import fill_older
from fairseq_diverse.checkpoints.settings import printable, unsafe_setting
from fairseq_diverse.checkpoints.shared import read_shared
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write

try:
    from fairseq_diverse.checkpoints.arrays import SUBSTITUTES
except ModuleNotFoundError:  # without NumPy, its arrays are refused
    SUBSTITUTES = []

OF_MECHANISM = re.compile(r"_attn\.(?!([qkv]|out)_proj\.)\w+\.")  # in the name of a tensor
LARGEST, SIZES = 10**7, ("dim", "heads", "positions")  # the most of these settings
DICTIONARIES = "dictionaries"  # digests by side, in the task's state


SAFE_GLOBALS: list[Any] = [(Namespace, "argparse.Namespace"), *SUBSTITUTES]


def load_checkpoint(path: str | Path, mmap: bool = False, verify: bool = True) -> dict[str, Any]:
    """Load a checkpoint of fairseq to the CPU, as a dictionary: ``model``, ``cfg`` or ``args``, ``extra_state``, ...

    Args:
        path: a file, or a folder that ``fairseq-diverse export --to safetensors`` wrote.
        mmap: read tensors from the file only when they are used (files written by torch >= 1.6).
        verify: read the whole file, compare its checksums, and check that no weight is NaN or infinite.

    Raises:
        UserError: (a ValueError) the file is missing, truncated, damaged, not a fairseq checkpoint, or refused because
            it names something that could run code. Nothing in the file is run.
    """
    torch.serialization.add_safe_globals(SAFE_GLOBALS)
    shared = Path(path).is_dir()
    try:
        with warnings.catch_warnings(action="ignore"):  # replaced by the one-line error
            if shared:
                state = read_shared(Path(path))
            else:
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and _is_zip(path))
        if problem := _wrong_part(state):
            raise UserError(f"{path}: not a fairseq checkpoint: {problem}")
        check_settings(path, state.get("args"), state.get("cfg"))
        check_sizes(path, state)
        if verify:
            _check_weights(path, state)
            if not shared:
                _check_records(path)
    except (MemoryError, UserError):
        raise
    except Exception as error:
        raise UserError(f"{path}: {damage(path, error)}") from error
    for flags in (state.get("args"), (state.get("cfg") or {}).get("model")):
        if isinstance(flags, Namespace):
            fill_older(vars(flags))
    return state


def settings_of(group: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of one group (``task``, ``checkpoint``) of a checkpoint's configuration, by name.

    Older checkpoints have arguments without groups; all of them are returned.
    """
    settings = (state.get("cfg") or {}).get(group) or state.get("args") or {}
    return settings if isinstance(settings, Mapping) else vars(settings)  # a Namespace of tasks with add_args


def dictionary_digests(state: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the training's dictionaries in a checkpoint, by side; empty if it has none."""
    return dict((state.get("task_state") or {}).get(DICTIONARIES) or {})


def other_dictionaries(digests: Mapping[str, str], trained: Mapping[str, str]) -> str:
    """Which dictionaries differ, in words; empty if none does. A side that has no digest in both is not compared."""
    differing = [side for side in digests if trained.get(side, digests[side]) != digests[side]]
    return f"the {' and '.join(differing)} dictionary has other words, or in another order" if differing else ""


def save_checkpoint(state: Mapping[str, Any], out: str | Path) -> None:
    """Write a checkpoint; if that fails, ``out`` does not change. Raises ``OSError``: it cannot be written."""
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


def damage(path: str | Path, error: Exception) -> str:
    """The problem with a file that could not be loaded, in words."""
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


def check_settings(where: str | Path, *configs: Any) -> None:
    """Raise ``UserError`` for a setting that ``eval`` would run or OmegaConf would replace; ``where`` has it."""
    for name, value in _settings(configs):
        if problem := unsafe_setting(name, value):
            setting = printable(f"{name} = {value!r}")
            raise UserError(f"{where}: refused: its setting {setting} {problem}; nothing was run")


def _wrong_part(state: Any) -> str:
    """Which part of a torch file is not that of a checkpoint; empty if none."""
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        return 'a torch file without a "model" entry'
    for name in state["model"]:
        if not isinstance(name, str):
            return f"a parameter's name is {printable(repr(name))}"
    if not isinstance(state.get("args"), Namespace | None):
        return "its arguments are not a Namespace"
    parts = state.get("cfg"), state.get("extra_state"), state.get("task_state"), *(state.get("optimizer_history") or ())
    if not all(isinstance(part, Mapping | None) for part in parts):
        return "its configuration, or its state of training or task, is not a dictionary"
    for name, group in (state.get("cfg") or {}).items():
        if name != "_name" and not isinstance(group, Mapping | Namespace | None):
            return f"its settings of {printable(str(name))} are not a dictionary"
    return ""


def check_sizes(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse sizes that the file cannot have, such as more layers than parameters: building them may take forever."""
    parameters = len(state["model"])
    for name, value in _settings((state.get("args"), state.get("cfg"))):
        most = parameters if name.endswith("layers") else LARGEST if name.endswith(SIZES) else math.inf
        if isinstance(value, int) and value > most:
            size = f"its setting {printable(name)} = {value}"
            raise UserError(f"{path}: refused: {size} is not that of a model of {parameters} parameters")


def not_finite(weights: Mapping[str, Any]) -> tuple[str, float] | None:
    """The first tensor of a ``state_dict`` with NaN or infinity, and that number.

    A mechanism may have infinities: in a constant, such as a mask. fairseq's ``_float_tensor`` is never filled and may
    have anything.
    """
    for name, value in weights.items():
        private = name.rpartition(".")[2].startswith("_")
        if private or not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            continue
        for number in (bound.item() for bound in value.detach().aminmax()):  # NaN if any is
            if math.isnan(number) or (math.isinf(number) and not OF_MECHANISM.search(name)):
                return name, number
    return None


def _check_weights(path: str | Path, state: Mapping[str, Any]) -> None:
    """Refuse weights that are not finite, and a wrong checksum."""
    if wrong := not_finite(state["model"]):
        why = "training diverged, or the file is damaged; use an older checkpoint, or copy it again"
        raise UserError(f"{path}: {printable(wrong[0])} has the value {wrong[1]}: {why}")
    written = (state.get("extra_state") or {}).get("checksum")
    if written is not None and written != checksum(state["model"]):
        mismatch = "the checksum of its parameters is not the one that average wrote"
        raise UserError(f"{path}: {mismatch}; write the file again")


def _check_records(path: str | Path) -> None:
    """Compare the checksums that torch wrote into a file, which torch itself does not do.

    They are 0 in a file that was written without (``torch.serialization.set_crc32_options``).
    """
    if not _is_zip(path):
        return  # of torch < 1.6
    with zipfile.ZipFile(path) as archive:
        if any(record.CRC for record in archive.infolist()) and (wrong := archive.testzip()):
            problem = f"{printable(wrong)} in it has a wrong checksum"
            raise UserError(f"{path}: damaged: {problem}; copy the file again or use an earlier checkpoint")


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Every value in a configuration that is not a container, with the name of its setting."""
    todo, seen = [("", config)], set()
    while todo:
        name, value = todo.pop()
        if (name, id(value)) in seen:
            continue
        seen.add((name, id(value)))  # a pickled list may contain itself
        if isinstance(value, Namespace | Mapping):
            settings = vars(value) if isinstance(value, Namespace) else value
            todo += [(str(key), setting) for key, setting in settings.items()]
        elif isinstance(value, list | tuple | set):
            todo += [(name, part) for part in value]
        else:
            yield name, value
