"""Run fairseq's commands like a user, on data made here."""

import copy
import functools
import gc
import importlib
import json
import logging
import multiprocessing
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import pytest
import torch
import torch._dynamo  # a second of each training, unless this process has it when it forks
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra._internal import config_repository
from hydra.core.override_parser.overrides_parser import OverridesParser

import fairseq_diverse
import fairseq_diverse.cli
import fairseq_diverse.cli.run as cli_run
from fairseq_diverse.experiments.runs import execution
from fairseq_diverse.host import starting
from fairseq_diverse.preparation import steps
from fairseq_diverse.syntax import parse

ROOT = Path(__file__).resolve().parents[2]
USER_DIR = ROOT / "fairseq_diverse"

TINY = (
    "--arch diverse_transformer_tiny --share-all-embeddings --dropout 0.1 --optimizer adam --lr 0.005 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
    "--max-tokens 200 --cpu --seed 1 --num-workers 0 --log-format json --log-interval 1 --no-progress-bar"
)

ON_A_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
ON_TWO_GPUS = (pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"))
PROGRAMS = {"fairseq-diverse": "fairseq_diverse.cli"} | {
    f"fairseq-{tool}": f"fairseq_cli.{tool}" for tool in ("preprocess", "train", "generate")
}
DEVICES = ("cpu", pytest.param("cuda", marks=ON_A_GPU))


def shared_data(name: str) -> Path:
    """A folder of real data; without it the test skips, or fails where ``CI=true`` but on GitHub, which has none."""
    data = Path(os.environ.get("FAIRSEQ_DIVERSE_DATA", ROOT.parent / "shared/data")) / name
    if not data.is_dir():
        message = f"{data} is absent; set FAIRSEQ_DIVERSE_DATA to the directory that holds {name}"
        here = os.environ.get("CI") == "true" and "GITHUB_ACTIONS" not in os.environ
        pytest.fail(message) if here else pytest.skip(message)
    return data


def make_bert(folder: Path, pieces: Sequence[str]) -> Path:
    """A BERT for transformers with random weights, that knows these pieces of words."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False, model_max_length=30).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=60, max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return folder


def run(
    tool: str, *args: object, user_dir: Path | None = USER_DIR, check: bool = True, fork: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``fairseq-<tool> args...`` in a child process.

    By default a fork of this process (``Fork``), which is seconds faster since fairseq is already imported.
    ``fork=False`` starts a new Python; so does ``user_dir=None``, since the plugin is registered in this process.
    """
    command = [sys.executable, "-m", f"fairseq_cli.{tool}", *map(str, args)]
    if user_dir:
        command += ["--user-dir", str(user_dir)]
    if not fork or not user_dir or options:
        result = subprocess.run(command, capture_output=True, text=True, **options)
    else:
        result = Fork(command).wait()
    if check and result.returncode:
        raise AssertionError(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result


def cli(*args: object, fails: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """``fairseq-diverse args...`` in a fork of this process, as are the steps of a ``run``; ``cwd`` and ``env`` as for
    ``subprocess.run``. ``fails`` is the exit code."""
    done = Fork([sys.executable, "-m", "fairseq_diverse.cli", *map(str, args)], **options).wait()
    assert done.returncode == fails, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def script(path: str, *args: object, fails: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """A bash script of the repository; ``fails`` is the exit code."""
    done = subprocess.run([ROOT / path, *map(str, args)], capture_output=True, text=True, **options)
    assert done.returncode == fails, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def runs_in(folder: Path) -> dict[str, str]:
    """The environment of commands whose runs are in a folder."""
    return os.environ | {"FAIRSEQ_DIVERSE_RUNS": str(folder), "OMP_NUM_THREADS": "1"}


def caller(folder: Path) -> Callable[..., str]:
    """`cli` with the folder's runs: what it prints, or with ``fails``, its exit code, the last line of its errors."""

    def run(*arguments: object, fails: int = 0) -> str:
        done = cli(*arguments, fails=fails, env=runs_in(folder / "runs"))
        return done.stderr.splitlines()[-1] if fails else done.stdout

    return run


@contextmanager
def preprocess_in_a_fork() -> Iterator[None]:
    """Let ``prepare`` start fairseq-preprocess as a fork of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "run_to_end", _run_to_end)
        yield


def _run_to_end(command: list[str], cwd: Path, stdout: int, stderr: int, **_: str) -> subprocess.CompletedProcess[str]:
    assert "fairseq_cli.preprocess" in command[:4] and stdout == subprocess.PIPE
    return Fork(command, stderr=stderr, cwd=cwd).wait()


@functools.cache
def parse_settings_once() -> None:
    """Half of a fork's start is Hydra: parse the same 200 settings here, and let it copy nothing that is used once."""
    config_repository.copy = SimpleNamespace(deepcopy=lambda repository: repository)  # type: ignore[assignment]
    parse = functools.cache(functools.partial(OverridesParser.parse_rule, OverridesParser.create()))
    OverridesParser.parse_rule = lambda self, *given: copy.copy(parse(*given))
    for parser, flags in (
        (options.get_training_parser(), TINY.replace("diverse_", "")),
        (options.get_generation_parser(), "--path x --cpu"),
    ):
        convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["data", *flags.split()]))


class Fork:
    """``subprocess.Popen`` of ``python -m MODULE ...`` as a fork of this process; MODULE is of ``fairseq_cli``, or
    ``fairseq_diverse.cli``.

    Where there is a GPU, a new process: torch refuses every call for CUDA in a fork of a process that asked for it, and
    fairseq keeps the state of CUDA's generator even with ``--cpu``.
    """

    def __init__(self, command: list[str], stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        """``options`` are ``cwd``, ``env`` and ``preexec_fn``; without a file for its output, ``wait`` returns it."""
        lighter = command[2] == starting.__name__  # the module through which a new process imports less
        self.command = command = [*command[:2], *command[3:]] if lighter else command
        if command[2] != "fairseq_diverse.cli":
            fairseq_diverse.register()
        parse_settings_once()
        self._texts = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
        out = stdout or self._texts[0]
        err = out if stderr == subprocess.STDOUT else stderr or self._texts[1]
        self.returncode: int | None = None
        if torch.cuda.is_available():
            self._popen = subprocess.Popen(command, stdout=out, stderr=err, **options)
            self.pid = self._popen.pid
        elif not (process := os.fork()):
            _work(command, out, err, **options)
        else:
            self.pid = process

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        ended = os.pidfd_open(self.pid)
        try:
            if not select.select([ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.command, timeout or 0)
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(ended)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        texts = []
        for file in self._texts:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return subprocess.CompletedProcess(self.command, self.returncode, *texts)


def _work(
    command: list[str], out: IO[Any], err: IO[Any], cwd: Any = None, env: Any = None, preexec_fn: Any = list, **_: Any
) -> NoReturn:
    """``python -m MODULE ...`` in a child process just forked."""
    preexec_fn()
    gc.freeze()  # what is the parent's is not searched, and so stays shared
    code, module = 1, importlib.import_module(command[2])
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # they are the parent's
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        _forget_pytest()
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        sys.argv = command[2:]
        if module is fairseq_diverse.cli:
            logging.root.handlers.clear()  # main makes its own
            with preprocess_in_a_fork(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(execution, "Popen", Fork)
                here = SimpleNamespace(run=lambda command: Fork(command, sys.stdout, sys.stderr).wait())
                patch.setattr(cli_run, "subprocess", here)
                patch.setattr(parse, "parallel_map", in_this_process)
                code = module.main()
        else:
            (module.main if module.__name__.startswith("examples.") else module.cli_main)()
            code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:  # never back into pytest
        try:
            for worker in multiprocessing.active_children():  # of data loaders, as at the end of a program
                worker.terminate()
                worker.join()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def in_this_process(function: Callable[[Any], Any], items: Any, *_: int, **__: int) -> nullcontext[Any]:
    """In place of ``parallel_map``."""
    return nullcontext(map(function, items))


CLIENT = """
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["FORKS"])
asked = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode()
socket.send_fds(server, [b"%10d" % len(asked)], [0, 1, 2])
server.sendall(asked)
sys.exit(int(server.recv(10) or b"1"))
"""


@contextmanager
def programs_as_forks(folder: Path) -> Iterator[dict[str, str]]:
    """Variables for bash scripts in which our commands and fairseq's are functions that fork this process; none where
    there is a GPU, as in ``Fork``."""
    if torch.cuda.is_available():
        yield {}
        return
    fairseq_diverse.register()
    parse_settings_once()
    (folder / "client.py").write_text(CLIENT)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/socket")
        listening.listen()
        if not (server := os.fork()):
            _serve(listening)
    call = f"{sys.executable} -I -S {folder}/client.py"
    try:
        functions = {name: f'{call} {module} "$@"' for name, module in PROGRAMS.items()}
        functions["exec"] = '"$@"; builtin exit'  # it would pass by the others
        yield {"FORKS": f"{folder}/socket"} | {f"BASH_FUNC_{n}%%": f"() {{ {functions[n]}; }}" for n in functions}
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _serve(listening: socket.socket) -> NoReturn:
    """Run each program asked for in a fork of this process, which tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        asking, _ = listening.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            size, files, _, _ = socket.recv_fds(asking, 10, 3)
            cwd, words, environment = json.loads(asking.recv(int(size), socket.MSG_WAITALL))
            os.dup2(files[0], 0)
            out, err = (os.fdopen(file, "wb") for file in files[1:])
            done = Fork([sys.executable, "-m", *words], out, err, cwd=cwd, env=environment).wait()
            asking.sendall(str(done.returncode).encode())
            os._exit(0)
        asking.close()


def _forget_pytest() -> None:
    """Reset logging and warnings to those of a new process."""
    logging.root.handlers[:] = [logging.StreamHandler(sys.stderr)]
    logging.root.handlers[0].setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    logging.root.setLevel(logging.INFO)
    logging.getLogger("fairseq").setLevel(logging.NOTSET)
    warnings.showwarning = lambda *warning: print(warnings.formatwarning(*warning[:4]), end="", file=sys.stderr)
    warnings.simplefilter("default")
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


def make_data(folder: Path, sentences: int = 60, seed: int = 0, end: str = "") -> Path:
    """A binarized corpus whose targets are the reversed sources and ``end``; returns the folder for fairseq-train."""
    numbers = random.Random(seed)
    for split, count in (("train", sentences), ("valid", 8), ("test", 8)):
        lines = [" ".join(f"w{numbers.randrange(12)}" for _ in range(numbers.randint(3, 9))) for _ in range(count)]
        (folder / f"{split}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.de").write_text("\n".join(" ".join(line.split()[::-1]) + end for line in lines) + "\n")
    prefs = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    run("preprocess", "-s", "en", "-t", "de", *prefs, "--joined-dictionary", "--destdir", folder / "bin")
    return folder / "bin"
