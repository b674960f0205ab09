"""Models of transformers as checkpoints of fairseq: names and order of parameters, settings, dictionary."""

import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_diverse.checkpoints.loading import DICTIONARIES, check_sizes, damage, not_finite, save_checkpoint
from fairseq_diverse.checkpoints.shared import state_of
from fairseq_diverse.host.data import numbered_words
from fairseq_diverse.host.dictionaries import digest
from fairseq_diverse.host.programs import build_model, fill_architecture
from fairseq_diverse.models import bert_names, t5_names
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import new_folder, read_json, write_lines
from fairseq_diverse.support.installed import needed

CONFIG, MODEL, DICTIONARY = "config.json", "model.pt", "dict.txt"
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


# How models of a ``model_type`` are converted: ``words`` are the symbols of the dictionary, from the folder and its
# configuration; ``settings`` are ``arch`` and flags; ``parameters`` are those of the new model, from the old ones; all
# raise ``UserError`` for what does not fit. KEPT is a file that preparing data needs, TASK the settings of a task that
# the model is for, OPTIONAL beginnings of the names of parameters that the folder or the architecture may lack.
KINDS: dict[str, Any] = {"bert": bert_names, "t5": t5_names}


def convert(folder: Path, out: Path) -> str:
    """Write ``model.pt``, ``dict.txt`` and what preparing data needs into a new folder; returns the architecture. No
    code in ``folder``, which ``save_pretrained`` of transformers wrote, is run. Raises ``UserError``: a file is missing
    or damaged, the model is of another kind, or a parameter or setting does not fit; ``out`` is not changed."""
    config = _config(folder)
    if (kind := KINDS.get(str(config.get("model_type")))) is None:
        raise UserError(f"{folder / CONFIG}: model_type {config.get('model_type')!r}; known: {', '.join(KINDS)}")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"--out {out}: exists; name a new folder")
    try:
        words = kind.words(folder, config)
        args = Namespace(**kind.settings(config))
        model = kind.parameters(folder, config, _weights(folder), words)
    except ValueError as error:  # of other rooms, too
        raise UserError(str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / CONFIG}: incomplete or damaged ({type(error).__name__}: {error})") from error
    fill_architecture(args)
    cfg = {"model": Namespace(**vars(args), _name=args.arch), "common": {}, "task": dict(kind.TASK)}
    state = state_of(model, cfg, {DICTIONARIES: dict.fromkeys(kind.SIDES, digest(words))})
    check_sizes(folder / CONFIG, state)
    check_parameters(folder, args, model, len(words), kind.OPTIONAL)
    with new_folder(out) as part:
        write_lines(part / DICTIONARY, (f"{word} 1" for word in words[4:]))  # after fairseq's own
        shutil.copyfile(folder / kind.KEPT, part / kind.KEPT)
        save_checkpoint(state, part / MODEL)
        part.replace(out)
    return str(args.arch)


def check_parameters(
    folder: Path, args: Namespace, model: Mapping[str, Tensor], symbols: int, optional: tuple[str, ...] = ()
) -> None:
    """Raise ``UserError`` unless the parameters are exactly those of the architecture, and finite; of a group that is
    ``optional``, the model or the architecture may have none."""
    with FakeTensorMode():  # without memory; fairseq's RoBERTa draws initial values, which the meta device cannot
        words = numbered_words(symbols)
        expected = build_model(args, words, words).state_dict()
    compared = [*expected, *model]
    for group in optional:
        if not all(any(name.startswith(group) for name in names) for names in (expected, model)):
            compared = [name for name in compared if not name.startswith(group)]
    for name in compared:
        if name not in model or name not in expected or model[name].shape != expected[name].shape:
            problem = "in another shape" if name in model and name in expected else "missing or too many"
            raise UserError(f"{folder}: {name} is {problem}: its weights do not fit its {CONFIG}")
    if wrong := not_finite(model):
        raise UserError(f"{folder}: {wrong[0]} has the value {wrong[1]}; the file is damaged")


def _config(folder: Path) -> Mapping[str, Any]:
    todo = "give a folder that save_pretrained of transformers wrote"
    if folder.is_file():
        raise UserError(
            f"{folder}: a file; {todo}; --finetune-from-model of fairseq-train takes checkpoints of fairseq"
        )
    if (config := read_json(folder / CONFIG, "save the model again with save_pretrained")) is None:
        raise UserError(f"{folder}: no {CONFIG}; {todo}")
    return config


def _weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder in float32, by name."""
    paths = next((matches for pattern in WEIGHTS if (matches := sorted(folder.glob(pattern)))), [])
    if not paths:
        raise UserError(f"{folder}: no weights; looked for {' and '.join(WEIGHTS)}")
    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            if path.suffix == ".safetensors":
                missing = f"{path}: safetensors is not installed; run: pip install safetensors"
                loaded = needed("safetensors.torch", missing).load_file(path)
            else:
                loaded = torch.load(path, map_location="cpu", weights_only=True)
            tensors |= {name: tensor.float() for name, tensor in loaded.items()}
        except (MemoryError, UserError):
            raise
        except Exception as error:  # a damaged file shows in many ways
            text = "damaged or cut off" if path.suffix == ".safetensors" else damage(path, error)
            raise UserError(f"{path}: {text}") from error
    return tensors
