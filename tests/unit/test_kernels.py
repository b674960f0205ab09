"""C kernels are compiled once; without a compiler, and for other inputs, torch is used."""

import functools
import logging
import math
import multiprocessing
import os
import platform
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from fairseq_diverse.attention.functional.interacting import interacting_attention
from fairseq_diverse.attention.functional.routing import em_routing, simple_routing
from fairseq_diverse.attention.kernels import compiler, cpu

compiling = compiler._compile


@functools.cache
def compiled(command: tuple[str, ...], source: Path) -> bytes:
    """Once for all tests."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        return compiling(command, source, Path(folder, "made")).read_bytes()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, with no kernel loaded; ``cache.compiled`` counts compilations."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FAIRSEQ_DIVERSE_KERNELS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    state = Cache(tmp_path / "cache" / "fairseq_diverse" / "kernels")

    def compile_once(command, source, begin):
        state.compiled += 1
        made = begin.with_name("made.so")
        made.write_bytes(compiled(command, source))
        return made.replace(f"{begin}{compiler._ending(made)}")

    monkeypatch.setattr(compiler, "_compile", compile_once)
    yield state
    forget()


class Cache:
    def __init__(self, folder: Path):
        self.folder, self.compiled = folder, 0

    @property
    def file(self) -> Path:
        (file,) = self.folder.iterdir()
        return file

    def loads(self) -> bool:
        """Whether a new process loads the kernel and it works."""
        forget()
        if (library := compiler.library("routing")) is None:
            return False
        votes = torch.randn(3, 2, 4)
        out = torch.empty(3, 4)
        assert library.simple_forward(cpu.pointer(votes), 3, 2, 4, 3, cpu.pointer(out)) == 0
        return True


def forget() -> None:
    compiler.library.cache_clear()
    compiler._of_process.cache_clear()


def test_the_instructions_of_kernels_can_be_chosen(cache, monkeypatch):
    """Kernels for two sets of instructions are kept side by side; 0 switches all off."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_KERNELS", "x86-64-v3" if platform.machine() == "x86_64" else "native")
    assert cache.loads()
    monkeypatch.delenv("FAIRSEQ_DIVERSE_KERNELS")
    assert cache.loads() and len(list(cache.folder.iterdir())) == cache.compiled
    monkeypatch.setenv("FAIRSEQ_DIVERSE_KERNELS", "0")
    assert not cache.loads()


def test_a_kernel_is_compiled_once_and_cached_for_its_user_only(cache):
    assert cache.loads() and cache.loads() and cache.compiled == 1
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700 and cache.file.name.startswith("routing-")


@pytest.mark.parametrize("damage", [lambda code: code[:3000], lambda code: b"", lambda code: bytes(len(code))])
def test_a_damaged_kernel_is_compiled_again(damage, cache):
    assert cache.loads()
    file, code = cache.file, cache.file.read_bytes()
    file.unlink()  # this process has it
    file.write_bytes(damage(code))  # as a power failure leaves it; loading it would end the process
    assert cache.loads() and cache.compiled == 2 and cache.file.read_bytes() == code


@pytest.mark.parametrize("folder", [".", ".."])
def test_a_folder_where_other_users_can_write_is_not_used(folder, cache, monkeypatch, caplog):
    assert cache.loads()
    (cache.folder / folder).chmod(0o777)
    with caplog.at_level(logging.INFO, compiler.logger.name):
        assert cache.loads() and cache.compiled == 2
    assert "other users can write there" in caplog.text
    (cache.folder / folder).chmod(0o700)
    assert cache.loads() and cache.compiled == 2
    owner = cache.folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)  # another user's, but folders of root are used
    assert cache.loads() and cache.compiled == (2 if owner == 0 else 3)


def test_without_a_folder_that_can_be_written_each_process_compiles(cache, tmp_path, caplog):
    cache.folder.parent.parent.symlink_to("/proc/1/none")
    with caplog.at_level(logging.INFO, compiler.logger.name):
        assert cache.loads() and cache.loads() and cache.compiled == 2
    assert "compiled for this process only" in caplog.text
    forget()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("value", [None, "", "cache", "./cache"])
def test_a_cache_that_is_not_absolute_counts_as_unset(value, cache, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("XDG_CACHE_HOME") if value is None else monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache.loads()
    assert list((tmp_path / "home/.cache/fairseq_diverse/kernels").iterdir()) and not list(Path().iterdir())
    monkeypatch.setenv("HOME", value or "")
    assert cache.loads() and not list(Path().iterdir())


@pytest.mark.parametrize("kind", ["hangs", "fails", "writes nothing", "writes another library"])
def test_without_a_working_compiler_torch_is_used(kind, cache, tmp_path, monkeypatch, caplog):
    monkeypatch.undo()
    forget()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "TIME", 1 if kind == "hangs" else 60)
    script = {
        "hangs": f"sleep 60 & echo $! > {tmp_path}/child; wait",
        "fails": "echo no such processor; exit 1",
        "writes nothing": "",
        "writes another library": 'for last; do :; done; case "$*" in *-shared*) '
        'echo "int other(void) { return 0; }" | gcc -shared -fPIC -x c - -o "$4";; esac',
    }[kind]
    (tmp_path / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    votes = torch.randn(3, 2, 4, 1)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        out = [simple_routing(votes) for _ in range(2)]
    assert time.monotonic() - start < 20 and out[0].equal(out[1])
    (record,) = caplog.records
    assert record.getMessage().startswith("the C kernel routing cannot be made; torch does its work, slower: ")
    assert "\n" not in record.getMessage()
    assert [path for path in tmp_path.glob("cache/*/*/*") if path.suffix != ".so"] == []
    if kind == "hangs":
        child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
        assert not child.exists() or child.read_text().split()[2] == "Z"


def test_files_of_a_killed_compilation_are_removed(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "_compile", compiling)
    script = f'#!/bin/sh\n[ -e {tmp_path}/started ] && exec gcc "$@"\ntouch {tmp_path}/started; exec sleep 60\n'
    (tmp_path / "cc").write_text(script)
    (tmp_path / "cc").chmod(0o755)
    code = "from fairseq_diverse.attention.kernels.compiler import library; library('routing')"
    environment = os.environ | {"CC": str(tmp_path / "cc")}
    killed = subprocess.Popen([sys.executable, "-c", code], env=environment)
    while not (tmp_path / "started").exists() and killed.poll() is None:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(list(cache.folder.iterdir())) == 1
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    assert cache.loads() and cache.file.suffix == ".so"


# --- numbers that are not finite ---

VOTES = (3, 2, 4, 1)
FORMULAS = {
    "em": (em_routing, [VOTES, (4,), (4,)]),
    "em without activation": (lambda v: em_routing(v, None, None, activation=False), [VOTES]),
    "simple": (simple_routing, [VOTES]),
    **{
        f"{combine} {mask}": (
            functools.partial(interacting_attention, allowed=allowed, combine=combine),
            [(3, 2, 4, 5), (3, 2, 6, 5), (3, 2, 6, 5)],
        )
        for combine in ("concat", "sum")
        for mask, allowed in (("all", None), ("padded", torch.arange(6)[None, None, None] < torch.tensor(4)))
    },
}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e18])
@pytest.mark.parametrize("name", FORMULAS)
def test_non_finite_numbers_are_where_torch_has_them(name, number):
    """In each argument, and in the incoming gradient; 1e18 is finite, but its square is not."""
    formula, shapes = FORMULAS[name]
    torch.manual_seed(0)
    assert cpu.library("interacting") is not None and cpu.library("routing") is not None
    inputs = [torch.randn(shape) for shape in shapes]
    arguments = [*inputs, torch.randn_like(formula(*inputs)).contiguous()]
    for place in range(len(arguments)):
        given = [x.clone() for x in arguments]
        given[place].view(-1)[-1] = number
        results = []
        for off in (False, True):
            x = [one.clone().requires_grad_() for one in given[:-1]]
            with cpu.disabled() if off else torch.enable_grad():
                out = formula(*x)
                results.append([out, *torch.autograd.grad(out, x, given[-1])])
        for ours, expected in zip(*results, strict=True):
            assert torch.equal(ours.isfinite(), expected.isfinite()), place
        if math.isnan(number):
            assert not all(x.isfinite().all() for x in results[0])


def test_a_forked_process_has_its_own_threads(monkeypatch):
    monkeypatch.setattr(cpu, "share", lambda items: 2)
    together = threading.Barrier(2)  # both threads start
    assert cpu.in_threads(4, lambda *given: together.wait(60) * 0)
    time.sleep(0.5)  # both are idle
    forked = multiprocessing.get_context("fork").Process(target=cpu.in_threads, args=(4, lambda *given: 0))
    forked.start()
    forked.join(20)
    forked.kill()
    assert forked.exitcode == 0
