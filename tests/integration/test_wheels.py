"""scripts/wheels.sh up to the compiler, and what is said where there is none."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, TRANSFORMER = "fairseq/dataclass/configs.py", "fairseq/models/transformer/transformer_config.py"
FILES = {
    CONFIGS: """from dataclasses import dataclass, field
@dataclass
class CommonConfig:
    seed: int = 1
@dataclass
class FairseqConfig:
    common: CommonConfig = CommonConfig()
    model: object = None
""",
    TRANSFORMER: """from dataclasses import dataclass, field
@dataclass
class EncDecBaseConfig:
    layers: int = field(default=6)
@dataclass
class TransformerConfig:
    encoder: EncDecBaseConfig = EncDecBaseConfig()
    quant_noise: EncDecBaseConfig = field(default=EncDecBaseConfig())
""",
    "setup.py": '["cffi", "hydra-core>=1.0.7,<1.1", "omegaconf<2.1", "numpy>=1.21.3"]',
}
PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) echo 3.11 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"pip wheel"*)
        while [ "$1" != -w ]; do shift; done
        tar -cf "$2/fairseq-0-cp311-cp311-any.whl" -C "$3" . ;;
esac
"""  # whose wheels are the source


def call(*words: object, path: str, **options: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": path, "PYTHONS": "3.11 3.99"}
    return subprocess.run([*map(str, words)], env=env, capture_output=True, text=True, **options)


@pytest.fixture
def checkout(tmp_path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "bin").mkdir()
    for name in ("python3.11", "g++"):
        (tmp_path / "bin" / name).write_text(PYTHON)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "checkout"


def test_fairseqs_main_branch_gets_defaults_that_python_takes(checkout, tmp_path):
    command = [ROOT / "scripts/wheels.sh", "--fairseq", checkout, tmp_path / "wheels"]
    done = call(*command, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{CONFIGS}: 1 lines changed",
        f"{TRANSFORMER}: 2 lines changed",
        "setup.py: 1 lines changed",
        "fairseq-0-cp311-cp311-any.whl",
    ]
    assert done.stderr == "not found, no wheel: Python 3.99\n"
    with tarfile.open(tmp_path / "wheels/fairseq-0-cp311-cp311-any.whl") as archive:
        archive.extractall(tmp_path / "built", filter="data")
    configs, transformer = ({}, {})
    exec((tmp_path / "built" / CONFIGS).read_text(), configs)
    exec((tmp_path / "built" / TRANSFORMER).read_text(), transformer)
    # fairseq's hydra_init reads the default of each field
    assert configs["FairseqConfig"].__dataclass_fields__["common"].default is configs["CommonConfig"]
    one, other = transformer["TransformerConfig"](), transformer["TransformerConfig"]()
    assert one.encoder.layers == one.quant_noise.layers == 6 and one.encoder is not other.encoder
    assert (tmp_path / "built/setup.py").read_text() == '["cffi", "hydra-core", "omegaconf", "numpy>=1.21.3"]'
    assert {name: (checkout / name).read_text() for name in FILES} == FILES


def test_what_is_no_checkout_is_named(tmp_path):
    done = call(ROOT / "scripts/wheels.sh", "--fairseq", tmp_path, tmp_path / "wheels", path=os.environ["PATH"])
    assert done.stderr == f"error: --fairseq {tmp_path}: not a checkout of fairseq: setup.py is missing\n"
    assert done.returncode == 2 and not (tmp_path / "wheels").exists()


def test_no_compiler_is_one_line(tmp_path):
    """Of the script; and of `make setup`, but on Python 3.12, for which there is a wheel."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for program in ("bash", "env", "dirname", "sed"):
        (bin / program).symlink_to(shutil.which(program))
    done = call(ROOT / "scripts/wheels.sh", tmp_path / "wheels", path=str(bin))
    assert done.returncode == 2 and done.stderr == "error: no C++ compiler: install g++\n"
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    if sys.version_info[:2] != (3, 12):
        done = call(shutil.which("make"), "setup", f"PYTHON={sys.executable}", path=str(bin), cwd=tmp_path)
        first, stopped = done.stderr.splitlines()
        assert first.startswith("error: no C++ compiler: install g++, ") and "PYTHON=python3.12" in first
        assert "*** [" in stopped and not (tmp_path / ".venv").exists()
