"""What ran: commit, versions, device."""

import importlib.metadata
import platform
import subprocess
from typing import Any

from fairseq_diverse.paths import PACKAGE

DISTRIBUTIONS = ("fairseq-diverse", "fairseq-fixed", "torch", "numpy", "sacrebleu", "sacremoses", "subword-nmt")


def collect() -> dict[str, Any]:
    """Commit of the package's checkout and whether files differ from it (None: not a checkout), versions, device."""
    import torch

    versions = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    tracked = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    return {
        "commit": _git("rev-parse", "HEAD") if tracked else None,
        "dirty": bool(_git("status", "--porcelain", "--", ".")) if tracked else None,
        "versions": versions,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
