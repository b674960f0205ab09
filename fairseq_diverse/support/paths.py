"""Folders of configurations and runs."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def config_root() -> Path:
    """``configs/`` of the checkout, or its copy inside the installed package."""
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"


def config_names(kind: str) -> list[str]:
    """Names of the configurations of one kind: ``data``, ``size`` or ``tables``."""
    return sorted(path.stem for path in (config_root() / kind).glob("*.yaml"))


def config_path(kind: str, name: str) -> Path:
    """The YAML file ``name``: an existing path, or a name in ``configs/<kind>/``.

    Raises:
        ValueError: neither exists; lists the known names.
    """
    given = Path(name)
    if given.suffix in (".yaml", ".yml") and given.is_file():
        return given
    path = config_root() / kind / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"{name}: neither a file nor a {kind} configuration; known: {', '.join(config_names(kind))}")
    return path


def runs_dir() -> Path:
    """``$FAIRSEQ_DIVERSE_RUNS``, by default ``runs/`` in the current folder."""
    return Path(os.environ.get("FAIRSEQ_DIVERSE_RUNS") or "runs").resolve()
