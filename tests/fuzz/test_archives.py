"""Archives with flipped, cut and replaced bytes: refused in one line, or the text is unchanged."""

import gzip
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.preparation import DataConfig
from fairseq_diverse.preparation.extraction import extract
from tests.archives import tarred, zipped
from tests.fuzz.budget import budget

TEXT = {
    f"x/{split}.{language}": "".join(f"{language} {split} {n * n} ä\n" for n in range(40)).encode()
    for split in ("a", "b")
    for language in ("en", "de")
}


PACKED = {f"{name}.gz": gzip.compress(content) for name, content in TEXT.items()}
ARCHIVES = {  # name, content, what leads to a member, what ends its name
    "tgz": ("x.tgz", tarred(TEXT, "w:gz"), "", ""),
    "bz2": ("x.tgz", tarred(TEXT, "w:bz2"), "", ""),
    "xz": ("x.tgz", tarred(TEXT, "w:xz"), "", ""),
    "zip": ("x.zip", zipped(TEXT), "", ""),
    "stored zip": ("x.zip", zipped(TEXT, zipfile.ZIP_STORED), "", ""),
    "tar.gz in tgz": ("x.tgz", tarred({"y.tar.gz": tarred(TEXT, "w:gz"), "z": b"?"}, "w:gz"), "y.tar.gz/", ""),
    "tar in zip": ("x.zip", zipped({"y.tar": tarred(TEXT, "w")}), "y.tar/", ""),
    "zip in tgz": ("x.tgz", tarred({"y.zip": zipped(TEXT), "z": b"?"}, "w:gz"), "y.zip/", ""),
    "gz in zip": ("x.zip", zipped(PACKED), "", ".gz"),
    "gz in tgz": ("x.tgz", tarred(PACKED, "w:gz"), "", ".gz"),
}
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
        st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("put"), st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
        st.tuples(st.just("end"), st.just(0.0), st.integers(0, 255)),
    ),
    min_size=1,
    max_size=2,
)


def changed(content: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    made = bytearray(content)
    for what, where, value in changes:
        place = int(where * len(made))
        if what == "cut":
            del made[place:]
        elif what == "end":
            made += bytes([value]) * 20
        elif made:
            made[place] = made[place] ^ (1 << value) if what == "flip" else value
    return bytes(made)


def config(name: str, lead: str, end: str, wild: bool) -> DataConfig:
    member = f"{lead}x/{'?' if wild else 'a'}.{{language}}{end}"
    parts = [{"archive": name, "member": member}]
    sources = {"archives": {name: ""}, "files": dict.fromkeys(("train", "valid", "test"), parts)}
    return DataConfig.from_mapping("x", {"source": "en", "target": "de", "sources": sources})


@pytest.mark.parametrize("kind", ARCHIVES)
def test_changed_archives(kind: str, tmp_path: Path) -> None:
    name, content, lead, end = ARCHIVES[kind]

    @given(changes=CHANGES, wild=st.just(False) if "zip" in kind else st.booleans())
    @budget(0.5)
    def check(changes: list[tuple[str, float, int]], wild: bool) -> None:
        (tmp_path / name).write_bytes(changed(content, changes))
        try:
            extract(config(name, lead, end, wild), tmp_path, tmp_path / "raw")
        except ValueError as error:
            assert str(error).startswith(str(tmp_path / name)) and "\n" not in str(error)
            return
        for language in ("en", "de"):
            expected = b"".join(TEXT[f"x/{split}.{language}"] for split in ("ab" if wild else "a"))
            assert (tmp_path / f"raw/train.{language}").read_bytes() == expected

    (tmp_path / name).write_bytes(content)
    extract(config(name, lead, end, wild=False), tmp_path, tmp_path / "raw")  # unchanged, it can be read
    check()
