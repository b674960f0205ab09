"""docs/host.md names what the package needs of fairseq and what it changes: no more, no less, each with its tests."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_diverse
from fairseq_diverse.host import needs
from fairseq_diverse.host.changes import CHANGES
from fairseq_diverse.host.needs import imports

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fairseq_diverse"
PROGRAM = re.compile(r"fairseq_cli\.\w+")
ROOMS = {"host", "models", "criterions", "tasks", "data"}  # that import fairseq
FILES = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
IMPORTS = {path: [*imports(PACKAGE / path)] for path in FILES}


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def used() -> dict[str, set[str]]:
    """Module of fairseq -> names of it in the package: imported, or attributes of an imported module."""
    found: dict[str, set[str]] = {}
    for path, tree in FILES.items():
        modules = {}  # local name -> module
        for module, name in IMPORTS[path]:
            if is_module(full := f"{module}.{name}"):
                modules[name] = full
            else:
                found.setdefault(module, set()).add(name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.setdefault(modules[node.value.id], set()).add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PROGRAM.fullmatch(node.value):
                found.setdefault(node.value, set()).add("cli_main")
    return found


LINES = [line for line in (ROOT / "docs/host.md").read_text(encoding="utf-8").splitlines() if line[:10] == "| `fairseq"]
CELLS = [line.strip("| ").split(" | ") for line in LINES]
NEEDED = {cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[1])) for cells in CELLS if len(cells) == 3}
TESTS = {name for p in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", p.read_text())}


def test_the_page_names_what_the_package_uses_and_changes_of_fairseq():
    assert used() == NEEDED
    for module, names in NEEDED.items():
        assert names <= {*dir(importlib.import_module(module))}, module
    changed = [cells for cells in CELLS if len(cells) == 4]
    assert [cells[0].strip("`") for cells in changed] == [*CHANGES] and all(map(all, changed))


def test_what_another_fairseq_lacks_is_named(monkeypatch):
    assert not needs.lacking()
    monkeypatch.setitem(CHANGES, "fairseq.trainer.Trainer.no_such_step", None)
    assert needs.lacking() == ["fairseq.trainer.Trainer.no_such_step"]
    monkeypatch.delattr("fairseq.dataclass.ChoiceEnum")
    assert needs.lacking() == ["fairseq.dataclass.ChoiceEnum"]


def test_only_some_rooms_import_fairseq_by_name():
    """``import fairseq.data`` would hide from the other tests what is used."""
    assert not {path.as_posix() for path, found in IMPORTS.items() if found and path.parts[0] not in ROOMS}
    for path, tree in FILES.items():
        plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not [name for name in plain if name.split(".")[0] in ("fairseq", "fairseq_cli")], path


def test_every_test_that_the_page_names_exists():
    for cells in CELLS:
        tests = set(re.findall(r"test_\w+", cells[-1]))
        assert tests and tests <= TESTS, (cells[0], tests - TESTS)


@pytest.mark.parametrize("place", CHANGES)
def test_every_function_is_replaced_once(place):
    """By one that takes its arguments by place and by name."""
    fairseq_diverse.register()
    fairseq_diverse.register()
    replaced = pkgutil.resolve_name(place)
    assert replaced.replaced_by is CHANGES[place]
    original = replaced.__wrapped__
    assert original.__module__.startswith("fairseq.") and not hasattr(original, "replaced_by")
    if "summed" not in place:  # it has no arguments
        names, takes = [*inspect.signature(replaced).parameters], inspect.signature(CHANGES[place])
        takes.bind("original", *names)
        takes.bind("original", **dict.fromkeys(names))


def test_fairseq_is_imported_without_what_few_tasks_need():
    """In a new process: these modules are imported when they are used, as by accuracies of GLUE."""
    code = """
import gc, sys
from fairseq_diverse.host.starting import LATER, RARELY, import_less
usual = gc.get_threshold()
import_less()
assert gc.get_threshold()[0] == RARELY
import fairseq_diverse
fairseq_diverse.register()
assert gc.get_threshold() == usual
import torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1).zero_grad()
assert not {*LATER, "torch._dynamo"} & {*sys.modules}, {*LATER, "torch._dynamo"} & {*sys.modules}
from fairseq.criterions.sentence_prediction import f1_score
from fairseq.logging import progress_bar
from fairseq.tasks.audio_classification import sklearn_metrics
print(f1_score([1, 0, 1], [1, 1, 1]), sklearn_metrics.accuracy_score([1, 0], [1, 1]), progress_bar.wandb.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["0.8", "0.5", "wandb"], done.stderr


def test_batches_are_made_by_forks():
    """Python 3.14 chooses a server, and fixes the choice at fairseq's first lock."""
    code = """
import multiprocessing
multiprocessing.set_start_method("forkserver")
import fairseq, fairseq_diverse
fairseq_diverse.register()
print(multiprocessing.get_start_method())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "fork\n", done.stderr
