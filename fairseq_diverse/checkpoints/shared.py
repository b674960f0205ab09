"""A model as a folder to share: weights in safetensors, settings in JSON, and the files that its task reads.

Nothing in such a folder is code that loading runs: ``model.safetensors`` holds numbers, ``config.json`` text. Its
``files`` are the SHA-256 of every file but itself and ``README.md``, which may be edited."""

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_json, sha256_of
from fairseq_diverse.support.installed import install, needed

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT, SCHEMA = "fairseq-diverse model", 1
SECTIONS = ("model", "task", "criterion", "common", "dataset", "optimization", "optimizer", "lr_scheduler")
LOCAL = (  # settings that name files and accounts of the machine of training
    *("data", "save_dir", "user_dir", "restore_file", "finetune_from_model", "tensorboard_logdir", "log_file"),
    *("wandb_project", "from_checkpoint", "checkpoint_data", "results_path", "path"),
    *("encoder_embed_path", "decoder_embed_path", "load_pretrained_encoder_from", "load_pretrained_decoder_from"),
)
AGAIN = "get it again, or export it again"


def write_shared(state: Mapping[str, Any], folder: Path, **more: Any) -> None:
    """Write weights and settings of a checkpoint into a folder that has its other files already; ``more``: further
    entries of ``config.json``.

    Tensors that share memory are written once. Settings that name files of the machine become empty; sections of
    programs, the optimizer's state and the counters of training are left out. Raises ``UserError``: safetensors is not
    installed, or a setting cannot be written as JSON; ``OSError``: the weights cannot be written."""
    safetensors = _safetensors()
    tied = {name: owner for name, owner in owners(state["model"]).items() if owner != name}
    untied = {name: value for name, value in state["model"].items() if name not in tied}
    weights = {name: value.detach().contiguous().clone() for name, value in untied.items()}
    try:
        safetensors.save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    except Exception as error:  # of a full disk, in its own type
        raise OSError(f"{folder / WEIGHTS}: cannot be written ({str(error).splitlines()[0]})") from None
    cfg = {name: part for name, part in (state.get("cfg") or {}).items() if name in SECTIONS}
    history = (state.get("optimizer_history") or [{}])[-1]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (CONFIG, CARD))
    config = {"format": FORMAT, "schema": SCHEMA, **more, "updates": history.get("num_updates", 0)}
    config |= {"args": _portable(state.get("args")), "cfg": _portable(cfg) if state.get("cfg") else None}
    config |= {"namespaces": [name for name, part in cfg.items() if isinstance(part, Namespace)]}
    config |= {"task_state": state.get("task_state") or {}, "tied": tied}
    config |= {"files": {str(path.relative_to(folder)): sha256_of(path) for path in files}}
    try:
        text = json.dumps(config, indent=1, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"a setting of the checkpoint cannot be written as JSON ({error})") from None
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors lets only the owner read it


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a shared folder. Raises ``UserError``: it is missing, damaged, of another program or of a
    newer version."""
    path = folder / CONFIG
    if (config := read_json(path, AGAIN)) is None:
        wrote = "give a checkpoint, or a folder that `fairseq-diverse export --to safetensors` wrote"
        raise UserError(f"{folder}: cannot be read as a model (no {CONFIG}); {wrote}")
    if config.get("format") != FORMAT or not isinstance(config.get("schema"), int):
        hint = "a model of transformers? `fairseq-diverse convert` reads it" if "model_type" in config else ""
        raise UserError(f"{path}: not of a model that `fairseq-diverse export` wrote{hint and f' ({hint})'}")
    if config["schema"] > SCHEMA:
        newer = f"of schema {config['schema']}, written by fairseq-diverse {config.get('version')}"
        raise UserError(f"{path}: {newer}; the one here reads up to {SCHEMA}: update it")
    return config


def read_shared(folder: Path) -> dict[str, Any]:
    """A shared model as the state that a checkpoint holds. Nothing in the folder is run. Raises ``UserError``: as
    `read_config`, a file is missing or differs from the one exported, or safetensors is missing."""
    config = read_config(folder)
    path = folder / CONFIG
    try:
        _check_files(folder, config["files"])
        weights = _safetensors().load_file(folder / WEIGHTS)
        weights |= {name: weights[owner] for name, owner in config["tied"].items()}
        cfg = config["cfg"]
        for name in config["namespaces"]:
            cfg[name] = Namespace(**cfg[name])
        args = config["args"] and Namespace(**config["args"])
        return {**state_of(weights, cfg, config["task_state"], config["updates"]), "args": args}
    except (UserError, MemoryError, OSError):
        raise
    except Exception as error:  # its values may be anything
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); {AGAIN}") from None


def state_of(model: Mapping[str, Tensor], cfg: Any, task_state: Any, updates: int = 0, **more: Any) -> dict[str, Any]:
    """What fairseq's trainer writes, as far as it is needed to load a model; ``more`` of ``extra_state``."""
    history = [{"lr_scheduler_state": {"best": None}, "num_updates": updates}]
    state = {"args": None, "cfg": cfg, "model": model, "criterion": None, "optimizer_history": history}
    return state | {"task_state": task_state, "extra_state": {"epoch": 1, **more}}


def owners(model: Mapping[str, Tensor]) -> dict[str, str]:
    """Of each parameter, the first one that shares its memory: itself, most often."""
    first: dict[tuple, str] = {}
    owner_of = {}
    for name, value in model.items():
        place = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        owner_of[name] = first.setdefault(place, name) if value.numel() else name
    return owner_of


def _check_files(folder: Path, files: Mapping[str, str]) -> None:
    if WEIGHTS not in files:
        raise UserError(f"{folder / CONFIG}: damaged (files); {AGAIN}")
    for name, digest in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"{folder / CONFIG}: {name!r} is outside the folder; {AGAIN}")
        try:
            actual = sha256_of(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); {AGAIN}") from None
        if actual != digest:
            raise UserError(f"{path}: not the file that was exported: damaged, cut off or changed; {AGAIN}")


def _portable(value: Any) -> Any:
    """Settings as JSON has them, without names of files of this machine."""
    if isinstance(value, Namespace | Mapping):
        settings = vars(value) if isinstance(value, Namespace) else value
        return {str(name): _portable(item) if name not in LOCAL else item and "" for name, item in settings.items()}
    if isinstance(value, list | tuple):
        return [_portable(item) for item in value]
    return "" if isinstance(value, str) and Path(value).is_absolute() else value


def _safetensors() -> Any:
    return needed("safetensors.torch", f"safetensors is not installed; run: {install('share')}")
