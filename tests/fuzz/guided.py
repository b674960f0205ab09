"""The fuzz tests again, their input guided by coverage (atheris): python -m tests.fuzz.guided SECONDS.

Every test runs in a process of its own, for SECONDS; libFuzzer keeps an input that fails in a file. Tests that need
a fixture of pytest are left to `make fuzz`.
"""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))


def tests(module: str) -> dict:
    """The fuzz tests of a module whose arguments all come from hypothesis."""
    found = vars(importlib.import_module(f"tests.fuzz.{module}"))
    own = {name: test for name, test in found.items() if name.startswith("test_") and hasattr(test, "hypothesis")}
    return {name: test for name, test in own.items() if not inspect.signature(test).parameters}


def main() -> None:
    if len(sys.argv) == 2:
        os.environ["FAIRSEQ_DIVERSE_FUZZ"] = "1e9"  # libFuzzer limits the time
        for module in MODULES:
            for name in tests(module):
                print(f"{module}.{name}", flush=True)
                limit = f"-max_total_time={sys.argv[1]}"
                options = [limit, "-len_control=0", "-max_len=4096"]
                command = [sys.executable, "-m", "tests.fuzz.guided", module, name, *options]
                subprocess.run(command, check=True)
        return
    import atheris

    _, module, name, *options = sys.argv
    with atheris.instrument_imports(include=["fairseq_diverse", "nltk.tree"]):
        test = tests(module)[name]
    atheris.Setup([sys.argv[0], *options], test.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
