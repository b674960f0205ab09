"""Import fairseq without the libraries that it imports for other tasks: seconds of a process's start.

``python -m fairseq_diverse.host.starting fairseq_cli.train ...`` does what ``python -m fairseq_cli.train ...`` does."""

import gc
import importlib
import multiprocessing
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# imported at fairseq's start, used by its tasks of audio and GLUE and its progress bar of Weights & Biases
LATER = ("sklearn", "sklearn.metrics", "scipy.stats", "wandb")
RARELY = 100_000  # new objects before garbage is collected; imports make many, and none of it is garbage


class _Later(ModuleType):
    """A module, or with ``attribute`` something in it, which is imported when it is used."""

    def __init__(self, name: str, attribute: str = "") -> None:
        super().__init__(name)
        self._attribute = attribute

    def _real(self) -> Any:
        module = importlib.import_module(self.__name__)
        return getattr(module, self._attribute) if self._attribute else module

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is not self:
            return getattr(self._real(), name)
        if name.startswith("__"):  # `inspect` looks through all modules
            raise AttributeError(name)
        inner = f"{self.__name__}.{name}"  # `from module import name`, while fairseq is imported
        return _Later(inner) if inner in LATER else _Later(self.__name__, name)

    def __call__(self, *args: Any, **flags: Any) -> Any:
        return self._real()(*args, **flags)


class _BeforeFairseq(MetaPathFinder):
    """Finds fairseq, whose import finds `_Later` in place of the modules that are installed and not imported yet."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != "fairseq":
            return None
        sys.meta_path.remove(self)
        if (spec := find_spec(name)) is not None and spec.loader is not None:
            spec.loader.exec_module = _with_less(spec.loader.exec_module, self.then)  # type: ignore
        return spec


def _with_less(execute: Callable[[ModuleType], None], then: Callable[[], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        later = {name: _Later(name) for name in LATER if name not in sys.modules and find_spec(name.split(".")[0])}
        sys.modules.update(later)
        try:
            execute(module)
        except ImportError:
            raise
        except Exception as error:  # as PyPI's fairseq on Python 3.11
            raise ImportError(f"fairseq cannot be imported: {error}", name="fairseq") from error
        finally:
            for name, stub in later.items():
                if sys.modules.get(name) is stub:
                    del sys.modules[name]
        then()

    return exec_module


def import_less(then: Callable[[], None] = lambda: None) -> None:
    """Let fairseq, if it is not imported yet, be imported without the modules in ``LATER``, and call ``then``.

    Until then garbage is rarely collected, which takes a sixth of a start.
    """
    if "fairseq" in sys.modules:
        return
    usual = gc.get_threshold()

    def imported() -> None:
        gc.freeze()
        gc.set_threshold(*usual)
        then()

    gc.set_threshold(RARELY)
    sys.meta_path.insert(0, _BeforeFairseq(imported))


def plain_optimizers() -> None:
    """Let torch's optimizers start without its compiler, whose import takes seconds; idempotent.

    Torch imports it to mark these methods as not to be traced, and nothing here compiles an optimizer.
    """
    from torch.optim import Optimizer

    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        method = getattr(Optimizer, name)
        setattr(Optimizer, name, getattr(method, "__wrapped__", method))


def fork_workers() -> None:
    """Let batches be made by forks of a program also from Python 3.14 on, whose own way, a server, imports torch in
    each of these processes and refuses pinned batches of many tensors; idempotent."""
    if multiprocessing.get_start_method() == "forkserver":
        multiprocessing.set_start_method("fork", force=True)


def lighter(command: Sequence[str]) -> list[str]:
    """``python -m fairseq_cli.PROGRAM ...`` by way of this module; another command as it is."""
    through = command[1:2] == ["-m"] and command[2].startswith("fairseq_cli.")
    return [*command[:2], *([__name__] if through else []), *command[2:]]


if __name__ == "__main__":
    del sys.argv[0]
    # --user-dir would not register the package, which is imported already
    package = importlib.import_module(__package__.partition(".")[0])
    import_less(package.register if "--user-dir" in sys.argv else fork_workers)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
