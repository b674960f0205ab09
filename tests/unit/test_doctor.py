"""The doctor finds missing and wrong packages, and runs without a working fairseq."""

import json
import os
import subprocess
import sys

import pytest

from fairseq_diverse.cli import doctor, main
from fairseq_diverse.support.paths import PACKAGE


def test_this_environment_works(output_of):
    printed = output_of("doctor")
    assert printed.splitlines()[0].split()[:2] == ["Python", "ok"]
    assert "everything required works" in printed and "--user-dir" in printed


@pytest.mark.parametrize("kind", ["PyPI's fairseq", "no fairseq", "no torch"])
def test_runs_with_a_broken_fairseq_or_torch(tmp_path, kind):
    """In a new process, with packages that hide the real ones."""
    broken = tmp_path / ("torch" if kind == "no torch" else "fairseq")
    broken.mkdir()
    error = "ValueError('mutable default')" if kind == "PyPI's fairseq" else "ModuleNotFoundError(__name__)"
    (broken / "__init__.py").write_text(f"raise {error}\n")
    if kind == "PyPI's fairseq":
        info = tmp_path / "fairseq-0.12.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fairseq\nVersion: 0.12.2\n")
    paths = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    command = [sys.executable, "-m", "fairseq_diverse.cli", "doctor", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert result.returncode == 1 and result.stderr == ""
    report = json.loads(result.stdout)
    states = {check["name"]: check for check in report["checks"]}
    assert not report["ok"]
    assert states[broken.name]["state"] == states["fairseq-diverse"]["state"] == "wrong"
    assert states["sacrebleu"]["state"] == "ok"
    if kind == "PyPI's fairseq":
        assert "fairseq 0.12.2, from" in states["fairseq"]["found"]
        assert states["fairseq"]["advice"].startswith("pip uninstall fairseq-fixed fairseq, then ")


def found(monkeypatch, versions: dict[str, str]) -> dict[str, doctor.Check]:
    """The checks of packages, where these have other versions, "" for those that are not installed."""
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, version(name)))
    return {check.name: check for check in doctor._packages()}


def test_missing_packages_fail_only_if_they_are_required(monkeypatch):
    checks = found(monkeypatch, dict.fromkeys(("sacremoses", "spacy"), ""))
    assert checks["spacy"].state == "missing" and not checks["spacy"].failed and "[syntax]" in checks["spacy"].advice
    assert checks["sacremoses"].failed and checks["sacremoses"].advice == 'pip install "sacremoses"'


def test_only_the_attentions_are_installed(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    checks = {check.name: check for check in doctor.examine()}
    for name, state in {"packages": "missing", "fairseq": "missing", "fairseq-diverse": "wrong"}.items():
        assert checks[name].state == state and checks[name].failed and "[fairseq]" in checks[name].advice


def test_what_fails_is_named_also_a_check_itself(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", {"a": lambda: iter([doctor.Check("torch", "missing", "", "get it")])})
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "-> get it" in printed and "not usable yet: torch" in printed

    def fail():
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(doctor, "CHECKS", {"disk": fail})
    (check,) = doctor.examine()
    assert check.failed and check.found == "RuntimeError: first line"


@pytest.mark.parametrize(
    ("package", "number", "failed"),
    [("torch", "2.5.1+cu124", 1), ("hydra-core", "1.0.7", 1), ("omegaconf", "2.0.6", 1), ("transformers", "4.40.0", 0)],
)  # fmt: skip
def test_versions_that_do_not_work_together(monkeypatch, package, number, failed):
    check = found(monkeypatch, {package: number})[package]
    assert check.state == "wrong" and number in check.found and check.failed == failed


def fairseq_of(monkeypatch, versions: dict[str, str]) -> doctor.Check:
    """The row of fairseq, where packages of fairseq have these versions."""
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, ""))
    (check,) = doctor._fairseq()
    return check


@pytest.mark.parametrize("package", ["fairseq-fixed", "fairseq"])
def test_any_fairseq_that_has_what_is_needed_is_used_and_named(monkeypatch, package):
    check = fairseq_of(monkeypatch, {package: "0.12.3"})
    assert check.state == "ok" and check.found.startswith(f"{package} 0.12.3, from ")
    check = fairseq_of(monkeypatch, {})
    assert check.state == "ok" and check.found.startswith("fairseq without metadata, from ")


def test_a_fairseq_that_lacks_something_or_is_there_twice_is_wrong(monkeypatch):
    check = fairseq_of(monkeypatch, {"fairseq": "0.12.2", "fairseq-fixed": "0.12.3.1"})
    assert check.failed and "fairseq-fixed 0.12.3.1 and fairseq 0.12.2, from " in check.found
    monkeypatch.delattr("fairseq.data.span_mask_tokens_dataset.SpanMaskedTokensDataset")
    check = fairseq_of(monkeypatch, {"fairseq": "0.12.2"})
    assert check.failed
    assert check.found.endswith(", lacks fairseq.data.span_mask_tokens_dataset.SpanMaskedTokensDataset")


def test_a_fairseq_that_python_3_14_cannot_import_has_a_remedy(monkeypatch):
    def import_module(name: str) -> None:
        raise TypeError("str | None is not callable")

    monkeypatch.setattr(doctor, "import_module", import_module)
    check = fairseq_of(monkeypatch, {"fairseq-fixed": "0.12.3.1"})
    assert check.failed and "Python 3.14: docs/host.md" in check.advice


def test_a_torchaudio_of_another_build_is_named(monkeypatch):
    """As PyPI's beside a torch for CPUs; only transformers 5 imports it."""

    def import_module(name):
        raise OSError(f"Could not load this library: {name}.so")

    versions = {"torchaudio": "2.11.0", "transformers": "4.57.6"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    monkeypatch.setattr(doctor, "import_module", import_module)
    assert not [*doctor._torchaudio()]
    versions["transformers"] = "5.24.0"
    (check,) = doctor._torchaudio()
    assert check.state == "wrong" and not check.failed
    assert check.found.startswith("2.11.0, ") and check.found.endswith("Could not load this library: torchaudio.so")
    monkeypatch.setattr(doctor, "import_module", lambda name: None)
    assert not [*doctor._torchaudio()]


def test_unsafe_loading_is_wrong(monkeypatch):
    (check,) = doctor._loading()
    assert check.state == "ok"
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (check,) = doctor._loading()
    assert check.failed and "runs whatever they hold" in check.found
