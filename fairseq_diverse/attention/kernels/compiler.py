"""C kernels, compiled once with the machine's compiler; without a compiler, torch functions compute the same.

Compiled kernels are kept in ``fairseq_diverse/kernels`` of the cache. Folder and file must belong to the user and be
writable by nobody else. The file ends with the SHA-256 of the kernel; the checked bytes are loaded from a copy in
memory.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
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
DIGEST = hashlib.sha256().digest_size

_compiling = threading.Lock()


@functools.cache
def library(name: str) -> Any:
    """The compiled ``name.c``, or None without a compiler.

    ``FAIRSEQ_DIVERSE_KERNELS=0`` switches all kernels off; another value is the compiler's ``-march`` (default
    ``native``): ``x86-64-v3`` gives the same instructions on every processor with AVX2.
    """
    with _compiling:  # one thread at a time
        return _library(name)


@functools.cache
def _library(name: str) -> Any:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    instructions = os.environ.get("FAIRSEQ_DIVERSE_KERNELS") or "native"
    if instructions == "0" or compiler is None or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    try:
        text = source.read_bytes()
        key = hashlib.sha256("\0".join([compiler, _processor(), instructions, *COMPILE]).encode() + text).hexdigest()[
            :16
        ]
        loaded = _load(_kept_or_compiled(f"{name}-{key}.so", (compiler, f"-march={instructions}", *COMPILE), source))
        for function in re.findall(rb"^int (\w+)\(", text, re.MULTILINE):
            getattr(loaded, function.decode())
        return loaded
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        logger.warning(f"{name} runs on torch, without its C kernel: {error}")
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()


def _kept_or_compiled(file: str, compile_to: tuple[str, ...], source: Path) -> bytes:
    folder = _cache()
    try:
        kept = None if folder is None else _read(file, folder)
        if kept is None:
            kept = _compile(compile_to, source)
            if folder is not None:
                _keep(kept, file, folder)
        return kept
    finally:
        if folder is not None:
            os.close(folder)


# ---- the cache ----


def _cache() -> int | None:
    """A descriptor of the user's cache folder, or None if it is not safe."""
    roots = [os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.environ.get("HOME", ""), ".cache")]
    root = next(filter(os.path.isabs, roots), None)  # an empty or relative path counts as unset
    if root is None:
        return None
    path = Path(root, "fairseq_diverse", "kernels")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        logger.info(f"C kernels are not cached, they are compiled for this process only: {error}")
        return None
    if _is_private(os.fstat(folder)):
        return folder
    os.close(folder)
    logger.warning(f"{path}: others may write here; C kernels are not cached, they are compiled for this process only")
    return None


def _is_private(state: os.stat_result) -> bool:
    return state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read(file: str, folder: int) -> bytes | None:
    """A cached kernel; None if it is absent, damaged or writable by others."""
    try:  # O_NONBLOCK: a pipe does not block
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    with open(opened, "rb") as f:
        state = os.fstat(opened)
        if not stat.S_ISREG(state.st_mode) or not _is_private(state):
            return None
        content = f.read()
    kernel, digest = content[:-DIGEST], content[-DIGEST:]
    return kernel if kernel and hashlib.sha256(kernel).digest() == digest else None


def _keep(kernel: bytes, file: str, folder: int) -> None:
    """Write a kernel into the folder, atomically."""
    temporary = temporary_path(Path(f"/proc/self/fd/{folder}", file)).name
    try:
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            with open(opened, "wb") as f:
                f.write(kernel + hashlib.sha256(kernel).digest())
            os.replace(temporary, file, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
    except OSError as error:
        logger.info(f"{file} is not cached: {error}")


# ---- compiling and loading ----


def _compile(compile_to: tuple[str, ...], source: Path) -> bytes:
    """The shared library, compiled in a private folder.

    Raises:
        OSError: the folder cannot be written, or the compiler fails or takes too long.
    """
    folder = temporary_path(Path(tempfile.gettempdir(), f"fairseq_diverse-{os.geteuid()}-{source.stem}"))
    folder.mkdir(0o700)
    try:
        made, linked = folder / "made.o", folder / "linked.so"
        for command in (
            [*compile_to, str(source), "-o", str(made)],
            [compile_to[0], *LINK, str(made), "-o", str(linked), "-lm"],
        ):
            done = run_to_end(command, TIME, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                said = done.stdout.decode(errors="replace").strip().partition("\n")[0]
                raise OSError(f"{compile_to[0]} ended with exit code {done.returncode}: {said}")
        return linked.read_bytes()
    finally:
        remove(folder)


def _load(kernel: bytes) -> ctypes.CDLL:
    """Load a library from a sealed copy in memory."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(suffix=".so") as f:
            f.write(kernel)
            f.flush()
            return ctypes.CDLL(f.name)
    # left open: the loader tells libraries apart by the number of the descriptor
    copy = os.memfd_create("fairseq_diverse")
    with open(copy, "wb", closefd=False) as f:
        f.write(kernel)
    return ctypes.CDLL(f"/proc/self/fd/{copy}")
