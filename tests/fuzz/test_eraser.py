"""Damaged files of ERASER are one line that names the file."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.preparation.eraser import read_eraser
from tests.fuzz.budget import budget
from tests.integration.eraser_files import write_eraser

VALUES = [
    "null", "1e999", "[]", "{}", "-1", "9" * 40, "true", "NaN", '"\\ud800"', "[" * 3000, '{"a":' * 3000, '"\\u0000"'
]  # fmt: skip


@given(
    name=st.sampled_from(["train.jsonl", "val.jsonl", "test.jsonl", "docs.jsonl"]),
    place=st.integers(0, 10**6),
    value=st.one_of(st.sampled_from(VALUES).map(str.encode), st.binary(max_size=4)),
    cut=st.integers(0, 40),
)
@budget(2)
def test_a_damaged_file_is_read_or_named(name, place, value, cut):
    with tempfile.TemporaryDirectory() as folder:
        write_eraser(Path(folder), 3)
        path = Path(folder, name)
        content = path.read_bytes()
        colons = [i + 1 for i, byte in enumerate(content) if byte == ord(":")]
        start = colons[place % len(colons)] if cut % 2 else place % len(content)
        path.write_bytes(content[:start] + value + content[start + cut :])
        try:
            read_eraser(Path(folder))
        except ValueError as error:
            assert folder in str(error) and "\n" not in str(error)
