"""The flag --user-dir of this package's commands."""

import sys
from unittest import mock

import pytest
from fairseq import utils

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.cli import main
from fairseq_diverse.testing import properties


def test_a_folder_that_cannot_be_imported_is_one_line(tmp_path, error_of):
    for folder in (tmp_path / "absent", tmp_path):
        said = error_of("check", "temperature", "--user-dir", folder)
        assert f"--user-dir {folder}: no such folder, or one without" in said
    (tmp_path / "json").mkdir()
    (tmp_path / "json/__init__.py").touch()
    said = error_of("check", "temperature", "--user-dir", tmp_path / "json")
    assert said.endswith("json: json is a module of Python; call the folder otherwise\n")


def test_the_new_process_of_a_check_knows_the_folder(monkeypatch):
    given = []
    monkeypatch.setattr(utils.import_user_module, "memo", set(), raising=False)
    monkeypatch.setattr(properties, "reload", lambda flags, user_dir: given.append(user_dir) or [0.0])
    monkeypatch.setattr(properties, "PROPERTIES", {})
    monkeypatch.setattr(properties, "with_others", lambda *_: None)
    with mock.patch.dict(MECHANISMS), mock.patch.dict(sys.modules):  # other tests go over all mechanisms
        assert main(["check", "temperature", "--user-dir", "examples/temperature", "--on", "cross"]) == 0
    assert "temperature" not in MECHANISMS
    assert given == ["examples/temperature"]


def test_a_mechanism_that_does_not_exist_is_one_line(error_of):
    said = error_of("check", "unknown")
    assert "unknown: not a mechanism; known are qk-head-dim, syntax, " in said and "give its --user-dir" in said
    assert "evolvin: not a mechanism; nearest: evolving; known are " in error_of("check", "evolvin")
    said = "--on cross: localness is defined on encoder, roberta only\n"
    assert said in error_of("check", "localness", "--on", "cross")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(\n", "__init__.py:1: '(' was never closed"),
        ("x = 1\ny = nope\n", "__init__.py:2: NameError: name 'nope'"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    sizes: list = []\n",
            "__init__.py:2: ValueError: mutable default",
        ),
        ("import sys\nsys.exit()\n", "__init__.py:2: SystemExit"),
    ],
)
def test_an_error_in_the_folder_is_one_line_with_its_place(code, said, tmp_path, error_of):
    folder = tmp_path / f"own_{abs(hash(code))}"
    folder.mkdir()
    (folder / "__init__.py").write_text(code)
    assert said in error_of("check", "own", "--user-dir", folder)
