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
from tests.integration.commands import ON_TWO_GPUS, TINY, USER_DIR, cli, make_data, run, train_in_two_processes

DISAGREEMENT = "--criterion label_smoothed_cross_entropy_with_disagreement --disagreement subspace,position,output"
SYSTEMS = {
    "off": "",
    "disagreement": DISAGREEMENT,
    "aggregation": "--routing em --routing-on encoder:1-2,decoder:1,cross:2",
    "both": f"{DISAGREEMENT} --routing em",
    "heads": "--qk-head-dim 7 --talking both --talking-on encoder,decoder --interacting concat --interacting-on cross",
}


def figures(log: str, name: str) -> list[str]:
    """The values of one entry in a JSON log of updates."""
    lines = [json.loads(line[line.index("{") :]) for line in log.splitlines() if "| train_inner |" in line]
    return [line[name] for line in lines]


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
    """By system: the log of two updates and the checkpoint."""
    found = {}
    for system, flags in SYSTEMS.items():
        folder = tmp_path_factory.mktemp(system)
        log = run("train", data, *TINY.split(), *flags.split(), "--max-update", 2, "--save-dir", folder)
        found[system] = log, folder / "checkpoint_last.pt"
    return found


@pytest.mark.parametrize("flags", ["--checkpoint-activations", "--no-cross-attention"])
def test_heads_of_models_with_other_gradients(data, tmp_path, flags, capsys):
    """Without cross-attention nothing depends on the encoder; sentences beyond the positions are left out."""
    longest = "--max-source-positions 7 --max-target-positions 7 --skip-invalid-size-inputs-valid-test "
    longest += "--required-batch-size-multiple 1"
    run("train", data, *TINY.split(), *flags.split(), *longest.split(), "--max-update", 1, "--save-dir", tmp_path)
    asked = ["heads", "--checkpoint", str(tmp_path / "checkpoint_last.pt"), "--data", str(data), "--json"]
    assert main(asked) == 0
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
    log, checkpoint = trained[system]
    assert len(figures(log.stderr + log.stdout, "loss")) == 2
    if "disagreement" in SYSTEMS[system]:
        text = log.stderr + log.stdout
        parts = [float(figures(text, f"disagreement_{t}")[0]) for t in ("subspace", "position", "output")]
        total = float(figures(text, "disagreement")[0])
        assert total == pytest.approx(sum(parts), abs=2e-3) and -3 <= total < 0
    first = run("generate", data, "--path", checkpoint, *DECODING)
    hypotheses = re.findall(r"^H-\d+\t(\S+)\t(.*)$", first.stdout, re.MULTILINE)
    assert len(hypotheses) == 8
    again = generated[system]
    assert re.findall(r"^[HP]-.*$", again, re.MULTILINE) == re.findall(r"^[HP]-.*$", first.stdout, re.MULTILINE)


@pytest.mark.parametrize("system", ["off", "both"])
def test_killed_and_resumed_gives_the_same_losses(data, tmp_path, system):
    common = (data, *TINY.split(), *SYSTEMS[system].split(), "--save-interval-updates", 2)
    whole = run("train", *common, "--max-update", 5, "--save-dir", tmp_path / "whole")
    part = run("train", *common, "--max-update", 2, "--save-dir", tmp_path / "part")
    rest = run("train", *common, "--max-update", 5, "--save-dir", tmp_path / "part")
    losses = [figures(log.stdout + log.stderr, "loss") for log in (whole, part, rest)]
    assert losses[1] + losses[2] == losses[0] and len(losses[0]) == 5
    expected, got = load(tmp_path / "whole/checkpoint_last.pt"), load(tmp_path / "part/checkpoint_last.pt")
    for key, value in expected.items():
        assert torch.equal(value, got[key]), key


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=ON_TWO_GPUS)])
@pytest.mark.parametrize("system", ["off", "both"])
def test_two_processes_equal_one_with_doubled_accumulation(data, tmp_path, system, backend):
    """Gradients, loss and logged values; the batches of an update are the same."""
    # no dropout, since each process draws other numbers; no Adam, since it turns rounding errors into whole steps
    common = [data, *TINY.split(), *SYSTEMS[system].split(), "--dropout", 0, "--max-update", 3, "--batch-size", 4]
    common += ["--optimizer", "sgd", "--lr", 0.05]
    # EM routing over the two heads of TINY is so ill-conditioned that the number of threads changes the third gradient
    common += ["--encoder-attention-heads", 4, "--decoder-attention-heads", 4]
    alone = ["--update-freq", 2, "--save-dir", tmp_path / "one"]
    if backend == "nccl":
        common.remove("--cpu")
        alone += ["--distributed-world-size", 1]
    one = run("train", *common, *alone, new_process=backend == "nccl")
    logs = train_in_two_processes(*common, "--save-dir", tmp_path / "two", nccl=backend == "nccl")
    names = ["loss", "gnorm", *(["disagreement", "disagreement_position"] if system == "both" else [])]
    for name in names:
        expected = [float(x) for x in figures(one.stdout + one.stderr, name)]
        assert [float(x) for x in figures(logs[0], name)] == pytest.approx(expected, abs=2e-3), name
    expected, got = load(tmp_path / "one/checkpoint_last.pt"), load(tmp_path / "two/checkpoint_last.pt")
    for key, value in expected.items():
        torch.testing.assert_close(value, got[key], rtol=1e-3, atol=1e-4, msg=key)


def test_warm_start_from_plain_fairseq_logs_what_is_new(data, tmp_path):
    plain = [arg.replace("diverse_transformer", "transformer") for arg in TINY.split()]
    run("train", data, *plain, "--max-update", 1, "--save-dir", tmp_path / "plain", user_dir=False)
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
        log = run(
            "train", data, *TINY.split(), *SYSTEMS[system].split(), "--max-update", 1, "--save-dir", tmp_path / system,
            "--finetune-from-model", checkpoint,
        )  # fmt: skip
        text = log.stdout + log.stderr
        assert all(part in text for part in logged) and ("warm start" in text) == bool(logged)


@pytest.mark.parametrize(
    ("setting", "parameter"),
    [({"talking": "both"}, "encoder.layers.0.self_attn.talking.before"), ({"qk_head_dim": 7}, "k_proj.weight")],
)
def test_only_training_starts_from_parameters_that_a_checkpoint_lacks(data, trained, setting, parameter):
    checkpoint = trained["off"][1]
    asked = ("generate", data, "--path", checkpoint, *DECODING)
    done = run(*asked, "--model-overrides", repr(setting), check=False)
    assert f"error: {checkpoint}: was trained without " in done.stderr and parameter in done.stderr
    assert done.returncode == 1 and "Traceback" not in done.stderr
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
        assert done.returncode == 0 and found == [
            f"{count} heads in {component} attention are more than h_max = {int(width / length)} = "
            f"floor({width} / {length:.2f})"
            for component, count, width in (("encoder", heads, 32), ("cross", 8, 64))
            if component in warned
        ]


def test_an_all_off_checkpoint_loads_in_plain_fairseq(data, tmp_path):
    run("train", data, *TINY.split(), "--max-update", 1, "--save-dir", tmp_path / "off")
    checkpoint = tmp_path / "off/checkpoint_last.pt"
    overrides = "{'_name': 'transformer_tiny', 'arch': 'transformer_tiny'}"
    common = (data, "--path", checkpoint, *DECODING)
    ours = run("generate", *common)
    # plain fairseq cannot load any checkpoint with torch >= 2.6 unless it is told to trust the file
    theirs = run(
        "generate", *common, "--model-overrides", overrides, user_dir=False,
        env={**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    )  # fmt: skip
    hypotheses = [re.findall(r"^H-.*$", log.stdout, re.MULTILINE) for log in (ours, theirs)]
    assert hypotheses[0] == hypotheses[1] and len(hypotheses[0]) == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--routing em --routing-on encodr", "--routing-on 'encodr': unknown component 'encodr'"),
        ("--routing em --routing-on encoder:3", "--routing-on 'encoder:3': layer 3 of encoder is out of range"),
        ("--routing em --routing-iterations 0", "--routing-iterations 0: must be at least 1"),
        ("--routing em --routing-capsules 7", "--routing-capsules 7: must divide the width 64"),
        (f"{DISAGREEMENT} --disagreement-weight -1", "--disagreement-weight -1: must be a number >= 0"),
        (f"{DISAGREEMENT} --disagreement-on cross:9", "--disagreement-on 'cross:9': layer 9 of cross is out of range"),
    ],
)
def test_user_errors_are_one_line(data, tmp_path, flags, message):
    result = run("train", data, *TINY.split(), *flags.split(), "--save-dir", tmp_path, "--max-update", 1, check=False)
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_training_that_diverges_is_one_line(data, tmp_path):
    flags = ("--lr", "1e30", "--save-dir", tmp_path, "--max-update", 3)
    result = run("train", data, *TINY.split(), *flags, check=False)
    line = "error: training diverged after 1 updates (gradients are Nan/Inf); lower --lr, or give more --warmup-updates"
    assert result.returncode == 1 and f"\n{line}" in result.stderr and "Traceback" not in result.stderr
