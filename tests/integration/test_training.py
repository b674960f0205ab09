"""Train, resume, average two processes, reload: through fairseq's command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.cli import main
from tests.integration.commands import ON_TWO_GPUS, TINY, USER_DIR, cli, make_data, run
from tests.integration.training import DISAGREEMENT, equal_in_two_processes, figures, refused, train, train_resumed

SYSTEMS = {
    "off": "",
    "disagreement": DISAGREEMENT,
    "aggregation": "--routing em --routing-on encoder:1-2,decoder:1,cross:2",
    "both": f"{DISAGREEMENT} --routing em",
    "heads": "--qk-head-dim 7 --talking both --talking-on encoder,decoder --interacting concat --interacting-on cross",
}


def load(path: Path) -> dict:
    return load_checkpoint(path)["model"]


DECODING = ("--cpu", "--beam", "2", "--max-len-b", "12", "--num-workers", "0")
GENERATE = """
import contextlib, io, json, sys
from fairseq_cli import generate
outputs = []
for sys.argv[1:] in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        generate.cli_main()
    outputs.append(output.getvalue())
print(json.dumps(outputs))
"""


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """By system: the figures of two updates and the checkpoint."""
    found = {}
    for system, flags in SYSTEMS.items():
        folder = tmp_path_factory.mktemp(system)
        found[system] = figures(train(data, folder, flags)), folder / "checkpoint_last.pt"
    return found


@pytest.mark.parametrize("flags", ["--checkpoint-activations", "--no-cross-attention"])
def test_heads_of_models_with_other_gradients(data, tmp_path, flags, capsys):
    """Without cross-attention nothing depends on the encoder; sentences beyond the positions are left out."""
    longest = "--max-source-positions 7 --max-target-positions 7 --skip-invalid-size-inputs-valid-test"
    train(data, tmp_path, f"{flags} {longest} --required-batch-size-multiple 1", updates=1)
    assert main(["heads", "--checkpoint", str(tmp_path / "checkpoint_last.pt"), "--data", str(data), "--json"]) == 0
    shown = capsys.readouterr()
    importance = torch.tensor(json.loads(shown.out)["importance"])
    assert (importance > 0).all() if flags == "--checkpoint-activations" else (importance == 0).all()
    assert "sentences longer than the model's positions (7, 7) are left out" in shown.err


@pytest.fixture(scope="module")
def generated(data, trained):
    """By system: the output of one process that did not train (one for all systems, since imports take most time)."""
    lines = [[str(data), "--path", str(c), *DECODING, "--user-dir", str(USER_DIR)] for _, c in trained.values()]
    done = subprocess.run([sys.executable, "-c", GENERATE, json.dumps(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(trained, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("system", SYSTEMS)
def test_train_generate_reload_in_a_new_process(data, trained, generated, system):
    logged, checkpoint = trained[system]
    assert len(logged["loss"]) == 2
    if "disagreement" in SYSTEMS[system]:
        parts = [logged[f"disagreement_{term}"][0] for term in ("subspace", "position", "output")]
        total = logged["disagreement"][0]
        assert total == pytest.approx(sum(parts), abs=2e-3) and -3 <= total < 0
    first = run("generate", data, "--path", checkpoint, *DECODING)
    assert len(re.findall(r"^H-\d+\t(\S+)\t(.*)$", first.stdout, re.MULTILINE)) == 8
    again = generated[system]
    assert re.findall(r"^[HP]-.*$", again, re.MULTILINE) == re.findall(r"^[HP]-.*$", first.stdout, re.MULTILINE)


@pytest.mark.parametrize("system", ["off", "both"])
def test_killed_and_resumed_gives_the_same_losses(data, tmp_path, system):
    train_resumed(data, tmp_path, f"{SYSTEMS[system]} --save-interval-updates 2", 2, 5)
    whole, part = (load(tmp_path / f"{name}/checkpoint_last.pt") for name in ("whole", "part"))
    torch.testing.assert_close(part, whole, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=ON_TWO_GPUS)])
@pytest.mark.parametrize("system", ["off", "both"])
def test_two_processes_equal_one_with_doubled_accumulation(data, tmp_path, system, backend):
    """Gradients, loss and logged values; the batches of an update are the same."""
    # no dropout, since each process draws other numbers; no Adam, since it turns rounding errors into whole steps
    flags = f"{TINY} {SYSTEMS[system]} --dropout 0 --max-update 3 --batch-size 4 --optimizer sgd --lr 0.05"
    # EM routing over the two heads of TINY is so ill-conditioned that the number of threads changes the third gradient
    flags += " --encoder-attention-heads 4 --decoder-attention-heads 4"
    names = ["loss", "gnorm", *(["disagreement", "disagreement_position"] if system == "both" else [])]
    words = flags.replace("--cpu", "" if backend == "nccl" else "--cpu").split()
    equal_in_two_processes(tmp_path, names, data, *words, nccl=backend == "nccl")
    one, two = (load(tmp_path / f"{name}/checkpoint_last.pt") for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


def test_warm_start_from_plain_fairseq_logs_what_is_new(data, tmp_path):
    plain = [arg.replace("diverse_transformer", "transformer") for arg in TINY.split()]
    run("train", data, *plain, "--max-update", 1, "--save-dir", tmp_path / "plain", user_dir=None)
    checkpoint = tmp_path / "plain/checkpoint_last.pt"
    encoder, cross = "encoder.layers.0.self_attn", "decoder.layers.1.encoder_attn"
    expected = {
        "off": [],
        "aggregation": [f"new in this model: {encoder}.aggregate.", f"dropped: {encoder}.out_proj.weight, "],
        "heads": [
            f"new in this model: {encoder}.k_proj.weight, {encoder}.k_proj.bias, {encoder}.q_proj.weight, "
            f"{encoder}.q_proj.bias, {encoder}.talking.before, {encoder}.talking.after; dropped: nothing",
            f"{cross}.q_proj.bias, {cross}.out_proj.weight, {cross}.out_proj.bias; dropped: nothing",
        ],
    }
    for system, logged in expected.items():
        log = train(data, tmp_path / system, f"{SYSTEMS[system]} --finetune-from-model {checkpoint}", updates=1)
        assert all(part in log for part in logged) and ("warm start" in log) == bool(logged)


@pytest.mark.parametrize(
    ("setting", "parameter"),
    [({"talking": "both"}, "encoder.layers.0.self_attn.talking.before"), ({"qk_head_dim": 7}, "k_proj.weight")],
)
def test_only_training_starts_from_parameters_that_a_checkpoint_lacks(data, trained, setting, parameter):
    checkpoint = trained["off"][1]
    asked = ("generate", data, "--path", checkpoint, *DECODING)
    said = refused(*asked, "--model-overrides", repr(setting))
    assert f"error: {checkpoint}: was trained without " in said and parameter in said
    run(*asked, "--model-overrides", repr({"disagreement": "output", "evolving_carry": 0.1}))  # no parameters


def test_a_warning_for_more_interacting_heads_than_the_sentence_length_allows(tmp_path):
    """In the direction of the files and in the other one, whose source is longer."""
    data = make_data(tmp_path, end=" w1" * 5)
    flags = "--arch diverse_transformer_tiny --encoder-embed-dim 32 --decoder-embed-dim 64 --interacting sum"
    flags += " --interacting-on encoder:1,cross --decoder-attention-heads 8"
    for source, target, heads, warned in (("en", "de", 4, ()), ("de", "en", 16, ("encoder", "cross"))):
        languages = ["--source-lang", source, "--target-lang", target]
        done = cli("size", *flags.split(), "--encoder-attention-heads", heads, "--data", data, *languages)
        lines = (tmp_path / f"train.{source}").read_text().splitlines()
        length = sum(len(line.split()) for line in lines) / len(lines)
        found = re.findall(r"\d+ heads in .* = \d+ = floor.*\)(?=, width)", done.stderr)
        assert found == [
            f"{count} heads in {component} attention are more than h_max = {int(width / length)} = "
            f"floor({width} / {length:.2f})"
            for component, count, width in (("encoder", heads, 32), ("cross", 8, 64))
            if component in warned
        ]


def test_an_all_off_checkpoint_loads_in_plain_fairseq(data, trained, generated):
    overrides = "{'_name': 'transformer_tiny', 'arch': 'transformer_tiny'}"
    # plain fairseq cannot load any checkpoint with torch >= 2.6 unless it is told to trust the file
    theirs = run(
        "generate", data, "--path", trained["off"][1], *DECODING, "--model-overrides", overrides, user_dir=None,
        env={**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    )  # fmt: skip
    hypotheses = [re.findall(r"^H-.*$", log, re.MULTILINE) for log in (generated["off"], theirs.stdout)]
    assert hypotheses[0] == hypotheses[1] and len(hypotheses[0]) == 8


def test_training_that_diverges_is_one_line(data, tmp_path):
    line = "error: training diverged after 1 updates (gradients are Nan/Inf); lower --lr, or give more --warmup-updates"
    flags = ("--lr", "1e30", "--save-dir", tmp_path, "--max-update", 3)
    assert f"\n{line}" in refused("train", data, *TINY.split(), *flags)
