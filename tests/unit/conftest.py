"""Fixtures that several files use."""

import json

import pytest

from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.preparation.pipeline import FORMAT, SCHEMA

RECORD = {"format": FORMAT, "schema": SCHEMA, "source": "en", "target": "de", "hash": "h"}  # of prepared data
SIZE = "train: {arch: transformer, max-update: 30, lr: 0.005, dropout: 0.1}\ngenerate: {beam: 5}\naverage: none\n"
TABLE = """
data: multi30k_en_de
size: %s
flags: {dropout: 0.2}
rows:
  first:
  second: {dropout: 0.3, fp16: true, share-all-embeddings: false, published: {bleu: 27.3}}
"""

ROW = {  # the settings of the first row of the table
    "train": {"task": "translation", "arch": "transformer", "max-update": "30", "lr": "0.005", "dropout": "0.2"},
    "average": {},
    "generate": {"beam": "5"},
    "lenpen": [],
    "split": "test",
}


def trained_with(**flags):
    """The settings of a row with other flags of training."""
    return ROW | {"train": ROW["train"] | flags}


@pytest.fixture
def table(tmp_path):
    """Writes a table file (and its size) and returns its name; replacements as (old, new) pairs."""

    def write(*replacements, size=SIZE):
        (tmp_path / "size.yaml").write_text(size)
        text = TABLE % (tmp_path / "size.yaml")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "table.yaml").write_text(text)
        return str(tmp_path / "table.yaml")

    return write


@pytest.fixture
def rows(table):
    """Those of the table."""
    return list(load_table(table()).rows.values())


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """The folder of the table's data, prepared in the folder of runs."""
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    folder = tmp_path / "runs/data/multi30k_en_de"
    folder.mkdir(parents=True)
    (folder / "preprocess.json").write_text(json.dumps(RECORD))
    return folder
