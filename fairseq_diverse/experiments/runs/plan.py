"""The steps of a run: a command line each, for Python and for a shell."""

import shlex
import sys
from collections.abc import Mapping

from fairseq_diverse.experiments.flags import common, machinery, portable, to_arguments
from fairseq_diverse.experiments.kinds.kind import DEFAULT_TASK, State, kind_of
from fairseq_diverse.experiments.run import Run


def steps_of(run: Run, state: State) -> dict[str, list[str]]:
    """The command line of every step, in their order: training, averaging, and those of the row's kind. ``state``: of
    the run's folder; a step may depend on what those before measured."""
    row, kind = run.row, kind_of(run.row)
    flags = common(*kind.languages(run.data), run.cpu, row.user_dir) | machinery(row, run.seed, run.checkpoints)
    flags |= {"task": DEFAULT_TASK} | ({"num-workers": "0"} if run.cpu else {}) | kind.training(run) | row.train
    if run.pretrained:
        flags["finetune-from-model"] = str(run.pretrained)
    if run.tracking.tensorboard:
        flags["tensorboard-logdir"] = str(run.tracking.tensorboard / run.directory.parent.name / run.directory.name)
    if run.tracking.wandb:
        flags["wandb-project"] = run.tracking.wandb
    steps = {"train": ["-m", "fairseq_cli.train", str(run.data.path), *to_arguments(flags)]}
    if row.average:
        named = {"last": "last", "best": "best", "metric": "by"}.items()  # keys of tables by flag
        which = to_arguments({flag: str(row.average[key]) for flag, key in named if key in row.average})
        files = ["--checkpoints", str(run.checkpoints), "--updates", *which, "--strict", "--out", str(run.checkpoint)]
        steps["average"] = ["-m", "fairseq_diverse.cli", "average", *files]
    steps |= kind.steps(run, state)
    return {step: [sys.executable, *command] for step, command in steps.items()}


def variables(run: Run, step: str) -> dict[str, str]:
    """The variables of one step: a training's name in Weights & Biases, and its id, under which it resumes."""
    if step != "train" or not run.tracking.wandb:
        return {}
    return {"WANDB_NAME": run.name, "WANDB_RUN_ID": f"{run.key}-seed{run.seed}", "WANDB_RESUME": "allow"}


def lines_of(run: Run, state: State, environment: Mapping[str, str]) -> dict[str, str]:
    """The command line for a shell by step; a line that no step runs is before that of the step that it is for."""
    lines = {}
    for step, command in steps_of(run, state).items():
        settings = (f"{name}={shlex.quote(value)}" for name, value in {**environment, **variables(run, step)}.items())
        lines[step] = f"{' '.join(settings)} {shlex.join(command)}"
    return kind_of(run.row).shell_lines(run, state, lines)


def readable_lines(run: Run, state: State) -> dict[str, str]:
    """The command line of every step without the folders of this machine: ``fairseq-train DATA ...``."""
    steps = steps_of(run, state).items()
    return {step: shlex.join([readable_program(name), *map(portable, words)]) for step, (_, _, name, *words) in steps}


def readable_program(module: str) -> str:
    return module.replace("fairseq_cli.", "fairseq-").replace("fairseq_diverse.cli", "fairseq-diverse")
