"""Train, translate and score the rows of a table.

A run is one row with one seed. Its folder under $FAIRSEQ_DIVERSE_RUNS (default: runs/) is named by a hash of its data
and settings, so equal rows of several tables are trained once. If interrupted, the same command resumes.
`fairseq-diverse report TABLE` shows the results. All flags are checked before anything starts. Flags that a run sets
itself (--seed, --save-dir, those for saving and logging) are refused in tables and in --set.

Each run uses its share of the cores as threads, or $OMP_NUM_THREADS threads. On a CPU it also keeps freed memory, which
makes training faster and changes no result (docs/speed.md). With --slurm the runs become one array of jobs, at most
--jobs at a time; a job that reaches its time limit is queued again and resumes.

--prepare first prepares what is missing: data sets, from the archives in --archives (missing ones are downloaded, or
listed if you must download them yourself) or from raw files in --raw, and for rows with syntax the trees of the source.
The environment variables DEPENDENCY_MODEL and CONSTITUENCY_MODEL choose the parsers, PCFG_MODEL the grammar of rows
whose parser is pcfg, which read a copy of the data (docs/trees.md).
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from fairseq_diverse import register
from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.run import Row, Run, Tracking
from fairseq_diverse.experiments.runs import environment as variables
from fairseq_diverse.experiments.runs.check import lacking_trees, refuse_unknown_flags
from fairseq_diverse.experiments.runs.find import find_runs, joined, preparations, with_first
from fairseq_diverse.experiments.runs.folder import is_finished, read_state, stage, summary_of
from fairseq_diverse.experiments.runs.plan import lines_of
from fairseq_diverse.experiments.runs.saved import Copies
from fairseq_diverse.experiments.tables.load import Table, load_table, select_rows
from fairseq_diverse.reports.sentences import find_records, save_records
from fairseq_diverse.support.installed import install
from fairseq_diverse.support.paths import runs_dir

SWITCHES, SUBWORDS = ("no-download", "strict-counts", "accept-counts"), ("gpt2-bpe", "wordpiece", "sentencepiece")
PREPARE = ("archives", "raw", *SWITCHES, *SUBWORDS)  # flags of --prepare
NEEDED = {"best": "report", "json": "dry-run", "commands": "dry-run"} | dict.fromkeys(PREPARE, "prepare")  # with them
LOGS = {"tensorboard": ("tensorboardX", "tensorboard"), "wandb": ("wandb",)}  # packages, of which one must be there
EXAMPLE = "fairseq-diverse run multi30k --rows baseline,disagreement --seeds 1,2,3 --jobs 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    add = parser.add_argument
    add("--seeds", default="1", metavar="1,2,3", help="seeds of every row (default: 1)")
    add("--jobs", type=int, default=1, metavar="N", help="number of runs at the same time (default: 1)")
    sbatch = "queue the runs with SLURM, with options of sbatch: partition=gpu gpus_per_node=1 time=600 (minutes)"
    add("--slurm", nargs="*", metavar="OPTION=VALUE", help=sbatch)
    exact = "on a CPU: one thread and no instructions beyond AVX2, so that repeated trainings agree bit for bit"
    add("--same-arithmetic", action="store_true", help=exact)
    heads = "also measure how different the heads of every attention are; finished runs are not trained again"
    add("--heads", action="store_true", help=heads)
    yisi = "folder of the embedding model for tables with metric yisi-1 (default: $FAIRSEQ_DIVERSE_YISI_MODEL)"
    add("--yisi-model", type=Path, metavar="DIR", help=yisi)
    add("--tensorboard", type=Path, metavar="DIR", help="write TensorBoard logs there, one folder per run")
    copies = "copy each run's summary there, as `report --save`; runs with a complete copy there are skipped"
    add("--save", type=Path, metavar="DIR", help=copies)
    add("--wandb", metavar="PROJECT", help="log trainings to this Weights & Biases project")
    add("--report", type=Path, metavar="FILE", help="show the report when all runs are done, and write its page there")
    add("--best", action="store_true", help="report only the best point of each grid")
    add("--dry-run", action="store_true", help="print what there is to do, each run's state and folder; start nothing")
    add("--commands", action="store_true", help="with --dry-run: also print each run's commands")
    add("--json", action="store_true", help="with --dry-run: print where runs are, and which are done, as JSON")
    add("--prepare", action="store_true", help="first prepare missing data sets and trees")
    group = parser.add_argument_group("flags of --prepare, see `fairseq-diverse prepare --help`")
    source = group.add_mutually_exclusive_group()
    source.add_argument("--archives", type=Path, metavar="DIR", help="default: archives/ in the folder of runs")
    source.add_argument("--raw", type=Path, metavar="DIR", help="folder of the raw files")
    for name in SWITCHES:
        group.add_argument(f"--{name}", action="store_true", help="as of prepare")
    for name in SUBWORDS:
        group.add_argument(f"--{name}", type=Path, metavar="DIR", help="as of prepare")


def add_table_arguments(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """What `run` and `report` share: which table, and what is changed in it."""
    parser.set_defaults(user_dir=None, read_paths=())  # a flag of several commands, see cli/user_dir.py; names of data
    add = parser.add_argument
    add("table", nargs=nargs, metavar="TABLE", help="a table in configs/tables, or a YAML file")
    add("--rows", metavar="a,b", help="only these rows (default: all)")
    add("--data", metavar="D", help="replace the table's data set: a name, or a prepared folder")
    add("--size", metavar="S", help="replace the table's size: a name in configs/size, or a YAML file")
    setting = "training flag for every row; generate.FLAG=VALUE: for translation; average.last=N, or average.best=N "
    setting += "with average.by=METRIC, and average.every=UPDATES: which checkpoints are saved and averaged"
    add("--set", action="append", default=[], dest="settings", metavar="FLAG=VALUE", help=setting)
    paper = "keep the paper's number of tokens per update on N GPUs, with --update-freq (without N: the GPUs here or "
    add("--gpus-of-paper", type=int, nargs="?", const=0, metavar="N", help=f"{paper}of --slurm)")


def read_table(args: argparse.Namespace) -> Table:
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
    if slurm is None:
        return variables.gpus_of_a_job(max(1, jobs))
    values = [value for option in slurm for name, _, value in [option.partition("=")] if name == "gpus_per_node"]
    count = values[-1].rpartition(":")[2] if values else ""  # a type may come before it: a100:4
    return int(count) if count.isdecimal() else None


def parse_seeds(text: str) -> list[int]:
    seeds = [part.strip() for part in text.split(",")]
    if not all(map(str.isdecimal, seeds)) or len(numbers := dict.fromkeys(map(int, seeds))) < len(seeds):
        raise ValueError(f"--seeds {text}: different whole numbers expected, joined by commas")
    return [*numbers]


def main(args: argparse.Namespace) -> int:
    _check(args)
    rows, seeds = _read_rows(args), parse_seeds(args.seeds)
    tracking = Tracking(args.tensorboard and args.tensorboard.absolute(), args.wandb)
    if args.prepare and not args.dry_run:
        if code := _prepare(rows, args):
            return code
        rows = _read_rows(args)  # epochs of prepared data are of their number of examples
    row_runs = with_first(find_runs(rows, seeds, args.dry_run))
    copies, runs = Copies(args.save, row_runs) if args.save else None, joined(row_runs, tracking)
    runs = copies.open_runs(runs, say) if copies else runs
    lacking = ((run.data, [name for name in run.row.tests if name not in run.data.subsets]) for run in runs)
    for line in sorted({f"tests: data set {data.name} has no {', '.join(names)}" for data, names in lacking if names}):
        say(f"{line}: left out")
    register()
    refuse_unknown_flags(runs, args.table)
    for line in lacking_trees(run for run in runs if not is_finished(run)):
        if not args.dry_run:
            raise ValueError(line)
        say(f"warning: {line}")
    cpu = all(run.cpu for run in runs)
    environment = variables.variables_of_runs(args.jobs, cpu, args.same_arithmetic)
    shares = variables.gpus_of_jobs(args.jobs) if args.slurm is None else []
    if copies and runs:
        for line in copies.differences(environment | variables.gpu_variables(shares, 0, runs[0].row.gpus)):
            say(f"warning: {line}")
    gpus = _gpus(args.slurm, args.jobs)
    if args.dry_run and args.json:
        _show_as_json(runs)
        return 0
    if args.dry_run:
        by_run = [variables.gpu_variables(shares, number, run.row.gpus) for number, run in enumerate(runs)]
        _show(runs, [environment | gpu_variables for gpu_variables in by_run], gpus, args.commands)
        return 0
    if gpus and (args.slurm is not None or not cpu):
        _warn_of_batches(runs, gpus, args.gpus_of_paper is not None)
    from fairseq_diverse.experiments.runs.schedule import queue, run_all  # needs torch

    if args.slurm is not None:
        for line in queue(runs, args.jobs, args.slurm, args.same_arithmetic):
            print(line)
        return _report(args) if args.report else 0

    def ended(run: Run) -> None:
        if copies:
            copies.add(run)
            copy_sentences(copies.folder, run)

    failed = run_all(runs, args.jobs, environment, ended, shares)
    if _read_rows(args) != rows:
        say(f"{args.table}: edited meanwhile, and run as it was before; give the command again for what it is now")
        failed += 1
    if args.report:
        return _report(args) or bool(failed)
    if not failed:
        say(f"the results: {shlex.join(['fairseq-diverse', *_words_of_report(args)])}")
    return bool(failed)


def _read_rows(args: argparse.Namespace) -> list[Row]:
    rows = select_rows(read_table(args), args.rows)
    if args.heads and (others := [row.name for row in rows if "heads" not in kind_of(row).keys]):
        raise ValueError(f"--heads: row {others[0]} does not translate; choose others with --rows")
    return [replace(row, heads=row.heads or args.heads) for row in rows]


def say(line: str) -> None:
    print(line, file=sys.stderr)


def _check(args: argparse.Namespace) -> None:
    """Raise ``ValueError`` where flags do not go together or lack a package, and choose the model of YiSi."""
    flags = {name.replace("_", "-") for name, value in vars(args).items() if value not in (None, False)}
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: at least 1")
    if args.save and args.save.exists() and not args.save.is_dir():
        raise ValueError(f"--save {args.save}: a file; name a folder")
    if args.save and args.slurm is not None:
        raise ValueError("--save: not with --slurm; `fairseq-diverse report TABLE --save DIR` copies the summaries")
    if wrong := [flag for flag, needed in NEEDED.items() if flag in flags and needed not in flags]:
        raise ValueError(f"--{wrong[0]}: goes with --{NEEDED[wrong[0]]}")
    for flag, packages in LOGS.items():  # without them fairseq only warns
        if flag in flags and not any(map(find_spec, packages)):
            raise ValueError(f"--{flag} needs {packages[0]}; install it: {install('tracking')}")
    if args.yisi_model:
        from fairseq_diverse.metrics.yisi import use_model

        use_model(args.yisi_model)


def _prepare(rows: Sequence[Row], args: argparse.Namespace) -> int:
    """Prepare what the rows lack; the exit code of the command that failed, or 0."""
    settings = {flag: value for flag in PREPARE if (value := getattr(args, flag.replace("-", "_")))}
    flags = to_arguments(settings if args.raw else {"archives": runs_dir() / "archives"} | settings)
    runs = with_first(find_runs(rows, [0], dry=True))
    for words in preparations(runs, flags, again=not settings.keys().isdisjoint(SUBWORDS)):
        print(f"== {shlex.join(['fairseq-diverse', *words])}", flush=True)
        if code := subprocess.run([sys.executable, "-m", "fairseq_diverse.cli", *words]).returncode:
            return code
    return 0


def _show(runs: Sequence[Run], environments: Sequence[Mapping[str, str]], gpus: int | None, commands: bool) -> None:
    stages = [stage(run) for run in runs]
    print("\n".join(_overview(runs, [run for run, at in zip(runs, stages, strict=True) if at != "done"], gpus)) + "\n")
    for run, at, environment in zip(runs, stages, environments, strict=True):
        lines = list(lines_of(run, read_state(run), environment).values()) if commands else []
        print("\n".join([f"# {run.name}: {at}, {run.directory}", *lines]), end="\n\n" if lines else "\n")


def _overview(runs: Sequence[Run], left: Sequence[Run], gpus: int | None) -> list[str]:
    """How many runs and updates are left, on what, with how many tokens an update here and in the paper, and for how
    long, by the speed of finished runs of equal data and size."""
    updates = sum(run.row.max_update for run in left)
    rows, data = ({f(run): None for run in runs} for f in (lambda run: run.row.name, lambda run: run.data.name))
    text = [f"to do: {len(left)} of {len(runs)} runs (rows: {len(rows)}), {updates:,} updates; data: {', '.join(data)}"]
    for size, tokens, paper in dict.fromkeys((run.row.size, _tokens_of_update(run.row), run.row.gpus) for run in left):
        if not tokens:
            continue
        used = min(gpus or 1, paper or gpus or 1)
        here = f"{tokens * used:,}" if gpus else f"{tokens:,} a GPU"
        of_paper = f"; of the paper, on {paper} GPUs: {tokens * paper:,} (see --gpus-of-paper)" if paper > used else ""
        text.append(f"tokens an update, size {Path(size).stem}: {here}{of_paper}")
    speeds: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        speed = (summary_of(run) or {}).get("updates_per_second", {}).get("train") if run not in left else None
        speeds.setdefault((run.data.name, run.row.size), []).extend([speed] if speed else [])
    known = [(run, rates) for run in left if (rates := speeds[run.data.name, run.row.size])]
    hours = sum(run.row.max_update * len(rates) / sum(rates) for run, rates in known) / 3600
    rest = f" without {len(left) - len(known)} runs of other data or sizes" * (len(known) < len(left))
    if known:
        text.append(f"hours of training, one run at a time, by the speed of finished runs: {hours:.1f}{rest}")
    elif left:
        hint = "modelled for the papers: results/scaling.md in a clone"
        text.append(f"hours: not measured here before a run is finished; {hint}")
    return text


def _tokens_of_update(row: Row) -> int:
    """The tokens of an update on one GPU; 0 where its batches are of sentences or its update-freq changes."""
    tokens, times = (str(row.train.get(flag, default)) for flag, default in (("max-tokens", 0), ("update-freq", 1)))
    return int(tokens) * int(times) if tokens.isdecimal() and times.isdecimal() else 0


def _show_as_json(runs: Sequence[Run]) -> None:
    plans = []
    for run in runs:
        summary = summary_of(run) if (done := stage(run) == "done") else None
        plan = {"row": run.row.name, "family": run.row.family, "seed": run.seed, "done": done}
        plan["loss"] = kind_of(run.row).loss(summary) if summary else None
        plans.append(plan | {"folder": run.directory, "checkpoint": run.checkpoint, "data": run.data.path})
    print(json.dumps(plans, indent=1, default=str))


def copy_sentences(folder: Path, run: Run) -> None:
    """Copy what is known of its test sentences, for ``report --by``; a copy that lacks some is written again."""
    summaries = {run.row.name: [summary_of(run) or {}]}
    for results in (folder, None) if "by" in kind_of(run.row).views else ():
        with suppress(ValueError):  # what is missing, `report --by` says
            save_records(folder, find_records([run.row], summaries, results))
            return


def _warn_of_batches(runs: list[Run], gpus: int, of_paper: bool) -> None:
    """Say where a run has another number of GPUs than its batch is for: fewer without --gpus-of-paper, or more."""
    for wanted in sorted({run.row.gpus for run in runs if not is_finished(run) and run.row.gpus not in (0, gpus)}):
        batches = f"warning: batches are for {wanted} GPU{'s' * (wanted > 1)}, and runs have {gpus}"
        if wanted < gpus:
            say(f"{batches}: a run uses {wanted}; share them with --jobs, or ask SLURM for {wanted}")
        elif not of_paper:
            say(f"{batches}: an update has {gpus}/{wanted} of the tokens; see --gpus-of-paper")


def _words_of_report(args: argparse.Namespace) -> list[str]:
    flags = [("rows", args.rows), ("data", args.data), ("size", args.size), ("gpus-of-paper", args.gpus_of_paper)]
    flags += [("set", setting) for setting in args.settings] + [("user-dir", args.user_dir)]
    words = [str(part) for flag, value in flags if value is not None for part in (f"--{flag}", value)]
    return ["report", args.table, *words]


def _report(args: argparse.Namespace) -> int:
    """Show the report as Markdown and write its page; the exit code of that."""
    from fairseq_diverse.cli import main as command

    words = _words_of_report(args) + ["--best"] * args.best
    print(flush=True)
    return command([*words, "--format", "markdown"]) or command([*words, "--format", "html", "--out", str(args.report)])
