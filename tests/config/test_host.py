"""docs/host.md names what the package needs of fairseq: no more, no less, each with a test that exists."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import fairseq_diverse

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fairseq_diverse"
PROGRAM = re.compile(r"fairseq_cli\.\w+")


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def used() -> dict[str, set[str]]:
    """Module of fairseq -> names of it in the package: imported, or attributes of an imported module."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        modules = {}  # local name -> module
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fairseq":
                for alias in node.names:
                    if is_module(full := f"{node.module}.{alias.name}"):
                        modules[alias.asname or alias.name] = full
                    else:
                        found.setdefault(node.module, set()).add(alias.name)
            elif isinstance(node, ast.Import):
                assert not [alias for alias in node.names if alias.name.split(".")[0] == "fairseq"], path
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.setdefault(modules[node.value.id], set()).add(node.attr)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "patch":
                owner, name, _ = node.args
                if owner.id in modules:  # else a class, which is listed itself
                    found.setdefault(modules[owner.id], set()).add(name.value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PROGRAM.fullmatch(node.value):
                found.setdefault(node.value, set()).add("cli_main")
    return found


def rows() -> list[tuple[str, set[str], set[str]]]:
    """Module, names and tests of each row of the tables in docs/host.md; what is replaced has no names."""
    lines = (ROOT / "docs/host.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `fairseq")]
    return [
        (
            cell[0].strip("`"),
            set(re.findall(r"`(\w+)`", cell[1]) if len(cell) == 4 else []),
            set(re.findall(r"test_\w+", cell[-1])),
        )
        for cell in cells
    ]


NEEDED = [(module, names) for module, names, _ in rows() if names]


def test_the_page_names_what_the_package_uses_of_fairseq():
    listed: dict[str, set[str]] = {}
    for module, names in NEEDED:
        assert module not in listed
        listed[module] = names
    assert listed == used()


@pytest.mark.parametrize(("module", "names"), NEEDED, ids=[module for module, _ in NEEDED])
def test_fairseq_has_what_the_page_names(module, names):
    there = importlib.import_module(module)
    assert {name for name in names if not hasattr(there, name)} == set()


def test_the_page_names_what_is_replaced():
    fairseq_diverse.register()
    replaced = set()
    for module in [module for name, module in [*sys.modules.items()] if name.split(".")[0] == "fairseq"]:
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        for function in [value for place in (module, *classes) for value in vars(place).values()]:
            code = getattr(function, "__code__", None)
            if code and Path(code.co_filename).is_relative_to(PACKAGE) and hasattr(function, "__wrapped__"):
                replaced.add(f"{function.__module__}.{function.__qualname__}")
    assert replaced == {module for module, names, _ in rows() if not names}


def test_every_test_that_the_page_names_exists():
    known = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for module, _, tests in rows():
        assert tests and tests <= known, (module, tests - known)
