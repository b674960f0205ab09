"""What is built: a wheel with all files, an sdist that builds the same, both installed; fairseq's by wheels.sh."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import distributions
from pathlib import Path
from typing import Optional

import pytest
import setuptools
import yaml
from packaging.specifiers import SpecifierSet

import fairseq_diverse

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("fairseq_diverse", "configs", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "tests")


def build(source: Path, out: Path, what: str) -> Path:
    """``wheel``, ``sdist`` or ``editable`` of a source tree, with the setuptools installed here."""
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (made,) = out.glob("*.tar.gz" if what == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what a package is built of: building writes beside it."""
    folder, ignored = tmp_path_factory.mktemp("source"), shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in map(ROOT.joinpath, PARTS):
        if part.is_dir():
            shutil.copytree(part, folder / part.name, ignore=ignored)
        else:
            shutil.copy(part, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"), "wheel")


def test_an_editable_install_is_found_where_a_folder_has_its_name(source, tmp_path):
    """Such as in the folder that holds the clone: without an __init__.py, that is a namespace package to Python."""
    for name in ("wheel", "installed", "here/fairseq_diverse"):
        (tmp_path / name).mkdir(parents=True)
    with zipfile.ZipFile(build(source, tmp_path / "wheel", "editable")) as archive:
        archive.extractall(tmp_path / "installed")
    code = f"import sys, site; sys.path.insert(0, ''); site.addsitedir({str(tmp_path / 'installed')!r})\n"
    code += "from importlib.util import find_spec; print(find_spec('fairseq_diverse').origin)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(source / "fairseq_diverse/__init__.py")


def test_the_wheel_holds_every_file_of_the_package_and_the_configurations(source, wheel):
    expected = {
        f"{place}{path.relative_to(source / folder)}": path.read_bytes()
        for folder, place in (("fairseq_diverse", "fairseq_diverse/"), ("configs", "fairseq_diverse/configs/"))
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    for name in ("py.typed", "toy/words.yaml", "configs/tables/toy.yaml"):
        assert f"fairseq_diverse/{name}" in expected, name


def information(wheel: Path, file: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))
        return archive.read(name)


def test_the_metadata_say_what_the_package_is(wheel):
    metadata = message_from_bytes(information(wheel, "METADATA"))
    commands = information(wheel, "entry_points.txt").decode()
    assert metadata["Version"] == fairseq_diverse.__version__ and metadata["Requires-Python"] == ">=3.11"
    assert "fairseq-diverse = fairseq_diverse.cli:main" in commands
    needed = metadata.get_all("Requires-Dist")
    assert [one for one in needed if "extra ==" not in one] == ["torch>=2.6"]
    assert {'fairseq-fixed==0.12.3.1; extra == "fairseq"', 'fairseq-diverse[commands]; extra == "fairseq"'} <= {*needed}
    assert {"export", "plots", "syntax", "tracking"} <= set(metadata.get_all("Provides-Extra"))
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in metadata.get_all("Classifier")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    assert citation["version"] == metadata["Version"] and citation["title"] == zenodo["title"]
    assert [{"name": metadata["Author"]}] == citation["authors"] == zenodo["creators"]
    assert zenodo["license"] == citation["license"] == metadata["License-Expression"]


def test_the_readme_leads_to_the_files_of_this_version_from_anywhere(wheel):
    text = message_from_bytes(information(wheel, "METADATA")).get_payload(decode=True).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) > 40
    for picture, link in links:
        kind = "raw" if picture else "blob"
        path = link.removeprefix(f"{address}/{kind}/v{fairseq_diverse.__version__}/").partition("#")[0]
        assert path != link and (ROOT / path).exists(), link
    assert "<!--" not in text and "fairseq-diverse demo" in text


def test_the_sdist_has_every_file_that_is_tracked():
    """So that it can run its tests; the folders that MANIFEST.in names, and the files beside them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    patterns = [pattern for command, *patterns in lines if command == "include" for pattern in patterns]
    grafted = {words[1] for words in lines if words[0] == "graft"}
    for path in map(Path, listed.stdout.splitlines()):
        alone = len(path.parts) == 1
        taken = any(path.match(pattern) for pattern in (*patterns, "LICENSE", "pyproject.toml"))
        assert taken if alone else path.parts[0] in grafted, path


@pytest.mark.slow
@pytest.mark.parametrize("what", ["wheel", "sdist"])
def test_it_is_installed_into_a_bare_environment(what, source, wheel, tmp_path):
    """pip builds the sdist itself; the packages that it needs come later, from this environment."""
    made = wheel if what == "wheel" else build(source, tmp_path / "dist", "sdist")
    if what == "sdist":
        with tarfile.open(made) as archive:
            assert {"configs", "setup.py", "tests"} <= {Path(*Path(n).parts[1:2]).name for n in archive.getnames()}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    bin, variables = tmp_path / "env/bin", {**os.environ, "PYTHONPATH": "", "FAIRSEQ_DIVERSE_RUNS": str(tmp_path)}

    def call(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, words)], cwd=tmp_path, env=variables, capture_output=True, text=True)

    packages = next(tmp_path.glob("env/lib/python*/site-packages"))
    isolated = []
    if what == "sdist":  # without network: setuptools of this environment
        folder = Path(setuptools.__file__).parents[1]
        (packages / "build.pth").write_text(f"import sys; sys.path.insert(0, {str(folder)!r})\n")
        isolated = ["--no-build-isolation"]
    installed = call(bin / "pip", "install", "--no-deps", "--no-index", *isolated, made)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (packages / "build.pth").unlink(missing_ok=True)
    bare = bin / "fairseq-diverse"
    assert call(bare, "--version").stdout == f"fairseq-diverse {fairseq_diverse.__version__}\n"
    assert call(bare, "user-dir").stdout == f"{packages / 'fairseq_diverse'}\n"
    rows = json.loads(call(bare, "doctor", "--json").stdout)["checks"]
    assert {"fairseq-diverse", "packages"} <= {row["name"] for row in rows if row["state"] != "ok"}
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "here.pth").write_text("".join(f"{path}\n" for path in here))  # only now what it needs
    assert call(bare, "toy", "--out", "raw", "--sentences", 20, "--valid", 5, "--test", 5).returncode == 0
    assert len((tmp_path / "raw/train.en").read_text().splitlines()) == 20
    sizes = call(bare, "size", "--arch", "diverse_transformer_tiny", "--vocabulary", 100)
    assert sizes.returncode == 0 and "parameters" in sizes.stdout, sizes.stderr
    runs = call(bare, "run", "toy", "--dry-run", "--commands", "--rows", "baseline")
    assert runs.returncode == 0 and f"--user-dir {packages / 'fairseq_diverse'}" in runs.stdout, runs.stderr


CONFIGS, TRANSFORMER = "fairseq/dataclass/configs.py", "fairseq/models/transformer/transformer_config.py"
UTILS = "fairseq/dataclass/utils.py"
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
    UTILS: r"""import re
def interpret_dc_type(field_type):
    typestring = str(field_type)
    if re.match(r"(typing.|^)Union\[(.*), NoneType\]$", typestring) or typestring.startswith("typing.Optional"):
        return field_type.__args__[0]
    return field_type
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


def test_fairseqs_main_branch_gets_defaults_that_python_takes(tmp_path):
    checkout = tmp_path / "checkout"
    for name, content in FILES.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "bin").mkdir()
    for name in ("python3.11", "g++"):
        (tmp_path / "bin" / name).write_text(PYTHON)
        (tmp_path / "bin" / name).chmod(0o755)
    command = [ROOT / "scripts/wheels.sh", "--fairseq", checkout, tmp_path / "wheels"]
    done = call(*command, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{CONFIGS}: 1 lines changed",
        f"{TRANSFORMER}: 2 lines changed",
        f"{UTILS}: 1 lines changed",
        "setup.py: 1 lines changed",
        "fairseq-0-cp311-cp311-any.whl",
    ]
    assert done.stderr == "not found, no wheel: Python 3.99\n"
    with tarfile.open(tmp_path / "wheels/fairseq-0-cp311-cp311-any.whl") as archive:
        archive.extractall(tmp_path / "built", filter="data")
    configs, transformer, utils = ({}, {}, {})
    exec((tmp_path / "built" / CONFIGS).read_text(), configs)
    exec((tmp_path / "built" / TRANSFORMER).read_text(), transformer)
    exec((tmp_path / "built" / UTILS).read_text(), utils)
    # fairseq's hydra_init reads the default of each field
    assert configs["FairseqConfig"].__dataclass_fields__["common"].default is configs["CommonConfig"]
    one, other = transformer["TransformerConfig"](), transformer["TransformerConfig"]()
    assert one.encoder.layers == one.quant_noise.layers == 6 and one.encoder is not other.encoder
    # the text of Optional[str] is "str | None" from Python 3.14 on; users of pip change the line by hand
    assert (ROOT / "scripts/python-3.14.sed").read_text().splitlines()[-1] in (ROOT / "docs/host.md").read_text()
    for kind, of in ((str | None, str), (Optional[int], int), (list[int] | None, list[int]), (float, float)):  # noqa: UP045
        assert utils["interpret_dc_type"](kind) == of
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


def test_pinned_versions_are_for_every_python_3_11():
    """Debian 12 has 3.11.2."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    needed = {(dist.name.lower(), dist.version): dist.metadata.get("Requires-Python") or "" for dist in distributions()}
    pinned = {(name.lower(), version) for name, version in pins} & {*needed}
    if len(pinned) < 40:
        pytest.skip("other versions are installed than the pinned ones")
    assert not [pin for pin in pinned if "3.11.0" not in SpecifierSet(needed[pin])]
