"""``python -m benchmarks.peers``: fairseq's transformer beside other toolkits, each in a process of its own."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks import __main__ as command
from benchmarks import sides
from benchmarks.peer import DECODING, PAD, PEERS, TRAINING
from fairseq_diverse.experiments.runs.environment import ALLOCATION
from fairseq_diverse.support.errors import UserError

PYTHONS: dict[str, str] = {}  # of the peers that have one of their own
BUILT: dict[str, tuple[int, str]] = {}  # parameters and version of the peers measured last
FLAGS = "--size --quick --only --pairs --tokens --save"


def job(measure: str, name: str, size: sides.Size) -> dict[str, object]:
    """What a side needs to know; the sentences are those of ``sides.batch``, padded on the right."""
    batch = sides.batch(size, size.tokens // size.length if measure == TRAINING else size.sentences, "cpu")
    source = pad_sequence([ids[ids.ne(PAD)] for ids in batch["net_input"]["src_tokens"]], True, PAD)
    tokens = {"source": source.tolist(), "target": batch["target"].tolist()}
    # the last step is the one in which fairseq forces </s>
    return {"measure": measure, "side": name, "size": asdict(size), "steps": size.steps + 1, **tokens}


class Process:
    """A sample of a side in a process of its own, which ends with this object.

    Raises:
        UserError: names the side, with the last line that its process wrote.
    """

    def __init__(self, measure: str, name: str, size: sides.Size) -> None:
        self.name, self.errors = name, TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [PYTHONS.get(name, sys.executable), "-m", "benchmarks.peer"],
            cwd=Path(__file__).parents[1],
            env={**ALLOCATION, **os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        BUILT[name] = self._ask(json.dumps(job(measure, name, size)))

    def _ask(self, line: str) -> tuple:
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):
            print(line, file=self.process.stdin, flush=True)
        if not (answer := self.process.stdout.readline()):
            self.errors.seek(0)
            raise UserError(f"{self.name}: {' '.join(self.errors.read().splitlines()[-1:]) or 'its process ended'}")
        return tuple(json.loads(answer))

    def __call__(self) -> float:
        return self._ask("once more")[0]

    def __del__(self) -> None:
        self.process.communicate()  # closes its input: it ends
        self.errors.close()


def sampler(measure: str, name: str, size: sides.Size, device: str) -> Process:
    """For ``Measure``."""
    if device != "cpu" or torch.get_num_threads() > 1:
        raise UserError("--device cpu and --threads 1: the only ones beside other toolkits")
    return Process(measure, name, size)


def main(arguments: Sequence[str] | None = None, results: Path = command.RESULTS) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, epilog=f"{FLAGS}: as in python -m benchmarks"
    )
    parser.add_argument(
        "--python",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="the Python that has joeynmt or eole, such as eole=venv/bin/python; without it, the one of this project",
    )
    mine, rest = parser.parse_known_args(arguments)
    PYTHONS.clear()
    BUILT.clear()
    for given in mine.python:
        name, _, path = given.partition("=")
        if name not in PEERS or not (found := shutil.which(path)):
            parser.error(f"--python {given}: must be NAME=PATH, a name of {', '.join(PEERS)} and the path of a Python")
        PYTHONS[name] = str(Path(found).absolute())
    here = [name for name, peer in PEERS.items() if name in PYTHONS or find_spec(peer.module)]
    rows = [command.Row(how, name) for how in (TRAINING, DECODING) for name in here if how in PEERS[name].measures]
    command.ROWS = [row for row in rows if row.ours != "fairseq"]
    command.MEASURES |= {how: command.Measure(partial(sampler, how)) for how in (TRAINING, DECODING)}
    for name in [name for name in PEERS if name not in here]:
        print(f"skipped: {name} is not in this Python: --python {name}=PATH", flush=True)
    status = command.main(rest, results)
    for name, (parameters, version) in BUILT.items():
        print(f"{name}: {PEERS[name].distribution} {version}, {parameters:,} parameters")
    return status


if __name__ == "__main__":
    sys.exit(main())
