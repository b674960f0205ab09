"""fairseq's features with mechanisms: the rows of ``docs/features.md``."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.models.loading import load_models
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.support.errors import UserError
from tests.cases import ALL_ON, batch, build_model, terms
from tests.integration.commands import DEVICES, ON_A_GPU, TINY, USER_DIR, make_data, run, train_in_two_processes

ROUTING = "--routing em --routing-on encoder:1,decoder:1,cross:2"
DISAGREEMENT = "--criterion label_smoothed_cross_entropy_with_disagreement --disagreement subspace,position,output"
DECODING = "--cpu --num-workers 0 --beam 2 --min-len 3 --max-len-b 6"
LANGUAGE_MODEL = (
    "--task language_modeling --arch transformer_lm --decoder-layers 1 --decoder-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --tokens-per-sample 20 --optimizer adam --lr 0.01 "
    "--max-tokens 400 --max-update 5 --cpu --num-workers 0 --disable-validation"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    binarized = make_data(folder)
    (folder / "raw").mkdir()
    for language in ("en", "de"):
        shutil.copy(binarized / f"dict.{language}.txt", folder / "raw")
        shutil.copy(folder / f"test.{language}", folder / "raw" / f"test.en-de.{language}")
    shutil.copy(binarized / "dict.de.txt", binarized / "dict.txt")  # --lm-path looks for it there
    return binarized


def train(data, folder, flags=f"{ROUTING} {DISAGREEMENT}", updates=2, base=TINY, device="cpu"):
    """The logged values of each update, and the whole log."""
    base = _on(device, base)
    common = (data, *base.split(), "--no-epoch-checkpoints", "--max-update", updates, "--save-dir", folder)
    result = run("train", *common, *flags.split())
    log = result.stdout + result.stderr
    return figures(log, "train_inner"), log


def _on(device, flags):
    """Flags for a device."""
    return flags if device == "cpu" else flags.replace("--cpu", "")


def figures(log, kind):
    """The entries of a JSON log for each update or validation."""
    lines = re.findall(rf"\| {kind} \| (\{{.*\}})$", log, re.MULTILINE)
    return [{name: float(value) for name, value in json.loads(line).items()} for line in lines]


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """Two models with routing, trained with disagreement: ``1.pt`` and ``2.pt``."""
    made = tmp_path_factory.mktemp("trained")
    for seed in (1, 2):
        train(data, made / "run", f"{ROUTING} {DISAGREEMENT} --lr 0.003 --seed {seed}", updates=12)
        (made / "run/checkpoint_last.pt").rename(made / f"{seed}.pt")
        shutil.rmtree(made / "run")
    return made


@pytest.fixture(scope="module")
def checkpoint(folder):
    return folder / "1.pt"


def printed(log: str, letter: str) -> dict[int, list[str]]:
    """fairseq's lines H, P, A, ... for each sentence, one entry per hypothesis."""
    lines: dict[int, list[str]] = {}
    for number, text in re.findall(rf"^{letter}-(\d+)\t(.*)$", log, re.MULTILINE):
        lines.setdefault(int(number), []).append(text)
    return lines


def generate(data, path, *flags, tool="generate", device="cpu"):
    """Hypotheses as (sentence, words, base-2 logarithms of the tokens' probabilities), and the whole output."""
    output = run(tool, data, "--path", path, *_on(device, DECODING).split(), *flags).stdout
    hypotheses = [
        (number, line.split("\t")[1], [float(p) for p in scores.split()])
        for number, lines in printed(output, "H").items()
        for line, scores in zip(lines, printed(output, "P")[number], strict=True)
    ]
    assert len({number for number, _, _ in hypotheses}) == 8
    return sorted(hypotheses), output


def load(*paths, **overrides):
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(p) for p in paths], arg_overrides=overrides)
    return [model.eval() for model in models]


def source(data, number) -> str:
    return (data.parent / "test.en").read_text().splitlines()[number]


@torch.no_grad()
def forced(models, data, number, hypothesis, request=None):
    """Each token's probability under teacher forcing, averaged over models, and the result of the last model."""
    probabilities = []
    for model in models:
        texts = (model.encoder.dictionary, source(data, number)), (model.decoder.dictionary, hypothesis)
        src, tgt = (words.encode_line(text, add_if_not_exist=False).long()[None] for words, text in texts)
        output = model(src, torch.tensor([src.size(1)]), tgt.roll(1, 1), attention_request=request)
        probabilities.append(model.get_normalized_probs(output, log_probs=False).gather(-1, tgt[..., None])[0, :, 0])
    return torch.stack(probabilities).mean(0), output[1]


def assert_scores(models, data, hypotheses, tolerance=2e-3):
    """The scores of step-by-step decoding equal those of one full pass."""
    for number, text, scores in hypotheses:
        assert scores == pytest.approx(forced(models, data, number, text)[0].log2().tolist(), abs=tolerance), text


# ---------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(
    "flags",
    ["--encoder-normalize-before --decoder-normalize-before", "--no-cross-attention --routing-on encoder,decoder"],
    ids=["pre-norm", "no cross-attention"],
)
def test_layer_shapes(data, tmp_path, flags):
    updates, _ = train(data, tmp_path, f"{ROUTING} {flags}")
    assert len(updates) == 2
    path = tmp_path / "checkpoint_last.pt"
    assert ("encoder.layer_norm.weight" in load_checkpoint(path)["model"]) == ("normalize" in flags)
    assert_scores(load(path), data, generate(data, path)[0])


@pytest.mark.parametrize("device", DEVICES)
def test_activation_checkpointing(data, tmp_path, device):
    """With dropout: the second forward pass draws the same numbers as the first."""
    models = {}
    for name, flags in (
        ("plain", ""),
        ("checkpoint", "--checkpoint-activations"),
        ("offload", "--checkpoint-activations --offload-activations"),
    ):
        sgd = f"{ROUTING} {DISAGREEMENT} --optimizer sgd --lr 0.01 --update-freq 2 {flags}"
        train(data, tmp_path / name, sgd, updates=1, device=device)
        models[name] = load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"]
    for key, value in models["plain"].items():
        for name in ("checkpoint", "offload"):
            torch.testing.assert_close(models[name][key], value, rtol=1e-3, atol=1e-5, msg=f"{name} {key}")


@pytest.mark.parametrize("placement", ["encoder,decoder,cross", "encoder:3,decoder:1,cross:1", "encoder:1"])
def test_layerdrop_then_pruning(data, tmp_path, placement):
    flags = f"{DISAGREEMENT} --routing em --routing-on {placement} --encoder-layers 3"
    flags += " --encoder-layerdrop 0.4 --decoder-layerdrop 0.4"
    updates, _ = train(data, tmp_path, flags, updates=4)
    assert len(updates) == 4 and all(-3 <= update["disagreement"] <= 0 for update in updates)
    path = tmp_path / "checkpoint_last.pt"
    # fairseq counts from 0 and drops all layers of a side that is not given
    kept = {"encoder_layers_to_keep": "1,2", "decoder_layers_to_keep": "0"}
    hypotheses, _ = generate(data, path, "--model-overrides", repr(kept))
    (whole,) = load(path)
    whole.encoder.layers = torch.nn.ModuleList([whole.encoder.layers[1], whole.encoder.layers[2]])
    whole.decoder.layers = torch.nn.ModuleList([whole.decoder.layers[0]])
    assert_scores([whole], data, hypotheses)


def test_adaptive_softmax(data, tmp_path):
    base = TINY.replace("--share-all-embeddings", "").replace("--label-smoothing 0.1", "")
    base = base.replace("label_smoothed_cross_entropy", "adaptive_loss --adaptive-softmax-cutoff 6,10")
    train(data, tmp_path, f"{ROUTING} --ddp-backend legacy_ddp", base=base)
    path = tmp_path / "checkpoint_last.pt"
    assert load(path)[0].decoder.adaptive_softmax is not None
    assert_scores(load(path), data, generate(data, path)[0])


@pytest.mark.parametrize("norm", ["", "--encoder-normalize-before --decoder-normalize-before"])
def test_ema(data, tmp_path, norm):
    flags = f"{ROUTING} {DISAGREEMENT} {norm} --store-ema --ema-decay 0.75"
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
    averaged, _ = generate(data, tmp_path / "ema.pt", "--score-reference")
    assert_scores(load(tmp_path / "ema.pt"), data, averaged)
    assert last != averaged
    assert (load(tmp_path / "ema.pt")[0].encoder.layer_norm is not None) == bool(norm)
    log = train(data, tmp_path, flags, updates=3)[1]
    assert "Loading EMA from checkpoint" in log and "EMA not found" not in log


def test_an_average_starts_from_weights_and_copies_whole_numbers(data, tmp_path):
    """From a checkpoint without an average; differential attention has a number of its layer."""
    train(data, tmp_path / "plain", "")
    plain = tmp_path / "plain/checkpoint_last.pt"
    flags = f"--differential-on encoder --store-ema --ema-decay 0.75 --finetune-from-model {plain}"
    train(data, tmp_path / "more", flags, updates=1)
    before, after = load_checkpoint(plain)["model"], load_checkpoint(tmp_path / "more/checkpoint_last.pt")
    name = "encoder.layers.1.self_attn.differential.layer"
    assert after["model"][name] == after["extra_state"]["ema"][name] == 2
    name = "encoder.layers.0.fc1.weight"
    expected = 0.75 * before[name] + 0.25 * after["model"][name]
    torch.testing.assert_close(after["extra_state"]["ema"][name], expected)
    assert not torch.equal(before[name], after["model"][name])


def test_merged_dictionaries(tmp_path):
    """--merge-src-tgt-embed changes the task's dictionaries; its checkpoints are used with the data of its training."""
    make_data(tmp_path, end=" z")
    prefs = [f"--{split}pref={tmp_path / split}" for split in ("train", "valid", "test")]
    run("preprocess", "-s", "en", "-t", "de", *prefs, "--destdir", tmp_path / "two")
    merged = TINY.replace("--share-all-embeddings", "--merge-src-tgt-embed")
    train(tmp_path / "two", tmp_path / "run", "", 2, merged)
    path = tmp_path / "run/checkpoint_last.pt"
    assert_scores(load(path), tmp_path / "two", generate(tmp_path / "two", path)[0])
    assert len(train(tmp_path / "two", tmp_path / "run", "", 3, merged)[0]) == 1
    with pytest.raises(UserError, match=f"{path}: trained with --merge-src-tgt-embed"):
        load_models([path], tmp_path / "two")
    words = tmp_path / "two/dict.de.txt"
    words.write_text("".join(sorted(words.read_text().splitlines(keepends=True), reverse=True)))
    refused = run("generate", tmp_path / "two", "--path", path, check=False)
    assert "dictionary has other words, or in another order" in refused.stderr.splitlines()[-1]


def test_train1_and_valid1_without_upsampling(data, tmp_path):
    """fairseq's default for --upsample-primary fails where train and train1, or valid and valid1, are combined."""
    folder = shutil.copytree(data, tmp_path / "data")
    for path in [*folder.glob("valid.*")]:
        for split in ("train1", "valid1"):
            shutil.copy(path, path.with_name(path.name.replace("valid", split)))
    assert len(train(folder, tmp_path / "run", "--combine-val")[0]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gated head", "the checkpoint's optimizer has other parameters"),
        (DISAGREEMENT, "the checkpoint was trained with LabelSmoothedCrossEntropyCriterion, but this training has"),
    ],
)
def test_a_new_mechanism_in_the_folder_of_another_model_is_refused(data, tmp_path, flags, message):
    train(data, tmp_path, "")
    common = [data, *TINY.split(), "--save-dir", tmp_path, "--max-update", 3, *flags.split()]
    result = run("train", *common, check=False)
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"error: {message}") and "Traceback" not in result.stderr
    assert "--reset-optimizer" in last and run("train", *common, "--reset-optimizer").returncode == 0


def test_an_incomplete_update_in_two_processes_equals_that_of_one(data, tmp_path):
    """Three batches an epoch, of which the second process has one."""
    flags = "--dropout 0 --optimizer sgd --lr 0.1 --max-tokens 400 --batch-size 20 --required-batch-size-multiple 1"
    words = [data, *TINY.split(), *flags.split(), "--max-update", 2, "--disable-validation"]
    one = run("train", *words, "--update-freq", 4, "--save-dir", tmp_path / "one")
    two = train_in_two_processes(*words, "--update-freq", 2, "--save-dir", tmp_path / "two")[0]
    expected, got = figures(one.stdout + one.stderr, "train_inner"), figures(two, "train_inner")
    for name in ("loss", "gnorm", "bsz"):
        assert [update[name] for update in got] == pytest.approx([update[name] for update in expected], abs=2e-3)


def test_eval_bleu(data, tmp_path):
    flags = f'{ROUTING} {DISAGREEMENT} --eval-bleu --eval-bleu-args {{"beam":2,"max_len_b":6}}'
    flags += " --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --validate-interval-updates 1"
    scores = [figure["valid_bleu"] for figure in figures(train(data, tmp_path, flags)[1], "valid")]
    assert len(scores) == 2 and all(0 <= score <= 100 for score in scores)
    log = train(data, tmp_path, flags, updates=3)[1]
    assert "Loaded checkpoint" in log and "valid_best_bleu" in figures(log, "valid")[0]


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
    updates, _ = train(tmp_path / "bin", tmp_path / "run", flags, updates=4)
    losses = [update["alignment_loss"] for update in updates]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_quant_noise(data, tmp_path):
    losses = {}
    for noise in (0, 0.5):
        updates, _ = train(data, tmp_path / str(noise), f"{ROUTING} {DISAGREEMENT} --bf16 --quant-noise-pq {noise}")
        losses[noise] = updates[0]["loss"]
    assert losses[0] != losses[0.5]
    path = tmp_path / "0.5/checkpoint_last.pt"
    assert_scores(load(path), data, generate(data, path)[0])


def test_iterative_product_quantization(data, tmp_path):
    (tmp_path / "pq.yaml").write_text(
        "n_centroids: {Linear: {key: in_features, value: {'*': 8}}, Embedding: {key: embedding_dim, value: {'*': 8}}}\n"
        "block_sizes: {Linear: {key: fuzzy_name, value: {fc: 8, attn: 4, emb: 4}},\n"
        "              Embedding: {key: fuzzy_name, value: {emb: 8}}}\n"
        "layers_to_quantize: ['encoder\\.layers\\.\\d+\\.fc1', 'encoder.*aggregate\\.hidden']\n"
    )
    flags = f"{ROUTING} {DISAGREEMENT} --quantization-config-path {tmp_path / 'pq.yaml'}"
    updates, log = train(data, tmp_path / "run", flags, updates=4)
    assert "quantized layers: ['encoder.layers.0.fc1', 'encoder.layers.1.fc1']" in log
    assert "quantized layers: ['encoder.layers.0.self_attn.aggregate.hidden']" in log
    assert len(updates) == 4


FLOAT32_LOGITS_BELOW = {  # a bias computed in float32 at the first layer alone
    **{"localness_on": "encoder:1", "syntax": "phrase", "syntax_on": "encoder:1"},
    **{"evolving_on": "encoder", "talking": "both"},
}


@pytest.mark.parametrize("how", ["autocast", "bfloat16", "float16"])
@pytest.mark.parametrize("flags", [{}, ALL_ON[1], FLOAT32_LOGITS_BELOW], ids=["off", "on", "float32 below"])
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
    common = f"{ROUTING} {DISAGREEMENT} --dropout 0"
    expected, _ = train(data, tmp_path / "single", common, device=device)
    scale = "" if "bf16" in flags else "--fp16-init-scale 4"  # no overflow in the first update
    got, _ = train(data, tmp_path / "half", f"{common} {flags} {scale}", device=device)
    for update, error in ((0, 0.01), (1, 0.15)):  # Adam's first step has the signs of the gradients
        assert got[update]["loss"] == pytest.approx(expected[update]["loss"], rel=error)
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
    updates, _ = train(data, tmp_path, f"{ROUTING} {DISAGREEMENT} {flags}", device=device)
    assert len(updates) == 2 and all(2 < update["loss"] < 12 for update in updates)
    assert len(generate(data, tmp_path / "checkpoint_last.pt")[0]) == 8


# ---------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("device", DEVICES)
def test_generate_equals_teacher_forcing(data, checkpoint, device):
    hypotheses, _ = generate(data, checkpoint, "--nbest", 2, device=device)
    assert len(hypotheses) == 16
    assert_scores(load(checkpoint), data, hypotheses)


@pytest.mark.parametrize("device", DEVICES)
def test_generate_in_fp16(data, checkpoint, device):
    hypotheses, _ = generate(data, checkpoint, "--fp16", device=device)
    assert_scores(load(checkpoint), data, hypotheses, tolerance=0.05)


def test_score_reference(data, checkpoint):
    scored, _ = generate(data, checkpoint, "--score-reference")
    references = (data.parent / "test.de").read_text().splitlines()
    assert [text for _, text, _ in scored] == references
    assert_scores(load(checkpoint), data, scored)


def test_ensemble(data, folder):
    paths = [folder / "1.pt", folder / "2.pt"]
    hypotheses, _ = generate(data, ":".join(map(str, paths)))
    assert_scores(load(*paths), data, hypotheses)


def test_sampling(data, checkpoint):
    flags = ("--sampling", "--sampling-topk", 5, "--nbest", 2)
    one, again, other = (generate(data, checkpoint, *flags, "--seed", seed)[0] for seed in (1, 1, 2))
    assert one == again != other
    assert_scores(load(checkpoint), data, one)


def test_prefix_size(data, checkpoint):
    hypotheses, _ = generate(data, checkpoint, "--prefix-size", 2)
    references = (data.parent / "test.de").read_text().splitlines()
    for number, text, _ in hypotheses:
        assert text.split()[:2] == references[number].split()[:2]
    assert_scores(load(checkpoint), data, hypotheses)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--min-len 50", "--min-len: longer than a translation may be"),
        ("--tokenizer moses", "--tokenizer moses: needs --source-lang and --target-lang"),
        ("--max-tokens 3", "--max-tokens 3: less than the longest sentence has"),
        ("--bpe subword_nmt", "--bpe: needs bpe_codes, the file"),
        ("--skip-invalid-size-inputs-valid-test --max-source-positions 2", "none of the 8 sentences is within the (2,"),
    ],
)
def test_impossible_flags_of_decoding_are_one_line(data, checkpoint, flags, message):
    result = run("generate", data, "--path", checkpoint, *DECODING.split(), *flags.split(), check=False)
    last = result.stderr.splitlines()[-1]
    assert result.returncode != 0 and last.startswith("error: ") and message in last
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("kind", ["ordered", "unordered"])
def test_constraints(data, checkpoint, tmp_path, kind):
    lines = [f"{source(data, number)}\tw3 w4\tw{number}\n" for number in range(8)]
    (tmp_path / "input").write_text("".join(lines))
    hypotheses, _ = generate(
        data, checkpoint, "--input", tmp_path / "input", "--constraints", kind, "--beam", 4, tool="interactive"
    )
    for number, text, _ in hypotheses:
        assert "w3 w4" in text and f"w{number}" in text.split()
        if kind == "ordered":
            assert f"w{number}" in text.split("w3 w4", 1)[1].split()
    assert_scores(load(checkpoint), data, hypotheses)


def test_interactive(data, checkpoint):
    hypotheses, _ = generate(data, checkpoint, "--input", data.parent / "test.en", tool="interactive")
    assert_scores(load(checkpoint), data, hypotheses)
    assert [text for _, text, _ in hypotheses] == [text for _, text, _ in generate(data, checkpoint)[0]]


def test_from_pretrained(data, checkpoint):
    hub = DiverseTransformerModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(data))
    translated = hub.translate([source(data, n) for n in range(8)], beam=2, min_len=3, max_len_b=6)
    assert translated == [text for _, text, _ in generate(data, checkpoint)[0]]


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_print_alignment(data, checkpoint, kind):
    """The map of the last cross-attention, averaged over heads."""
    hypotheses, output = generate(data, checkpoint, "--print-alignment", kind)
    alignments = printed(output, "A")
    for number, text, _ in hypotheses:
        _, extra = forced(load(checkpoint), data, number, text, AttentionRequest(weights="cross:2"))
        weights = extra["maps"]["cross", 2].mean(0)[0]  # (T, S)
        lines = alignments[number][0].split()
        if kind == "soft":
            shown = torch.tensor([[float(p) for p in line.split(",")] for line in lines])
            torch.testing.assert_close(shown, weights, rtol=0, atol=1e-5)
        else:
            pairs = [tuple(map(int, pair.split("-"))) for pair in lines]
            assert [t for _, t in pairs] == list(range(len(text.split())))
            chosen = weights[range(len(pairs)), [s for s, _ in pairs]]
            torch.testing.assert_close(chosen, weights[:-1, :-1].max(1).values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", ["transformer_tiny", "diverse_transformer_tiny"])
def test_replace_unk_is_broken_in_fairseq_itself(data, checkpoint, tmp_path, arch):
    """If this fails one day, fairseq has been fixed: move the row in ``docs/features.md``."""
    if arch == "transformer_tiny":
        train(data, tmp_path, "", updates=1, base=TINY.replace("diverse_transformer_tiny", arch))
        checkpoint = tmp_path / "checkpoint_last.pt"
    for alignment in ((), ("--print-alignment",)):
        result = run(
            "generate", data.parent / "raw", "--dataset-impl", "raw", "--path", checkpoint, *DECODING.split(),
            "--unkpen", -100, "--replace-unk", "", *alignment, check=False,
        )  # fmt: skip
        assert result.returncode != 0 and "fairseq/utils.py" in result.stderr and "in replace_unk" in result.stderr


def test_language_model(data, checkpoint, tmp_path):
    prefs = ["--trainpref", data.parent / "train.de", "--srcdict", data / "dict.txt"]
    run("preprocess", "--only-source", *prefs, "--destdir", tmp_path / "bin")
    run("train", tmp_path / "bin", *LANGUAGE_MODEL.split(), "--save-dir", tmp_path)
    hypotheses, _ = generate(data, checkpoint, "--lm-path", tmp_path / "checkpoint_last.pt", "--lm-weight", 0.5)
    (model,) = load(checkpoint)
    (language_model,) = load(tmp_path / "checkpoint_last.pt", data=str(data))
    for number, text, scores in hypotheses:
        tokens = model.decoder.dictionary.encode_line(text, add_if_not_exist=False).long()[None]
        with torch.no_grad():
            output = language_model(tokens.roll(1, 1))
        logs = language_model.get_normalized_probs(output, log_probs=True).gather(-1, tokens[..., None])[0, :, 0]
        expected = forced([model], data, number, text)[0].log() + 0.5 * logs
        assert scores == pytest.approx((expected / torch.tensor(2.0).log()).tolist(), abs=2e-3)
    other = shutil.copytree(data, tmp_path / "other")
    (other / "dict.txt").write_text("".join(reversed((data / "dict.txt").read_text().splitlines(keepends=True))))
    flags = ("--path", checkpoint, *DECODING.split(), "--lm-path", tmp_path / "checkpoint_last.pt")
    result = run("generate", other, *flags, check=False)
    assert result.returncode and "the source dictionary has other words" in result.stderr.splitlines()[-1]


def test_several_language_pairs(data, tmp_path, error_of, monkeypatch):
    """One model of both directions; our commands, which know one pair, refuse it in one line."""
    task = "--task translation_multi_simple_epoch --lang-pairs en-de,de-en --langs en,de --decoder-langtok"
    updates, _ = train(data, tmp_path, f"{ROUTING} {DISAGREEMENT} {task} --disable-validation", updates=4)
    assert len(updates) == 4 and all(update["disagreement"] < 0 for update in updates)
    path = tmp_path / "checkpoint_last.pt"
    pair = ["--source-lang", "en", "--target-lang", "de"]
    hypotheses, _ = generate(data, path, *task.split(), *pair)
    hypotheses = [(number, f"__de__ {text}", scores) for number, text, scores in hypotheses]  # it prints no such word
    assert_scores(load(path), data, hypotheses)
    monkeypatch.setattr(Preprocessing, "load", lambda data: None)  # fairseq-preprocess wrote the data
    monkeypatch.setattr("fairseq_diverse.cli.translate.read_record", lambda data: None)
    for command in (
        f"heads --checkpoint {path}",
        f"translate --checkpoint {path} --input x --cpu",
        f"plot attention --path {path} --source w1 --layer 1 --out x.png",
        f"plot head-map a={path} b={path} --out x.png",
    ):
        assert f"{path}: trained for another task than translation" in error_of(*command.split(), "--data", data)


def test_validate(data, tmp_path):
    flags = f"{ROUTING} {DISAGREEMENT}"
    (expected,) = figures(train(data, tmp_path, flags)[1], "valid")
    common = ("--path", tmp_path / "checkpoint_last.pt", "--cpu", "--num-workers", 0, "--max-tokens", 200)
    (seen,) = figures(run("validate", data, *common, "--task", "translation", "--log-format", "json").stdout, "valid")
    for name in ("valid_loss", "valid_disagreement"):
        assert seen[name] == expected[name]


# ----------------------------------------------------------------------------------------------------------- refused


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
    ],
)
def test_flags_that_fairseq_trains_wrong_with_are_refused(data, tmp_path, flags, message):
    result = run("train", data, *TINY.split(), *flags.split(), "--save-dir", tmp_path / "run", check=False)
    assert result.returncode != 0 and message in result.stderr and "Traceback" not in result.stderr
    assert not figures(result.stderr, "train_inner")


def test_a_metric_of_a_flag_chooses_the_best_checkpoint(data, tmp_path):
    flags = "--report-accuracy --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric"
    again = f"--restore-file {tmp_path}/checkpoint_last.pt"  # absent at first
    (validated,) = figures(train(data, tmp_path, f"{flags} {again}")[1], "valid")
    best = load_checkpoint(tmp_path / "checkpoint_best.pt")["extra_state"]["best"]
    assert best == validated["valid_accuracy"]


def test_the_other_direction_is_refused(data, tmp_path):
    """fairseq takes the direction from the names of the data files, and a joined dictionary has the words of both."""
    train(data, tmp_path, "--source-lang de --target-lang en", updates=1)
    flags = (data, "--path", tmp_path / "checkpoint_last.pt", *DECODING.split())
    refused = run("generate", *flags, check=False)
    assert refused.returncode and "translates from de to en; give --source-lang de" in refused.stderr.splitlines()[-1]
    assert run("generate", *flags, "--source-lang", "de", "--target-lang", "en").returncode == 0
    both = "{'source_lang': 'en', 'target_lang': 'de'}"  # as the message says
    assert run("generate", *flags, "--model-overrides", both).returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--cross-self-attention", "--cross-self-attention: not supported by diverse_transformer"),
        ("--base-layers 1", "--base-layers: not supported by diverse_transformer"),
    ],
)
def test_refused_flags(data, tmp_path, flags, message):
    result = run("train", data, *TINY.split(), *flags.split(), "--save-dir", tmp_path, check=False)
    assert result.returncode != 0 and message in result.stderr and "Traceback" not in result.stderr


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
    result = run(
        "hydra_train", "--config-dir", tmp_path, "--config-name", "diverse", f"hydra.run.dir={tmp_path}",
        user_dir=False, check=False,
    )  # fmt: skip
    assert result.returncode != 0 and "error: fairseq-hydra-train" in result.stderr
    assert "Traceback" not in result.stderr


def test_torchscript_is_refused():
    with pytest.raises(UserError, match="TorchScript"):
        torch.jit.script(build_model(ALL_ON[1]))


def test_the_table_names_tests_that_exist():
    root = Path(__file__).parents[2]
    table = (root / "docs/features.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", table))
    existing = {n for f in (root / "tests").rglob("test_*.py") for n in re.findall(r"def (test_\w+)", f.read_text())}
    assert named and named <= existing
    mine = set(re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert mine - named == {"test_the_table_names_tests_that_exist"}
