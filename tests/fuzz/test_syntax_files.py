"""Files of binarized trees with changed bytes: refused in one line that names one of them, or the trees are equal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.data.trees import SyntaxDataset, available_trees, binarize
from fairseq_diverse.support.errors import UserError
from tests.fuzz.budget import budget
from tests.fuzz.test_archives import CHANGES, changed

LINES = ["a b c", "", "d@@ e f", "g"] * 3
KINDS = ("dependency", "constituency")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(KINDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("kinds", "lengths", "digest", "sentences", "unparsed")), inner)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    prefix = folder / "train.en-de.en"
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for line in LINES:
        builder.add_item(torch.tensor([5] * len(line.split()) + [2]))
    builder.finalize(f"{prefix}.idx")
    (folder / "text").write_text("\n".join(LINES) + "\n")
    words = [line.replace("@@ ", "").split() for line in LINES]
    row = "{}\t{}" + "\t_" * 4 + "\t{}" + "\t_" * 3 + "\n"
    blocks = ("# x\n" + "".join(row.format(i + 1, word, i) for i, word in enumerate(line)) for line in words)
    (folder / "conllu").write_text("\n".join(blocks) + "\n")
    (folder / "ptb").write_text("".join(f"(S {' '.join(f'(X {w})' for w in a)})\n" if a else "\n" for a in words))
    binarize(prefix, folder / "text", folder / "conllu", folder / "ptb", "subword-nmt")
    return prefix


def read(prefix: Path) -> list[Any]:
    trees = SyntaxDataset(str(prefix), KINDS)
    return [trees[n].tolist() for n in range(len(trees))]


def refused_or_equal(prefix: Path, name: str, content: bytes, expected: list[Any]) -> None:
    path = Path(f"{prefix}.{name}")
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        assert read(prefix) == expected
    except UserError as error:
        assert str(error).startswith(f"{prefix}.") and "\n" not in str(error)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["syntax.bin", "syntax.idx", "idx", "syntax.json"])
def test_changed_bytes(name: str, prefix: Path) -> None:
    expected, content = read(prefix), Path(f"{prefix}.{name}").read_bytes()

    @given(CHANGES)
    @budget(0.8)
    def check(changes: list[tuple[str, float, int]]) -> None:
        refused_or_equal(prefix, name, changed(content, changes), expected)

    check()


def test_random_descriptions(prefix: Path) -> None:
    expected, record = read(prefix), json.loads(Path(f"{prefix}.syntax.json").read_text())

    @given(JSON, st.booleans())
    @budget(0.8)
    def check(given_: Any, merged: bool) -> None:
        content = record | given_ if merged and isinstance(given_, dict) else given_
        refused_or_equal(prefix, "syntax.json", json.dumps(content).encode(), expected)
        Path(f"{prefix}.other.syntax.json").write_text(json.dumps(content))
        try:
            assert set(available_trees(Path(f"{prefix}.other"))) <= set(KINDS)
        except UserError as error:
            assert f"{prefix}.other.syntax.json: damaged" in str(error)

    check()
