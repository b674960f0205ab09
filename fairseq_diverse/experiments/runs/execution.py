"""The work of one run: its programs one after the other, each with its log, whatever interrupts them."""

import math
import os
import sys
import zipfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from fairseq_diverse.checkpoints.averaging import drop_worse
from fairseq_diverse.experiments import logs
from fairseq_diverse.experiments.inputs import differing
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.records import write_json
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs import provenance
from fairseq_diverse.experiments.runs.environment import SEVERAL_NODES
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import complete, is_finished, read_state, valid_state, write_state
from fairseq_diverse.experiments.runs.plan import lines_of, steps_of, variables
from fairseq_diverse.host.starting import lighter
from fairseq_diverse.support.files import copy_file, write_text
from fairseq_diverse.support.processes import die_with_parent, locked


class RunFailed(Exception):
    """A step that ended badly; the message names its log and holds the log's last lines."""


class InputChanged(RunFailed):
    """What a run reads is no longer what it was found with; the message says what."""


@dataclass(frozen=True)
class Progress:
    """What a working run shows: its step and, in training, how far it is."""

    step: str
    updates: int = 0
    loss: str = ""
    words_per_second: str = ""

    @property
    def figures(self) -> str:
        """The loss and, where the log has it, the speed."""
        return f"loss {self.loss}" + (self.words_per_second and f", {self.words_per_second} words/s")


def execute(run: Run, environment: dict[str, str]) -> Iterator[Progress]:
    """Do the steps that are not done yet; yields while a step works, returns when ``summary.json`` is written.

    Args:
        environment: variables that the steps' programs get besides the inherited ones.

    Raises:
        RunFailed: a step's program failed, or code, files or data were changed meanwhile (`InputChanged`): nothing is
            kept of a step that may have read others than those that the run's folder is named by.
        Busy: another process holds this run.
    """
    with locked(run.directory) as lock:
        if is_finished(run):
            return
        if run.first and not (is_finished(run.first) and run.first.checkpoint.is_file()):
            lost = f"its checkpoint {run.first.checkpoint} is missing"
            why = lost if is_finished(run.first) else "it is not finished"
            raise RunFailed(f"pre-training, {run.first.name}: {why}")
        write_text(run.directory / "environment.txt", provenance.environment(environment))
        for step in steps_of(run, {}):
            if step in (state := valid_state(run)):
                continue
            if ("average" if run.row.average else "train") in state and not run.checkpoint.is_file():
                todo = f"bring it back, or delete {run.directory} to train it again"
                raise RunFailed(f"its checkpoint {run.checkpoint} is missing, {step} needs it; {todo}")
            lines = lines_of(run, state, environment).values()
            write_text(run.directory / "commands.sh", "".join(f"{line}\n" for line in lines))
            yield Progress(step)
            refuse_changed(run)
            command = steps_of(run, state)[step]
            yield from (_train if step == "train" else _evaluate)(run, step, command, environment, lock)
        yield Progress("score")
        summary = complete(run)
        refuse_changed(run)
        write_json(run.directory / "summary.json", summary)
        for path in (*run.checkpoints.glob("*.pt"), run.directory / "error.log"):
            if path != run.checkpoint:
                path.unlink(missing_ok=True)


def refuse_changed(run: Run) -> None:
    """Raise `InputChanged` where its row means another run by now, or data that it is evaluated on are others."""
    try:
        (now,) = find_runs([run.row], [run.seed], cpu=run.cpu)
    except ValueError as error:
        raise InputChanged(f"while it worked: {error}") from None
    tests = (name for name in run.further if now.data.tests.get(name) != run.data.tests.get(name))
    what = differing(run.read, now.read) or next(tests, "") or "data" * (now.data.hash != run.data.hash)
    if what or now.key != run.key:
        raise InputChanged(f"{what or 'trees'} changed while it worked; start again for a run of what is there now")


def _train(run: Run, step: str, command: list[str], environment: dict[str, str], lock: int) -> Iterator[Progress]:
    peak, log = None, run.directory / "train.log"
    if (updates := repair_last_checkpoint(run.checkpoints)) < run.row.max_update:
        _record_start(run, environment)
        before, logged = _written(run.checkpoints), log.stat().st_size if log.exists() else 0
        try:
            peak = yield from _spawn(run, step, command, environment, lock)
        except InputChanged:
            for path, _ in _written(run.checkpoints) - before:
                path.unlink()
            os.truncate(log, logged)
            raise
        updates = repair_last_checkpoint(run.checkpoints)
    if updates == 0 or (updates < run.row.max_update and not run.row.ends_early):
        raise RunFailed(f"train ended after {updates} of {run.row.max_update} updates; see {log}")
    if not any(run.checkpoints.glob(f"checkpoint_*_{updates}.pt")):
        # fairseq leaves it out at the end of an epoch
        copy_file(run.checkpoints / "checkpoint_last.pt", run.checkpoints / f"checkpoint_0_{updates}.pt")
    measured = logs.measure("train", log) | {"peak_memory": peak, "updates": updates}
    if not math.isfinite(sum((measured["valid_nll"] or {}).values())):
        raise RunFailed(f"training diverged: a validation loss is not finite; see {log}")
    write_state(run, read_state(run) | {"train": measured})


def _written(folder: Path) -> set[tuple[Path, int]]:
    """The checkpoints in a folder, and when each was written."""
    return {(path, path.stat().st_mtime_ns) for path in folder.glob("*.pt*")}


def _evaluate(run: Run, step: str, command: list[str], environment: dict[str, str], lock: int) -> Iterator[Progress]:
    _record_start(run, environment)
    peak = yield from _spawn(run, step, command, environment, lock)
    measured = logs.measure(step, run.directory / f"{step}.log") | {"peak_memory": peak}
    measured |= kind_of(run.row).measure(run, step)
    refuse_changed(run)
    write_state(run, read_state(run) | {step: measured})


def _record_start(run: Run, environment: dict[str, str]) -> None:
    """Keep on which machine and with which code a step starts, where that is not as it was at the last."""
    state, start = read_state(run), provenance.collect(environment)
    if state.get("starts", [])[-1:] != [start]:
        write_state(run, state | {"starts": [*state.get("starts", []), start]})


def _spawn(
    run: Run, step: str, command: list[str], environment: dict[str, str], lock: int
) -> Generator[Progress, None, int]:
    """Run one program with its output in ``<step>.log`` (training appends); returns its peak memory in bytes. Training
    fails if its input changes before the first update, when it has read all."""
    path, reads = run.directory / f"{step}.log", step == "train"
    inherited = {name: value for name, value in os.environ.items() if name not in SEVERAL_NODES}
    env = inherited | environment | variables(run, step) | {"PYTHONUNBUFFERED": "1"}
    die = partial(die_with_parent, os.getpid())
    with open(path, "ab" if reads else "wb") as log:
        follow, words, start = logs.Follower(path), lighter(command), log.tell()
        # while any part of a run lives, the run stays locked
        process = Popen(words, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=env, pass_fds=[lock], preexec_fn=die)
    try:
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if step == "train" and "best" in run.row.average:
                drop_worse(run.checkpoints, run.row.average["best"], run.row.average["by"])
            progress = Progress(step, *follow.latest())
            if progress.updates and reads:
                refuse_changed(run)
                reads = False
            yield progress
        process.returncode = os.waitstatus_to_exitcode(ended[1])
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        if logs.disk_is_full(path):
            raise RunFailed(f"{step}: no space left on device, {path}; make room and start the run again")
        end = logs.tail(path, start, run.row.user_dir)
        raise RunFailed(f"{step} ended with exit code {process.returncode}; the end of {path}:\n{end}")
    if reads:
        refuse_changed(run)
    return ended[2].ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def repair_last_checkpoint(folder: Path) -> int:
    """Make ``checkpoint_last.pt`` a whole file, from the newest other checkpoint if need be; returns its update count.

    fairseq writes ``checkpoint_<epoch>_<updates>.pt`` whole or not at all, but copies it to ``checkpoint_last.pt`` in
    place: training that is killed meanwhile leaves half of one. Training of which the last checkpoint is complete but
    that was killed before it ended would take one update too many if it were started again, hence the count.
    """
    from fairseq_diverse.checkpoints.loading import load_checkpoint

    last = folder / "checkpoint_last.pt"
    for unfinished in folder.glob("*.pt.tmp"):  # fairseq leaves it behind, under another name each time
        unfinished.unlink()
    if not _is_whole(last):
        last.unlink(missing_ok=True)
        intact = filter(_is_whole, folder.glob("checkpoint_*_*.pt"))
        if not (newest := max(intact, key=lambda path: int(path.stem.split("_")[2]), default=None)):
            return 0
        copy_file(newest, last)  # no link: fairseq writes into the last checkpoint
    return load_checkpoint(last, mmap=True)["optimizer_history"][-1]["num_updates"]


def _is_whole(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # a damaged end
        return False
