"""Models in plain fairseq and CTranslate2 translate as before; what cannot go is said."""

import json
import math
import re
import shutil
import sys

import pytest
import torch

from fairseq_diverse.checkpoints.dictionaries import kept_digests
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.cli import main
from fairseq_diverse.exporting import ctranslate2 as exporting
from fairseq_diverse.models.loading import load_model
from tests.integration.commands import TINY, run

DISAGREEMENT = "--criterion label_smoothed_cross_entropy_with_disagreement --disagreement output"
TRAINED = ("--dropout", 0, "--no-epoch-checkpoints", "--no-save-optimizer-state", "--disable-validation")


def train(data, folder, flags, updates=1, arch="diverse_transformer"):
    words = TINY.replace("diverse_transformer", arch).split()
    run("train", data, *words, *flags.split(), *TRAINED, "--max-update", updates, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    """Trained until most translations end, with the task for trees and a criterion of this package."""
    flags = f"{DISAGREEMENT} --task translation_with_syntax --lr 0.002"
    return train(data, tmp_path_factory.mktemp("model"), flags, 150)


def generate(data, path, beam, *flags, **options):
    log = run("generate", data, "--path", path, "--cpu", "--beam", beam, "--num-workers", 0, *flags, **options).stdout
    return re.findall(r"^[HP]-.*$", log, re.MULTILINE)


def test_plain_fairseq_generates_the_same_without_user_dir(data, checkpoint, tmp_path, capsys):
    out = tmp_path / "plain.pt"
    assert main(["export", "--to", "fairseq", str(checkpoint), "--out", str(out)]) == 0
    assert "without --user-dir" in capsys.readouterr().out
    ours = generate(data, checkpoint, 5)
    assert len(ours) == 16 and generate(data, out, 5, user_dir=False) == ours
    state = torch.load(out, weights_only=True)  # as plain fairseq loads it: without our allow-list
    settings = json.dumps({name: state["cfg"][name] for name in ("model", "task", "criterion", "common")})
    assert not re.search("disagreement|routing|syntax|diverse_transformer|compile_layers", settings)
    assert state["cfg"]["criterion"]["_name"] == "label_smoothed_cross_entropy"
    assert state["cfg"]["task"]["_name"] == "translation"


def test_an_exported_file_is_exported_again_as_it_is(checkpoint, tmp_path):
    for source, out in ((checkpoint, "once.pt"), (tmp_path / "once.pt", "twice.pt")):
        assert main(["export", "--to", "fairseq", str(source), "--out", str(tmp_path / out)]) == 0
    once, twice = (load_checkpoint(tmp_path / name) for name in ("once.pt", "twice.pt"))
    assert once["cfg"] == twice["cfg"]
    assert all(torch.equal(value, twice["model"][name]) for name, value in once["model"].items())
    whole = load_checkpoint(checkpoint)
    assert kept_digests(twice) == kept_digests(whole) != {}  # data with other dictionaries are still refused
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (once, twice, whole)]
    assert len(set(updates)) == 1 and updates[0] > 0


def test_ctranslate2_translates_the_same(data, checkpoint, tmp_path):
    import ctranslate2

    for out, flags in (("float32", ()), ("int8", ("--quantization", "int8"))):
        words = ["export", "--to", "ctranslate2", "--data", str(data), "--out", str(tmp_path / out), *flags]
        assert main([*words, str(checkpoint)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["float32", "int8"]
    sizes = [(tmp_path / out / "model.bin").stat().st_size for out in ("float32", "int8")]
    assert sizes[1] < 0.6 * sizes[0]
    translator = ctranslate2.Translator(str(tmp_path / "float32"), compute_type="float32", intra_threads=1)
    sources = [line.split() for line in (data.parent / "test.en").read_text().splitlines()]
    for beam in (1, 5):
        options = {"beam_size": beam, "max_decoding_length": 200, "min_decoding_length": 0, "return_scores": True}
        found = [
            (one.scores[0] / math.log(2), " ".join(one.hypotheses[0]))
            for one in translator.translate_batch(sources, **options)
        ]
        lines = [line.split("\t") for line in generate(data, checkpoint, beam) if line.startswith("H-")]
        expected = [(float(score), text) for _, score, text in sorted(lines, key=lambda line: int(line[0][2:]))]
        assert [text for _, text in found] == [text for _, text in expected]
        ended = [n for n, (_, text) in enumerate(found) if len(text.split()) < 199]  # else fairseq adds </s>
        assert len(ended) > 4
        assert [found[n][0] for n in ended] == pytest.approx([expected[n][0] for n in ended], abs=2e-4)


def test_ctranslate2_of_few_learned_positions(data, tmp_path):
    flags = "--encoder-learned-pos --decoder-learned-pos --max-source-positions 14 --max-target-positions 14"
    path = train(data, tmp_path / "model", f"{flags} --skip-invalid-size-inputs-valid-test")
    words = ["export", "--to", "ctranslate2", "--data", str(data), "--out", str(tmp_path / "out")]
    assert main([*words, str(path)]) == 0 and (tmp_path / "out/model.bin").exists()


def test_what_ctranslate2_does_not_know_is_refused(data, tmp_path, capsys):
    for flags, message in (
        ("--cross-self-attention", "cannot go to CTranslate2: a log probability would differ by "),
        ("--encoder-attention-heads 4", "--encoder-attention-heads and --decoder-attention-heads must have the same"),
        ("--no-cross-attention", "cannot go to CTranslate2: "),
    ):
        path = train(data, tmp_path / flags.split()[0], flags, arch="transformer")
        code = main(["export", "--to", "ctranslate2", "--data", str(data), "--out", str(tmp_path / "out"), str(path)])
        shown = capsys.readouterr().err
        assert code == 2 and message in shown and shown.count("\n") == 1, shown
    assert not (tmp_path / "out").exists() and not [*tmp_path.glob(".*")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--routing em --evolving-on encoder:1", "--evolving-on encoder:1, --routing em cannot go: only fairseq-div"),
        ("--qk-head-dim 7", "--qk-head-dim 7 cannot go: "),
    ],
)
def test_mechanisms_are_refused(data, tmp_path, capsys, flags, message):
    path = train(data, tmp_path, flags)
    assert main(["export", "--to", "fairseq", "--out", str(tmp_path / "out.pt"), str(path)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1, shown
    state = load_checkpoint(path)
    for name in ("routing", "evolving_on", "qk_head_dim"):  # as if its mechanism were not registered
        delattr(state["cfg"]["model"], name)
    torch.save(state, path)
    assert main(["export", "--to", "fairseq", "--out", str(tmp_path / "out.pt"), str(path)]) == 2
    assert re.search(r"its parameter encoder\.layers\.0\.self_attn\.\S+ cannot go: ", capsys.readouterr().err)
    assert not (tmp_path / "out.pt").exists()


def test_other_models_and_tasks_are_refused(data, checkpoint, tmp_path, capsys):
    for name, value, message in (
        ("_name", "roberta_base", "a roberta_base model; only a diverse_transformer or transformer can go"),
        ("task", "online_backtranslation", "--task online_backtranslation cannot go; the task translation can"),
    ):
        state = load_checkpoint(checkpoint)
        setattr(state["cfg"]["model"], name, value)
        torch.save(state, tmp_path / "other.pt")
        words = ["--to", "ctranslate2", "--data", str(data), "--out", str(tmp_path / "out")]
        assert main(["export", *words, str(tmp_path / "other.pt")]) == 2 and message in capsys.readouterr().err


def test_impossible_flags_are_one_line(data, checkpoint, tmp_path, capsys, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for words, message in (
        (["--to", "fairseq", "--out", tmp_path], f"--out {tmp_path}: a folder; name a file"),
        (
            ["--to", "fairseq", "--out", "x", "--quantization", "int8"],
            "--quantization int8: goes with --to ctranslate2",
        ),
        (["--to", "ctranslate2", "--out", "x"], "--to ctranslate2 needs --data"),
        (["--to", "ctranslate2", "--data", data, "--out", tmp_path / "full"], "full: exists; name a new folder"),
        (["--to", "huggingface", "--out", "x"], "--to huggingface: no class of transformers fits"),
    ):
        assert main(["export", *map(str, words), str(checkpoint)]) == 2
        shown = capsys.readouterr().err
        assert message in shown and shown.count("\n") == 1, shown
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    words = ["--to", "ctranslate2", "--data", str(data), "--out", str(tmp_path / "out"), str(checkpoint)]
    assert main(["export", *words]) == 2 and "needs ctranslate2; install it: pip" in capsys.readouterr().err


def test_wrong_numbers_are_noticed(data, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    with pytest.raises(ValueError, match="a log probability would differ by"):
        exporting.to_ctranslate2(checkpoint, data, tmp_path / "out")


def test_exported_files_need_no_other_file(data, checkpoint, tmp_path):
    """Embeddings that initialized the model may be gone; checkpoints of old have arguments, not a configuration."""
    state = load_checkpoint(checkpoint)
    settings = state.pop("cfg")["model"]
    settings.encoder_embed_path = settings.decoder_embed_path = str(tmp_path / "gone.txt")
    torch.save({**state, "args": settings}, tmp_path / "old.pt")
    out = tmp_path / "plain.pt"
    assert main(["export", "--to", "fairseq", str(tmp_path / "old.pt"), "--out", str(out)]) == 0
    assert generate(data, out, 2, user_dir=False) == generate(data, checkpoint, 2)
    model, _ = load_model(out, data)  # with the task of the file, as from_pretrained does
    assert all(torch.equal(value, state["model"][name]) for name, value in model.state_dict().items())
    words = ["export", "--to", "ctranslate2", "--data", str(data), "--out", str(tmp_path / "out")]
    assert main([*words, str(tmp_path / "old.pt")]) == 0


def test_a_word_that_ctranslate2_takes_for_padding_is_refused(data, checkpoint, tmp_path, capsys):
    other, path = tmp_path / "data", tmp_path / "model.pt"
    shutil.copytree(data, other)
    for words in other.glob("dict.*.txt"):
        lines = words.read_text().splitlines(keepends=True)
        words.write_text("".join(["<blank> 1\n", *lines[1:]]))
    state = load_checkpoint(checkpoint)
    torch.save({**state, "task_state": {}}, path)
    asked = ["export", "--to", "ctranslate2", "--data", str(other), "--out", str(tmp_path / "out"), str(path)]
    assert main(asked) == 2 and "<blank> is a word of its dictionary, which CTranslate2" in capsys.readouterr().err
