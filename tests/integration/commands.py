"""Running fairseq's commands as a user does, on data made here."""

import importlib
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fairseq_diverse

USER_DIR = Path(__file__).resolve().parents[2] / "fairseq_diverse"

TINY = (
    "--arch diverse_transformer_tiny --share-all-embeddings --dropout 0.1 --optimizer adam --lr 0.005 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
    "--max-tokens 200 --cpu --seed 1 --num-workers 0 --log-format json --log-interval 1 --no-progress-bar"
)


def shared_data(name: str) -> Path:
    """A folder of real data; without it the test skips, or fails where ``CI=true``."""
    data = Path(os.environ.get("FAIRSEQ_DIVERSE_DATA", USER_DIR.parents[1] / "shared/data")) / name
    if not data.is_dir():
        message = f"{data} is absent; set FAIRSEQ_DIVERSE_DATA to the directory that holds {name}"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    return data


def run(
    tool: str, *args: object, user_dir: bool = True, check: bool = True, new_process: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``fairseq-<tool> args...`` in a process of its own.

    By default a fork of this one, which has fairseq imported already: seconds less. ``new_process`` starts Python anew;
    so does ``user_dir=False``, since the plugin is registered here.
    """
    command = [sys.executable, "-m", f"fairseq_cli.{tool}", *map(str, args)]
    if user_dir:
        command += ["--user-dir", str(USER_DIR)]
    if new_process or not user_dir or options:
        result = subprocess.run(command, capture_output=True, text=True, **options)
    else:
        result = _fork(command)
    if check and result.returncode:
        raise AssertionError(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result


def train_in_two_processes(*args: object) -> list[str]:
    """What the two wrote that ``fairseq-train args...`` trains with gloo."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fairseq_cli.train", *map(str, args), "--user-dir", str(USER_DIR)]
    command += ["--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-backend", "gloo"]
    command += ["--distributed-init-method", f"tcp://localhost:{port}", "--ddp-backend", "legacy_ddp"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    two = [subprocess.Popen([*command, "--distributed-rank", str(rank)], **options) for rank in (0, 1)]
    logs = [process.communicate(timeout=300)[0] for process in two]
    assert [process.returncode for process in two] == [0, 0], "\n".join(logs)[-3000:]
    return logs


def _fork(command: list[str]) -> subprocess.CompletedProcess[str]:
    fairseq_diverse.register()
    module = importlib.import_module(command[2])
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
                logging.root.handlers[:] = [logging.StreamHandler(sys.stderr)]
                logging.root.handlers[0].setFormatter(
                    logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s")
                )
                logging.root.setLevel(logging.INFO)
                logging.getLogger("fairseq").setLevel(logging.NOTSET)  # whatever a command run in this process left
                sys.argv = command[2:]
                module.cli_main()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), out.read(), err.read())


def make_data(folder: Path, sentences: int = 60, seed: int = 0, end: str = "") -> Path:
    """A binarized corpus of a language whose translation is its reversal and ``end``; the folder for fairseq-train."""
    numbers = random.Random(seed)
    for split, count in (("train", sentences), ("valid", 8), ("test", 8)):
        lines = [" ".join(f"w{numbers.randrange(12)}" for _ in range(numbers.randint(3, 9))) for _ in range(count)]
        (folder / f"{split}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.de").write_text("\n".join(" ".join(line.split()[::-1]) + end for line in lines) + "\n")
    prefs = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    run(
        "preprocess", "-s", "en", "-t", "de", *prefs, "--joined-dictionary", "--destdir", folder / "bin", user_dir=False
    )
    return folder / "bin"
