"""Train, translate and score the rows of a table.

A run is one row with one seed. Its folder under $FAIRSEQ_DIVERSE_RUNS (default: runs/) is named by a hash of its data
and settings, so equal rows of several tables are trained once. If interrupted, the same command resumes.
`fairseq-diverse report TABLE` shows the results. All flags are checked before anything starts. Flags that a run sets
itself (--seed, --save-dir, those for saving and logging) are refused in tables and in --set.

Each run uses its share of the cores as threads, or $OMP_NUM_THREADS threads. On a CPU it also keeps freed memory, which
makes training faster and changes no result (docs/speed.md). With --slurm the runs become one array of jobs, at most
--jobs at a time; a job that reaches its time limit is queued again and resumes.
"""

import argparse
import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_diverse.support.installed import install
from fairseq_diverse.support.processes import cores

if TYPE_CHECKING:
    from fairseq_diverse.experiments.run import Run, Tracking
    from fairseq_diverse.experiments.runs.copies import Copies
    from fairseq_diverse.experiments.tables.load import Table

NUMBER = "slurm-job.txt"  # of the job that a run was queued as, in its folder
EXAMPLE = "fairseq-diverse run multi30k --rows baseline,disagreement --seeds 1,2,3 --jobs 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    parser.add_argument("--seeds", default="1", metavar="1,2,3", help="seeds of every row (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of runs at the same time (default: 1)")
    parser.add_argument(
        "--slurm",
        nargs="*",
        metavar="OPTION=VALUE",
        help="queue the runs with SLURM, with options of sbatch: partition=gpu gpus_per_node=1 time=600 (minutes)",
    )
    parser.add_argument(
        "--same-arithmetic",
        action="store_true",
        help="on a CPU: one thread and no instructions beyond AVX2, so that repeated trainings agree bit for bit",
    )
    parser.add_argument(
        "--heads",
        action="store_true",
        help="also measure how different the heads of every attention are; finished runs are not trained again",
    )
    parser.add_argument(
        "--yisi-model",
        type=Path,
        metavar="DIR",
        help="folder of the embedding model for tables with metric yisi-1 (default: $FAIRSEQ_DIVERSE_YISI_MODEL)",
    )
    parser.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write TensorBoard logs there, one folder per run"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="copy each run's summary there, as `report --save`; runs with a complete copy there are skipped",
    )
    parser.add_argument("--wandb", metavar="PROJECT", help="log trainings to this Weights & Biases project")
    parser.add_argument(
        "--dry-run", action="store_true", help="print each run's commands, state and folder; start nothing"
    )


def add_table_arguments(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """What `run` and `report` share: which table, and what is changed in it."""
    parser.set_defaults(user_dir=None)  # a flag of several commands, see cli/user_dir.py
    parser.add_argument("table", nargs=nargs, metavar="TABLE", help="a table in configs/tables, or a YAML file")
    parser.add_argument("--rows", metavar="a,b", help="only these rows (default: all)")
    parser.add_argument("--data", metavar="D", help="replace the table's data set: a name, or a prepared folder")
    parser.add_argument("--size", metavar="S", help="replace the table's size: a name in configs/size, or a YAML file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="FLAG=VALUE",
        help="training flag for every row; generate.FLAG=VALUE: for translation; average.last=N, or average.best=N "
        "with average.by=METRIC, and average.every=UPDATES: which checkpoints are saved and averaged",
    )
    parser.add_argument(
        "--gpus-of-paper",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="keep the paper's number of tokens per update on N GPUs, with --update-freq (without N: the GPUs here or "
        "of --slurm)",
    )


def read_table(args: argparse.Namespace) -> "Table":
    """The table that the arguments mean."""
    from fairseq_diverse.experiments.tables.load import load_table

    table = load_table(args.table, args.data, args.size, args.settings, args.user_dir)
    if args.gpus_of_paper is None:
        return table
    gpus = args.gpus_of_paper or _gpus(getattr(args, "slurm", None), getattr(args, "jobs", 1))
    if gpus is None:
        raise ValueError("--gpus-of-paper: how many GPUs will a job have? Add gpus_per_node=N to --slurm")
    if gpus < 1:
        raise ValueError(f"--gpus-of-paper {gpus}: a number of GPUs above 0 expected")
    args.gpus_of_paper = gpus
    return replace(table, rows={name: row.with_batch_of_paper(gpus) for name, row in table.rows.items()})


def _gpus(slurm: list[str] | None, jobs: int) -> int | None:
    """How many GPUs a run gets; a CPU is like one. None where only SLURM knows."""
    from fairseq_diverse.experiments.runs.environment import gpus_of_a_job

    if slurm is None:
        return gpus_of_a_job(max(1, jobs))
    given = [value for option in slurm for name, _, value in [option.partition("=")] if name == "gpus_per_node"]
    count = given[-1].rpartition(":")[2] if given else ""  # a type may come before it: a100:4
    return int(count) if count.isdecimal() else None


def _tracking(args: argparse.Namespace) -> "Tracking":
    """Where trainings log to.

    Raises:
        ValueError: the package that it needs is missing; fairseq only warns.
    """
    from fairseq_diverse.experiments.run import Tracking

    for flag, given, packages in (
        ("--tensorboard", args.tensorboard, ("tensorboardX", "tensorboard")),
        ("--wandb", args.wandb, ("wandb",)),
    ):
        if given is not None and not any(map(find_spec, packages)):
            raise ValueError(f"{flag} needs {packages[0]}; install it: {install('tracking')}")
    return Tracking(args.tensorboard and args.tensorboard.absolute(), args.wandb)


def parse_seeds(text: str) -> list[int]:
    seeds = [part.strip() for part in text.split(",")]
    numbers = [int(seed) if seed.isdecimal() and len(seed) <= 10 else -1 for seed in seeds]
    if not all(0 <= number < 2**32 for number in numbers) or len(set(numbers)) < len(seeds):
        raise ValueError(f"--seeds {text}: different whole numbers below 2^32 expected, joined by commas")
    return numbers


def main(args: argparse.Namespace) -> int:
    from fairseq_diverse.experiments.kinds.kind import kind_of
    from fairseq_diverse.experiments.runs.check import lacking_trees, refuse_unknown_flags
    from fairseq_diverse.experiments.runs.copies import Copies
    from fairseq_diverse.experiments.runs.environment import gpus_of_jobs, of_children, of_job
    from fairseq_diverse.experiments.runs.find import find_runs
    from fairseq_diverse.experiments.runs.folder import is_finished, read_state, stage
    from fairseq_diverse.experiments.runs.plan import lines_of
    from fairseq_diverse.experiments.tables.load import select_rows

    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: at least 1")
    if args.save and args.save.exists() and not args.save.is_dir():
        raise ValueError(f"--save {args.save}: a file; name a folder")
    if args.save and args.slurm is not None:
        raise ValueError("--save: not with --slurm; `fairseq-diverse report TABLE --save DIR` copies the summaries")
    if args.yisi_model:
        from fairseq_diverse.metrics.yisi import use_model

        use_model(args.yisi_model)
    table = read_table(args)
    tracking = _tracking(args)
    rows = select_rows(table, args.rows)
    if args.heads:
        if others := [row.name for row in rows if "heads" not in kind_of(row).keys]:
            raise ValueError(f"--heads: row {others[0]} does not translate; choose others with --rows")
        rows = [replace(row, heads=True) for row in rows]
    found = find_runs(rows, parse_seeds(args.seeds), args.dry_run)
    found = [each for run in found for each in (run.first, run) if each]
    copies = Copies(args.save, found) if args.save else None
    runs = _left(found, tracking, copies)
    refuse_unknown_flags(runs, args.table)
    for line in lacking_trees(run for run in runs if not is_finished(run)):
        if not args.dry_run:
            raise ValueError(line)
        print(f"warning: {line}", file=sys.stderr)
    share = 1 if args.same_arithmetic else max(1, cores() // args.jobs)
    asked = os.environ.get("OMP_NUM_THREADS") or str(share)
    if not re.fullmatch("[1-9][0-9]{,5}", asked):
        raise ValueError(f"OMP_NUM_THREADS={asked}: a number of threads above 0 expected")
    cpu = all(run.cpu for run in runs)
    environment = of_children(int(asked), dict(os.environ), cpu, args.same_arithmetic)
    shares = gpus_of_jobs(args.jobs, os.environ) if args.slurm is None else []
    if copies and runs:
        for line in copies.differences(environment | of_job(shares, 0, runs[0].row.gpus)):
            print(f"warning: {line}", file=sys.stderr)
    if args.dry_run:
        for number, run in enumerate(runs):
            print(f"# {run.name}: {stage(run)}, {run.directory}")
            lines = lines_of(run, read_state(run), environment | of_job(shares, number, run.row.gpus))
            print("\n".join(lines.values()), end="\n\n")
        return 0
    gpus = _gpus(args.slurm, args.jobs)
    if gpus and (args.slurm is not None or not cpu):
        _warn_of_batches(runs, gpus, args.gpus_of_paper is not None)
    if args.slurm is not None:
        _submit(runs, args)
        return 0
    from fairseq_diverse.experiments.runs.schedule import run_all

    def ended(run: "Run") -> None:
        if copies:
            copies.add(run)
            _copy_sentences(copies.folder, run)

    if run_all(runs, args.jobs, environment, ended, shares):
        return 1
    print(f"the results: {_report(args)}", file=sys.stderr)
    return 0


def _copy_sentences(folder: Path, run: "Run") -> None:
    """Copy what is known of its test sentences, for ``report --by``."""
    from fairseq_diverse.experiments.kinds.kind import kind_of
    from fairseq_diverse.experiments.runs.folder import summary_of
    from fairseq_diverse.reports.sentences import find_records, record_path, save_records

    if "by" in kind_of(run.row).views and not record_path(folder, run.row.data).exists():
        with suppress(ValueError):  # what is missing, `report --by` says
            save_records(folder, find_records([run.row], {run.row.name: [summary_of(run) or {}]}))


def _warn_of_batches(runs: "list[Run]", gpus: int, of_paper: bool) -> None:
    """Say where a run has another number of GPUs than its batch is for: fewer without --gpus-of-paper, or more."""
    from fairseq_diverse.experiments.runs.folder import is_finished

    for of in sorted({run.row.gpus for run in runs if not is_finished(run) and run.row.gpus not in (0, gpus)}):
        batches = f"warning: batches are for {of} GPU{'s' * (of > 1)}, and runs have {gpus}"
        if of < gpus:
            print(f"{batches}: a run uses {of}; share them with --jobs, or ask SLURM for {of}", file=sys.stderr)
        elif not of_paper:
            print(f"{batches}: an update has {gpus}/{of} of the tokens; see --gpus-of-paper", file=sys.stderr)


def _left(found: "list[Run]", tracking: "Tracking", copies: "Copies | None") -> "list[Run]":
    """What has no complete copy: of equal rows one run, scored as all of them ask for."""
    once: dict[Path, Run] = {}
    for run in found:
        same = once.get(run.directory, run)
        once[run.directory] = replace(run, row=run.row.with_scores_of(same.row), tracking=tracking)
    runs = list(once.values())
    if copies:
        for run in runs:
            if run.directory in copies.finished:
                print(f"{run.name}: done before, {copies.folder}", file=sys.stderr)
            elif run.directory in copies.lacking and not run.checkpoint.is_file():
                why = "its copy lacks a test set, a metric or the figures of heads, and its checkpoint is not here"
                print(f"{run.name}: {why}: trained again", file=sys.stderr)
        runs = [run for run in runs if run.directory not in copies.finished]
    lacking = {
        f"data set {run.data.name} has no {', '.join(names)}: left out"
        for run in runs
        if (names := [name for name in run.row.tests if name not in run.data.subsets])
    }
    for line in sorted(lacking):
        print(f"tests: {line}", file=sys.stderr)
    return runs


def _submit(runs: "list[Run]", args: argparse.Namespace) -> None:
    """Queue what is not finished on SLURM, but for runs that wait for their pre-training."""
    from fairseq_diverse.experiments.runs.environment import AVX2
    from fairseq_diverse.experiments.runs.folder import is_finished
    from fairseq_diverse.experiments.runs.schedule import other_arithmetic
    from fairseq_diverse.experiments.runs.slurm import Job
    from fairseq_diverse.support.files import atomic_write
    from fairseq_diverse.support.paths import runs_dir
    from fairseq_diverse.support.processes import is_locked
    from fairseq_diverse.support.slurm import queued_jobs, submit

    for run in runs:
        if args.same_arithmetic and (why := other_arithmetic(run, AVX2)):
            print(f"{run.name}: {run.directory}{why}", file=sys.stderr)
    unfinished = [run for run in runs if not is_finished(run)]
    for run in (busy := [run for run in unfinished if is_locked(run.directory)]):
        print(f"{run.name}: a process is working on {run.directory}", file=sys.stderr)
    unfinished = [run for run in unfinished if run not in busy]
    numbers, there = {run.name: _number(run) for run in unfinished}, queued_jobs()
    for run in (queued := [run for run in unfinished if numbers[run.name] in there]):
        print(f"{run.name}: is queued as job {numbers[run.name]}", file=sys.stderr)
    unfinished = [run for run in unfinished if run not in queued]
    waiting = [run for run in unfinished if run.first and not is_finished(run.first)]
    ready = [run for run in unfinished if run not in waiting]
    folder = runs_dir() / "slurm"
    jobs = [Job(run, args.same_arithmetic) for run in ready]
    for run, job in zip(ready, submit(jobs, args.jobs, args.slurm, folder) if jobs else [], strict=True):
        with atomic_write(run.directory / NUMBER) as f:
            f.write(job)
        print(f"{run.name}: job {job}, {run.directory}")
    begun = len(busy) + len(queued)
    others = f"{begun} queued or at work, " * bool(begun) + f"{len(runs) - len(unfinished) - begun} done before"
    print(f"{len(ready)} runs queued, {others}; logs of jobs: {folder}")
    if waiting:
        print(f"{len(waiting)} runs wait for pre-training; when it is finished, give the command again")


def _number(run: "Run") -> str:
    """Of the SLURM job that the run was last queued as; empty where it never was."""
    path = run.directory / NUMBER
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _report(args: argparse.Namespace) -> str:
    """The command that shows what was run."""
    words = ["fairseq-diverse", "report", args.table]
    of_paper = None if args.gpus_of_paper is None else str(args.gpus_of_paper)
    flags = [("rows", args.rows), ("data", args.data), ("size", args.size), ("gpus-of-paper", of_paper)]
    flags += [("set", setting) for setting in args.settings] + [("user-dir", args.user_dir)]
    return shlex.join([*words, *(part for flag, value in flags if value is not None for part in (f"--{flag}", value))])
