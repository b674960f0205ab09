"""--user-dir of this package's commands."""

import pytest

from fairseq_diverse.cli import main


@pytest.mark.parametrize("command", [["check", "temperature"]])
def test_a_folder_that_is_no_package_is_one_line(command, tmp_path, capsys):
    for folder in (tmp_path / "absent", tmp_path):
        assert main([*command, "--user-dir", str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"--user-dir {folder}: no such folder, or one without" in error


def test_a_mechanism_that_does_not_exist_is_one_line(capsys):
    assert main(["check", "nothing"]) == 2
    assert "nothing: no such mechanism; there are qk-head-dim, syntax, " in capsys.readouterr().err
