"""Runs as jobs of SLURM."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.environment import AVX2, gpus_of_jobs, variables_of_runs
from fairseq_diverse.experiments.runs.folder import is_finished
from fairseq_diverse.experiments.runs.schedule import other_arithmetic, outcome, run_all
from fairseq_diverse.host.programs import import_user_dir
from fairseq_diverse.support.files import write_text
from fairseq_diverse.support.paths import runs_dir
from fairseq_diverse.support.processes import is_locked
from fairseq_diverse.support.slurm import Resumed, queued_jobs, submit

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
        if run_all([run], 1, environment, gpus=gpus_of_jobs(1, os.environ)):
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
    others = f"{begun} queued or at work, " * bool(begun) + f"{len(runs) - len(unfinished)} done before"
    yield f"{len(ready)} runs queued, {others}; logs of jobs: {folder}"
    if waiting:
        yield f"{len(waiting)} runs wait for pre-training; when it is finished, give the command again"
