"""Folders of configurations and runs, and files of binarized data."""

import difflib
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
    """The YAML file ``name``: an existing path, or a name in ``configs/<kind>/``. Raises ValueError: neither exists;
    lists the known names."""
    as_path = Path(name)
    if as_path.suffix in (".yaml", ".yml") and as_path.is_file():
        return as_path
    path = config_root() / kind / f"{name}.yaml"
    if not path.is_file() and as_path.is_file():
        raise ValueError(f"{name}: not YAML by its name; call it {as_path.with_suffix('.yaml').name}")
    if not path.is_file():
        known = config_names(kind)
        beside = [str(file) for file in as_path.parent.glob("*.yaml")]
        near = "".join(f"nearest: {close}; " for close in difflib.get_close_matches(name, [*known, *beside], n=1))
        raise ValueError(f"{name}: no such file, and not one of configs/{kind}; {near}known: {', '.join(known)}")
    return path


def data_name(data: str) -> str:
    """The name of a data set that is given by name or as a path; links are not followed."""
    return os.path.basename(os.path.abspath(data))


def folders_of_data(name: str, root: Path | None = None) -> list[Path]:
    """Where a data set may be, given by name or as a path: in the folder of runs (``root``), or at the path itself."""
    return [(root or runs_dir()) / "data" / name, Path(os.path.abspath(name))]


def source_prefix(folder: Path, split: str, source: str, target: str) -> Path:
    """The prefix of a split's binarized source, in files of either direction, as fairseq finds them; where there are
    none, that of this direction."""
    prefixes = [folder / f"{split}.{pair}.{source}" for pair in (f"{source}-{target}", f"{target}-{source}")]
    return next((prefix for prefix in prefixes if Path(f"{prefix}.idx").exists()), prefixes[0])


def runs_dir() -> Path:
    """``$FAIRSEQ_DIVERSE_RUNS``, by default ``runs/`` in the current folder."""
    return Path(os.environ.get("FAIRSEQ_DIVERSE_RUNS") or "runs").resolve()
