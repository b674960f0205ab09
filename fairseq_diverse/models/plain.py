"""Checkpoints of this package as checkpoints of fairseq's own ``transformer``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from fairseq_diverse.attention.registry import active, add_flags
from fairseq_diverse.checkpoints.loading import DICTIONARIES, dictionary_digests, load_checkpoint, save_checkpoint
from fairseq_diverse.checkpoints.settings import printable
from fairseq_diverse.checkpoints.shared import state_of
from fairseq_diverse.host.data import numbered_words
from fairseq_diverse.host.loading import INITIAL_FILES, upgraded
from fairseq_diverse.host.programs import build_model, criterions, model_name
from fairseq_diverse.models.layers import add_layer_flags
from fairseq_diverse.support.errors import UserError

MODELS = ("transformer", "diverse_transformer")
TASKS = {"translation_with_syntax": "translation"}  # for models without trees they are the same
KEPT = ("epoch", "train_iterator", "val_loss", "best")  # of extra_state; fairseq reads the first two of every file


def to_fairseq(path: str | Path, out: str | Path) -> None:
    """Write a translation model without mechanisms as a checkpoint of fairseq's own ``transformer``.

    The parameters are the same; settings of this package, names of files that initialized parameters and the
    optimizer's state are left out. The settings are dictionaries, not ``argparse.Namespace``: plain fairseq loads the
    file under torch's ``weights_only=True``.

    Raises:
        UserError: not a checkpoint, not a ``transformer`` for translation, or with something that fairseq's
            ``transformer`` does not have; says what.
    """
    try:
        plain = _plain(path, upgraded(str(path), load_checkpoint(path), {}))
    except (MemoryError, UserError):
        raise
    except Exception as error:  # settings may be anything
        problem = printable(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"{path}: cannot build a model from its settings ({problem})") from error
    save_checkpoint(plain, out)


def _plain(path: str | Path, state: dict[str, Any]) -> dict[str, Any]:
    sections = _dictionary(OmegaConf.to_container(state["cfg"], enum_to_str=True))
    settings = sections["model"]
    arch = settings.get("_name") or settings.get("arch")
    if model_name(arch) not in MODELS:
        raise UserError(f"{path}: a {printable(str(arch))} model; only a diverse_transformer or transformer can go")
    flags, names = active(Namespace(**settings)), settings.get("own_mechanisms")
    if flags or names:
        kinds = [f"{flag} {settings[flag.removeprefix('--').replace('-', '_')]}" for flag in flags]
        kinds = kinds or [f"the mechanism {printable(str(names))}"]
        can = "a model without mechanisms can go, also if it was trained with --disagreement"
        raise UserError(f"{path}: {', '.join(kinds)} cannot go: only fairseq-diverse computes this; {can}")
    is_own = _own_settings()
    task = settings.get("task", "translation")
    names = dict.fromkeys(("arch", "_name"), "transformer")
    names |= {"task": TASKS.get(task, task), "criterion": _criterion(settings)}
    settings = {name: value for name, value in {**settings, **names}.items() if not is_own(name)}
    settings |= dict.fromkeys(settings.keys() & {*INITIAL_FILES})  # the parameters are here
    _check_parameters(path, state["model"], settings)
    for name in ("task", "criterion"):
        section = sections.get(name) or {}
        sections[name] = {key: value for key, value in section.items() if not is_own(key)} | {"_name": names[name]}
    sections["common"] = (sections.get("common") or {}) | {"user_dir": None}
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)
    extra = state.get("extra_state") or {}
    kept = {name: _dictionary(extra[name]) for name in KEPT if name in extra}
    task_state = {DICTIONARIES: digests} if (digests := dictionary_digests(state)) else {}
    return state_of(state["model"], sections | {"model": settings}, task_state, updates, **kept)


def _dictionary(value: Any) -> Any:
    """A namespace as a dictionary, also inside dictionaries and lists."""
    if isinstance(value, Namespace | Mapping):
        items = vars(value) if isinstance(value, Namespace) else value
        return {str(name): _dictionary(inner) for name, inner in items.items()}
    return [_dictionary(inner) for inner in value] if isinstance(value, list | tuple) else value


def _own_settings() -> Callable[[str], bool]:
    """Whether fairseq's ``transformer`` does not have a setting."""
    parser = ArgumentParser(add_help=False)
    add_flags(parser)
    add_layer_flags(parser)
    flags = {"user_dir", "own_mechanisms", *(action.dest for action in parser._actions)}
    return lambda name: name in flags or name.startswith("disagreement")


def _criterion(settings: Mapping[str, Any]) -> str:
    """The criterion, or the one of fairseq's that it is derived from."""
    used = criterions().get(settings.get("criterion", ""))
    for base in used.__mro__ if used else ():
        for name, known in criterions().items():
            if known is base and base.__module__.startswith("fairseq."):
                return name
    return "cross_entropy"


def _check_parameters(path: str | Path, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Compare names and shapes with those of fairseq's ``transformer`` with these settings. Raises ``UserError``: they
    differ; names the first parameter."""
    words = [len(parameters.get(f"{side}.embed_tokens.weight", ())) for side in ("encoder", "decoder")]
    source, target = map(numbered_words, words)
    target = source if settings.get("share_all_embeddings") else target
    with torch.device("meta"):
        model = build_model(Namespace(**settings), source, target)
    present = dict(parameters)
    model.upgrade_state_dict(present)
    expected = model.state_dict()
    for name in [*present, *expected]:
        if name not in expected or name not in present or present[name].shape != expected[name].shape:
            difference = "it in another shape" if name in expected and name in present else "other parameters"
            problem = f"cannot go: fairseq's transformer with these settings has {difference}"
            raise UserError(f"{path}: its parameter {printable(name)} {problem}")
