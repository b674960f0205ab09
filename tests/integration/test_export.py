"""Models in plain fairseq, and from there in CTranslate2, translate as before; what cannot go is said."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_diverse.checkpoints.loading import dictionary_digests, load_checkpoint
from fairseq_diverse.cli import main
from fairseq_diverse.models.loading import load_model
from tests.integration.commands import run
from tests.integration.training import DISAGREEMENT, train

ROOT = Path(__file__).resolve().parents[2]
ALONE = "--no-epoch-checkpoints --no-save-optimizer-state --disable-validation"


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    """Trained until most translations end, with the task for trees and a criterion of this package."""
    folder = tmp_path_factory.mktemp("model")
    train(data, folder, f"{DISAGREEMENT} --task translation_with_syntax --lr 0.002 --dropout 0 {ALONE}", 150)
    return folder / "checkpoint_last.pt"


def generate(data, path, beam, *flags, **options):
    log = run("generate", data, "--path", path, "--cpu", "--beam", beam, "--num-workers", 0, *flags, **options).stdout
    return re.findall(r"^[HP]-.*$", log, re.MULTILINE)


def test_plain_fairseq_generates_the_same_without_user_dir(data, checkpoint, tmp_path, output_of):
    out = tmp_path / "plain.pt"
    assert "without --user-dir" in output_of("export", "--to", "fairseq", checkpoint, "--out", out)
    ours = generate(data, checkpoint, 5)
    assert len(ours) == 16 and generate(data, out, 5, user_dir=None) == ours
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
    torch.testing.assert_close(twice["model"], once["model"], rtol=0, atol=0)
    whole = load_checkpoint(checkpoint)
    assert dictionary_digests(twice) == dictionary_digests(whole) != {}  # others are still refused
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (once, twice, whole)]
    assert len(set(updates)) == 1 and updates[0] > 0


@pytest.mark.slow
def test_ctranslate2_translates_the_same(data, checkpoint, tmp_path):
    import ctranslate2

    (lines,) = re.findall(r"```bash\n(python .*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)
    assert main(["export", "--to", "fairseq", str(checkpoint), "--out", str(tmp_path / "plain.pt")]) == 0
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", lines.replace("DATA", str(data))], cwd=tmp_path, env=environment, check=True)
    translator = ctranslate2.Translator(str(tmp_path / "exported"), compute_type="float32", intra_threads=1)
    sources = [line.split() for line in (data.parent / "test.en").read_text().splitlines()]
    for beam in (1, 5):
        options = {"beam_size": beam, "max_decoding_length": 200, "min_decoding_length": 0, "return_scores": True}
        theirs = translator.translate_batch(sources, **options)
        found = [(one.scores[0] / math.log(2), " ".join(one.hypotheses[0])) for one in theirs]
        lines = [line.split("\t") for line in generate(data, checkpoint, beam) if line.startswith("H-")]
        expected = [(float(score), text) for _, score, text in sorted(lines, key=lambda line: int(line[0][2:]))]
        assert [text for _, text in found] == [text for _, text in expected]
        ended = [n for n, (_, text) in enumerate(found) if len(text.split()) < 199]  # else fairseq adds </s>
        assert len(ended) > 4
        assert [found[n][0] for n in ended] == pytest.approx([expected[n][0] for n in ended], abs=2e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--routing em --evolving-on encoder:1", "--evolving-on encoder:1, --routing em cannot go: only fairseq-div"),
        ("--qk-head-dim 7", "--qk-head-dim 7 cannot go: "),
    ],
)
def test_mechanisms_are_refused(data, tmp_path, error_of, flags, message):
    train(data, tmp_path, f"{flags} {ALONE}", 1)
    path = tmp_path / "checkpoint_last.pt"
    words = ["export", "--to", "fairseq", "--out", tmp_path / "out.pt", path]
    assert message in error_of(*words)
    state = load_checkpoint(path)
    for name in ("routing", "evolving_on", "qk_head_dim"):  # as if its mechanism were not registered
        delattr(state["cfg"]["model"], name)
    torch.save(state, path)
    assert re.search(r"its parameter encoder\.layers\.0\.self_attn\.\S+ cannot go: ", error_of(*words))
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("activation_fn", "nosuch"), ("encoder_layers", "2"), ("decoder_layers", None)),
        *(("encoder_attention_heads", 0), ("encoder_attention_heads", 3), ("max_target_positions", "x")),
        *(("more", (circle := [])), ("_name", "roberta_base")),
    ],
    ids=str,
)
def test_settings_that_fit_no_model_that_can_go_are_one_line(checkpoint, tmp_path, error_of, name, value):
    circle[:] = [circle]
    state = load_checkpoint(checkpoint)
    setattr(state["cfg"]["model"], name, value)
    torch.save(state, tmp_path / "x.pt")
    error = error_of("export", "--to", "fairseq", "--out", tmp_path / "out", tmp_path / "x.pt")
    other = "a roberta_base model; only a diverse_transformer or transformer can go"
    assert f"x.pt: {other if name == '_name' else 'cannot build a model from its settings ('}" in error


def test_impossible_flags_are_one_line(checkpoint, tmp_path, error_of):
    for words, message in (
        (["--to", "fairseq", "--out", tmp_path], f"--out {tmp_path}: a folder; name a file"),
        (["--to", "ctranslate2", "--out", "x"], "--to ctranslate2: convert the file of --to fairseq with ct2-"),
        (["--to", "huggingface", "--out", "x"], "--to huggingface: no class of transformers fits"),
    ):
        assert message in error_of("export", *words, checkpoint)


def test_exported_files_need_no_other_file(data, checkpoint, tmp_path):
    """Embeddings that initialized the model may be gone; checkpoints of old have arguments, not a configuration."""
    state = load_checkpoint(checkpoint)
    settings = state.pop("cfg")["model"]
    settings.encoder_embed_path = settings.decoder_embed_path = str(tmp_path / "gone.txt")
    torch.save({**state, "args": settings}, tmp_path / "old.pt")
    out = tmp_path / "plain.pt"
    assert main(["export", "--to", "fairseq", str(tmp_path / "old.pt"), "--out", str(out)]) == 0
    assert generate(data, out, 2) == generate(data, checkpoint, 2)
    model, _ = load_model(out, data)  # with the task of the file, as from_pretrained does
    assert all(torch.equal(value, state["model"][name]) for name, value in model.state_dict().items())
