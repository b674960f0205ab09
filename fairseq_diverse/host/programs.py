"""Flags, architectures and criterions of fairseq, for rooms that do not import it."""

import argparse
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq_diverse.support.errors import UserError, with_place

Registry = Mapping[str, Any]  # name -> class


def parser(program: str, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of fairseq-train or fairseq-generate, with the flags of the components that ``words`` choose.

    Args:
        program: "train" or "generate".
        words: a command line; if empty, only the flags of every training or generation are known.

    Raises:
        SystemExit: the words miss a required flag, or choose a component that does not exist.
    """
    from fairseq import options

    program_parser = options.get_training_parser() if program == "train" else options.get_generation_parser()
    if words:
        options.parse_args_and_arch(program_parser, input_args=list(words), parse_known=True)
    return program_parser


def choosing_flags() -> set[str]:
    """The flags whose values decide which other flags there are."""
    from fairseq.registry import REGISTRIES

    return {"--user-dir", "--arch", "--task", "--use-bmuf", *(f"--{name.replace('_', '-')}" for name in REGISTRIES)}


def architectures() -> Registry:
    from fairseq.models import ARCH_MODEL_REGISTRY

    return ARCH_MODEL_REGISTRY


def model_name(arch: str | None) -> str | None:
    """The name of the model of an architecture; another name is returned as it is."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    return ARCH_MODEL_NAME_REGISTRY.get(arch, arch)


def fill_architecture(args: Namespace) -> None:
    """Add to ``args`` the settings of its architecture that it does not have."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    ARCH_CONFIG_REGISTRY[args.arch](args)


def build_model(args: Namespace, source: Any, target: Any, max_positions: int = 512) -> Any:
    """The model for complete arguments and these dictionaries."""
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target, max_positions=lambda: max_positions)
    return architectures()[args.arch].build_model(args, task)


def tasks() -> Registry:
    from fairseq.tasks import TASK_REGISTRY

    return TASK_REGISTRY


def criterions() -> Registry:
    from fairseq.criterions import CRITERION_REGISTRY

    return CRITERION_REGISTRY


def criterions_with(setting: str) -> list[str]:
    """The names of the criterions that have a setting (``label_smoothing``)."""
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY

    return [name for name, cls in CRITERION_DATACLASS_REGISTRY.items() if setting in cls.__dataclass_fields__]


def generation_settings(**settings: Any) -> Any:
    """What ``task.build_generator`` takes; the defaults are those of fairseq-generate."""
    from fairseq.dataclass.configs import GenerationConfig

    return GenerationConfig(**settings)


def check_user_dir(folder: str, flag: str = "--user-dir") -> None:
    """Raise ``ValueError`` where a user's folder does not exist or has the name of a module; imports nothing.

    Args:
        flag: the flag, or the file and key, that names the folder, for messages.
    """
    if not Path(folder, "__init__.py").is_file():
        raise ValueError(f"{flag} {folder}: no such folder, or one without an __init__.py")
    if (name := Path(folder).absolute().name) in sys.stdlib_module_names:
        raise ValueError(f"{flag} {folder}: {name} is a module of Python; call the folder otherwise")


def import_user_dir(folder: str, flag: str = "--user-dir") -> None:
    """Import a user's folder as ``fairseq-train --user-dir`` does.

    Raises:
        ValueError: as `check_user_dir`, or the folder cannot be imported.
    """
    where = f"{flag} {folder}"
    check_user_dir(folder, flag)
    from fairseq import utils

    try:
        utils.import_user_module(Namespace(user_dir=str(folder)))
    except UserError:
        raise
    except SyntaxError as error:
        raise ValueError(f"{where}: {error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # the folder's code may raise anything
        raise ValueError(f"{where}: {with_place(error, folder)}") from error
