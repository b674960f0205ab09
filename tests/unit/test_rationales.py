"""ERASER's files, LIME and the measures of rationales."""

import json
import random
import re

import numpy as np
import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.metrics.rationales import (
    SHARES,
    as_scores,
    auprc,
    lime_samples,
    lime_weights,
    mean_share,
    rationale_scores,
    top_words,
)
from fairseq_diverse.preparation.eraser import read_eraser, split_name
from tests.integration.commands import shared_data
from tests.integration.eraser_files import write_eraser
from tests.reference import rationales as reference

DRAWS = random.Random(3)
SCORES = [[DRAWS.choice([0.0, 0.1, 0.2, 0.7]) for _ in range(words)] for words in (1, 4, 9, 23)]


def test_lime_is_weighted_ridge_regression():
    kept = lime_samples(7, 60, seed=1)
    probabilities = np.random.default_rng(2).random(60)
    expected = reference.lime(kept.astype(int).tolist(), probabilities.tolist())
    assert lime_weights(kept, probabilities) == pytest.approx(expected, abs=1e-9)


def test_lime_is_that_of_its_authors():
    base = pytest.importorskip("lime.lime_base", reason="the package lime is not installed")
    kept, probabilities = lime_samples(9, 200, seed=4), np.random.default_rng(5).random(200)
    from sklearn.metrics import pairwise_distances

    distances = 100 * pairwise_distances(kept, kept[:1], metric="cosine").ravel()  # as LimeTextExplainer
    explainer = base.LimeBase(lambda d: np.sqrt(np.exp(-(d**2) / 25**2)))
    labels = np.stack([probabilities, 1 - probabilities], 1)
    found = explainer.explain_instance_with_data(kept, labels, distances, 0, 9, feature_selection="none")[1]
    assert lime_weights(kept, probabilities) == pytest.approx([weight for _, weight in sorted(found)], abs=1e-9)


def test_samples_of_lime():
    kept = lime_samples(5, 4000, seed=1)
    removed = 5 - kept.sum(1)
    assert removed[0] == 0 and set(np.unique(kept)) == {0, 1}
    assert np.bincount(removed[1:].astype(int), minlength=6) / 3999 == pytest.approx([0, *[0.2] * 5], abs=0.03)
    assert kept[1:].mean(0) == pytest.approx([0.4] * 5, abs=0.03)
    assert (lime_samples(5, 4000, seed=1) == kept).all() and (lime_samples(5, 4000, seed=2) != kept).any()


@pytest.mark.parametrize("scores", SCORES)
def test_measures_are_those_of_the_loops(scores):
    marks = [DRAWS.randrange(2) for _ in scores]
    marks[0] = 1
    assert auprc(scores, marks) == pytest.approx(reference.auprc(scores, marks))
    for share in (*SHARES, 0.37):
        assert set(np.flatnonzero(top_words(np.array(scores), share))) == set(reference.rationale(scores, share))


def test_scores_of_a_test_set():
    predictions, labels = ["a", "b", "b", "c"], ["a", "a", "b", "b"]
    documents = [
        {"auprc": value, "comprehensiveness": value or 0.0, "sufficiency": -0.5}
        | {"comprehensiveness_by_share": [0.1, 0.3], "sufficiency_by_share": [0.0, 0.5]}
        for value in (0.25, None, 0.75, 0.5)
    ]
    found = rationale_scores(documents, predictions, labels)
    assert found["macro_f1"] == pytest.approx(reference.macro_f1(predictions, labels))
    assert found["accuracy"] == 0.5 and found["auprc"] == 0.5 and found["comprehensiveness"] == pytest.approx(0.375)
    assert found["sufficiency"] == -0.5 and found["comprehensiveness_aopc"] == pytest.approx(0.2)
    assert found["sufficiency_aopc"] == 0.25 and auprc([0.1, 0.2], [0, 0]) is None
    assert as_scores(np.array([3.0, -1, 1])).tolist() == [0.75, 0, 0.25]
    assert as_scores(np.array([-1.0, 0])).tolist() == [0, 0]
    assert mean_share([[1, 0, 0, 0], [0, 0], [1, 1]]) == 0.625
    with pytest.raises(ValueError, match="no training example has evidence"):
        mean_share([[0, 0]])


def test_names_of_data_sets():
    assert split_name("eraser-movies") == ("movies", "") and split_name("eraser-my-own.2@nlu_small") == (
        "my-own.2",
        "nlu_small",
    )
    assert split_name("glue-CoLA") is None and split_name("eraser-") is None


def test_the_layout_of_eraser(tmp_path):
    write_eraser(tmp_path, 5)
    found = read_eraser(tmp_path)
    assert [len(part) for part in found.values()] == [5, 5, 5]
    first = found["valid"][0]
    assert (first.name, first.label, first.query) == ("val0", "good", ["was", "it", "good"])
    assert first.words == ["the", "film", "was", "good", "fun"] and first.evidence == [0, 0, 0, 1, 1]
    assert first.places == [("val0", 5)]
    two = found["test"][4]  # has two documents, of which one is evidence
    assert two.places == [("test4", 5), ("extra", 2)] and two.words[5:] == ["more", "words"]
    folder = tmp_path / "folder"
    write_eraser(folder, 5, docs=True)
    assert read_eraser(folder) == found


LINE = {"annotation_id": "x", "classification": "good", "query": "q", "evidences": []}
SPAN = {"docid": "test0", "start_token": 1, "end_token": 3}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"not JSON \(Expecting"),
        ("[1]", "a JSON object expected"),
        ({"classification": "good"}, "no `annotation_id`"),
        ({"annotation_id": "x"}, "no `classification`"),
        (LINE | {"classification": 3}, "classification: text expected, not 3"),
        (LINE | {"annotation_id": "test1"}, "annotation_id: 'test1' twice"),
        (LINE | {"query": ["a"]}, r"query: text expected, not \['a'\]"),
        (LINE, "docid: 'x' is not a document of "),
        (LINE | {"docids": ["../x"]}, "docid: '../x' is not a document of "),
        (LINE | {"docids": ["none"]}, "docid: 'none' has no words"),
        (LINE | {"evidences": [[{"docid": "test0", "start_token": 1}]]}, "evidences: 0: 0: no `end_token`"),
        (LINE | {"evidences": [[SPAN | {"start_token": "1"}]]}, "start_token: a whole number expected, not '?1"),
        (LINE | {"evidences": [[SPAN | {"end_token": 6}]]}, "start_token 1, end_token 6: outside document 'test0', "),
        (LINE | {"evidences": [[SPAN | {"start_token": 3}]]}, "start_token 3, end_token 3: outside document"),
        (LINE | {"docids": ["test1"], "evidences": [[SPAN]]}, "evidences: docid: 'test0' is not in docids, test1"),
        (LINE | {"docids": ["test1"], "classification": "fair"}, "classification: 'fair' is not a class of train.json"),
    ],
)
def test_a_malformed_line_is_named(line, problem, tmp_path):
    write_eraser(tmp_path, 3)
    with open(tmp_path / "test.jsonl", "a") as file:
        file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    with open(tmp_path / "docs.jsonl", "a") as file:
        file.write('{"docid": "none", "document": " "}\n')
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}/test.jsonl, line 4: .*{problem}") as error:
        read_eraser(tmp_path)
    assert "\n" not in str(error.value)


def test_files_that_are_missing_or_empty_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"lacks train.jsonl, .*by hand from https://www.eraserbenchmark.com"):
        read_eraser(tmp_path)
    write_eraser(tmp_path, 3)
    with open(tmp_path / "docs.jsonl", "a") as file:
        file.write('{"docid": "val0", "document": "a"}\n')
    with pytest.raises(ValueError, match=r"docs.jsonl, line \d+: docid: 'val0' twice"):
        read_eraser(tmp_path)
    (tmp_path / "docs.jsonl").unlink()
    with pytest.raises(ValueError, match=r"has neither docs.jsonl nor docs/"):
        read_eraser(tmp_path)
    write_eraser(tmp_path, 3)
    (tmp_path / "val.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"val.jsonl: empty$"):
        read_eraser(tmp_path)
    write_eraser(tmp_path, 3)
    train = (tmp_path / "train.jsonl").read_text()
    (tmp_path / "train.jsonl").write_text(train.replace("bad", "good"))
    with pytest.raises(ValueError, match=r"train.jsonl: classification: one class only, good"):
        read_eraser(tmp_path)


def test_preparation(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    write_eraser(tmp_path / "raw/films", 5, docs=True)
    asked = ["prepare", "eraser-films", "--raw", str(tmp_path / "raw")]
    assert main(asked) == 0 and "train 5, valid 5, test 5 examples, 16 documents" in capsys.readouterr().out
    assert main(asked) == 0 and "already prepared" in capsys.readouterr().out
    data = tmp_path / "runs/data/eraser-films"
    assert read_eraser(data / "text") == read_eraser(tmp_path / "raw/films")
    assert main(["prepare", "eraser-films@eraser-films", *asked[2:]]) == 0  # takes over the dictionary
    assert (data.with_name("eraser-films@eraser-films") / "dict.txt").read_bytes() == (data / "dict.txt").read_bytes()
    with open(tmp_path / "raw/films/val.jsonl", "a") as file:
        file.write("{}\n")
    capsys.readouterr()
    assert main([*asked, "--overwrite"]) == 2 and "val.jsonl, line 6: no `annotation_id`" in capsys.readouterr().err
    assert main(["prepare", "eraser-movies", "--archives", str(tmp_path)]) == 2
    assert "by hand (https://www.eraserbenchmark.com) and give their folder as --raw" in capsys.readouterr().err
    assert {path.name for path in data.parent.iterdir()} == {"eraser-films", "eraser-films@eraser-films"}


def test_the_real_files_are_read():
    found = read_eraser(shared_data("cose_v1"))
    assert {split: len(part) for split, part in found.items()} == {"train": 6290, "valid": 700, "test": 744}
    shares = {split: mean_share([one.evidence for one in part]) for split, part in found.items()}
    assert shares == pytest.approx({"train": 0.30, "valid": 0.29, "test": 0.36}, abs=0.005)
