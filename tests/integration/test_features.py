"""fairseq's features of training with mechanisms: the rows of ``docs/features.md``."""

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.models.loading import load_models
from fairseq_diverse.support.errors import UserError
from tests.cases import ALL_ON, batch, build_model, terms
from tests.integration.commands import DEVICES, ON_A_GPU, TINY, USER_DIR, make_data, run
from tests.integration.test_decoding import ROUTING, SYSTEM, assert_decodes, assert_scores, generate, load
from tests.integration.training import DISAGREEMENT, equal_in_two_processes, figures, refused, train


@pytest.mark.parametrize(
    "flags",
    ["--encoder-normalize-before --decoder-normalize-before", "--no-cross-attention --routing-on encoder,decoder"],
    ids=["pre-norm", "no cross-attention"],
)
def test_layer_shapes(data, tmp_path, flags):
    assert len(figures(train(data, tmp_path, f"{ROUTING} {flags}"))["loss"]) == 2
    path = tmp_path / "checkpoint_last.pt"
    assert ("encoder.layer_norm.weight" in load_checkpoint(path)["model"]) == ("normalize" in flags)
    assert_decodes(data, path)


@pytest.mark.parametrize("device", DEVICES)
def test_activation_checkpointing(data, tmp_path, device):
    """With dropout: the second forward pass draws the same numbers as the first."""
    models = {}
    for name, flags in (
        ("plain", ""),
        ("checkpoint", "--checkpoint-activations"),
        ("offload", "--checkpoint-activations --offload-activations"),
    ):
        sgd = f"{SYSTEM} --optimizer sgd --lr 0.01 --update-freq 2 {flags}"
        train(data, tmp_path / name, sgd, updates=1, device=device)
        models[name] = load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"]
    for name in ("checkpoint", "offload"):
        torch.testing.assert_close(models[name], models["plain"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("placement", ["encoder,decoder,cross", "encoder:3,decoder:1,cross:1", "encoder:1"])
def test_layerdrop_then_pruning(data, tmp_path, placement):
    flags = f"{DISAGREEMENT} --routing em --routing-on {placement} --encoder-layers 3"
    flags += " --encoder-layerdrop 0.4 --decoder-layerdrop 0.4"
    logged = figures(train(data, tmp_path, flags, updates=4))["disagreement"]
    assert len(logged) == 4 and all(-3 <= value <= 0 for value in logged)
    path = tmp_path / "checkpoint_last.pt"
    # fairseq counts from 0 and drops all layers of a side that is not given
    kept = {"encoder_layers_to_keep": "1,2", "decoder_layers_to_keep": "0"}
    hypotheses, _ = generate(data, path, "--model-overrides", repr(kept))
    (whole,) = load(path)
    whole.encoder.layers = torch.nn.ModuleList([whole.encoder.layers[1], whole.encoder.layers[2]])
    whole.decoder.layers = torch.nn.ModuleList([whole.decoder.layers[0]])
    assert_scores(data, hypotheses, whole)


def test_adaptive_softmax(data, tmp_path):
    base = TINY.replace("--share-all-embeddings", "").replace("--label-smoothing 0.1", "")
    base = base.replace("label_smoothed_cross_entropy", "adaptive_loss --adaptive-softmax-cutoff 6,10")
    train(data, tmp_path, f"{ROUTING} --ddp-backend legacy_ddp", base=base)
    path = tmp_path / "checkpoint_last.pt"
    assert load(path)[0].decoder.adaptive_softmax is not None
    assert_decodes(data, path)


@pytest.mark.parametrize("norm", ["", "--encoder-normalize-before --decoder-normalize-before"])
def test_ema(data, tmp_path, norm):
    flags = f"{SYSTEM} {norm} --store-ema --ema-decay 0.75"
    train(data, tmp_path, f"{flags} --save-interval-updates 1")
    states = [load_checkpoint(tmp_path / f"checkpoint_1_{update}.pt") for update in (1, 2)]
    before, after = (state["extra_state"]["ema"] for state in states)
    names = Counter(value.data_ptr() for value in after.values())
    for name, value in states[1]["model"].items():
        if "version" not in name:
            expected = before[name]
            for _ in range(names[after[name].data_ptr()]):  # fairseq decays a shared tensor once for each of its names
                expected = 0.75 * expected + 0.25 * value
            torch.testing.assert_close(after[name], expected, msg=name)
    checkpoint_utils.save_ema_as_checkpoint(str(tmp_path / "checkpoint_last.pt"), str(tmp_path / "ema.pt"))
    last, _ = generate(data, tmp_path / "checkpoint_last.pt", "--score-reference")
    assert last != assert_decodes(data, tmp_path / "ema.pt", "--score-reference")
    assert (load(tmp_path / "ema.pt")[0].encoder.layer_norm is not None) == bool(norm)
    log = train(data, tmp_path, flags, updates=3)
    assert "Loading EMA from checkpoint" in log and "EMA not found" not in log


def test_an_average_starts_from_weights_and_copies_whole_numbers(data, tmp_path):
    """From a checkpoint without an average; differential attention has a number of its layer."""
    train(data, tmp_path / "plain")
    plain = tmp_path / "plain/checkpoint_last.pt"
    flags = f"--differential-on encoder --store-ema --ema-decay 0.75 --finetune-from-model {plain}"
    train(data, tmp_path / "more", flags, updates=1)
    before, after = load_checkpoint(plain)["model"], load_checkpoint(tmp_path / "more/checkpoint_last.pt")
    name = "encoder.layers.1.self_attn.differential.layer"
    assert after["model"][name] == after["extra_state"]["ema"][name] == 2
    name = "encoder.layers.0.fc1.weight"
    torch.testing.assert_close(after["extra_state"]["ema"][name], 0.75 * before[name] + 0.25 * after["model"][name])
    assert not torch.equal(before[name], after["model"][name])


def test_merged_dictionaries(tmp_path):
    """--merge-src-tgt-embed changes the task's dictionaries; its checkpoints are used with the data of its training."""
    make_data(tmp_path, end=" z")
    prefs = [f"--{split}pref={tmp_path / split}" for split in ("train", "valid", "test")]
    run("preprocess", "-s", "en", "-t", "de", *prefs, "--destdir", tmp_path / "two")
    merged = TINY.replace("--share-all-embeddings", "--merge-src-tgt-embed")
    train(tmp_path / "two", tmp_path / "run", base=merged)
    path = tmp_path / "run/checkpoint_last.pt"
    assert_decodes(tmp_path / "two", path)
    assert len(figures(train(tmp_path / "two", tmp_path / "run", "", 3, merged))["loss"]) == 1
    with pytest.raises(UserError, match=f"{path}: trained with --merge-src-tgt-embed"):
        load_models([path], tmp_path / "two")
    words = tmp_path / "two/dict.de.txt"
    words.write_text("".join(sorted(words.read_text().splitlines(keepends=True), reverse=True)))
    said = refused("generate", tmp_path / "two", "--path", path)
    assert "dictionary has other words, or in another order" in said.splitlines()[-1]


def test_train1_and_valid1_without_upsampling(data, tmp_path):
    """fairseq's default for --upsample-primary fails where train and train1, or valid and valid1, are combined."""
    folder = shutil.copytree(data, tmp_path / "data")
    for path in [*folder.glob("valid.*")]:
        for split in ("train1", "valid1"):
            shutil.copy(path, path.with_name(path.name.replace("valid", split)))
    assert len(figures(train(folder, tmp_path / "run", "--combine-val"))["loss"]) == 2


@pytest.mark.parametrize(
    ("before", "flags", "message"),
    [
        ("--gated head --gated-on encoder", "--gated head", "the checkpoint's optimizer has other parameters"),
        (
            "",
            "--gated head",
            "{folder}/checkpoint_last.pt: was trained with no mechanism, but this training has --gated:",
        ),
        ("", "--alibi-on encoder", "{folder}/checkpoint_last.pt: was trained with no mechanism, but this training has"),
        ("", DISAGREEMENT, "the checkpoint was trained with LabelSmoothedCrossEntropyCriterion, but this training has"),
    ],
)
def test_a_new_mechanism_in_the_folder_of_another_model_is_refused(data, tmp_path, before, flags, message):
    train(data, tmp_path, before)
    common = [data, *TINY.split(), "--save-dir", tmp_path, "--max-update", 3, *flags.split()]
    last = refused("train", *common).splitlines()[-1]
    assert last.startswith(f"error: {message.format(folder=tmp_path)}") and "--reset-optimizer" in last
    run("train", *common, "--reset-optimizer")


def test_an_incomplete_update_in_two_processes_equals_that_of_one(data, tmp_path):
    """Three batches an epoch, of which the second process has one."""
    flags = "--dropout 0 --optimizer sgd --lr 0.1 --max-tokens 400 --batch-size 20 --required-batch-size-multiple 1"
    words = [*TINY.split(), *flags.split(), "--max-update", 2, "--disable-validation"]
    equal_in_two_processes(tmp_path, ("loss", "gnorm", "bsz"), data, *words, parts=2)


def test_eval_bleu(data, tmp_path):
    flags = f'{SYSTEM} --eval-bleu --eval-bleu-args {{"beam":2,"max_len_b":6}}'
    flags += " --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --validate-interval-updates 1"
    scores = figures(train(data, tmp_path, flags))["valid_bleu"]
    assert len(scores) == 2 and all(0 <= score <= 100 for score in scores)
    log = train(data, tmp_path, flags, updates=3)
    assert "Loaded checkpoint" in log and "valid_best_bleu" in figures(log)


@pytest.mark.parametrize("placement", ["encoder,decoder,cross:1", "cross:2"])
def test_supervised_alignment(data, tmp_path, placement):
    """The words of this corpus are aligned in reverse order."""
    text = data.parent
    for split in ("train", "valid"):
        lengths = [len(line.split()) for line in (text / f"{split}.en").read_text().splitlines()]
        pairs = [" ".join(f"{word}-{length - 1 - word}" for word in range(length)) for length in lengths]
        (tmp_path / f"{split}.reverse").write_text("\n".join(pairs) + "\n")
        for language in ("en", "de"):
            shutil.copy(text / f"{split}.{language}", tmp_path)
    prefs = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid", "--align-suffix", "reverse"]
    dictionary = ["--srcdict", data / "dict.en.txt", "--joined-dictionary"]
    run("preprocess", "-s", "en", "-t", "de", *prefs, *dictionary, "--destdir", tmp_path / "bin")
    flags = "--criterion label_smoothed_cross_entropy_with_alignment --load-alignments --alignment-lambda 1"
    flags += f" --routing em --routing-on {placement} --dropout 0"
    losses = figures(train(tmp_path / "bin", tmp_path / "run", flags, updates=4))["alignment_loss"]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_quant_noise(data, tmp_path):
    logs = [train(data, tmp_path / noise, f"{SYSTEM} --bf16 --quant-noise-pq {noise}") for noise in ("0", "0.5")]
    without, noisy = (figures(log)["loss"][0] for log in logs)
    assert without != noisy
    assert_decodes(data, tmp_path / "0.5/checkpoint_last.pt")


def test_iterative_product_quantization(data, tmp_path):
    (tmp_path / "pq.yaml").write_text(
        "n_centroids: {Linear: {key: in_features, value: {'*': 8}}, Embedding: {key: embedding_dim, value: {'*': 8}}}\n"
        "block_sizes: {Linear: {key: fuzzy_name, value: {fc: 8, attn: 4, emb: 4}},\n"
        "              Embedding: {key: fuzzy_name, value: {emb: 8}}}\n"
        "layers_to_quantize: ['encoder\\.layers\\.\\d+\\.fc1', 'encoder.*aggregate\\.hidden']\n"
    )
    log = train(data, tmp_path / "run", f"{SYSTEM} --quantization-config-path {tmp_path / 'pq.yaml'}", updates=4)
    assert "quantized layers: ['encoder.layers.0.fc1', 'encoder.layers.1.fc1']" in log
    assert "quantized layers: ['encoder.layers.0.self_attn.aggregate.hidden']" in log
    assert len(figures(log)["loss"]) == 4


FLOAT32_LOGITS_BELOW = {  # a bias computed in float32 at the first layer alone
    **{"localness_on": "encoder:1", "syntax": "phrase", "syntax_on": "encoder:1"},
    **{"evolving_on": "encoder", "talking": "both"},
}


@pytest.mark.parametrize("how", ["autocast", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "flags",
    [{}, ALL_ON[1], FLOAT32_LOGITS_BELOW, {"arch": "wang2021_evolving_t5"}],
    ids=["off", "on", "float32 below", "T5"],
)
def test_half_types(flags, how):
    """What ``--fp16``, ``--bf16`` and ``--amp`` need from the model, with every mechanism and every term."""

    def step(model, autocast=False):
        request = AttentionRequest(terms(flags), "encoder,cross,decoder")
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, extra = model(**batch(), attention_request=request)
        loss = -model.get_normalized_probs((output, None), log_probs=True)[..., 5].mean() + extra["agreement"].sum()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        return loss.item(), extra["agreement"]

    model = build_model(flags)
    expected, _ = step(build_model(flags))
    loss, agreement = step(model if how == "autocast" else model.to(getattr(torch, how)), how == "autocast")
    assert loss == pytest.approx(expected, rel=0.03) and agreement.dtype == torch.float32


@pytest.mark.parametrize(
    ("device", "flags"),
    [
        ("cpu", "--bf16"),
        ("cpu", "--memory-efficient-bf16"),
        *(
            pytest.param("cuda", flags, marks=ON_A_GPU)
            for flags in ("--bf16", "--memory-efficient-bf16", "--fp16", "--memory-efficient-fp16", "--amp")
        ),
    ],
)
def test_training_in_half_types(data, tmp_path, device, flags):
    scale = "" if "bf16" in flags else "--fp16-init-scale 4"  # no overflow in the first update
    both = {"single": "", "half": f"{flags} {scale}"}
    logs = [train(data, tmp_path / name, f"{SYSTEM} --dropout 0 {more}", device=device) for name, more in both.items()]
    expected, got = (figures(log)["loss"] for log in logs)
    for update, error in ((0, 0.01), (1, 0.15)):  # Adam's first step has the signs of the gradients
        assert got[update] == pytest.approx(expected[update], rel=error)
    if "bf16" in flags:
        weight = load_checkpoint(tmp_path / "half/checkpoint_last.pt")["model"]["encoder.layers.0.fc1.weight"]
        assert torch.equal(weight, weight.bfloat16().float())
    assert len(generate(data, tmp_path / "half/checkpoint_last.pt", device=device)[0]) == 8


@pytest.mark.parametrize(
    "flags",
    [
        "--fp16 --fp16-init-scale 4 --ddp-backend fully_sharded",
        "--fp16 --fp16-init-scale 4 --ddp-backend fully_sharded --checkpoint-activations",
        "--quant-noise-scalar 0.5",
        "--fp16 --fp16-init-scale 4 --compile-layers",
    ],
    ids=["fully sharded", "fully sharded with checkpointing", "scalar quantization noise", "compiled layers"],
)
@pytest.mark.parametrize("device", DEVICES[1:])
def test_training_that_needs_a_gpu(data, tmp_path, device, flags):
    if "fully_sharded" in flags:
        pytest.importorskip("fairscale", reason="fairseq's FSDP needs fairscale")
    losses = figures(train(data, tmp_path, f"{SYSTEM} {flags}", device=device))["loss"]
    assert len(losses) == 2 and all(2 < loss < 12 for loss in losses)
    assert len(generate(data, tmp_path / "checkpoint_last.pt")[0]) == 8


def test_validate(data, tmp_path):
    expected = figures(train(data, tmp_path, SYSTEM))
    common = ("--path", tmp_path / "checkpoint_last.pt", "--cpu", "--num-workers", 0, "--max-tokens", 200)
    seen = figures(run("validate", data, *common, "--task", "translation", "--log-format", "json").stdout)
    for name in ("valid_loss", "valid_disagreement"):
        assert seen[name] == expected[name] and len(seen[name]) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--store-ema --bf16", "--store-ema: half types lose such small steps; add --ema-fp32"),
        ("--eval-bleu --best-checkpoint-metric bleu", "higher is better; add --maximize-best-checkpoint-metric"),
        ("--maximize-best-checkpoint-metric", "--maximize-best-checkpoint-metric: lower is better for loss"),
        ("--best-checkpoint-metric bleu --maximize-best-checkpoint-metric", "--best-checkpoint-metric bleu: add"),
        (
            "--best-checkpoint-metric accuracy --maximize-best-checkpoint-metric",
            "--best-checkpoint-metric accuracy: not computed in validation; give one of loss, nll_loss, ppl\n",
        ),
        ("--restore-file absent.pt", "--restore-file absent.pt: no such file"),
        ("--lr-scheduler inverse_sqrt --warmup-updates 0", "--warmup-updates 0: --lr-scheduler inverse_sqrt needs"),
        ("--lr-scheduler polynomial_decay", "--lr-scheduler polynomial_decay: needs --total-num-update"),
        ("--eval-bleu --eval-bleu-args {beam:5}", "--eval-bleu-args {beam:5}: no JSON (Expecting"),
        ("--cross-self-attention", "--cross-self-attention: not supported by diverse_transformer"),
        (f"{DISAGREEMENT} --disagreement-on cross:9", "--disagreement-on 'cross:9': layer 9 of cross is out of range"),
    ],
)
def test_refused_flags(data, tmp_path, flags, message):
    """Those with which fairseq would train wrong, and those that the model or its criterion refuses."""
    said = refused("train", data, *TINY.split(), *flags.split(), "--max-update", 1, "--save-dir", tmp_path / "run")
    assert message in said and not figures(said)


def test_a_metric_of_a_flag_chooses_the_best_checkpoint(data, tmp_path):
    flags = "--report-accuracy --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric"
    again = f"--restore-file {tmp_path}/checkpoint_last.pt"  # absent at first
    validated = figures(train(data, tmp_path, f"{flags} {again}"))["valid_accuracy"]
    assert validated == [load_checkpoint(tmp_path / "checkpoint_best.pt")["extra_state"]["best"]]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="hydra 1.3.2 itself stops on Python 3.14")
def test_hydra_train_is_refused(data, tmp_path):
    settings = {
        "common": {"user_dir": str(USER_DIR), "cpu": True},
        "task": {"_name": "translation", "data": str(data)},
        "model": {"_name": "diverse_transformer_tiny", "routing": "em"},
        "criterion": {"_name": "cross_entropy"},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 200, "num_workers": 0},
        "optimization": {"max_update": 1, "lr": [0.001]},
        "checkpoint": {"no_save": True},
    }
    (tmp_path / "diverse.yaml").write_text("# @package _group_\n" + json.dumps(settings))
    words = ["--config-dir", tmp_path, "--config-name", "diverse", f"hydra.run.dir={tmp_path}"]
    result = run("hydra_train", *words, user_dir=None, check=False)
    assert result.returncode and "error: fairseq-hydra-train" in result.stderr and "Traceback" not in result.stderr


def test_torchscript_is_refused():
    with pytest.raises(UserError, match="TorchScript"):
        torch.jit.script(build_model(ALL_ON[1]))


def test_the_table_names_tests_that_exist():
    root = Path(__file__).parents[2]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs/features.md").read_text()))
    existing = {n for f in (root / "tests").rglob("test_*.py") for n in re.findall(r"def (test_\w+)", f.read_text())}
    assert named and named <= existing
    mine = "".join((Path(__file__).with_name(f"test_{name}.py")).read_text() for name in ("features", "decoding"))
    assert {*re.findall(r"^def (test_\w+)", mine, re.MULTILINE)} - named == {"test_the_table_names_tests_that_exist"}
