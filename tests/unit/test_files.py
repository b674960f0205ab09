"""Files are written atomically, through links and pipes; files of killed processes are removed."""

import errno
import fcntl
import io
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_diverse.cli import doctor, main
from fairseq_diverse.support import files, processes
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, read_lines, rewrite_blocks, temporary_path
from fairseq_diverse.support.processes import Busy, is_locked, locked
from tests.refusals import refusal, refused

HOST = socket.gethostname().partition(".")[0]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead() -> int:
    """The number of a dead process."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


# --- what a name means ---


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_kept_and_its_target_is_written(there, tmp_path):
    (tmp_path / "real").mkdir()
    if there:
        (tmp_path / "real/file").write_text("old")
    (tmp_path / "real/second").symlink_to("file")
    (tmp_path / "first").symlink_to("real/second")
    with atomic_write(tmp_path / "first") as f:
        f.write("new")
        assert [name for name in names(tmp_path / "real") if name.endswith(".tmp")]  # on the same disk
    assert (tmp_path / "first").is_symlink() and (tmp_path / "real/second").is_symlink()
    assert (tmp_path / "real/file").read_text() == "new" and not (tmp_path / "real/file").is_symlink()
    assert names(tmp_path) == ["first", "real"] and names(tmp_path / "real") == ["file", "second"]


def test_a_link_to_itself_and_an_error_without_a_number_are_named(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"), atomic_write(tmp_path / "loop"):
        pass
    assert (tmp_path / "loop").is_symlink()
    with pytest.raises(OSError, match=r"^the connection ended$"), atomic_write(tmp_path / "out"):
        raise OSError("the connection ended")


@pytest.mark.parametrize("mode", ["w", "wb"])
@pytest.mark.parametrize("linked", [True, False])
def test_a_pipe_is_written_to(mode, linked, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(tmp_path / "link" if linked else pipe, mode) as f:
        f.write("text" if mode == "w" else b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == ["link", "pipe"]


def test_a_file_keeps_its_mode_and_an_open_one_is_appended_to(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o600)
    with atomic_write(path) as f:
        f.write("new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o600
    # Such as /dev/stdout, which may be a file that the shell opened with >>
    with open(tmp_path / "log", "a") as log:
        log.write("before\n")
        log.flush()
        with atomic_write(f"/proc/self/fd/{log.fileno()}") as f:
            f.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nafter\n" and names(tmp_path) == ["log", "secret"]


@pytest.mark.parametrize("name", ["x" * 128, "[a]*", "\udcff"])
def test_every_usual_file_name(name, tmp_path):
    with atomic_write(tmp_path / name) as f:
        f.write("text")
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_keeps_the_old_file(raised, tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(type(raised)) as caught, atomic_write(path) as f:
        f.write("new")
        raise raised
    assert path.read_text() == "old" and names(tmp_path) == ["out"]
    assert isinstance(raised, KeyboardInterrupt) or str(caught.value) == f"[Errno 28] No space left on device: '{path}'"


def test_lines_end_at_newlines_only_and_a_file_may_start_with_a_mark(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\r\n\ufeffb\u2028c\r\rd\n\ne".encode())
    assert read_lines(tmp_path / "text") == ["a", "\ufeffb\u2028c\r\rd", "", "e"]


# --- what is left of killed processes ---


def test_what_is_read_twice_is_no_pipe(tmp_path, error_of):
    os.mkfifo(pipe := tmp_path / "pipe")
    said = f"{pipe}: a pipe or device, which can be read only once; write it to a file first\n"
    parsing = ("parse", "--kind", "constituency", "--parser", "pcfg", "--model", __file__, "--out", tmp_path / "out")
    assert error_of(*parsing, "--input", pipe).endswith(said)
    assert error_of("score-trees", "--gold", pipe, f"a={pipe}").endswith(said)
    refused(r"missing: cannot be read \(No such file", files.refuse_pipe, tmp_path / "missing")


def test_only_files_of_dead_processes_of_this_machine_are_removed(tmp_path, monkeypatch):
    gone, path = dead(), tmp_path / "out"
    swept = temporary_path(path).with_name(f".out.{HOST}.{gone}.tmp")
    swept.mkdir()
    (swept / "inside").write_text("half")
    reused = temporary_path(path)  # this number was another process's before
    reused.write_text("half")
    monkeypatch.setattr(files, "_given", set())
    zombie = os.fork()
    if not zombie:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    (tmp_path / f".out.{HOST}.{zombie}.tmp").write_text("half")
    link = tmp_path / f".out.{HOST}.{dead()}.tmp"
    (tmp_path / "precious").write_text("precious")
    link.symlink_to("precious")
    kept = [
        f".out.{HOST}.{os.getppid()}.tmp", f".out.another-host.{gone}.tmp", f".other.{HOST}.{gone}.tmp",
        f".out.{HOST}.{gone}.tmp2", f"out.{HOST}.{gone}.tmp", f".out.{gone}.tmp"
    ]  # fmt: skip
    for name in kept:
        (tmp_path / name).write_text("kept")
    with atomic_write(path) as f:
        f.write("text")
    os.waitpid(zombie, 0)
    assert names(tmp_path) == sorted(["out", "precious", *kept])


@pytest.mark.parametrize("there", [True, False])
def test_the_old_version_is_restored_if_there_is_no_new_one(there, tmp_path):
    out, old = tmp_path / "out", tmp_path / f".out.{HOST}.{dead()}.old"
    old.mkdir()
    (old / "data").write_text("old")
    if there:
        out.mkdir()
        (out / "data").write_text("new")
    temporary_path(out)
    assert names(tmp_path) == ["out"] and (out / "data").read_text() == ("new" if there else "old")


# --- locks ---

HOLD = """
import fcntl, sys, time
from pathlib import Path
from fairseq_diverse.support.processes import locked

def refuse(*_):
    raise OSError(int(sys.argv[2]), "refused")

if sys.argv[2] != "0":
    fcntl.flock = refuse
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [0, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_lock_has_one_holder_and_is_released_when_it_dies(number, tmp_path, monkeypatch):
    """Also on file systems without flock."""
    if number:
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(number, "refused")))
    with locked(tmp_path), pytest.raises(Busy, match=f"process {os.getpid()} is working"), locked(tmp_path):
        pass
    assert not is_locked(tmp_path) and names(tmp_path) == ["lock"]
    other = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path, str(number)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    with pytest.raises(Busy, match=f"process {other.pid} is working"), locked(tmp_path):
        pass
    assert is_locked(tmp_path)
    other.kill()
    other.wait()
    with locked(tmp_path):
        shutil.rmtree(tmp_path)  # as of a folder whose files are complete
    assert not is_locked(tmp_path)


def test_without_flock_the_lock_of_another_machine_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSYS, "refused")))
    (tmp_path / "lock").write_text("7")
    (tmp_path / "lock.owner").write_text("7\nanother-machine\n")
    said = r"process 7 .*; if it died on another machine, delete .*lock\.owner"
    with pytest.raises(Busy, match=said), locked(tmp_path):
        pass


# --- signals ---


@pytest.fixture
def usual_signals():
    before = [signal.signal(number, signal.SIG_DFL) for number in processes.STOPS]
    yield
    for number, handler in zip(processes.STOPS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_stopped_by_a_signal_cleans_up_and_reports_it(number, tmp_path, monkeypatch, capsys, usual_signals):
    def write(args):
        with atomic_write(tmp_path / "out"):
            try:
                os.kill(os.getpid(), number)
                time.sleep(10)
            finally:
                os.kill(os.getpid(), number)  # `timeout` sends it to the process, then to its group

    monkeypatch.setattr(doctor, "main", write)
    assert main(["doctor"]) == 128 + number
    assert capsys.readouterr().err == f"\nfairseq-diverse doctor: stopped by signal {number}\n"
    assert names(tmp_path) == [] and signal.getsignal(number) == signal.SIG_DFL


def test_ignored_signals_stay_ignored_and_forked_processes_die(usual_signals):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    with processes.stopped_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        child = os.fork()
        if not child:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        with pytest.raises(processes.Stopped):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_process_whose_parent_died_before_it_asked_ends(usual_signals):
    reading, writing = os.pipe()
    if not (parent := os.fork()):
        number = os.getpid()
        if not os.fork():
            while os.getppid() == number:
                time.sleep(0.01)
            os.write(writing, b"asks ")
            processes.die_with_parent(number)
            os.write(writing, b"lives")
        os._exit(0)
    os.close(writing)
    os.waitpid(parent, 0)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"asks "


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path):
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        command = f"sleep 60 & echo $! > {tmp_path}/child; wait"  # the child holds the pipe
        processes.run_to_end(["sh", "-c", command], timeout=0.5, stdout=subprocess.PIPE)
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        while child.read_text().split()[2] != "Z":  # a busy machine takes a moment to end it
            assert time.monotonic() - start < 20
            time.sleep(0.05)
    assert time.monotonic() - start < 20


# --- stdout ---


def test_output_is_utf8_in_every_locale(monkeypatch):
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "ascii"))
    monkeypatch.setattr(doctor, "main", lambda args: print("größer", os.fsdecode(b"\xff")))
    assert main(["doctor"]) == 0
    assert out.getvalue() == "größer ".encode() + b"\xff\n"


def test_a_closed_stdout_ends_quietly(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))
    monkeypatch.setattr(doctor, "main", lambda args: print("a line"))
    assert main(["doctor"]) == 141
    sys.stdout.close()  # would raise once more
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_one_without_content(closed, monkeypatch):
    def use(args):
        print("a line", file=sys.stderr)
        return sys.stdin.isatty() if closed == "stdin" else 0

    monkeypatch.setattr(sys, closed, None)
    monkeypatch.setattr(doctor, "main", use)
    assert main(["doctor"]) == 0


def test_an_empty_folder_of_runs_counts_as_unset(monkeypatch, tmp_path):
    from fairseq_diverse.support.paths import runs_dir

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", "")
    assert runs_dir() == tmp_path.resolve() / "runs"


def test_marked_blocks_of_a_page_are_rewritten(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- results of x -->\nold\n\n<!-- end -->\nb\n<!-- results of y -->\n<!-- end -->\n")
    assert rewrite_blocks(page, r"results of (?P<name>\w)", lambda found: f"new {found['name']} \\1\n") == 2
    of_x, of_y = (f"<!-- results of {name} -->\nnew {name} \\1\n<!-- end -->\n" for name in "xy")
    assert page.read_text() == f"a\n{of_x}b\n{of_y}"
    for text in ("<!-- a -->\nprose\n<!-- a -->\n<!-- end -->\n", "<!-- end -->\n<!-- a -->\nprose\n"):
        page.write_text(text)
        refused(r"page\.md: <!-- a -->: has no <!-- end --> before", rewrite_blocks, page, "a", lambda found: "new\n")
        assert page.read_text() == text
    page.write_bytes(b"\xef\xbb\xbf<!-- a -->\r\nold\r\n<!-- end -->\na\r\n  <!-- a -->\n  <!-- end -->\r")
    for _ in range(2):  # a text of the block may have what ends one
        assert rewrite_blocks(page, "a", lambda found: "x <!-- end -->\n") == 2
        first = b"\xef\xbb\xbf<!-- a -->\r\nx <!-- end -->\r\n<!-- end -->\na\r\n"
        assert page.read_bytes() == first + b"  <!-- a -->\nx <!-- end -->\n  <!-- end -->\r"
    page.write_bytes(b"nothing\r\n")
    assert rewrite_blocks(page, "results", lambda found: "new\n") == 0 and page.read_bytes() == b"nothing\r\n"


def test_a_user_error_of_a_loaders_process_is_its_line():
    class Failing:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise UserError("--data: a: cannot be read (b: c)")

    from torch.utils.data import DataLoader

    caught = refusal(list, DataLoader(Failing(), num_workers=1, multiprocessing_context="fork"))
    assert caught == "--data: a: cannot be read (b: c)"
    assert str(UserError("Caught in the net\ntwice: c")) == "Caught in the net\ntwice: c"
