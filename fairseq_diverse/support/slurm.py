"""Work as one array of SLURM jobs, by submitit."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.support.processes import run_to_end
from fairseq_diverse.support.typed import parse_value

TIME = 24 * 60  # minutes of a job, where none are asked for
RESTARTS = 1000  # after a job's time is up: each resumes where the last stopped


class Resumed:
    """A job that is queued again when SLURM stops it (time, preemption), and resumes."""

    def checkpoint(self: Any) -> Any:
        """What submitit calls when SLURM announces the end."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass
class Command(Resumed):
    """``fairseq-diverse WORDS...`` as a job."""

    words: list[str]

    def __call__(self) -> str:
        done = run_to_end([sys.executable, "-m", "fairseq_diverse.cli", *self.words])
        if done.returncode:
            raise RuntimeError(f"fairseq-diverse {' '.join(self.words)} ended with exit code {done.returncode}")
        return "done"


def submit(jobs: Sequence[Callable[[], str]], parallel: int, settings: Sequence[str], folder: Path) -> list[str]:
    """Queue jobs as one array, ``parallel`` of them at a time.

    Args:
        settings: sbatch's options as ``name=value``, hyphens as underscores.
        folder: for the jobs' scripts and logs.

    Returns:
        The jobs' numbers, in the order of the jobs.

    Raises:
        UserError: submitit or SLURM is absent, or sbatch or an option is refused.
    """
    submitit = needed("submitit", f"--slurm needs submitit; install it: {install('slurm')}")
    options: dict[str, Any] = {"time": TIME, "job_name": "fairseq-diverse", "array_parallelism": parallel}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--slurm {setting}: write an option of sbatch as name=value, partition=gpu for example")
        name = name.replace("-", "_")
        options[name] = _minutes(value) if name == "time" else _value(value)
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=RESTARTS)
        executor.update_parameters(**options)
        with executor.batch():
            queued = [executor.submit(job) for job in jobs]
    except RuntimeError as error:
        raise UserError(f"--slurm: {error}") from None
    except (ValueError, TypeError, submitit.core.utils.FailedJobError) as error:
        raise UserError(f"--slurm {' '.join(settings)}: {' '.join(str(error).split())}") from None
    return [job.job_id for job in queued]


def _value(text: str) -> Any:
    """Of an option: a number, a truth value or a list as in YAML; other text as it is, such as 0123 or 1:30."""
    return parse_value(text) if re.fullmatch(r"0|[1-9]\d*|true|false|null|[\[{].*", text, re.IGNORECASE) else text


def _minutes(text: str) -> int:
    """A time in SLURM's forms; submitit takes minutes only."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){,2}", text):
        raise UserError(f"--slurm time={text}: minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES expected")
    days, _, clock = text.rpartition("-")
    numbers = [*map(int, clock.split(":"))]
    if days:  # hours come first, else minutes, unless there are all three
        numbers = [*numbers, 0, 0][:3]
    elif len(numbers) < 3:
        numbers = [0, *numbers, 0][:3]
    hours, minutes, seconds = numbers
    return (int(days or 0) * 24 + hours) * 60 + minutes + (seconds > 0)


def queued_jobs() -> set[str]:
    """The numbers of this user's jobs that wait or run; none where SLURM does not answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--format=%i"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return {*subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split()}
    return set()
