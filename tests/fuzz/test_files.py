"""For every kind of name and every interruption, a file has the old text or the new one, and nothing is left."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.support.files import atomic_write
from tests.fuzz.budget import budget

NAMES = st.binary(min_size=1, max_size=255).filter(
    lambda name: not set(b"/\0") & set(name) and name not in (b".", b"..")
)
ERRORS = st.sampled_from([None, OSError(28, "full"), OSError("words"), ValueError(), KeyboardInterrupt(), SystemExit()])


class Tree:
    """Files, folders, links and pipes in a folder, by name."""

    def __init__(self, folder: Path):
        self.content = {
            path.relative_to(folder): (
                path.lstat().st_mode & 0o170000,
                os.readlink(path) if path.is_symlink() else None,
            )
            for path in folder.rglob("*")
        }
        self.texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


@given(
    name=NAMES.map(os.fsdecode),
    kind=st.sampled_from(
        ["absent", "file", "folder", "link", "dangling", "loop", "link to a folder", "link to a pipe"]
    ),
    inside=st.booleans(),
    error=ERRORS,
)
@budget(2)
def test_a_file_is_written_atomically(name, kind, inside, error):
    with tempfile.TemporaryDirectory() as given_folder:
        folder = Path(given_folder)
        real, path = folder / "a/real", folder / "b" / name
        for parent in (real.parent, path.parent):
            parent.mkdir()
        if kind in ("file", "link"):
            (path if kind == "file" else real).write_text("old")
        elif "folder" in kind:
            (path if kind == "folder" else real).mkdir()
        elif "pipe" in kind:
            os.mkfifo(real)
        if kind.startswith(("link", "dangling", "loop")):
            path.symlink_to(path.name if kind == "loop" else real if inside else "../a/real")
        reader = os.open(real, os.O_RDONLY | os.O_NONBLOCK) if "pipe" in kind else None
        before = Tree(folder)
        written = False
        with suppress(OSError, ValueError, KeyboardInterrupt, SystemExit):
            with atomic_write(path) as f:
                f.write("new")
                if error:
                    raise error
            written = True
        after = Tree(folder)
        if reader is not None:
            assert os.read(reader, 10) == b"new"
            os.close(reader)
        assert written == (error is None and "folder" not in kind and kind != "loop")
        if written and reader is None:
            target = path if kind in ("absent", "file") else real
            assert after.texts.pop(target) == "new"
            before.texts.pop(target, None)
            after.content.pop(target.relative_to(folder))
            before.content.pop(target.relative_to(folder), None)
        assert after.content == before.content and after.texts == before.texts
