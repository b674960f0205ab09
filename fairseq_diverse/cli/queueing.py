"""``--slurm`` of commands that do one thing: the same command as one or several jobs."""

import argparse
from collections.abc import Mapping, Sequence


def add_slurm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm",
        nargs="*",
        metavar="OPTION=VALUE",
        help="queue the command with SLURM, with options of sbatch: partition=cpu cpus_per_task=16 time=600 (minutes)",
    )


def queue(args: argparse.Namespace, jobs: Mapping[str, Sequence[str]], dropped: Sequence[str] = ()) -> None:
    """Queue this command without ``--slurm`` and the ``dropped`` flags, once for each of the jobs with its own flags.

    Raises:
        UserError: see ``support.slurm.submit``.
    """
    from fairseq_diverse.support.paths import runs_dir
    from fairseq_diverse.support.slurm import Command, submit

    flags = argparse.ArgumentParser(add_help=False)  # which knows abbreviated flags
    add_slurm(flags)
    for flag in dropped:
        flags.add_argument(flag)
    line = flags.parse_known_args(args.words)[1]
    folder = runs_dir() / "slurm"
    numbers = submit([Command([*line, *more]) for more in jobs.values()], len(jobs), args.slurm, folder)
    for name, number in zip(jobs, numbers, strict=True):
        print(f"{name}: job {number}")
    print(f"logs of jobs: {folder}")
