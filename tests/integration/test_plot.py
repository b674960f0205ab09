"""`fairseq-diverse plot attention` on trained checkpoints and a prepared data set."""

import shlex
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_diverse.analysis import attention_maps
from fairseq_diverse.analysis.attention_maps import draw_panels, encode_pair
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.cli import main
from fairseq_diverse.models.loading import load_model
from fairseq_diverse.preparation import DataConfig, Preprocessing, prepare
from fairseq_diverse.support.files import read_lines
from tests.integration.commands import TINY, preprocess_in_a_fork
from tests.integration.training import train

PAIR = ("A dog walks through the old town.", "Ein Hund geht durch die Altstadt.")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    for split in ("train", "valid", "test"):
        for language, line in zip(("en", "de"), PAIR, strict=True):
            (folder / f"{split}.{language}").write_text(f"{line}\n" * 20)
    config = DataConfig.from_mapping("pair", {"source": "en", "target": "de", "bpe": {"size": 30}})
    with preprocess_in_a_fork():
        prepare(config, folder, folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("routed")
    train(data, folder, "--routing em --routing-on cross:1 --interacting sum --interacting-on decoder:1")
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    train(data, folder, base=TINY.replace("diverse_transformer", "transformer"))
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize(
    ("flags", "suffix", "magic"),
    [
        ("--component encoder --layer 2", "png", b"\x89PNG"),
        ("--component cross --layer 1 --heads 2 --subwords", "png", b"\x89PNG"),
        ("--component decoder --layers all --heads 2,1", "png", b"\x89PNG"),
        (f"--component decoder --layer 1 --target '{PAIR[1]}'", "pdf", b"%PDF"),
    ],
)
def test_draws_the_maps_of_a_checkpoint(data, checkpoint, tmp_path, output_of, monkeypatch, flags, suffix, magic):
    rows = []
    monkeypatch.setattr(attention_maps, "draw_panels", lambda *x: (rows.extend(x[0]), draw_panels(*x))[1])
    out = tmp_path / "new" / f"maps.{suffix}"
    asked = ["plot", "attention", "--path", checkpoint, "--data", data, "--source", PAIR[0], "--out", out]
    printed = output_of(*asked, *shlex.split(flags)).splitlines()
    assert out.read_bytes().startswith(magic) and out.stat().st_size > 5000 and printed[-1].startswith(f"{out}: ")
    assert printed[-3].replace("@@ ", "") == "A dog walks through the old town . </s>"
    if "--target" in flags:
        assert printed[-2].replace("@@ ", "") == "Ein Hund geht durch die Altstadt . </s>"
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    model, task = load_model(checkpoint, data)
    pair = encode_pair(model, task, Preprocessing.load(data), PAIR[0], PAIR[1] if "--target" in flags else None)
    queries, keys = pair.labels(component := flags.split()[1], "--subwords" in flags)
    on = component if "--layers" in flags else f"{component}:{flags.split()[3]}"
    found = attention_maps.attention_maps(model, pair.sample, on, "--layer").items()
    expected = {
        (f"layer {layer}, " if "--layers" in flags else "")
        + ("queries of " if (component, layer) == ("decoder", 1) else "")
        + f"head {head + 1}": own
        for (_, layer), maps in found
        for head, own in enumerate(attention_maps.by_words(maps[:, 0], queries, keys))
        if "--heads" not in flags or str(head + 1) in flags.partition("--heads ")[2]
    }
    drawn = {panel.title: panel.map for row in rows for panel in row}
    assert set(drawn) == set(expected) and all(torch.equal(drawn[title], expected[title]) for title in drawn)


def test_a_checkpoint_of_plain_fairseq_is_the_same_model(data, plain, tmp_path):
    out = tmp_path / "maps.png"
    flags = ["--source", PAIR[0], "--component", "cross", "--layer", "2", "--out", str(out)]
    assert main(["plot", "attention", "--path", str(plain), "--data", str(data), *flags]) == 0
    assert out.stat().st_size > 5000

    model, task = load_model(plain, data)
    (theirs,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(plain)], {"data": str(data)})
    pair = encode_pair(model, task, Preprocessing.load(data), *PAIR)
    queries, keys = pair.labels("cross")
    assert " ".join(keys.texts) == "A dog walks through the old town . </s>" and sum(keys.sizes) == len(pair.source)
    assert " ".join(queries.texts) == "Ein Hund geht durch die Altstadt . </s>" and max(queries.sizes) > 1
    with torch.no_grad():
        assert torch.equal(model(**pair.sample)[0], theirs.eval()(**pair.sample)[0])
    assert pair.sample["prev_output_tokens"][0, 0] == task.target_dictionary.eos()


def test_a_translation_that_does_not_end_is_said(data, checkpoint, tmp_path, capsys, caplog, monkeypatch):
    flags = ["--source", PAIR[0], "--layer", "1", "--out", str(tmp_path / "maps.png")]
    model, task = load_model(checkpoint, data)
    with torch.no_grad():
        model.decoder.output_projection.weight[task.target_dictionary.eos()] = 0  # and so never the best
        model.decoder.output_projection.weight[task.target_dictionary.unk() + 1 :] += 1
    monkeypatch.setattr("fairseq_diverse.models.loading.load_model", lambda *_: (model, task))
    assert main(["plot", "attention", "--path", str(checkpoint), "--data", str(data), *flags]) == 0
    source, target = (line.split() for line in capsys.readouterr().out.splitlines()[:2])
    assert len(target) == 2 * len(source) + 10 + 1
    assert f"warning: the translation was ended after {len(target) - 1} subwords" in caplog.text


def test_several_checkpoints_stand_side_by_side(data, checkpoint, plain, tmp_path, error_of, output_of):
    asked = ["plot", "attention", "--path", f"routed={checkpoint}", f"plain={plain}", "--data", data]
    asked += ["--out", tmp_path / "maps.png"]
    of_source = [*asked, "--source", PAIR[0]]
    printed = output_of(*of_source, "--layer", 1).splitlines()
    assert [line.split(":")[0] for line in printed[1:3]] == ["routed", "plain"]
    assert (tmp_path / "maps.png").stat().st_size > 5000
    alone = [word for word in of_source if word != f"routed={checkpoint}"]
    assert output_of(*alone, "--layer", 1).splitlines()[1].startswith("plain: ")
    of_sentence = [*asked, "--sentence", 5, "--layer", 1, "--component", "cross"]
    reference = read_lines(data / "text/test.de")[4].replace(" ", "")
    for line in output_of(*of_sentence, "--subwords").splitlines()[1:3]:
        assert line.partition(": ")[2].replace("@@ ", "").removesuffix(" </s>").replace(" ", "") == reference
    for language in ("en", "de"):
        (data / f"text/other.{language}").write_text("\n" * 4 + "A dog .\n")
    for line in output_of(*of_sentence, "--split", "other").splitlines()[:3]:
        assert line.rpartition(": ")[2].replace("@@ ", "") == "A dog . </s>"
    for flags, message in (
        (["--layers", "all"], "--layers all: of one checkpoint"),
        (["--layer", "1", "--component", "cross"], "--target: needed with --source"),
    ):
        assert message in error_of(*of_source, *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layer", "3"], "--layer 'encoder:3': layer 3 of encoder is out of range; it has 2 layers"),
        (["--layers", "1,3"], "--layers 'encoder:1+3': layer 3 of encoder is out of range; it has 2 layers"),
        (["--layers", "1,cross:2"], "--layers '1,cross:2': all, or numbers of layers such as 1-3 or 1,4 expected"),
        (["--layer", "0"], "--layer 'encoder:0': layers count from 1"),
        (["--source", " "], "--source: 0 subwords; the model takes 1 to "),
        (["--target", "Hund " * 2000], "--target: "),
        (["--out", "maps.gif"], "--out maps.gif: the name must end in .png, .pdf, .svg or .pgf"),
        (["--path", __file__], f"{__file__}: not a checkpoint"),
        (["--data", "absent"], "--data absent: no such file or folder"),
    ],
)
def test_user_errors_are_one_line(data, checkpoint, tmp_path, error_of, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    common = ["--path", str(checkpoint), "--data", str(data), "--source", PAIR[0], "--out", "maps.png"]
    layer = [] if "--layers" in flags else ["--layer", "1"]
    assert message in error_of("plot", "attention", *common, *layer, *flags)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["head-map"], ["attention", "--source", PAIR[0], "--layer", "1", "--path"]])
def test_names_and_files_are_checked_before_a_checkpoint_is_read(words, data, tmp_path, error_of):
    """Such as the first, which is none."""
    for other, message in (
        (f"one={__file__}", f"one={__file__}: the name one comes twice\n"),
        (f"absent={tmp_path}/absent.pt", f"{tmp_path}/absent.pt: no such checkpoint"),
    ):
        flags = (f"one={__file__}", other, "--data", data, "--out", tmp_path / "map.png")
        assert message in error_of("plot", *words, *flags)
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_the_data_or_is_no_translation_model(data, checkpoint, tmp_path, error_of):
    other, lstm, foreign = shutil.copytree(data, tmp_path / "other"), tmp_path / "lstm", tmp_path / "foreign.pt"
    for language in ("en", "de"):
        with open(other / f"dict.{language}.txt", "a") as f:
            f.write("one-more 1\n")
    train(data, lstm, base="--arch lstm --optimizer adam --max-tokens 200 --cpu --num-workers 0")
    state = load_checkpoint(checkpoint)
    state["cfg"]["model"].arch = state["cfg"]["model"]._name = "of_another_plugin"
    torch.save(state, foreign)
    for path, folder, message in (
        (checkpoint, other, f"does not fit {other}; was it trained on other data?"),
        (lstm / "checkpoint_last.pt", data, "a lstm model; give a diverse_transformer or transformer"),
        (foreign, data, "its task or model is in nei"),
    ):
        flags = ["--path", path, "--data", folder, "--source", PAIR[0], "--layer", "1", "--out", tmp_path / "maps.png"]
        assert f"{path}: {message}" in error_of("plot", "attention", *flags)
    assert not (tmp_path / "maps.png").exists()
