"""What ran: commit, versions, machine."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairseq_diverse import __version__
from fairseq_diverse.experiments.runs.environment import ALLOCATION, AVX2
from fairseq_diverse.support.installed import FAIRSEQ, versions
from fairseq_diverse.support.paths import PACKAGE

# that change the last bits of results and the speed on a CPU, and all that change a run
MACHINE = ("ATEN_", "DNNL_", "FAIRSEQ_DIVERSE_KERNELS", "GLIBC_TUNABLES", "MALLOC_", "MKL_", "OMP_", "ONEDNN_")
VARIABLES = (*MACHINE, "CUDA_", "FAIRSEQ_", "KMP_", "NCCL_", "PYTHON", "PYTORCH_", "SLURM_", "TORCH")
DISTRIBUTIONS = (*FAIRSEQ, "torch", "numpy", "sacrebleu", "sacremoses", "subword-nmt")
UNKNOWN = "unknown machine"


class Machine(msgspec.Struct):
    """What `collect` writes of a machine; two are equal in the first five."""

    cpu: str
    cores: int
    threads: int
    capability: str
    device: str
    variables: dict[str, str] = {}


class Start(msgspec.Struct, kw_only=True):
    """What `collect` writes; earlier versions kept no machine."""

    commit: str | None
    dirty: bool | None
    versions: dict[str, str] = {}
    machine: Machine | None = None


MACHINE_KEYS = ("cpu", "cores", "threads", "capability", "device")


def collect(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Commit of the package's checkout and whether files differ from it (None: not a checkout), versions, device, and
    the machine: processor, cores, threads, vector instructions that torch uses, and the variables of ``MACHINE``.
    ``environment``: variables of the process that works, besides the inherited ones."""
    import torch

    variables = os.environ | (environment or {})
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    visible = (environment or {}).get("CUDA_VISIBLE_DEVICES", "")
    if device != "cpu" and (gpus := len(visible.split(",")) if visible else torch.cuda.device_count()) > 1:
        device = f"{gpus} x {device}"
    tracked = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    return {
        "commit": _git("rev-parse", "HEAD") if tracked else None,
        "dirty": bool(_git("status", "--porcelain", "--", ".")) if tracked else None,
        # an environment may have another version installed than this checkout's
        "versions": {"python": platform.python_version(), "fairseq-diverse": __version__} | versions(DISTRIBUTIONS),
        "device": device,
        "machine": {
            "cpu": processor(),
            "cores": os.cpu_count() or 1,
            "threads": int(variables.get("OMP_NUM_THREADS", torch.get_num_threads())),
            "capability": variables.get("ATEN_CPU_CAPABILITY", torch.backends.cpu.get_cpu_capability()).upper(),
            "device": device,
            "variables": {name: value for name, value in sorted(variables.items()) if name.startswith(MACHINE)},
        },
    }


def starts_of(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Commit, versions and machine of every start of a run that differed; a run that was not resumed, or is of before
    these were kept, has one, in the summary itself."""
    return summary.get("starts") or [summary]


def commits_of(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commits that the runs were made with, of all their starts, a + behind those with changed files; of a package
    that was installed its version."""
    commits = set()
    for start in (start for summary in summaries for start in starts_of(summary)):
        version = start.get("versions", {}).get("fairseq-diverse")
        installed = f"version {version}" if version else "unknown"
        commits.add(start["commit"][:10] + "+" * bool(start["dirty"]) if start["commit"] else installed)
    return sorted(commits)


def machine(start: Mapping[str, Any]) -> str:
    """The machine that a run was started on and its settings of threads, memory and arithmetic, in words: equal for
    runs with the same."""
    entries = start.get("machine")
    if not entries:
        return UNKNOWN
    cpu, cores, threads, capability, device = (entries[key] for key in MACHINE_KEYS)
    words = [cpu, f"{cores} core{'s' * (cores != 1)}", f"{threads} thread{'s' * (threads != 1)}", capability]
    words += [device] * (device != "cpu")
    changed = dict(entries.get("variables", {}))  # that change speed or results
    for text, variables in (("keeps freed memory", ALLOCATION), ("--same-arithmetic", AVX2)):
        if variables.items() <= changed.items():
            words.append(text)
            changed = {name: value for name, value in changed.items() if name not in variables}
    known = {"ATEN_CPU_CAPABILITY": capability.lower()}  # what is said already
    known |= dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
    more = [f"{name}={value}" for name, value in sorted(changed.items()) if value.lower() != known.get(name)]
    return ", ".join([*words, *more])


def processor() -> str:
    """The processor's name, family and model: a virtual machine may give a name that many have."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.MULTILINE))
    name = fields.get("model name", platform.machine())
    return f"{name}, family {fields['cpu family']}, model {fields['model']}" if len(fields) == 3 else name


def environment(added: dict[str, str]) -> str:
    """The machine, the variables that change speed and results (those of the environment and those ``added``), and
    every package: a requirements file for pip.
    """
    import torch

    lines = [f"python {platform.python_version()}, {platform.platform()}, {processor()}, {os.cpu_count()} cores"]
    lines += [f"fairseq-diverse at {_git('rev-parse', 'HEAD') or 'no commit'}"]
    gpus = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    lines += [f"GPU {number}: {name}, CUDA {torch.version.cuda}" for number, name in enumerate(gpus)]
    lines += [f"{name}={value}" for name, value in sorted((os.environ | added).items()) if name.startswith(VARIABLES)]
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
