"""The environment variables that a run's programs get: threads, memory allocation, arithmetic."""

import os
import re
from collections.abc import Sequence

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.processes import cores, gpu_names

# On a CPU glibc gives freed memory back after every update and gets it anew, page by page: 62,000 page faults an update
# at size `small`. With these it keeps the memory, in huge pages. Results stay the same; see docs/speed.md.
ALLOCATION = {
    **{"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "268435456"},
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# The same vector instructions on every x86 processor that has AVX2, whatever else it has
AVX2 = {
    **{"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    **{"ONEDNN_MAX_CPU_ISA": "AVX2", "FAIRSEQ_DIVERSE_KERNELS": "x86-64-v3"},
}
# By which fairseq takes itself for one of several nodes' processes, or gives all runs of a SLURM job the same port: a
# run uses one node, and others may run beside it
SEVERAL_NODES = (
    *("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"),
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
)


def variables_of_runs(jobs: int, cpu: bool, same_arithmetic: bool, given_cores: str = "") -> dict[str, str]:
    """The variables that each of several runs, which use no GPU if ``cpu``, adds to the inherited ones: as threads
    ``OMP_NUM_THREADS``, else its share of the cores; of ``ALLOCATION`` those that are not set already.

    ``same_arithmetic``: only instructions of AVX2 and one thread, so that a training repeats to the last bit on another
    processor of the same maker. Raises UserError: it is on a GPU, with several threads, or on a processor without AVX2;
    ``OMP_NUM_THREADS`` is not a number."""
    import torch

    share = 1 if same_arithmetic else max(1, int(given_cores or cores()) // jobs)
    threads = os.environ.get("OMP_NUM_THREADS") or str(share)
    if not re.fullmatch("[1-9][0-9]{,5}", threads):
        raise UserError(f"OMP_NUM_THREADS={threads}: a number of threads above 0 expected")
    added = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if cpu:
        added |= {name: value for name, value in ALLOCATION.items() if name not in os.environ}
    if same_arithmetic:
        if not cpu:
            raise UserError("--same-arithmetic: for runs on a CPU; hide the GPU with CUDA_VISIBLE_DEVICES=''")
        if threads != "1":
            raise UserError(f"--same-arithmetic: needs OMP_NUM_THREADS=1, not {threads} threads")
        if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
            raise UserError("--same-arithmetic: this processor has no AVX2")
        added |= AVX2
    return added


def gpus_of_a_job(jobs: int) -> int:
    """How many GPUs each of several jobs gets; a CPU is like one."""
    import torch

    return max(1, torch.cuda.device_count() // jobs)


def gpus_of_jobs(jobs: int) -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` of each job: equal shares of the GPUs, or one in turn where jobs are more; empty where
    there are not several GPUs."""
    if len(names := gpu_names()) < 2:
        return []
    share = gpus_of_a_job(jobs)
    return [",".join(names[(job * share + number) % len(names)] for number in range(share)) for job in range(jobs)]


def gpu_variables(gpus: Sequence[str], job: int, batch: int) -> dict[str, str]:
    """The variable of a run that may use the GPUs of one job (`gpus_of_jobs`): as many as its batch is for, 0 for all;
    empty where there are not several GPUs."""
    names = gpus[job % len(gpus)].split(",")[: batch or None] if gpus else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)} if names else {}
