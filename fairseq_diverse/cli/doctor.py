"""Check the installation: what works, what is missing or does not fit, and how to fix it.

The exit code is 0 only if all required parts work; optional parts are marked. Works even if fairseq, torch or any
other package is broken or missing.
"""

import argparse
import io
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from fairseq_diverse import register
from fairseq_diverse.support.errors import first_line
from fairseq_diverse.support.installed import FAIRSEQ, NAME, install, versions
from fairseq_diverse.support.paths import PACKAGE

EXAMPLE = "fairseq-diverse doctor"

MODULES = {"hydra-core": "hydra", "scikit-learn": "sklearn"}  # whose name is not the package's
REQUIRED = {"", "commands", "fairseq"}  # extras without which few commands work


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
        report = {"ok": not failed, "user_dir": str(PACKAGE), "checks": [asdict(check) for check in checks]}
        print(json.dumps(report, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            state = check.state if check.required or check.state == "ok" else f"{check.state}, optional"
            print(f"{check.name:<{width}}  {state:<17}  {check.found}".rstrip())
            if check.state != "ok":
                print(f"{'':<{width}}  -> {check.advice}")
        print(f'\nfairseq\'s commands need --user-dir "$(fairseq-diverse user-dir)", here {PACKAGE}')
        print("  without it: invalid choice: 'diverse_transformer', unrecognized arguments, Weights only load failed")
        print(f"\nnot usable yet: {', '.join(failed)}" if failed else "\neverything required works")
    return 1 if failed else 0


def examine() -> Iterator[Check]:
    """Every check; a check that fails itself is also a row."""
    for name, check in CHECKS.items():
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # imports print messages
                checks = list(check())
        except (Exception, SystemExit) as error:
            checks = [
                Check(name, "wrong", first_line(error), "reinstall it, or see the message of: python -m pip check")
            ]
        yield from checks


def _packages() -> Iterator[Check]:
    """What this package requires, and its extras, and what fairseq-fixed requires of the packages that it is sensitive
    to."""
    yield Check("Python", "ok", platform.python_version())  # pip refuses others
    if not find_spec("packaging"):
        yield Check("packages", "missing", "only those of the attentions are installed", install("fairseq"))
        return
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    wanted: dict[str, tuple[SpecifierSet, set[str]]] = {}
    extras = {"", *(metadata.metadata(NAME).get_all("Provides-Extra") or [])} - {"dev", "docs"}
    of_fairseq = [text for text in _requirements(FAIRSEQ[0]) if text.startswith(("hydra-core", "omegaconf"))]
    for requirement in map(Requirement, [*_requirements(NAME), *of_fairseq]):
        marker = requirement.marker
        named = {extra for extra in extras if not marker or marker.evaluate({"extra": extra})}
        if named and requirement.name not in (NAME, *FAIRSEQ):
            before, others = wanted.get(requirement.name, (SpecifierSet(), set()))
            wanted[requirement.name] = before & requirement.specifier, others | named
    for name, (specifiers, named) in wanted.items():
        yield _package(name, specifiers, "" if named & REQUIRED else min(named))


def _package(name: str, specifiers: "SpecifierSet", extra: str) -> Check:  # type: ignore[name-defined]  # noqa: F821
    """Whether a package is installed in one of the versions and, if it is required, can be imported."""
    version, module, required = _version(name), MODULES.get(name, name.replace("-", "_")), not extra
    advice = install(extra) if extra else f'pip install "{name}{specifiers}"'
    if not version:
        return Check(name, "missing", "", advice, required)
    if not specifiers.contains(version, prereleases=True):
        return Check(name, "wrong", f"{version}, but {specifiers} is needed", advice, required)
    if required:
        try:
            import_module(module)
        except (Exception, SystemExit) as error:
            return Check(name, "wrong", f"{version}: {first_line(error)}", advice)
    return Check(name, "ok", version, required=required)


def _torchaudio() -> Iterator[Check]:
    """Whether torchaudio, which fairseq requires and transformers imports from 5 on, is of the same build as torch."""
    if (version := _version("torchaudio")) and int((_version("transformers") or "0").partition(".")[0]) >= 5:
        try:
            import_module("torchaudio")
        except Exception as error:
            whence = "install it from where torch is, such as --index-url https://download.pytorch.org/whl/cpu"
            problem = f"{version}, with which transformers cannot be imported: {first_line(error)}"
            yield Check("torchaudio", "wrong", problem, f"pip uninstall torchaudio, or {whence}", required=False)


def _fairseq() -> Iterator[Check]:
    """Which fairseq is imported, and what the package needs that it does not have."""
    spec = find_spec("fairseq")
    packages = [f"{name} {version}" for name in FAIRSEQ if (version := _version(name))]
    if not spec or not spec.origin:
        yield Check("fairseq", "missing", "", f"{install('fairseq')} (docs/host.md: other Pythons, your own fairseq)")
        return
    installed = f"{' and '.join(packages) or 'fairseq without metadata'}, from {Path(spec.origin).parent}"
    reinstall = f"pip uninstall {' '.join(FAIRSEQ)}, then {install('fairseq')}"
    if len(packages) > 1:
        yield Check("fairseq", "wrong", f"{installed}: each overwrites files of the other", reinstall)
        return
    try:
        import_module("fairseq")
    except (Exception, SystemExit) as error:
        advice = f"{reinstall}, or build it with scripts/wheels.sh --fairseq CHECKOUT (docs/host.md)"
        if "is not callable" in str(error):
            advice = "change one line of it for Python 3.14: docs/host.md has the command"
        yield Check("fairseq", "wrong", f"{installed}, cannot be imported: {first_line(error)}", advice)
        return
    from fairseq_diverse.host.needs import lacking

    if missing := lacking():
        yield Check("fairseq", "wrong", f"{installed}, lacks {', '.join(missing)}", reinstall)
        return
    yield Check("fairseq", "ok", installed)


def _devices() -> Iterator[Check]:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Check("CUDA", "ok", ", ".join(devices) or "none (CPU only)", required=False)
    yield Check("threads of torch", "ok", str(torch.get_num_threads()), required=False)


def _kernels() -> Iterator[Check]:
    from fairseq_diverse.attention.kernels.compiler import compiler

    path, slower = compiler(), "routing, interacting heads and evolving attention are slower on a CPU"
    yield Check("C compiler", "ok" if path else "missing", path or slower, "install gcc", required=False)


def _plugin() -> Iterator[Check]:
    if not find_spec("fairseq"):
        yield Check(NAME, "wrong", "without fairseq only its attentions work", install("fairseq"))
        return
    from fairseq_diverse.host.programs import architectures

    register()
    known = "diverse_transformer" in architectures()
    installed = f"{_version(NAME) or 'not installed, used'} from {PACKAGE}"
    yield Check(NAME, "ok" if known else "wrong", installed, f"pip uninstall {NAME}, then make setup in a clone")


def _loading() -> Iterator[Check]:
    """Whether torch refuses code in checkpoints."""
    variable = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    if os.environ.get(variable, "0").lower() in ("", "0", "n", "no", "false"):
        yield Check("checkpoints", "ok", "load by the allow-list; code in them is refused")
    else:
        yield Check("checkpoints", "wrong", f"{variable} is set: loading runs whatever they hold", f"unset {variable}")


CHECKS: dict[str, Callable[[], Iterator[Check]]] = {
    **{"packages": _packages, "torchaudio": _torchaudio, "fairseq": _fairseq, "torch's devices": _devices},
    **{"C kernels": _kernels, NAME: _plugin, "checkpoints": _loading},
}


def _requirements(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def _version(package: str) -> str:
    return versions([package]).get(package, "")
