"""Check the installation: what works, what is missing or wrong, and how to fix it.

The exit code is 0 only if all required parts work; optional parts are marked. Works even if fairseq, torch or any
other package is broken or missing.
"""

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from fairseq_diverse.support.installed import NAME, extras, install
from fairseq_diverse.support.paths import PACKAGE, runs_dir

EXAMPLE = "fairseq-diverse doctor"

FAIRSEQ = "0.12.3.1"
INSTALL_FAIRSEQ = (
    "pip install torch numpy cython setuptools wheel, then "
    f"env -u CUDA_HOME pip install --no-build-isolation fairseq-fixed=={FAIRSEQ} (needs a C++ compiler)"
)
REQUIRED = ("sacrebleu", "sacremoses", "subword-nmt", "sentencepiece", "jinja2", "tabulate")
MODULES = {"scikit-learn": "sklearn"}  # whose name is not that of the package


@dataclass(frozen=True)
class Check:
    """One row: ``state`` is "ok", "missing" or "wrong"; ``advice`` says how to fix it."""

    name: str
    state: str
    found: str
    advice: str = ""
    required: bool = True

    @property
    def failed(self) -> bool:
        return self.required and self.state != "ok"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    checks = list(examine())
    failed = [check.name for check in checks if check.failed]
    if args.json:
        report = {"ok": not failed, "user_dir": user_dir(Path.cwd()), "checks": [asdict(check) for check in checks]}
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(_rows(checks)))
        flag = '--user-dir "$(fairseq-diverse user-dir)"'
        print(f"\nfairseq's commands need {flag}, here {user_dir(Path.cwd())}")
        print("  without it: invalid choice: 'diverse_transformer', unrecognized arguments, Weights only load failed")
        print(f"\nnot usable yet: {', '.join(failed)}" if failed else "\neverything required works")
    return 1 if failed else 0


def examine() -> Iterator[Check]:
    """Every check; a check that fails itself is also a row."""
    for name, check in CHECKS.items():
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # imports print messages
                found = list(check())
        except (Exception, SystemExit) as error:
            found = [Check(name, "wrong", _short(error), "reinstall it, or see the message of: python -m pip check")]
        yield from found


def user_dir(here: Path) -> str:
    """The value for ``--user-dir``: the package's name if fairseq finds it by name, else its path."""
    name = PACKAGE.name
    spec = _spec("fairseq")
    beside = [Path(spec.origin).parent, Path(spec.origin).parents[1]] if spec and spec.origin else []
    for folder in (here, *beside):  # fairseq's own order; the first that exists is taken
        if (folder / name).exists():
            return name if (folder / name).samefile(PACKAGE) else str(PACKAGE)
    return str(PACKAGE)


def _python() -> Iterator[Check]:
    version = platform.python_version()
    enough = sys.version_info >= (3, 11)
    yield Check("Python", "ok" if enough else "wrong", version, "install Python 3.11 or newer, and a new environment")


def _torch() -> Iterator[Check]:
    advice = "pip install torch (2.6 or newer)"
    if not _spec("torch"):
        yield Check("torch", "missing", "", advice)
        return
    import torch

    threads = torch.get_num_threads()
    enough = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
    found = f"{torch.__version__}, {threads} thread{'s' * (threads != 1)}"
    yield Check("torch", "ok" if enough else "wrong", found, advice)
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Check("CUDA", "ok", ", ".join(devices) or "none (CPU only)", required=False)


def _fairseq() -> Iterator[Check]:
    fixed, original = _version("fairseq-fixed"), _version("fairseq")
    if original:
        found = f"fairseq {original}, which cannot be imported on Python 3.11; fairseq-fixed {FAIRSEQ} can"
        yield Check("fairseq", "wrong", found, f"pip uninstall fairseq fairseq-fixed, then {INSTALL_FAIRSEQ}")
    elif not (spec := _spec("fairseq")):
        yield Check("fairseq", "missing", "", INSTALL_FAIRSEQ)
    elif fixed != FAIRSEQ:
        found = f"fairseq-fixed {fixed}" if fixed else f"another fairseq in {spec.origin}"
        yield Check("fairseq", "wrong", found, INSTALL_FAIRSEQ)
    else:
        yield _imported("fairseq", "fairseq", fixed, INSTALL_FAIRSEQ)


def _fairseq_needs() -> Iterator[Check]:
    for package, module, series in (("hydra-core", "hydra", "1.3."), ("omegaconf", "omegaconf", "2.3.")):
        version, advice = _version(package), f'pip install "{package}=={series}*"'
        if version and not version.startswith(series):
            yield Check(package, "wrong", version, advice)
        else:
            yield _imported(package, module, version, advice)
    yield _imported("numpy", "numpy", _version("numpy"), "pip install numpy")


def _plugin() -> Iterator[Check]:
    found = f"{_version('fairseq-diverse') or 'not installed, used'} from {PACKAGE}"
    try:
        from fairseq_diverse import register
        from fairseq_diverse.host.programs import architectures

        register()
        known = "diverse_transformer" in architectures()
        advice = f"pip uninstall {NAME}, then make setup in a clone"
        yield Check("fairseq-diverse", "ok" if known else "wrong", found, advice)
        yield _allow_list()
    except (Exception, SystemExit) as error:
        advice = "fix what is wrong above, above all fairseq"
        yield Check("fairseq-diverse", "wrong", f"{found}: {_short(error)}", advice)
        yield Check("checkpoints", "wrong", "their allow-list cannot be registered", advice)


def _allow_list() -> Check:
    """fairseq's checkpoints can be loaded, but not one that names a function."""
    import numpy as np
    import torch

    variable = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    if os.environ.get(variable, "0").lower() not in ("", "0", "n", "no", "false"):
        found = f"{variable} is set: loading a checkpoint runs whatever it holds"
        return Check("checkpoints", "wrong", found, f"unset {variable}")
    good, bad = io.BytesIO(), io.BytesIO()
    torch.save({"args": argparse.Namespace(), "counts": np.arange(2)}, good)
    torch.save({"args": platform.python_version}, bad)
    torch.load(io.BytesIO(good.getvalue()))
    try:
        torch.load(io.BytesIO(bad.getvalue()))
    except Exception:
        return Check("checkpoints", "ok", "load by the allow-list; code in them is refused")
    return Check("checkpoints", "wrong", "a checkpoint that names a function was loaded", "pip install torch again")


def _text_tools() -> Iterator[Check]:
    for package in REQUIRED:
        yield _imported(package, package.replace("-", "_"), _version(package), f"pip install {package}")


def _extras() -> Iterator[Check]:
    of_users = {extra: packages for extra, packages in extras().items() if extra not in ("dev", "docs")}
    needed = {package: extra for extra, packages in of_users.items() for package in packages}
    for package, extra in needed.items():
        if package == "transformers":
            continue
        version = _version(package)  # not imported: some take seconds
        state = "ok" if version and _spec(MODULES.get(package, package.replace("-", "_"))) else "missing"
        yield Check(package, state, version, install(extra), required=False)
    version = _version("transformers")
    state = "missing" if not version else "ok" if version.startswith("4.") else "wrong"
    found = version if state != "wrong" else f"{version}, with which benepar's pretrained models fail"
    yield Check("transformers", state, found, 'pip install "transformers>=4.57,<5"', required=False)


def _java() -> Iterator[Check]:
    advice = "install a Java runtime (apt install default-jre, brew install openjdk)"
    java = shutil.which("java")
    result = java and subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    if not result or result.returncode:
        yield Check("Java, for METEOR", "missing", "", advice, required=False)
    else:
        yield Check("Java, for METEOR", "ok", (result.stderr or result.stdout).splitlines()[0], required=False)


def _comet() -> Iterator[Check]:
    found = shutil.which("comet-score") or ""
    advice = "pip install unbabel-comet in an environment of its own (it needs NumPy 1), comet-score on the PATH"
    yield Check("comet-score, for COMET", "ok" if found else "missing", found, advice, required=False)


def _parsers() -> Iterator[Check]:
    """Models installed by name, and folders in ``$FAIRSEQ_DIVERSE_PARSERS``."""
    given = os.environ.get("FAIRSEQ_DIVERSE_PARSERS")
    folder = Path(given) if given else PACKAGE.parents[1] / "shared" / "parsers"
    spacy, benepar = (
        next((str(path.parent) for path in sorted(folder.glob(f"*/{file}"))), "")
        for file in ("meta.json", "benepar_model.bin")
    )
    spacy = "en_core_web_sm" if _version("en-core-web-sm") else spacy
    hint = "or name a folder of models in FAIRSEQ_DIVERSE_PARSERS"
    for name, value, advice in (
        ("dependency parser", spacy, "python -m spacy download en_core_web_sm"),
        (
            "constituency parser",
            _benepar_model() or benepar,
            "python -c \"import benepar; benepar.download('benepar_en3')\"",
        ),
    ):
        yield Check(name, "ok" if value else "missing", value, f"{advice}, {hint}", required=False)


def _benepar_model() -> str:
    """The path of ``benepar_en3`` in NLTK's folders, or ""."""
    if not _spec("nltk"):
        return ""
    import nltk

    folders = [Path(folder) / "models" / "benepar_en3" for folder in nltk.data.path]
    return next((str(path) for path in folders if path.exists() or path.with_suffix(".zip").exists()), "")


def _build_tools() -> Iterator[Check]:
    for name, commands, advice in (
        ("C++ compiler", ("g++", "clang++", "c++"), "to build fairseq: apt install g++, xcode-select --install"),
        ("make", ("gmake", "make"), "for `make setup` and `make demo`: apt install make"),
    ):
        path = next(filter(None, map(shutil.which, commands)), "")
        yield Check(name, "ok" if path else "missing", path, advice, required=False)


def _disk() -> Iterator[Check]:
    folder = runs_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    found = f"{free:.1f} GB free for runs in {runs_dir()}"
    advice = "name another folder in FAIRSEQ_DIVERSE_RUNS; a run keeps one or more checkpoints"
    if not os.access(folder, os.W_OK):
        yield Check("disk", "wrong", f"{folder} cannot be written", advice)
    else:
        yield Check("disk", "ok" if free >= 1 else "wrong", found, advice)


CHECKS: dict[str, Callable[[], Iterator[Check]]] = {
    "Python": _python,
    "torch": _torch,
    "fairseq": _fairseq,
    "packages of fairseq": _fairseq_needs,
    "fairseq-diverse": _plugin,
    "text tools": _text_tools,
    "extras": _extras,
    "Java": _java,
    "comet-score": _comet,
    "parsers": _parsers,
    "build tools": _build_tools,
    "disk": _disk,
}


def _imported(package: str, module: str, version: str, advice: str) -> Check:
    """Whether a required package is installed and can be imported."""
    if not version and not _spec(module):
        return Check(package, "missing", "", advice)
    try:
        import_module(module)
    except (Exception, SystemExit) as error:
        return Check(package, "wrong", f"{version}: {_short(error)}", advice)
    return Check(package, "ok", version)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError):
        return None


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _rows(checks: list[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = check.state if check.required or check.state == "ok" else f"{check.state}, optional"
        yield f"{check.name:<{width}}  {state:<17}  {check.found}".rstrip()
        if check.state != "ok":
            yield f"{'':<{width}}  -> {check.advice}"
