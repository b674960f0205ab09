"""Runs as one array of SLURM jobs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.environment import of_children
from fairseq_diverse.experiments.runs import Run
from fairseq_diverse.experiments.schedule import outcome, run_all
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.yaml_files import parse_value

TIME = 24 * 60  # minutes of a job, where none are asked for
RESTARTS = 1000  # after a job's time is up: each resumes where the last stopped


@dataclass
class Job:
    """A run on the node that works on it. Stopped by SLURM (time, preemption), it is queued again and resumes."""

    run: Run
    same_arithmetic: bool = False

    def __call__(self) -> str:
        import torch

        cores = os.environ.get("OMP_NUM_THREADS") or os.environ.get("SLURM_CPUS_PER_TASK") or os.cpu_count() or 1
        run = replace(self.run, cpu=not torch.cuda.is_available())  # the node that submitted may have had none
        if run_all([run], 1, of_children(int(cores), dict(os.environ), run.cpu, self.same_arithmetic)):
            raise RuntimeError(f"{run.name} is not finished; see {run.directory}")
        return outcome(run)

    def checkpoint(self) -> Any:
        """What submitit calls when SLURM announces the end."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    runs: Sequence[Run], jobs: int, settings: Sequence[str], folder: Path, same_arithmetic: bool = False
) -> list[str]:
    """Queue runs as one array, ``jobs`` of them at a time.

    Args:
        settings: sbatch's options as ``name=value``, hyphens as underscores.
        folder: for the jobs' scripts and logs.

    Returns:
        The jobs' numbers, in the order of the runs.

    Raises:
        UserError: submitit or SLURM is absent, or sbatch or an option is refused.
    """
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError
    except ImportError:
        raise UserError("--slurm needs submitit; install it: pip install 'fairseq-diverse[slurm]'") from None
    options: dict[str, Any] = {"time": TIME, "job_name": "fairseq-diverse", "array_parallelism": jobs}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--slurm {setting}: write an option of sbatch as name=value, partition=gpu for example")
        options[name.replace("-", "_")] = parse_value(value)
    try:
        executor = SlurmExecutor(folder, max_num_timeout=RESTARTS)
        executor.update_parameters(**options)
        with executor.batch():
            queued = [executor.submit(Job(run, same_arithmetic)) for run in runs]
    except RuntimeError as error:
        raise UserError(f"--slurm: {error}") from None
    except (ValueError, TypeError, FailedJobError) as error:
        raise UserError(f"--slurm {' '.join(settings)}: {' '.join(str(error).split())}") from None
    return [job.job_id for job in queued]
