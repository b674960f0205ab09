"""A damaged or hostile record of prepared data, or its models: one line that names the file."""

import json
from pathlib import Path

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.config import SIDE_DEFAULTS
from fairseq_diverse.preparation.pipeline import FILE, FORMAT, lowercased

SIDE = SIDE_DEFAULTS | {"normalize": False}
RECORD = {
    "format": FORMAT,
    "schema": 1,
    "source": "en",
    "target": "de",
    "hash": "h",
    "config": {"sides": {"source": SIDE | {"language": "en"}, "target": SIDE | {"language": "de"}}},
    "truecaser": {"source": "text/truecase.en", "target": None},
    "bpe": {
        "kind": "subword-nmt",
        "model": {"source": "text/bpe.codes", "target": "text/bpe.codes"},
        "vocabulary": {"source": "text/bpe.vocab.en", "target": None},
        "threshold": 1,
    },
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/bpe.codes").write_text("#version: 0.2\na b</w>\n")
    (tmp_path / "text/bpe.vocab.en").write_text("ab 5\n")
    (tmp_path / "text/truecase.en").write_text("ab (5/5)\n")
    (tmp_path / FILE).write_text(json.dumps(RECORD))
    return tmp_path


def changed(data: Path, value: object, *keys: str) -> None:
    record = json.loads((data / FILE).read_text())
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (data / FILE).write_text(json.dumps(record))


def message(data: Path) -> str:
    with pytest.raises(ValueError) as caught:
        Preprocessing.load(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("bpe.codes", text) for text in ("", "?", "#version: 0.9\na b\n", "a b c\n", "\xff\xfe", "#version: x\n")),
        *(("bpe.vocab.en", text) for text in ("?", "a b c\n", "a b\n", "\xff\xfe")),
        ("truecase.en", "\xff\xfe"),
    ],
)
def test_damaged_models_are_named(name, content, data, capsys):
    assert Preprocessing.load(data).encode("ab") == "ab"
    path = data / "text" / name
    path.write_text(content, encoding="latin-1")
    assert message(data).startswith(f"{path}: damaged, or not a ")
    assert capsys.readouterr().err == ""


def test_a_damaged_sentencepiece_model_is_named(data):
    changed(data, "sentencepiece", "bpe", "kind")
    assert message(data) == f"{data}/text/bpe.codes: damaged, or not a model of sentencepiece"


@pytest.mark.parametrize(
    ("value", "keys", "words"),
    [
        ("../../x", ("bpe", "model", "source"), "'../../x' is outside the directory"),
        ("/dev/zero", ("bpe", "model", "target"), "'/dev/zero' is outside the directory"),
        ("/etc/passwd", ("truecaser", "source"), "'/etc/passwd' is outside the directory"),
        ("../x", ("source",), "source: '../x' is not a language"),
        (5, ("target",), "target: 5 is not a language"),
        ([], ("bpe",), "incomplete"),
        ("x", ("config",), "incomplete"),
        ({}, ("truecaser",), "incomplete ('source')"),
    ],
)
def test_a_record_that_is_wrong_names_itself(value, keys, words, data):
    changed(data, value, *keys)
    assert message(data).startswith(f"{data / FILE}: ") and words in message(data)


def test_lowercased_of_an_incomplete_record(data):
    assert lowercased(data) is False
    changed(data, [], "config")
    with pytest.raises(ValueError, match=f"{FILE}: incomplete \\(sides\\); prepare the data again"):
        lowercased(data)


@pytest.mark.parametrize(
    ("record", "flags", "words"),
    [
        ({"source": "../x"}, [], f"{FILE}: source: '../x' is not a language"),
        ({"bpe": []}, [], f"{FILE}: incomplete (kind)"),
        ({}, ["--splits", ","], "--splits ',': names none"),
        ({}, [], "x.conllu.json: parser dependency: not an object of parser, model, language"),
    ],
)
def test_binarize_syntax_checks_the_record(record, flags, words, data, capsys):
    (data / FILE).write_text(json.dumps(RECORD | record))
    (data / "x.conllu.json").write_text("[]")
    common = ["binarize-syntax", "--data", str(data), "--dependency", str(data / "x.conllu"), "--splits", "test"]
    assert main([*common, *flags]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
