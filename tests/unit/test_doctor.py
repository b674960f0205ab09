"""The doctor finds missing and wrong packages, and runs without a working fairseq."""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest

from fairseq_diverse.cli import doctor, main
from fairseq_diverse.support.paths import PACKAGE

Usage = namedtuple("Usage", "total used free")


def test_this_environment_works(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
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
    result = subprocess.run(
        [sys.executable, "-m", "fairseq_diverse.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert result.returncode == 1 and result.stderr == ""
    report = json.loads(result.stdout)
    states = {check["name"]: check for check in report["checks"]}
    assert not report["ok"]
    assert states[broken.name]["state"] == states["fairseq-diverse"]["state"] == "wrong"
    assert states["sacrebleu"]["state"] == "ok"
    if kind == "PyPI's fairseq":
        assert "0.12.2, which cannot be imported on Python 3.11" in states["fairseq"]["found"]
        assert states["fairseq"]["advice"].startswith("pip uninstall fairseq fairseq-fixed, then ")


def check(function, name: str) -> doctor.Check:
    return next(found for found in function() if found.name == name)


def hide(monkeypatch, *modules: str) -> None:
    """Behave as if these packages were not installed."""
    version, spec = doctor._version, doctor._spec
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name in modules else version(name))
    monkeypatch.setattr(doctor, "_spec", lambda name: None if name in modules else spec(name))


def set_version(monkeypatch, package: str, number: str) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: number if name == package else version(name))


def test_missing_packages_fail_only_if_they_are_required(monkeypatch, capsys):
    hide(monkeypatch, "sacremoses", "spacy", "fairseq", "fairseq-fixed")
    spacy = check(doctor._extras, "spacy")
    assert spacy.state == "missing" and not spacy.failed and "[syntax]" in spacy.advice
    fairseq = check(doctor._fairseq, "fairseq")
    assert fairseq.state == "missing" and "--no-build-isolation fairseq-fixed==" in fairseq.advice
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "not usable yet: fairseq, sacremoses" in printed and "-> pip install sacremoses" in printed


@pytest.mark.parametrize(
    ("function", "package", "number", "failed"),
    [
        (doctor._fairseq, "fairseq", "0.12.2", True),
        (doctor._fairseq_needs, "hydra-core", "1.0.7", True),
        (doctor._fairseq_needs, "omegaconf", "2.0.6", True),
        (doctor._extras, "transformers", "5.23.0", False),
    ],
)
def test_versions_that_do_not_work_together(monkeypatch, function, package, number, failed):
    set_version(monkeypatch, package, number)
    found = check(function, package)
    assert found.state == "wrong" and number in found.found and found.failed == failed


def test_another_fairseq_is_wrong(monkeypatch):
    hide(monkeypatch, "fairseq-fixed")
    found = check(doctor._fairseq, "fairseq")
    assert found.state == "wrong" and found.found.startswith("another fairseq in ")


def test_old_torch(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.5.1+cu124")
    assert check(doctor._torch, "torch").state == "wrong"


def test_unsafe_loading_is_wrong(monkeypatch):
    assert check(doctor._plugin, "checkpoints").state == "ok"
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    found = check(doctor._plugin, "checkpoints")
    assert found.failed and "runs whatever it holds" in found.found


def test_user_dir_is_what_fairseq_resolves(monkeypatch, tmp_path):
    from argparse import Namespace

    from fairseq.utils import import_user_module

    other = tmp_path / "other"
    (other / PACKAGE.name).mkdir(parents=True)
    for folder, expected in ((PACKAGE.parent, PACKAGE.name), (other, str(PACKAGE))):
        monkeypatch.chdir(folder)
        assert doctor.user_dir(folder) == expected
        import_user_module(Namespace(user_dir=doctor.user_dir(folder)))  # raises where it is another directory


def test_a_full_disk_and_no_java(monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "not" / "there"))
    assert check(doctor._disk, "disk").state == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**12, 10**12 - 10**8, 10**8))
    full = check(doctor._disk, "disk")
    assert full.failed and full.found.startswith("0.1 GB free") and str(tmp_path) in full.found
    monkeypatch.setattr(shutil, "which", lambda command: None)
    java = check(doctor._java, "Java, for METEOR")
    assert java.state == "missing" and not java.failed
    assert check(doctor._build_tools, "C++ compiler").state == "missing"


def test_parser_models_are_found_in_a_folder(monkeypatch, tmp_path):
    pytest.importorskip("nltk")
    monkeypatch.setenv("FAIRSEQ_DIVERSE_PARSERS", str(tmp_path))
    set_version(monkeypatch, "en-core-web-sm", "")
    monkeypatch.setattr("nltk.data.path", [])
    for name, file in (("dependency parser", "meta.json"), ("constituency parser", "benepar_model.bin")):
        missing = check(doctor._parsers, name)
        assert missing.state == "missing" and not missing.failed and "download" in missing.advice
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
        assert check(doctor._parsers, name).found == str(tmp_path / name)


def test_a_check_that_fails_is_a_row(monkeypatch):
    def fail():
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(doctor, "CHECKS", {"disk": fail})
    (found,) = doctor.examine()
    assert found.failed and found.found == "RuntimeError: first line"
