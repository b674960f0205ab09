"""C kernels, compiled once with the machine's compiler; without a compiler, torch functions compute the same.

Compiled kernels are kept in ``fairseq_diverse/kernels`` of the user's cache, which only the user can read and write.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from fairseq_diverse.support.files import remove, temporary_path
from fairseq_diverse.support.processes import run_to_end

logger = logging.getLogger(__name__)

# Compiled with fast mathematics (a kernel leaves NaN and infinity to torch), linked without: linking with it would
# switch off subnormal numbers for the whole process.
COMPILE = ["-O3", "-ffast-math", "-fno-reciprocal-math", "-fPIC", "-c"]
LINK = ["-shared"]
TIME = 60  # seconds for each of the two

_compiling = threading.Lock()


def compiler() -> str | None:
    """The path of the C compiler: of ``CC``, else ``cc`` or ``gcc``."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


@functools.cache
def library(name: str) -> Any:
    """The compiled ``name.c``, or None without a compiler.

    ``FAIRSEQ_DIVERSE_KERNELS=0`` switches all kernels off; another value is the compiler's ``-march`` (default
    ``native``): ``x86-64-v3`` gives the same instructions on every processor with AVX2.
    """
    program = compiler()
    instructions = os.environ.get("FAIRSEQ_DIVERSE_KERNELS") or "native"
    if instructions == "0" or program is None or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    try:
        text = source.read_bytes()
        flags = "\0".join([program, _processor(), instructions, *COMPILE])
        begin = _cache() / f"{name}-{hashlib.sha256(flags.encode() + text).hexdigest()[:16]}"
        with _compiling:  # one thread at a time
            found = filter(Path.is_file, begin.parent.glob(f"{begin.name}-*.so"))
            kept = next((path for path in found if path.name.endswith(_ending(path))), None) or _compile(
                (program, f"-march={instructions}", *COMPILE), source, begin
            )
        loaded = ctypes.CDLL(str(kept))
        for function in re.findall(rb"^int (\w+)\(", text, re.MULTILINE):
            getattr(loaded, function.decode())
        return loaded
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        logger.warning(f"the C kernel {name} cannot be made; torch does its work, slower: {error}")
        return None


def _ending(path: Path) -> str:
    """The end of a library's name, by which a damaged one is known: loading it could end the process."""
    return f"-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.so"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()


def _cache() -> Path:
    """The user's folder of compiled kernels; where it cannot be written, or others can write there, a temporary folder
    of this process."""
    roots = [os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.environ.get("HOME", ""), ".cache")]
    root = next(filter(os.path.isabs, roots), None)  # an empty or relative path counts as unset
    if root is None:
        return Path(_of_process().name)
    path = Path(root, "fairseq_diverse", "kernels")
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        for folder in (path, path.parent):
            if (there := folder.stat()).st_uid not in (0, os.getuid()) or there.st_mode & 0o002:
                raise OSError(f"{folder}: other users can write there")
        tempfile.TemporaryFile(dir=path).close()
        return path
    except OSError as error:
        logger.info(f"C kernels are not cached, they are compiled for this process only: {error}")
        return Path(_of_process().name)


@functools.cache
def _of_process() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="fairseq_diverse-")


def _compile(compile_to: tuple[str, ...], source: Path, begin: Path) -> Path:
    """Write the shared library; its name is ``begin`` and `_ending`.

    Raises:
        OSError: the folder cannot be written, or the compiler fails or takes too long.
    """
    folder = temporary_path(begin)
    folder.mkdir(0o700)
    try:
        made, linked = folder / "made.o", folder / "linked.so"
        for command in (
            [*compile_to, str(source), "-o", str(made)],
            [compile_to[0], *LINK, str(made), "-o", str(linked), "-lm"],
        ):
            done = run_to_end(command, TIME, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                said = " ".join(done.stdout.decode(errors="replace").split())[:300]
                raise OSError(f"{compile_to[0]} ended with exit code {done.returncode}: {said}")
        return linked.replace(f"{begin}{_ending(linked)}")
    finally:
        remove(folder)
