"""Checkpoints and flags on their way into fairseq: checked, and with errors that name the file or the flag."""

import json
import re
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.attention.warm_start import NotTrained, only_trained
from fairseq_diverse.checkpoints.loading import SAFE_GLOBALS, check_settings, damage, load_checkpoint
from fairseq_diverse.checkpoints.settings import EVALUATED, is_literal, printable
from fairseq_diverse.host.dictionaries import OtherDictionaries
from fairseq_diverse.host.ignored import check_ignored, flags_of_mechanisms
from fairseq_diverse.support.errors import UserError

# Files that fairseq reads to initialize parameters; the checkpoint replaces these parameters.
INITIAL_FILES = (
    *("encoder_embed_path", "decoder_embed_path"),
    *("load_pretrained_encoder_from", "load_pretrained_decoder_from"),
)

State = dict[str, Any]  # of a checkpoint
Overrides = dict[str, Any] | None  # settings that replace those of a checkpoint
_after_reading: ContextVar[Callable[[State], None] | None] = ContextVar("_after_reading", default=None)


def register_safe_globals() -> None:
    """Let torch load what fairseq saves or sends to other processes under ``weights_only=True``. Idempotent."""
    from fairseq.distributed.utils import _TensorPlaceholder  # the place of a tensor, in messages

    torch.serialization.add_safe_globals([*SAFE_GLOBALS, _TensorPlaceholder])


@contextmanager
def after_reading(change: Callable[[State], None]) -> Iterator[None]:
    """Call ``change`` with every state that fairseq reads meanwhile, before it is used."""
    before = _after_reading.set(change)
    try:
        yield
    finally:
        _after_reading.reset(before)


def load_to_cpu(_: Any, path: str, arg_overrides: Overrides = None, load_on_all_ranks: bool = False) -> State:
    """As fairseq's function, but ``load_checkpoint`` reads the file: checked, and with errors that name it.
    ``arg_overrides``: settings that replace those of the checkpoint, as of ``--model-overrides``;
    ``load_on_all_ranks``: ignored. Raises ``UserError``: as ``load_checkpoint``, or an unsafe setting."""
    state = upgraded(path, load_checkpoint(path), arg_overrides or {})
    if change := _after_reading.get():
        change(state)
    return state


def upgraded(path: str, state: State, overrides: dict[str, Any]) -> State:
    """The state of a file as fairseq's functions take it, with some of its settings replaced."""
    from fairseq.checkpoint_utils import _upgrade_state_dict
    from fairseq.dataclass.utils import overwrite_args_by_name
    from omegaconf import OmegaConf

    check_settings("--model-overrides", overrides)
    try:
        if state.get("args") is not None:
            state["args"].__dict__.update(overrides)
        if state.get("cfg") is not None:
            state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
            overwrite_args_by_name(state["cfg"], overrides)
        return _upgrade_state_dict(state)
    except MemoryError:
        raise
    except Exception as error:  # a damaged configuration shows in many ways
        raise UserError(f"{path}: {damage(path, error)}") from error


def load_ensemble(load: Any, filenames: list[str], arg_overrides: Overrides = None, *args: Any, **flags: Any) -> Any:
    """As fairseq's ``load_model_ensemble_and_task``; errors name the file, and no other files are read. Raises
    ``UserError``: a checkpoint is unreadable, lacks parameters, does not fit the data, or is of the other direction."""
    if not all(filenames):
        raise UserError("the path of the checkpoint is empty; give a file")
    settings = {**(arg_overrides or {}), **dict.fromkeys(INITIAL_FILES)}
    try:
        with only_trained():
            loaded = load(filenames, settings, *args, **flags)
    except (MemoryError, UserError):
        raise
    except Exception as error:
        raise UserError(load_problem(", ".join(filenames), settings.get("data", "the data given"), error)) from error
    models, cfg, task = loaded
    for name, parameter in (named for model in models for named in model.named_parameters()):
        if not parameter.isfinite().all():  # of a mechanism, whose constants may be infinite
            raise UserError(f"{', '.join(filenames)}: {name} is not finite: training diverged; use an older checkpoint")
    source, target = (getattr(cfg.task, f"{side}_lang", None) for side in ("source", "target"))
    read = [getattr(getattr(task, "cfg", None), f"{side}_lang", None) for side in ("target", "source")]
    if source != target and read == [source, target]:  # of the data files' names, where no flag gives the languages
        todo = f"give --source-lang {source} --target-lang {target}, or for a model of both directions"
        swapped = f'--model-overrides "{ {"source_lang": target, "target_lang": source} }"'
        raise UserError(f"{filenames[-1]}: translates from {source} to {target}; {todo} {swapped}")
    return loaded


def load_problem(names: str, data: str, error: Exception) -> str:
    """The problem with readable checkpoints, or with the data folder."""
    lines = [printable(line.strip(), 300) for line in str(error).splitlines()] or [""]
    match error:
        case FileNotFoundError(filename=str(missing)):  # for a missing checkpoint, fairseq raises a plain OSError
            return f"{missing}: missing; is {Path(missing).parent} a folder of prepared data?"
        case OSError():
            return lines[0]
        case AssertionError() | IndexError() | KeyError() if _raised_in(error, ("setup_task", "build_model")):
            return f"{names}: its task or model is in neither fairseq nor this package"
        case RuntimeError() if name := _changed_mechanism(str(error)):
            why = f"its parameters of the mechanism {name!r} do not fit the class"
            return f"{names}: {why}; was the code or a setting changed after training? {lines[-1]}"
        case RuntimeError() if any("Unexpected key" in line and "_attn." in line for line in lines):
            todo = "give its --user-dir, or the flags of its training"
            return f"{names}: has a mechanism that is not registered; {todo}: {lines[-1]}"
        case NotTrained():
            todo = "train it, from this checkpoint with --finetune-from-model, or leave the mechanism out"
            return f"{names}: was trained without {lines[0]}, which would be drawn at random; {todo}"
        case OtherDictionaries():
            return f"{names}: does not fit {data}; was it trained on other data? {lines[0]}"
        case RuntimeError() if "size mismatch" in str(error) and not re.search("embed_tokens|projection", str(error)):
            return f"{names}: does not fit its settings; leave out --model-overrides, or correct them: {lines[-1]}"
        case RuntimeError() if "state_dict" in lines[0]:  # the last line names a parameter
            return f"{names}: does not fit {data}; was it trained on other data? {lines[-1]}"
    if type(error) is Exception:  # fairseq's message
        return f"{data}: is it a folder of prepared data for {names}? {lines[0]}"
    return f"{names}: cannot build a model from its settings ({type(error).__name__}: {lines[0]})"


def _raised_in(error: Exception, functions: tuple[str, ...]) -> bool:
    """Whether one of fairseq's functions of this name itself, not what it calls, raised an error.

    They find no class for a name of a checkpoint, with an error of any kind: some fail in writing their own message.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_name in functions and frame.f_globals["__name__"] in ("fairseq.tasks", "fairseq.models")


def _changed_mechanism(message: str) -> str | None:
    """The registered mechanism of the last parameter that torch names, if all that it names are of mechanisms."""
    names = {cls.key: name for name, cls in MECHANISMS.items()}
    parameters = re.findall(r"size mismatch for ([\w.]+)|\"([\w.]+)\"", message)
    keys = [re.search(r"_attn\.(\w+)\.", mismatched or absent) for mismatched, absent in parameters]
    owners = [names.get(key[1]) if key else None for key in keys]
    return owners[-1] if owners and all(owners) else None


def _check_json(flag: str, value: str) -> None:
    """Raise ``UserError`` if the value of a flag is not an object of JSON."""
    try:
        if isinstance(json.loads(value), dict):
            return
        reason = "not in braces"
    except ValueError as error:
        reason = str(error)
    raise UserError(f"""{flag} {value}: no JSON ({reason}); quote it for the shell, as in {flag} '{{"beam": 5}}'""")


def parse_args(parse: Any, parser: ArgumentParser, input_args: Any = None, *args: Any, **flags: Any) -> Any:
    """As fairseq's ``parse_args_and_arch``.

    Raises:
        UserError: a flag that fairseq evaluates is not a literal or not JSON, the program ignores a flag, one of a
            mechanism is given to an architecture of fairseq, or there is no task or architecture.
    """
    try:
        with flags_of_mechanisms(parser, input_args):
            parsed = parse(parser, input_args, *args, **flags)
    except (KeyError, RuntimeError) as error:  # of fairseq, which says nothing
        if (missing := {"None": "task translation", "": "arch diverse_transformer"}.get(str(error))) is None:
            raise
        raise UserError(f"--{missing.split()[0]}: give one, such as --{missing}") from None
    namespace: Namespace = parsed[0] if isinstance(parsed, tuple) else parsed
    for name, value in vars(namespace).items():
        if name in EVALUATED and isinstance(value, str) and not is_literal(value):
            raise UserError(f"--{name.replace('_', '-')} {value}: not a literal, such as (0.9, 0.98)")
        if name in ("eval_bleu_args", "eval_bleu_detok_args") and isinstance(value, str):
            _check_json(f"--{name.replace('_', '-')}", value)
    check_ignored(parser, namespace)
    if getattr(namespace, "bf16", False) and not find_spec("torch_xla"):
        namespace.tpu = False  # which --bf16 means to fairseq
    return parsed
