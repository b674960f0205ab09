"""What ran: commit, versions, device."""

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

from fairseq_diverse.support.paths import PACKAGE

VARIABLES = ("CUDA_", "FAIRSEQ_", "KMP_", "MALLOC_", "MKL_", "NCCL_", "OMP_", "PYTHON", "PYTORCH_", "SLURM_", "TORCH")
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


def environment() -> str:
    """The machine, the variables that bear on speed and results, and every package: a requirements file for pip."""
    import torch

    lines = [f"python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores"]
    lines += [f"fairseq-diverse at {_git('rev-parse', 'HEAD') or 'no commit'}"]
    lines += [
        f"GPU {number}: {torch.cuda.get_device_name(number)}, CUDA {torch.version.cuda}"
        for number in range(torch.cuda.device_count())
    ]
    lines += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    packages = {package.metadata["Name"]: package.version for package in importlib.metadata.distributions()}
    packages.pop("fairseq-diverse", None)
    pinned = [f"{name}=={version}" for name, version in sorted(packages.items(), key=lambda item: item[0].lower())]
    return "\n".join([*(f"# {line}" for line in lines), *pinned]) + "\n"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
