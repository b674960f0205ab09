"""Whether fairseq takes the flags of runs, and their data have the trees that their models read."""

import argparse
import contextlib
import difflib
import io
import itertools
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from fairseq_diverse.experiments.kinds.kind import KINDS, kind_of
from fairseq_diverse.experiments.run import TREES, Run
from fairseq_diverse.experiments.runs.plan import steps_of
from fairseq_diverse.host import programs
from fairseq_diverse.support.errors import FORGOTTEN, with_place
from fairseq_diverse.support.paths import PACKAGE

Actions = Mapping[str, argparse.Action]  # by flag
PARSERS: dict[tuple[str, ...], argparse.ArgumentParser] = {}  # fairseq needs half a second to build one


def refuse_unknown_flags(runs: Iterable[Run], table: str) -> None:
    """See that fairseq's own parsers take all flags, before anything starts; the plugin is registered. Raises
    ValueError: names the table, the row, the flag and the known one most like it, the value that does not fit, another
    name of a flag that is the run's own, or a kind's task that is not registered."""
    for kind in KINDS.values():  # else its rows would be of translation
        if unknown := [task for task in kind.tasks if kind.fairseq and task not in programs.tasks()]:
            raise ValueError(f"kind {kind.name}: tasks: {unknown[0]}: not a task of fairseq; correct it or register it")
    taken_before: set[tuple[object, ...]] = set()  # rows of a grid have few flags of their own
    rows = [*{run.row.name: run for run in runs}.values()]  # whatever their seeds
    known: set[str] = set()
    off: dict[str, tuple[str, Sequence[str]]] = {}
    for run in tqdm(rows, "flags", unit="row", delay=2, leave=False, disable=None):
        row, steps = f"{table}: row {run.row.name}", steps_of(run, {})
        for program, reserved in kind_of(run.row).own_flags(run.row).items():
            arguments = steps[program][3:] if program in steps else []
            flags = [pair for pair in itertools.pairwise([*arguments, ""]) if pair[0].startswith("--")]
            to_check = {(program, _choices(arguments), *pair) for pair in flags if pair[0][2:] not in reserved}
            if not arguments or (program == "generate" and to_check <= taken_before):
                continue  # of training, flags that are taken alone may not go together
            taken_before |= to_check
            args, actions = _parsed(program, arguments, f"{row}: fairseq-{program}")
            taken = {actions[f"--{flag}"].dest for flag in reserved if f"--{flag}" in actions}
            for word in arguments:
                if word in actions and actions[word].dest in taken and word.removeprefix("--") not in reserved:
                    named = "`fairseq-diverse run` sets this flag by itself, under another name"
                    raise ValueError(f"{row}: fairseq-{program}: {word}: {named}")
            if program == "train":
                known |= {*actions}
                off = {f"--{flag}": (row, arguments) for flag in run.row.off} | off
                _check_model(args, row)
    for flag, (row, chosen) in off.items():  # a flag that another row or criterion has may be off everywhere
        if flag not in known and not programs.criterions_with(flag[2:].replace("-", "_")):
            raise ValueError(f"{row}: fairseq-train: {_explained(flag, chosen, list(known))}")


def _parsed(program: str, arguments: Sequence[str], where: str) -> tuple[argparse.Namespace, Actions]:
    """What fairseq's parser makes of arguments, and the flags that it knows; errors in one line."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            parser = _parser(program, arguments)
            args, unknown = parser.parse_known_args(list(arguments))
    except SystemExit:
        problem = output.getvalue().strip().splitlines()[-1].partition(": error: ")[2] or "would show its help only"
        raise ValueError(f"{where}: {_shortened(problem)}") from None
    except Exception as error:  # of fairseq's own types of values
        raise ValueError(f"{where}: {_unreadable(error)}{type(error).__name__}: {_shortened(str(error))}") from None
    if unknown:
        raise ValueError(f"{where}: {_explained(unknown[0], arguments, list(parser._option_string_actions))}")
    return args, parser._option_string_actions


def _check_model(args: argparse.Namespace, row: str) -> None:
    try:
        plan, criterion = _plan(args), programs.criterions()[args.criterion]
        if hasattr(criterion, "check_model"):
            criterion.check_model(args, programs.architectures()[args.arch], plan)
    except ValueError as error:
        raise ValueError(f"{row}: {error}") from None
    except Exception as error:  # of an own mechanism's code
        raise ValueError(f"{row}: {with_place(error, args.user_dir)}") from None


def lacking_trees(runs: Iterable[Run]) -> Iterator[str]:
    """Which data lack trees that a row's model reads, in words; flags are known to be taken."""
    from fairseq_diverse.data.trees import available_trees

    for run in {run.row.name: run for run in runs}.values():  # whatever its seed
        if run.row.train.get("task") != TREES or not run.data.hash:
            continue
        arguments = steps_of(run, {})["train"][3:]
        plan = _plan(_parser("train", arguments).parse_known_args(list(arguments))[0])
        needed = plan.trees if plan else ()
        for split in dict.fromkeys(("train", "valid", run.row.split, *run.further.values())):
            paths = [*run.data.path.glob(f"{split}.*.{run.data.source}.idx")] or [run.data.path / split]
            available = available_trees(paths[0].with_suffix(""))
            if missing := [kind for kind in needed if kind not in available]:
                lacks = f"row {run.row.name}: {run.data.path}: {split} has no {' and '.join(missing)} trees"
                yield f"{lacks}; data-prep/add-trees.sh or fairseq-diverse binarize-syntax adds them"
                break


def _plan(args: argparse.Namespace) -> Any:
    """The `AttentionPlan` of a model with these flags; None for a model that is not this package's."""
    if not hasattr(model := programs.architectures()[args.arch], "checked_plan"):
        return None
    programs.fill_architecture(args)
    plan = model.checked_plan(args)
    if plan.trees and args.task == "translation":
        raise ValueError(f"syntax needs {' and '.join(plan.trees)} trees: add task: {TREES}")
    return plan


def _unreadable(error: Exception) -> str:
    """The flag and value that argparse was reading, and a colon; empty if it was not."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_get_value" and "action" in frame.f_locals:
            return f"{frame.f_locals['action'].option_strings[0]} {_shortened(frame.f_locals['arg_string'])}: "
    return ""


def _choices(arguments: Sequence[str]) -> tuple[str, ...]:
    """The flags that decide which others there are, and their values."""
    deciding = programs.choosing_flags()
    chosen = {word: arguments[place : place + 2] for place, word in enumerate(arguments) if word in deciding}
    return tuple(word for flag in sorted(chosen) for word in chosen[flag])


def _parser(program: str, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """fairseq's parser with the flags of the architecture, task, criterion and so on that the arguments choose."""
    chosen = program, *_choices(arguments)
    if chosen not in PARSERS:
        PARSERS[chosen] = programs.parser(program, arguments)
    return PARSERS[chosen]


def _explained(unknown: str, arguments: Sequence[str], known: Sequence[str]) -> str:
    if not unknown.startswith("--"):
        return f"{arguments[arguments.index(unknown) - 1]} takes no value such as {unknown}"
    missing = f"no flag {unknown} for this architecture, task and criterion"
    if criterions := programs.criterions_with(unknown[2:].replace("-", "_")):
        used = dict(itertools.pairwise(arguments)).get("--criterion", "")
        alike = [criterion for criterion in criterions if criterion.startswith(used)]
        return f"{missing}; it belongs to --criterion {' or '.join(alike or criterions)}"
    near = difflib.get_close_matches(unknown, known, n=1)
    placed = unknown.endswith("-on") and dict(itertools.pairwise(arguments)).get("--user-dir") == str(PACKAGE)
    return missing + "".join(f"; nearest: {n}" for n in near) + FORGOTTEN * placed


def _shortened(text: str) -> str:
    """A message on one line; of a list of choices, the nearest, or all of a short one."""
    text = " ".join(text.split())
    if match := re.fullmatch(r"(argument \S+: invalid choice: '(.*?)') \(choose from (.*)\)", text):
        near = difflib.get_close_matches(match[2], re.findall(r"[^', ]+", match[3]), n=3)
        if near or len(text) > 200:
            return f"{match[1]} (nearest: {', '.join(near)})" if near else match[1]
    return text if len(text) <= 200 else f"{text[:200]}..."
