"""ERASER's files, LIME and the measures of rationales."""

import json
import random
import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_diverse
from fairseq_diverse import register
from fairseq_diverse.analysis.rationales import explain, measured, probabilities
from fairseq_diverse.attention.warm_start import only_trained
from fairseq_diverse.cli import main
from fairseq_diverse.data.probing import read_probing
from fairseq_diverse.experiments.kinds.kind import KINDS, kind_of
from fairseq_diverse.experiments.kinds.rationales import performance
from fairseq_diverse.experiments.run import DataSet
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.metrics import rationales as measures
from fairseq_diverse.models.rationales import WordReader
from fairseq_diverse.preparation.encoding import of_data
from fairseq_diverse.preparation.eraser import prepare_eraser, read_eraser, split_name
from fairseq_diverse.reports.rationales import page
from fairseq_diverse.support.processes import locked
from fairseq_diverse.tasks.classification import Rationales, RationalesConfig
from fairseq_diverse.toy.probing import DECIDING, write_probing
from tests.integration.commands import cli, run, shared_data
from tests.integration.eraser_files import write_eraser
from tests.reference import rationales as reference
from tests.refusals import refused

register()

DRAWS = random.Random(3)
SCORES = [[DRAWS.choice([0.0, 0.1, 0.2, 0.7]) for _ in range(words)] for words in (1, 4, 9, 23)]


def test_lime_is_weighted_ridge_regression():
    kept = measures.lime_samples(7, 60, seed=1)
    probabilities = np.random.default_rng(2).random(60)
    expected = reference.lime(kept.astype(int).tolist(), probabilities.tolist())
    assert measures.lime_weights(kept, probabilities) == pytest.approx(expected, abs=1e-9)


def test_lime_is_that_of_its_authors():
    base = pytest.importorskip("lime.lime_base", reason="the package lime is not installed")
    kept, probabilities = measures.lime_samples(9, 200, seed=4), np.random.default_rng(5).random(200)
    from sklearn.metrics import pairwise_distances

    distances = 100 * pairwise_distances(kept, kept[:1], metric="cosine").ravel()  # as LimeTextExplainer
    explainer = base.LimeBase(lambda d: np.sqrt(np.exp(-(d**2) / 25**2)))
    labels = np.stack([probabilities, 1 - probabilities], 1)
    found = explainer.explain_instance_with_data(kept, labels, distances, 0, 9, feature_selection="none")[1]
    expected = [weight for _, weight in sorted(found)]
    assert measures.lime_weights(kept, probabilities) == pytest.approx(expected, abs=1e-9)


def test_samples_of_lime():
    kept = measures.lime_samples(5, 4000, seed=1)
    removed = 5 - kept.sum(1)
    assert removed[0] == 0 and set(np.unique(kept)) == {0, 1}
    assert np.bincount(removed[1:].astype(int), minlength=6) / 3999 == pytest.approx([0, *[0.2] * 5], abs=0.03)
    assert kept[1:].mean(0) == pytest.approx([0.4] * 5, abs=0.03)
    again, other = (measures.lime_samples(5, 4000, seed=seed) for seed in (1, 2))
    assert (again == kept).all() and (other != kept).any()


@pytest.mark.parametrize("scores", SCORES)
def test_measures_are_those_of_the_loops(scores):
    marks = [DRAWS.randrange(2) for _ in scores]
    marks[0] = 1
    assert measures.auprc(scores, marks) == pytest.approx(reference.auprc(scores, marks))
    for share in (*measures.SHARES, 0.37):
        found = np.flatnonzero(measures.top_words(np.array(scores), share))
        assert {*found} == {*reference.rationale(scores, share)}


def test_scores_of_a_test_set():
    predictions, labels = ["a", "b", "b", "c"], ["a", "a", "b", "b"]
    documents = [
        {"auprc": values, "comprehensiveness": sum(values), "sufficiency": -0.5}
        | {"comprehensiveness_by_share": [0.1, 0.3], "sufficiency_by_share": [0.0, 0.5]}
        for values in ([0.25], [], [0.75, 0.5], [0.5])
    ]
    found = measures.rationale_scores(documents, predictions, labels)
    assert found["macro_f1"] == pytest.approx(reference.macro_f1(predictions, labels))
    assert found["accuracy"] == 0.5 and found["auprc"] == 0.5 and found["comprehensiveness"] == 0.5
    assert found["sufficiency"] == -0.5 and found["comprehensiveness_aopc"] == pytest.approx(0.2)
    assert found["sufficiency_aopc"] == 0.25 and measures.auprc([0.1, 0.2], [0, 0]) is None
    assert measures.as_scores(np.array([3.0, -1, 1])).tolist() == [0.75, 0, 0.25]
    assert measures.as_scores(np.array([-1.0, 0])).tolist() == [0, 0]
    assert measures.mean_share([[1, 0, 0, 0], [0, 0], [1, 1]]) == 0.625
    refused(r"no example of train.jsonl has evidence", measures.mean_share, [[0, 0]])


def test_names_of_data_sets():
    assert split_name("eraser-movies") == ("movies", "")
    assert split_name("eraser-my-own.2@nlu_small") == ("my-own.2", "nlu_small")
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


def test_words_are_those_that_evidence_is_counted_in(tmp_path):
    """Between single spaces, as in ERASER's program: a space that does not break is inside a word."""
    write_eraser(tmp_path, 3)
    text = "the\u00a0film  was \nbad\u2028or not"
    line = {"annotation_id": 7, "classification": "bad", "query": None}
    line["evidences"] = [[{"docid": 8, "start_token": 3, "end_token": 5}]]
    with open(tmp_path / "docs.jsonl", "a") as docs, open(tmp_path / "test.jsonl", "a") as test:
        docs.write(json.dumps({"docid": 8, "document": text}) + "\n")
        test.write(json.dumps(line) + "\n")
    found = read_eraser(tmp_path)["test"][-1]
    assert found.name == "7" and found.query == [] and found.places == [("8", 5)]
    assert found.words == ["the\u00a0film", "", "was", "bad\u2028or", "not"] and found.evidence == [0, 0, 0, 1, 1]
    (tmp_path / "docs").mkdir()
    for one in read_eraser(tmp_path).values():
        for example in one:
            for name, _ in example.places:
                (tmp_path / "docs" / name).write_text(text)
    (tmp_path / "docs.jsonl").unlink()
    refused(r"train.jsonl, line \d: evidences: .* 'train0', which has 4 words", read_eraser, tmp_path)


LINE = {"annotation_id": "x", "classification": "good", "query": "q", "evidences": []}
SPAN = {"docid": "test0", "start_token": 1, "end_token": 3}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"not JSON \(Expecting"),
        ("[1]", "a JSON object expected"),
        ("[" * 10**5, "not JSON"),
        (LINE | {"query": "\ud800"}, "not JSON .*surrogates not allowed"),
        (LINE | {"evidences": [[SPAN | {"end_token": 10**40}]]}, "end_token"),
        ({"classification": "good"}, "no `annotation_id`"),
        ({"annotation_id": "x"}, "no `classification`"),
        ({"annotation_id": "x", "classification": "good"}, "no `evidences`"),
        ({key: value for key, value in LINE.items() if key != "query"}, "no `query`"),
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
    refused(f"^{re.escape(str(tmp_path))}/test.jsonl, line 4: .*{problem}", read_eraser, tmp_path)


def test_files_that_are_missing_or_empty_are_named(tmp_path):
    refused(r"lacks train.jsonl, .*by hand from https://www.eraserbenchmark.com", read_eraser, tmp_path)
    neither = rf"^{tmp_path}: has neither train.jsonl, val.jsonl, test.jsonl nor a folder cose that has them; "
    refused(f"{neither}download a data set of ERASER by hand", prepare_eraser, "cose", tmp_path, tmp_path / "out")
    write_eraser(tmp_path / "cose_v1", 3)
    refused(f"{neither}it has cose_v1: prepare eraser-cose_v1$", prepare_eraser, "cose", tmp_path, tmp_path / "out")
    write_eraser(tmp_path, 3)
    with open(tmp_path / "docs.jsonl", "a") as file:
        file.write('{"docid": "val0", "document": "a"}\n')
    refused(r"docs.jsonl, line \d+: docid: 'val0' twice", read_eraser, tmp_path)
    (tmp_path / "docs.jsonl").unlink()
    refused(r"has neither docs.jsonl nor docs/", read_eraser, tmp_path)
    write_eraser(tmp_path, 3)
    (tmp_path / "val.jsonl").write_text("")
    refused(r"val.jsonl: empty$", read_eraser, tmp_path)
    write_eraser(tmp_path, 3)
    train = (tmp_path / "train.jsonl").read_text()
    (tmp_path / "train.jsonl").write_text(train.replace("bad", "good"))
    refused(r"train.jsonl: classification: one class only, good", read_eraser, tmp_path)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Films, prepared."""
    folder = tmp_path_factory.mktemp("films")
    write_eraser(folder / "raw/films", 6, docs=True)
    said: list[str] = []
    assert prepare_eraser("films", folder / "raw", folder / "data", say=said.append)
    assert said == [f"prepared {folder}/data: train 6, valid 6, test 6 examples, 19 documents"]
    return folder / "data"


def test_preparation(data, tmp_path, error_of, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path))
    raw = data.parent / "raw"
    assert read_eraser(data / "text") == read_eraser(raw / "films")
    assert not prepare_eraser("films", raw, data)  # already there
    encoding = of_data(data)  # takes over the dictionary
    assert prepare_eraser("films", raw, tmp_path / "other", encoding)
    assert (tmp_path / "other/dict.txt").read_bytes() == (data / "dict.txt").read_bytes()
    broken = shutil.copytree(raw, tmp_path / "broken")
    with open(broken / "films/val.jsonl", "a") as file:
        file.write("{}\n")
    assert "val.jsonl, line 7: no `annotation_id`" in error_of("prepare", "eraser-films", "--raw", broken)
    assert "by hand (https://www.eraserbenchmark.com)" in error_of("prepare", "eraser-movies", "--archives", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"broken", "other"}


def build(data: Path, arch: str = "diverse_rationales_tiny", **flags) -> tuple[Any, Rationales]:
    one_separator = flags.pop("one_separator", False)
    task = Rationales.setup_task(RationalesConfig(data=str(data), max_positions=30, one_separator=one_separator))
    args = Namespace(arch=arch, max_positions=30, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    return task.build_model(args).eval(), task


def test_the_reader_is_that_of_the_loops(monkeypatch):
    monkeypatch.setattr("fairseq_diverse.models.rationales.HIDDEN", 3)
    torch.manual_seed(1)
    reader = WordReader(5, 2).double().eval()
    torch.nn.init.normal_(reader.query)
    x, valid = torch.randn(2, 4, 5, dtype=torch.float64), torch.tensor([[True] * 4, [True, True, False, False]])
    weights = {name: value.tolist() for name, value in reader.state_dict().items()}
    for logits, states, count in zip(reader(x, valid), x, valid.sum(1), strict=True):
        assert logits.tolist() == pytest.approx(reference.reader(states[:count].tolist(), weights))


def test_words_are_found_among_their_subwords(data):
    task = build(data)[1]
    example = task.examples["test"][5]  # of two documents
    tokens, starts = task.encode(example.query, example.words)
    read = [task.dictionary[number] for number in tokens]
    assert read[0] == "<s>" and read[-1] == "</s>" and read.count("</s>") == 3  # two between query and documents
    firsts = [task.subwords(word)[0] for word in (*example.query, *example.words)]
    assert tokens[starts].tolist() == firsts and len(firsts) == 10
    assert [part.tolist() for part in task.encode([], [])] == [[0], [0]]
    end = task.dictionary.eos()
    numbers, places = task.encode(["film", "[sep]", "fun"], ["[sep]"])
    assert numbers[places[1]] == end and numbers[places[3]] != end and (numbers == end).sum() == 4  # of a query only
    task.cfg.one_separator = True
    assert (task.encode(example.query, example.words)[0] == task.dictionary.eos()).sum() == 2
    long = [*example.words * 9]
    count = task.fitting(example.query, long)
    fitted, one_more = (len(task.encode(example.query, long[:number])[0]) for number in (count, count + 1))
    assert fitted <= 30 < one_more
    assert len(task.dataset_of([(example.query, long)], [0]).starts[0]) == 3 + count
    refused("--max-positions 30: no word of the document fits beside the query", task.fitting, ["film"] * 40, ["a"])
    refused("valid1: this task has the splits train, valid, test", task.load_dataset, "valid1")


def test_a_document_alone_is_as_in_a_batch(data):
    model, task = build(data)
    predict = probabilities(model, task, ["was", "it", "good"], 60)
    documents = [["good"], ["the", "film"] * 6, [], ["fun"] * 4, ["was", "bad", "fun"]]
    found = predict(documents)
    assert found.sum(1) == pytest.approx([1] * 5) and len({*found[:, 0].round(9)}) == 5
    for document, row in zip(documents, found, strict=True):
        assert predict([document])[0] == pytest.approx(row, abs=1e-6)
    batches = task.dataset_of([([], ["a"] * n) for n in (1, 9, 2, 3)], [0] * 4).batches(15)
    sizes = [batch["net_input"]["src_tokens"].shape for batch in batches]
    assert sum(rows for rows, _ in sizes) == 4 and all(rows == 1 or rows * length <= 15 for rows, length in sizes)


def test_a_bert_reads_two_segments(data):
    refused("--one-separator: is missing", build, data, "diverse_bert_rationales_tiny")
    model, task = build(data, "wang2021_evolving_bert_rationales_tiny", one_separator=True, trained_layers=1)
    seen = []
    model.encoder.sentence_encoder.embed_segments.register_forward_hook(lambda _, given, out: seen.append(given[0]))
    example = task.examples["test"][0]
    found = probabilities(model, task, example.query, 60)([example.words])
    tokens = task.encode(example.query, example.words)[0]
    first = 2 + sum(len(task.subwords(word)) for word in example.query)
    assert seen[0].tolist() == [[0] * first + [1] * (len(tokens) - first)] and found.sum() == pytest.approx(1)
    language = Namespace(arch="diverse_bert_tiny", max_positions=30)
    ARCH_CONFIG_REGISTRY[language.arch](language)
    bert = ARCH_MODEL_REGISTRY[language.arch].build_model(language, task)
    model.load_state_dict(bert.state_dict() | {"pooler.weight": torch.ones(64, 64), "pooler.bias": torch.ones(64)})
    loaded = model.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in bert.state_dict().items())
    assert not model.encoder.sentence_encoder.embed_segments.weight.requires_grad


@pytest.mark.parametrize(("arch", "layers"), [("wang2021_evolving_rationales_tiny", 1), ("diverse_rationales_tiny", 2)])
def test_only_the_top_layers_and_mechanisms_are_trained(data, arch, layers):
    model, task = build(data, arch, trained_layers=layers)
    texts = [(example.query, example.words) for example in task.examples["test"]]
    (batch,) = task.dataset_of(texts, [0] * len(texts)).batches(1000)
    model(**batch["net_input"])[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            zero = "k_proj.bias" in name or ".evolving." in name  # by softmax; where no convolution is above 0
            assert parameter.grad.isfinite().all() and (zero or parameter.grad.any()), name
        else:
            assert parameter.grad is None
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    below = {name for name in trained if "layers.0" in name}
    if layers == 2:
        assert below and "encoder.sentence_encoder.embed_tokens.weight" in trained
    else:
        assert below and all(".evolving." in name for name in below) and not any("embed" in name for name in trained)
    assert any("layers.1.fc1" in name for name in trained) and any(name.startswith("reader") for name in trained)


def test_frozen_layers_change_no_gradients_of_those_above(data):
    """With checkpointed activations, dropped layers, and mechanisms that change projections, which are trained."""
    seen = []
    for checkpoints in (False, True):
        flags = {"trained_layers": 1, "checkpoint_activations": checkpoints, "qk_head_dim": 5, "encoder_layerdrop": 0.1}
        model, task = build(data, "wang2021_evolving_rationales_tiny", qk_head_dim_on="encoder", **flags)
        (batch,) = task.dataset_of([(["was"], ["a", "film"])], [0]).batches(1000)
        model(**batch["net_input"])[0].square().sum().backward()
        seen.append({name: part.grad for name, part in model.named_parameters() if part.requires_grad})
    assert all(torch.equal(gradient, seen[1][name]) for name, gradient in seen[0].items())
    kinds = {name.split("sentence_encoder.")[-1].rpartition(".")[0] for name in seen[0]}
    assert {"layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj", "layers.1.fc1"} < kinds
    assert not {"layers.0.self_attn.v_proj", "layers.0.fc1"} & kinds


def test_training_starts_from_a_language_model(data):
    model, task = build(data, "wang2021_evolving_rationales_tiny")
    args = Namespace(arch="diverse_roberta_tiny", max_positions=30)
    ARCH_CONFIG_REGISTRY[args.arch](args)
    language = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    before = {name: value.clone() for name, value in model.reader.state_dict().items()}
    model.load_state_dict(language.state_dict(), strict=True)
    loaded = model.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in language.state_dict().items())
    assert all(torch.equal(value, loaded[f"reader.{name}"]) for name, value in before.items())
    with only_trained(), pytest.raises(RuntimeError, match=r"Missing key.*reader|evolving"):
        model.load_state_dict(language.state_dict(), strict=True)
    refused("--arch diverse_roberta: is not a classifier; use", task.build_model, Namespace(arch="diverse_roberta"))
    refused("--trained-layers -1: must be at least 0", build, data, trained_layers=-1)


def words_of(scores: dict[str, float]) -> Callable[[Sequence[Sequence[str]]], np.ndarray]:
    """A classifier whose probability of its first class is a sum over words."""

    def predict(documents: Sequence[Sequence[str]]) -> np.ndarray:
        first = np.array([0.5 + sum(scores.get(word, 0) for word in words) for words in documents])
        return np.stack([first, 1 - first], 1)

    return predict


def test_a_rationale_is_what_decides(data):
    example = build(data)[1].examples["test"][5]
    scores = {"bad": 0.3, "fun": 0.1, "more": 0.05, "the": -0.1}
    predict = words_of(scores)
    record = explain(example, len(example.words), predict, ["good", "bad"], 0.3, (2000, 1))
    found = [score for part in record["rationales"] for score in part["soft_rationale_predictions"]]
    assert sum(found) == pytest.approx(1) and [part["docid"] for part in record["rationales"]] == ["test5", "extra"]
    by_word = dict(zip(example.words, found, strict=True))
    assert by_word["bad"] == pytest.approx(0.3 / 0.45, abs=0.01) and by_word["the"] == by_word["film"] == 0
    assert record["rationales"][0]["hard_rationale_predictions"] == [{"start_token": 0, "end_token": 2}]
    label, whole = record["classification"], record["classification_scores"]
    assert label == "good" and whole == {"good": pytest.approx(0.85), "bad": pytest.approx(0.15)}
    for part, share in zip([record, *record["thresholded_scores"]], (0.3, *measures.SHARES), strict=True):
        drops = reference.faithfulness(lambda words: predict([words])[0, 0], example.words, found, share)
        kinds = ("comprehensiveness", "sufficiency")
        assert [whole[label] - part[f"{kind}_classification_scores"][label] for kind in kinds] == pytest.approx(drops)
    short = explain(example, 3, predict, ["good", "bad"], 0.3, (50, 1))  # of the document, three words are read
    assert short["rationales"][0]["soft_rationale_predictions"][3:] == [0, 0]
    assert short["classification_scores"]["good"] == pytest.approx(0.8)
    figures = measured([record], [example])
    assert figures["auprc"] == 1 and figures["accuracy"] == 0  # of the first document, the other has no evidence
    assert figures["comprehensiveness"] == pytest.approx(0.4)
    text = page("<b>", [record], [example._replace(words=["<script>", *example.words[1:]], query=["&"])])
    assert "<script" not in text and "&lt;script&gt;" in text and "&lt;b&gt;" in text and "query: &amp;" in text
    assert text.count("<u>") == 3 and "class=wrong" in text and 'rgba(255,150,0,1.00)"><u>&lt;script' in text


@pytest.fixture
def checkpoint(data, tmp_path) -> Path:
    run("train", data, *SMALL, "--save-dir", tmp_path)
    return tmp_path / "checkpoint_last.pt"


SMALL = shlex.split(
    "--task rationales --arch diverse_rationales_tiny --criterion classification --optimizer adam --lr 0.01 --cpu "
    "--max-positions 30 --batch-size 4 --max-update 2 --num-workers 0 --no-progress-bar"
)


def test_the_command(data, checkpoint, tmp_path, capsys, error_of, monkeypatch):
    out = tmp_path / "rationales.jsonl"
    asked = ["rationales", "--checkpoint", str(checkpoint), "--data", str(data), "--samples", "20"]
    asked += ["--out", str(out), "--save", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    assert main(asked) == 0
    said, whole = capsys.readouterr(), out.read_bytes()
    shown = said.out
    assert "rationales: 100%" in said.err and "6/6" in said.err  # also where it is not a terminal
    records = [json.loads(line) for line in whole.splitlines()]
    assert [record["annotation_id"] for record in records] == [f"test{n}" for n in range(6)]
    saved = json.loads((tmp_path / "r.json").read_text())
    assert shown.startswith("6 documents, rationales of 38% of the words\n") and saved["documents"] == 6
    assert f"AUPRC {saved['auprc']:.4f}\n" in shown
    assert (tmp_path / "r.html").read_text().count("<article>") == 6
    explained: list[str] = []

    def stop(example, *given):
        if len(explained) == 2:
            raise KeyboardInterrupt
        explained.append(example.name)
        return explain(example, *given)

    monkeypatch.setattr("fairseq_diverse.analysis.rationales.explain", stop)
    out.unlink()
    assert main(asked) == 130
    (part,) = tmp_path.glob(".rationales.jsonl.*.part/records")
    with locked(part.parent):
        assert main(asked) == 2 and f"is working on {part.parent}\n" in capsys.readouterr().err
    begun = part.read_bytes()
    part.write_bytes(b"\0\n" + begun)
    assert main(asked) == 2 and f"{part}: damaged; delete it, and give the command again\n" in capsys.readouterr().err
    part.write_bytes(begun + b'{"annotation')  # of a process that was killed
    monkeypatch.setattr(
        "fairseq_diverse.analysis.rationales.explain", lambda *given: explained.append("") or explain(*given)
    )
    assert main([*asked, "--examples", "1"]) == 0 and out.read_bytes() == whole[: whole.index(b"\n") + 1]
    assert main(asked) == 0 and len(explained) == 2 + 1 + 4 and out.read_bytes() == whole and not part.parent.exists()
    shared = tmp_path / "shared"
    assert main(["export", "--to", "safetensors", "--out", str(shared), str(checkpoint)]) == 0
    assert main([*asked, "--checkpoint", str(shared), "--out", str(tmp_path / "again.jsonl")]) == 0
    assert (tmp_path / "again.jsonl").read_bytes() == whole
    refused("its task, rationales, reads the texts of its data: prepare them", fairseq_diverse.load, shared)
    capsys.readouterr()
    assert main([*asked, "--samples", "1"]) == 2 and "--samples 1: must be at least 2" in capsys.readouterr().err
    assert "prepare it with `fairseq-diverse prepare eraser-NAME`" in error_of(*asked, "--data", data.parent)
    monkeypatch.setattr("fairseq_diverse.models.loading.load_models", None)  # refused before anything is loaded
    for flag in ("--out", "--save", "--html"):
        assert error_of(*asked, flag, tmp_path).endswith(f"{flag} {tmp_path}: a folder; name a file\n")


def test_the_real_files_are_read():
    found = read_eraser(shared_data("cose_v1"))
    assert {split: len(part) for split, part in found.items()} == {"train": 6290, "valid": 700, "test": 744}
    shares = {split: measures.mean_share([one.evidence for one in part]) for split, part in found.items()}
    assert shares == pytest.approx({"train": 0.30, "valid": 0.29, "test": 0.36}, abs=0.005)


TABLE = """
title: Films
data: {data}
size: {folder}/size.yaml
rows:
  plain: {{published: {{perf: 0.97, sufficiency: -0.089}}}}
  evolving: {{arch: wang2021_evolving_rationales_tiny}}
"""
SIZE = """
train:
  {task: rationales, arch: diverse_rationales_tiny, criterion: classification, optimizer: adam, lr: 0.01,
   max-positions: 30, batch-size: 4, max-update: 3, validate-interval-updates: 1, maximize-best-checkpoint-metric: true}
average: {best: 1, every: 1, by: accuracy}
generate: {samples: 9, examples: 4}
"""


def test_points_of_grids_are_chosen_by_the_validation_loss():
    assert KINDS["rationales"].loss({"valid_nll": {"last": 0.5}, "data": "eraser-movies", "macro_f1": 0.9}) == 0.5


@pytest.mark.integration
def test_a_table_of_rationales(data, tmp_path, output_of, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "size.yaml").write_text(SIZE)
    (tmp_path / "table.yaml").write_text(TABLE.format(data=data, folder=tmp_path))
    assert cli("run", tmp_path / "table.yaml").returncode == 0
    lines = json.loads(output_of("report", tmp_path / "table.yaml", "--format", "json"))["rows"]
    assert [line["row"] for line in lines] == ["plain", "evolving"]
    (made,) = (tmp_path / "runs").glob("*-plain-*/seed1/rationales.json")
    measures = json.loads(made.read_text())
    assert measures["documents"] == 4 and lines[0]["auprc"] == pytest.approx(measures["auprc"])
    assert lines[0]["perf"] == pytest.approx(measures["macro_f1"])
    shown = output_of("report", tmp_path / "table.yaml")
    assert "0.970" in shown and "-0.089" in shown and "data: rationales of 38% of the words, 4 documents" in shown


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("generate.beam=4", "row plain: generate: unknown key beam; known: samples, examples"),
        ("generate.samples=many", "row plain: generate: samples: many: a whole number above 1 expected"),
        ("average.by=bleu", r"average: \{.*\}; allowed, .*, by: loss or accuracy or nll_loss\}"),
        ("trained-layer=1", "no flag --trained-layer for this architecture, task and criterion; nearest: --trained-la"),
    ],
)
def test_what_a_table_cannot_have_is_named(setting, problem, data, tmp_path, error_of, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "size.yaml").write_text(SIZE)
    (tmp_path / "table.yaml").write_text(TABLE.format(data=data, folder=tmp_path))
    assert re.search(problem, error_of("run", tmp_path / "table.yaml", "--dry-run", "--set", setting))


def test_data_of_another_layout_or_dictionary_are_refused(data, tmp_path):
    row = load_table("nlu-small-rationales").rows["plain-data=eraser-cose_v1@nlu_small"]
    other = DataSet("nlu_small", tmp_path, "en", "", "h")
    (tmp_path / "dict.txt").write_text("other 1\n")
    refused(r"data set eraser-cose_v1@nlu_small: not in ERASER's layout", kind_of(row).check_data, row, other, None)
    with pytest.raises(ValueError, match=r"has another dictionary than nlu_small, .* prepare and name"):
        kind_of(row).check_data(row, DataSet("films", data, "en", "", "h"), other)
    assert kind_of(row).examples(str(data)) == 6 and kind_of(row).examples("eraser-movies@x") == 1600
    table = load_table("wang2021-table8").rows
    assert len(table) == 10 and table["fever-bert"].train["max-update"] == str(20 * 6123)
    assert performance({"data": "eraser-cose@x", "accuracy": 1, "macro_f1": 0}) == 1
    assert performance({"data": "eraser-movies", "accuracy": 1, "macro_f1": 0}) == 0


def test_the_embedded_corpus_names_the_word_that_decides(tmp_path, error_of):
    flags = ["--sentences", "1", "--valid", "1", "--test", "1"]
    assert main(["toy", "--out", str(tmp_path), *flags, "--rationales", "30"]) == 0
    write_probing(tmp_path / "probing", 30)
    for task in DECIDING:
        found, probes = read_eraser(tmp_path / "rationales" / task), read_probing(tmp_path / "probing", task)
        for split, examples in found.items():
            assert [(one.label, one.words) for one in examples] == [*map(tuple, probes[split])]
        assert all(sum(one.evidence) == 1 for examples in found.values() for one in examples)
    marked = {
        one.label: word.lower()
        for one in read_eraser(tmp_path / "rationales/word_content")["train"]
        for word, mark in zip(one.words, one.evidence, strict=True)
        if mark
    }
    assert all(label == word for label, word in marked.items())
    assert "--rationales 3: at least 10, or 0 for none" in error_of("toy", "--out", tmp_path, "--rationales", "3")
