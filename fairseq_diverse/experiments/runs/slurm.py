"""A run as a SLURM job."""

import os
from dataclasses import dataclass, replace
from typing import Any

from fairseq_diverse.experiments.run import Run
from fairseq_diverse.experiments.runs.environment import gpus_of_jobs, of_children
from fairseq_diverse.experiments.runs.schedule import outcome, run_all


@dataclass
class Job:
    """A run on the node that works on it. Stopped by SLURM (time, preemption), it is queued again and resumes."""

    run: Run
    same_arithmetic: bool = False

    def __call__(self) -> str:
        import torch

        given = os.environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0))
        cores = os.environ.get("OMP_NUM_THREADS") or (1 if self.same_arithmetic else given)
        run = replace(self.run, cpu=not torch.cuda.is_available())  # the node that submitted may have had none
        environment = of_children(int(cores), dict(os.environ), run.cpu, self.same_arithmetic)
        if run_all([run], 1, environment, gpus=gpus_of_jobs(1, os.environ)):
            raise RuntimeError(f"{run.name} is not finished; see {run.directory}")
        return outcome(run)

    def checkpoint(self) -> Any:
        """What submitit calls when SLURM announces the end."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
