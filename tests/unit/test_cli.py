"""What all commands share: flags before the command, completion, paths that are checked first."""

import argparse
import logging
import os
import subprocess
import sys
from importlib import metadata

import pytest

import fairseq_diverse
from fairseq_diverse.cli import COMMANDS, SHELLS, build_parser, main
from fairseq_diverse.host.messages import install_error_hook
from fairseq_diverse.support import installed
from fairseq_diverse.support.errors import UserError, exit_with, warn
from fairseq_diverse.support.paths import PACKAGE


def stopped(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    return stop.value.code, capsys.readouterr()


def test_version_and_folder(capsys):
    assert stopped(["--version"], capsys)[1].out == f"fairseq-diverse {fairseq_diverse.__version__}\n"
    assert main(["user-dir"]) == 0 and capsys.readouterr().out == f"{PACKAGE}\n"
    done = subprocess.run([sys.executable, "-m", "fairseq_diverse", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"fairseq-diverse {fairseq_diverse.__version__}\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_command_and_its_flags(shell, output_of):
    script = output_of("--completion", shell)
    assert all(command in script for command in COMMANDS) and "same-arithmetic" in script


def test_a_wrong_flag_shows_the_usage_of_its_command(capsys):
    for words, usage, nearest in (
        (["average", "--checkpoints", "a", "--out", "b", "--lst", "5"], "average ", "; nearest: --last"),
        (["plot", "lengths", "--data", "a", "--out", "b.png", "--x", "y"], "plot lengths ", ""),
        (["size", "--arch", "diverse_transformer", "--mine-on", "encoder"], "size ", "give its --user-dir"),
    ):
        code, shown = stopped(words, capsys)
        assert code == 2 and shown.err.startswith(f"usage: fairseq-diverse {usage}")
        line = shown.err.splitlines()[-1]
        assert f"error: unrecognized arguments: {words[-2]}" in line and line.endswith(nearest or words[-1])


def test_messages_stay_on_their_line_whatever_names_are_in_them(capsys, monkeypatch):
    name = "a\nb\tc\x1b[31m\u2028d"
    assert main(["score", "--hyp", name, "--ref", name]) == 2
    said = "fairseq-diverse score: a b c [31m d: cannot be read (No such file or directory)\n"
    assert capsys.readouterr().err == said
    assert "arguments: --a b c [31m d\n" in stopped(["doctor", f"--{name}"], capsys)[1].err
    with pytest.raises(SystemExit, match=r"error: a b c \[31m d: missing$"):
        exit_with(f"{name}: missing")
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)
    install_error_hook()
    sys.excepthook(UserError, UserError(name), None)
    warn(name)
    monkeypatch.setattr(logging.root, "level", logging.ERROR)
    warn("nothing of this with --quiet")
    assert capsys.readouterr().err == "error: a b c [31m d\nwarning: a b c [31m d\n"


KINDS = [f"plot {kind}" for kind in ("attention", "head-map", "curves", "rows", "lengths")]


@pytest.mark.parametrize("command", ["", *COMMANDS, *KINDS])
def test_help_has_an_example(command, capsys):
    assert "example:" in stopped([*command.split(), "--help"], capsys)[1].out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("heads --checkpoint no.pt --data {}", "heads: --checkpoint no.pt: no such checkpoint"),
        ("translate --checkpoint {}:no.pt --data {}", "translate: --checkpoint no.pt: no such checkpoint"),
        ("translate --checkpoint {} --data no", "translate: --data no: no such file or folder"),
        ("accuracy a=no.pt --data {}", "accuracy: no.pt: no such checkpoint"),
        ("plot attention --path a={} b=no.pt --data {} --sentence 1 --layer 1 --out x.png", "plot: --path no.pt"),
        ("plot lengths --data {} no --out x.png", "plot: --data no: no such file or folder"),
        ("average --checkpoints no --last 5 --out {}/a.pt", "average: --checkpoints no: no such checkpoint"),
        ("glue --checkpoint no.pt --data {}", "glue: --checkpoint no.pt: no such checkpoint"),
        ("glue --checkpoint {} --data no", "glue: --data no: no such file or folder"),
        ("export --to fairseq --out {}/a no.pt", "export: no.pt: no such checkpoint"),
        ("binarize-syntax --data no", "binarize-syntax: --data no: no such file or folder"),
        ("binarize-syntax --data {}", "binarize-syntax: --dependency or --constituency FILES are needed"),
        ("check routing --user-dir no", "check: --user-dir no: no such folder"),
        ("run toy --data no", "run: data set no: neither a known name nor a folder made by"),
        ("prepare no", "prepare: no: no such file, and not one of configs/data; known: "),
        ("check no", "check: no: not a mechanism; known are "),  # needs torch to know them
    ],
)
def test_paths_and_architectures_are_checked_before_torch_or_fairseq_is_imported(words, message, tmp_path):
    slow = "fairseq" if words == "check no" else "torch"
    code = f"import sys; from fairseq_diverse.cli import main; main(sys.argv[1:]); assert '{slow}' not in sys.modules"
    command = [sys.executable, "-c", code, *words.format(*[tmp_path] * 3).split()]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stderr.startswith(f"fairseq-diverse {message}"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export --to fairseq --out {0}/b {0}/b", "export: --out {0}/b: is the checkpoint; name another file"),
        ("translate --checkpoint {0}/b --data {0} --input {0}/b --out {0}/b", "translate: --out {0}/b: is --input;"),
        ("run toy --save {0}/b", "run: --save {0}/b: a file; name a folder"),
        ("run {0}/b", "run: {0}/b: not YAML by its name; call it b.yaml"),
        ("report toy --runs {0}/no", "report: --runs {0}/no: no such folder"),
        ("report toy --translations -1", "report: --translations -1: at least 0"),
        ("heads --checkpoint {0}/b --data {0} --gate 2", "heads: --gate 2: must be dynamic or a number in (0, 1]"),
        ("plot attention --path {0}/b --data {0} --source a --layer 1 --out {0}/a.png --split x", "plot: --split x"),
        ("report toy --runs {0}/\x1b[31m", "report: --runs {0}/ [31m: no such folder"),
        ("size --arch diverse_transformer --source-lang fr", "size: --source-lang and --target-lang go together"),
        ("size --arch diverse_transformer --encoder-layers-to-keep 0", "size: --encoder-layers-to-keep: fairseq takes"),
    ],
)
def test_what_would_be_lost_or_mistaken_is_refused(words, message, tmp_path, error_of):
    (tmp_path / "b").write_text("text\n")
    assert error_of(*words.format(tmp_path).split()).startswith(f"fairseq-diverse {message.format(tmp_path)}")
    assert (tmp_path / "b").read_text() == "text\n"


def test_numbers_beyond_those_of_c_and_a_value_of_two_hyphens(capsys):
    for words, said in (
        (["prepare", "toy", "--workers", "2147483648"], "argument --workers: 2147483648: at most 2147483647"),
        (["plot", "lengths", "--layer", "9" * 30], ""),
        (["run", "toy", "--jobs", "x"], "argument --jobs: invalid int value: 'x'"),
        (["prepare", "toy", "--raw", "x", "--archives", "x"], "argument --archives: not allowed with argument --raw"),
        (["run", "toy", "--rows=--"], "argument --rows: expected one argument"),
        (["size", "--user-dir=--"], "argument --user-dir: expected one argument"),
    ):
        code, shown = stopped(words, capsys)
        assert code == 2 and said in shown.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("raise ValueError('mutable default')", "fairseq cannot be imported: mutable default; see fairseq-diverse"),
        ("raise ModuleNotFoundError(name='fairseq')", "fairseq is not installed; install what the commands need: pip "),
        ("import no_such_package", "no_such_package is not installed; install what the commands need: pip install "),
    ],
)
def test_without_a_fairseq_that_works_one_line_says_what_to_do(content, said, tmp_path):
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq/__init__.py").write_text(content)
    command = [sys.executable, "-m", "fairseq_diverse.cli", "size", "--arch", "diverse_transformer_tiny"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])}
    done = subprocess.run([*command, "--vocabulary", "9"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"fairseq-diverse size: {said}"), done.stderr
    assert done.stderr.count("\n") == 1


def test_every_flag_has_help_and_shows_its_choices():
    def look(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    look(command)
            elif not {*action.option_strings} & {"--adaptive-input", "--relu-dropout"}:  # of fairseq, which has none
                assert action.help and not (action.choices and action.metavar), (parser.prog, action.dest)

    look(build_parser([], whole=True))


def test_the_nearest_command_is_named(capsys):
    for word, near in (("reprot", "; nearest: report"), ("qqq", "")):
        with pytest.raises(SystemExit):
            main([word, "toy"])
        said = capsys.readouterr().err.splitlines()[-1]
        assert said == f"fairseq-diverse: error: no command {word}{near}; --help lists all"


def test_quiet_and_verbose(monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", "0")
    levels = []
    monkeypatch.setattr("logging.root.setLevel", levels.append)
    for words in (["user-dir", "-q"], ["user-dir", "--quiet"]):  # behind the command, too
        monkeypatch.delenv("TQDM_DISABLE", raising=False)
        assert main(words) == 0 and os.environ["TQDM_DISABLE"] == "1"
    monkeypatch.delenv("TQDM_DISABLE")
    assert main(["-q", "user-dir"]) == 0 and os.environ["TQDM_DISABLE"] == "1"
    assert main(["--verbose", "user-dir"]) == 0 and levels == [40, 40, 40, 20]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ("{}", "pip install 'fairseq-diverse[plots]'"),
        ('{"dir_info": {"editable": true}, "url": "file:///my%20clone"}', "pip install -e '/my clone''[plots]'"),
        ('{"dir_info": {}, "url": "file:///clone"}', "pip install /clone'[plots]'"),
        ('{"archive_info": {}, "url": "file:///dist/one.whl"}', "pip install /dist/one.whl'[plots]'"),
        ('{"archive_info": {}, "url": "https://somewhere/one.whl"}', "pip install 'fairseq-diverse[plots]'"),
    ],
)
def test_advice_fits_how_the_package_is_installed(origin, command, monkeypatch):
    class Installed:
        def read_text(self, name):
            return origin

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert installed.install("plots") == command


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_kept_of_a_command_is_no_flag_of_it(command):
    subparser = build_parser([command])._subparsers._group_actions[0].choices[command]
    assert not {action.dest for action in subparser._actions} & {"main", "subparser", "read_paths", "words"}
