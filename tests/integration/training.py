"""Trainings by fairseq's command line, what they log, and what it refuses."""

import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.commands import TINY, USER_DIR, Fork, run

DISAGREEMENT = "--criterion label_smoothed_cross_entropy_with_disagreement --disagreement subspace,position,output"


def refused(tool: str, *args: object) -> str:
    """The errors of ``fairseq-<tool> args...``, which fails without a stack trace."""
    done = run(tool, *args, check=False)
    assert done.returncode and "Traceback" not in done.stderr and "error: " in done.stderr, done.stderr[-3000:]
    return done.stderr


def train(
    data: str | Path, folder: Path, flags: str = "", updates: int = 2, base: str = TINY, device: str = "cpu"
) -> str:
    """What ``fairseq-train`` logs."""
    words = [word for word in f"{base} {flags}".split() if word != "--cpu" or device == "cpu"]
    done = run("train", data, *words, "--max-update", updates, "--save-dir", folder)
    return done.stdout + done.stderr


def figures(log: str) -> dict[str, list[float]]:
    """The values of each name in a JSON log, such as ``loss`` of every update, ``valid_loss`` of validations."""
    found: dict[str, list[float]] = {}
    for name, value in re.findall(r'"(\w+)": "(-?[\d.e-]+)"', log):
        found.setdefault(name, []).append(float(value))
    return found


def train_resumed(data: Path, folder: Path, flags: str, first: int, updates: int, base: str = TINY) -> str:
    """Train as a whole, and in two parts with the same losses; the log of the second part."""
    parts = ("whole", updates), ("part", first), ("part", updates)
    logs = [train(data, folder / name, flags, number, base) for name, number in parts]
    whole, part, rest = map(figures, logs)
    assert part["loss"] + rest["loss"] == whole["loss"] and len(whole["loss"]) == updates
    assert rest["valid_loss"][-1] == whole["valid_loss"][-1]
    return logs[-1]


def train_in_two(*args: object, nccl: bool = False) -> str:
    """The output of the first process of ``fairseq-train args...``, with gloo or NCCL."""
    if nccl:
        two = ("--distributed-world-size", 2, "--distributed-backend", "nccl", "--ddp-backend", "legacy_ddp")
        done = run("train", *args, *two, fork=False)
        return done.stdout + done.stderr
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fairseq_cli.train", *map(str, args), "--user-dir", str(USER_DIR)]
    command += ["--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-backend", "gloo"]
    command += ["--distributed-init-method", f"tcp://localhost:{port}", "--ddp-backend", "legacy_ddp"]
    two = [Fork([*command, "--distributed-rank", str(rank)], stderr=subprocess.STDOUT) for rank in (0, 1)]
    done = [process.wait(timeout=300) for process in two]
    logs = [process.stdout for process in done]
    assert [process.returncode for process in done] == [0, 0], "\n".join(logs)[-3000:]
    return logs[0]


def equal_in_two_processes(folder: Path, names: Sequence[str], *words: object, parts: int = 1, nccl: bool = False):
    """Two processes log the figures of one with twice the accumulation: of ``parts`` batches an update each."""
    alone = ("--distributed-world-size", 1) if nccl else ()
    one = run("train", *words, *alone, "--update-freq", 2 * parts, "--save-dir", folder / "one", fork=not nccl)
    two = train_in_two(*words, "--update-freq", parts, "--save-dir", folder / "two", nccl=nccl)
    expected, got = figures(one.stdout + one.stderr), figures(two)
    for name in names:
        assert got[name] == pytest.approx(expected[name], abs=2e-3), name
