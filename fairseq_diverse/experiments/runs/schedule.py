"""Several runs side by side, with progress."""

import contextlib
import heapq
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean

from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.environment import AVX2, gpu_variables
from fairseq_diverse.experiments.runs.execution import Progress, RunFailed, execute
from fairseq_diverse.experiments.runs.folder import is_finished, read_state, stage, summary_of
from fairseq_diverse.experiments.runs.provenance import starts_of
from fairseq_diverse.support.processes import Busy

REPORT_SECONDS = 30
REPORT_SHARE = 0.05


def run_all(
    runs: Sequence[Run],
    jobs: int,
    environment: dict[str, str],
    ended: Callable[[Run], object] = lambda run: None,
    gpus: Sequence[str] = (),
) -> int:
    """Work on ``runs`` in their order, ``jobs`` at a time; a run that fails does not stop the others. Returns how many
    runs failed or were left to another process.

    Everything happens in this one thread: each run is a generator that is asked in turn, so Ctrl-C ends all of them.
    ``ended`` is called with every run that is finished, now or before. ``gpus`` has ``CUDA_VISIBLE_DEVICES`` of each
    job, where there are several; a run uses at most those that its batch is for."""
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
    if all(one["threads"] == 1 and AVX2.items() <= one.get("variables", {}).items() for one in machines):
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
