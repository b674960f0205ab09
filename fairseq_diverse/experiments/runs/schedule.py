"""Several runs side by side, with progress; or as jobs of SLURM."""

import contextlib
import heapq
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.environment import AVX2, gpu_variables, gpus_of_jobs, variables_of_runs
from fairseq_diverse.experiments.runs.execution import Progress, RunFailed, execute
from fairseq_diverse.experiments.runs.folder import is_finished, read_state, stage, summary_of
from fairseq_diverse.experiments.runs.provenance import starts_of
from fairseq_diverse.host.programs import import_user_dir
from fairseq_diverse.support.files import write_text
from fairseq_diverse.support.paths import runs_dir
from fairseq_diverse.support.processes import Busy, is_locked
from fairseq_diverse.support.slurm import Resumed, queued_jobs, submit

REPORT_SECONDS = 30
REPORT_SHARE = 0.05


def run_all(
    runs: Sequence[Run],
    jobs: int,
    environment: dict[str, str],
    ended: Callable[[Run], object] = lambda run: None,
    gpus: Sequence[str] = (),
) -> int:
    """Work on ``runs`` in their order, ``jobs`` at a time; a run that fails does not stop the others.

    Everything happens in this one thread: each run is a generator that is asked in turn, so Ctrl-C ends all of them.

    Args:
        ended: called with every run that is finished, now or before.
        gpus: ``CUDA_VISIBLE_DEVICES`` of each job, where there are several; a run uses at most those that its batch is
            for.

    Returns:
        How many runs failed or were left to another process.
    """
    waiting, jobs = list(runs), min(jobs, len(runs))
    display = Bars(jobs) if sys.stderr.isatty() else Lines()
    working: dict[int, tuple[Run, Iterator[Progress]]] = {}
    pace = Pace(runs)
    unfinished = 0
    try:
        while waiting or working:
            for slot in range(jobs):
                to_do = {run.directory for run in (*waiting, *(run for run, _ in working.values()))}
                ready = [run for run in waiting if not (run.first and run.first.directory in to_do)]  # pre-trained
                if slot not in working and ready:
                    run = waiting.pop(waiting.index(ready[0]))
                    working[slot] = run, start(run, environment | gpu_variables(gpus, slot, run.row.gpus), display.say)
                if slot not in working:
                    continue
                run, generator = working[slot]
                try:
                    if progress := next(generator, None):
                        pace.follow(run, progress)
                        left = pace.left([run for run, _ in working.values()], waiting, jobs)
                        display.show(slot, run, progress, left)
                        continue
                    ended(run)
                except Exception as error:  # the other runs continue
                    display.say(f"{run.name}: {_failure(run, error)}")
                    unfinished += 1
                del working[slot]
                display.clear(slot)
            time.sleep(0.25 if working else 0)
    finally:
        for _, generator in working.values():
            generator.close()  # type: ignore[attr-defined]
        display.close()
    return unfinished


def _failure(run: Run, error: Exception) -> str:
    """What to say of a run that ended with an error; the stack trace of a bug is kept in its folder."""
    if isinstance(error, Busy):
        return f"left alone, {error}"
    if isinstance(error, RunFailed | ValueError):
        return f"FAILED: {error}"
    if isinstance(error, OSError):
        return f"FAILED: {error.filename or run.directory}: {error.strerror or error}"
    with contextlib.suppress(OSError):  # a full disk
        (run.directory / "error.log").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"FAILED: {error!r}; see {run.directory / 'error.log'}"


def start(run: Run, environment: dict[str, str], say: Callable[[str], None]) -> Iterator[Progress]:
    """Work on one run where it is not finished, and say how it ended."""
    why = other_arithmetic(run, environment)
    if is_finished(run):
        say(f"{run.name}: {outcome(run)} (done before, {run.directory}{why})")
        return
    where = stage(run)
    say(f"{run.name}: {run.directory}{f', {where}' * where.startswith('resumes')}{why}")
    yield from execute(run, environment)
    say(f"{run.name}: {outcome(run)}")


def other_arithmetic(run: Run, environment: dict[str, str]) -> str:
    """What to say of a run where ``environment`` is that of --same-arithmetic and a start of its training was not."""
    if not AVX2.items() <= environment.items():
        return ""
    finished = is_finished(run)
    before = starts_of(summary_of(run) or {}) if finished else read_state(run).get("starts", [])
    machines = [start.get("machine") or {"threads": 0} for start in before]
    if all(machine["threads"] == 1 and AVX2.items() <= machine.get("variables", {}).items() for machine in machines):
        return ""
    if finished:
        return "; NOT with --same-arithmetic, by its summary: remove that folder to train it again"
    return " (training began without --same-arithmetic and resumes with it: remove that folder to start anew)"


def outcome(run: Run) -> str:
    """The figures of a finished run in one line."""
    return kind_of(run.row).outcome(run.row, summary_of(run) or {})


class Pace:
    """How long all runs still train, from the updates done so far."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.to_do: dict[Path, int] = {}  # updates
        self.began: dict[Path, tuple[float, int]] = {}
        self.seconds: dict[Path, float] = {}  # an update
        for run in runs:
            with contextlib.suppress(ValueError):  # a damaged summary, which is reported in its turn
                self.to_do[run.directory] = 0 if is_finished(run) else run.row.max_update

    def follow(self, run: Run, progress: Progress) -> None:
        key, now = run.directory, time.monotonic()
        to_do = run.row.max_update - progress.updates if progress.step == "train" else 0
        if progress.step == "train" and progress.updates and to_do < self.to_do.get(key, 0):
            when, updates = self.began.setdefault(key, (now, progress.updates))
            if progress.updates > updates:
                self.seconds[key] = (now - when) / (progress.updates - updates)
        self.to_do[key] = to_do

    def left(self, working: Sequence[Run], waiting: Sequence[Run], jobs: int) -> str:
        """The time until the last training ends, in words; empty where it is not known."""
        if not self.seconds:
            return ""
        usual = mean(self.seconds.values())
        folders = [run.directory for run in (*working, *waiting)]
        times = [self.to_do.get(folder, 0) * self.seconds.get(folder, usual) for folder in folders]
        ends = [0.0] * (jobs - len(working)) + times[: len(working)]
        heapq.heapify(ends)
        for more in times[len(working) :]:
            heapq.heapreplace(ends, ends[0] + more)
        if (seconds := max(ends)) < 1:
            return ""
        amount = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        amount = f"{seconds / 3600:.1f} hours" if seconds >= 6000 else amount
        return f"all runs: about {amount} of training left"


class Bars:
    """One line a working run, in training with a bar; for a terminal."""

    def __init__(self, jobs: int):
        from tqdm import tqdm

        self.bars = [tqdm(position=slot, leave=False, unit="update", bar_format="{desc}") for slot in range(jobs + 1)]

    def show(self, slot: int, run: Run, progress: Progress, left: str) -> None:
        self.bars[-1].set_description_str(left)
        bar = self.bars[slot]
        if bar.desc != f"{run.name}, {progress.step}":
            bar.reset(total=run.row.max_update)
            bar.initial = 0
            bar.bar_format = None if progress.step == "train" else "{desc} [{elapsed}]"
            bar.set_description_str(f"{run.name}, {progress.step}", refresh=False)
            bar.set_postfix_str("", refresh=False)
        if progress.updates > bar.n:
            bar.initial = bar.initial or progress.updates  # what an earlier start did does not count for the speed
            bar.n = progress.updates
            bar.set_postfix_str(progress.figures, refresh=False)
        bar.refresh()

    def say(self, line: str) -> None:
        self.bars[0].write(line, file=sys.stderr)

    def clear(self, slot: int) -> None:
        self.bars[slot].bar_format = "{desc}"
        self.bars[slot].set_description_str("")

    def close(self) -> None:
        for bar in self.bars:
            bar.close()


class Lines:
    """A line at every step, and in training every 5% or half a minute, whichever comes first; for a log file."""

    def __init__(self) -> None:
        self.shown: dict[int, tuple[str, float, int]] = {}

    def show(self, slot: int, run: Run, progress: Progress, left: str) -> None:
        step, when, updates = self.shown.get(slot, ("", 0.0, 0))
        done, every = progress.updates - updates, run.row.max_update
        if progress.step != step:
            self.say(f"{run.name}: {progress.step}")
        elif done >= every * REPORT_SHARE or (done and time.monotonic() - when >= REPORT_SECONDS):
            figures = f"{progress.updates}/{every} updates, {progress.figures}"
            self.say(f"{run.name}: {progress.step} {figures}{left and '; '}{left}")
        else:
            return
        self.shown[slot] = progress.step, time.monotonic(), progress.updates

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def clear(self, slot: int) -> None:
        self.shown.pop(slot, None)

    def close(self) -> None:
        pass


NUMBER = "slurm-job.txt"  # of the job that a run was last queued as, in its folder


@dataclass
class Job(Resumed):
    """A run on the node that works on it."""

    run: Run
    same_arithmetic: bool = False

    def __call__(self) -> str:
        import torch

        if self.run.row.user_dir:
            import_user_dir(self.run.row.user_dir)
        run = replace(self.run, cpu=not torch.cuda.is_available())  # the node that submitted may have had none
        environment = variables_of_runs(1, run.cpu, self.same_arithmetic, os.environ.get("SLURM_CPUS_PER_TASK", ""))
        if run_all([run], 1, environment, gpus=gpus_of_jobs(1)):
            raise RuntimeError(f"{run.name} is not finished; see {run.directory}")
        return outcome(run)


def queue(runs: Sequence[Run], jobs: int, options: Sequence[str], same_arithmetic: bool) -> Iterator[str]:
    """Queue what is not finished, ``jobs`` at a time, but for runs that wait for their pre-training; yields what is
    queued, a line each, and says on standard error what is not. Raises UserError: see ``support.slurm.submit``."""
    for run in runs if same_arithmetic else ():
        if why := other_arithmetic(run, AVX2):
            print(f"{run.name}: {run.directory}{why}", file=sys.stderr)
    unfinished = [run for run in runs if not is_finished(run)]
    ready: list[Run] = []
    waiting: list[Run] = []
    queued = queued_jobs()
    for run in unfinished:
        file = run.directory / NUMBER
        number = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        if is_locked(run.directory):
            print(f"{run.name}: a process is working on {run.directory}", file=sys.stderr)
        elif number in queued:
            print(f"{run.name}: is queued as job {number}", file=sys.stderr)
        else:
            (waiting if run.first and not is_finished(run.first) else ready).append(run)
    folder = runs_dir() / "slurm"
    numbers = submit([Job(run, same_arithmetic) for run in ready], jobs, options, folder) if ready else []
    for run, number in zip(ready, numbers, strict=True):
        write_text(run.directory / NUMBER, number)
        yield f"{run.name}: job {number}, {run.directory}"
    begun = len(unfinished) - len(ready) - len(waiting)
    skipped = f"{begun} queued or at work, " * bool(begun) + f"{len(runs) - len(unfinished)} done before"
    yield f"{len(ready)} runs queued, {skipped}; logs of jobs: {folder}"
    if waiting:
        yield f"{len(waiting)} runs wait for pre-training; when it is finished, give the command again"
