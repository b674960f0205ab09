"""Masked language models as a user trains them: pre-training, fine-tuning from fairseq's checkpoint, evaluation."""

import random
import re
import shutil
from argparse import Namespace

import pytest
import torch

from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.models.roberta import DiverseRobertaModel
from tests.integration.commands import ON_A_GPU, run
from tests.integration.training import equal_in_two_processes, figures, refused, train, train_resumed

COMMON = (
    "--optimizer adam --lr 0.002 --dropout 0.1 --attention-dropout 0.1 --max-positions 32 --cpu --num-workers 0 "
    "--log-format json --log-interval 1 --no-epoch-checkpoints --seed 1"
)
WORDS = "--task masked_lm --sample-break-mode complete --tokens-per-sample 24 --batch-size 8"
SENTENCES = (
    "--task sentence_prediction --init-token 0 --separator-token 2 --batch-size 8 --required-batch-size-multiple 1"
)
TINY = "--encoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2"
EVOLVING = "--arch wang2021_evolving_roberta_tiny"
CLASSES = f"{SENTENCES} --num-classes 2 --report-mcc --best-checkpoint-metric mcc --maximize-best-checkpoint-metric"
SCORES = f"{SENTENCES} --num-classes 1 --regression-target --report-pearson-and-spearman"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders ``text``, ``pairs`` (whether a word of the first sentence is in the second) and ``scores``."""
    folder, numbers = tmp_path_factory.mktemp("data"), random.Random(0)

    def sentence():
        return [f"w{numbers.randrange(12)}" for _ in range(numbers.randint(3, 6))]

    for split, count in (("train", 40), ("valid", 14)):
        pairs = [(sentence(), sentence()) for _ in range(count)]
        shared = [len({*first} & {*second}) for first, second in pairs]
        columns = {
            "text": [" ".join(words) for pair in pairs for words in pair],
            "input0": [" ".join(first) for first, _ in pairs],
            "input1": [" ".join(second) for _, second in pairs],
            "label": [str(int(same > 1)) for same in shared],
            "score": [str(same / 6) for same in shared],
        }
        for name, lines in columns.items():
            (folder / f"{split}.{name}").write_text("\n".join(lines) + "\n")

    def preprocess(name, out, *flags):
        splits = [f"--{split}pref={folder}/{split}.{name}" for split in ("train", "valid")]
        run("preprocess", "--only-source", *splits, "--destdir", folder / out, *flags)

    preprocess("text", "text")
    for name in ("input0", "input1"):
        preprocess(name, f"pairs/{name}", "--srcdict", folder / "text/dict.txt")
    shutil.copytree(folder / "pairs", folder / "scores")
    preprocess("label", "pairs/label")
    (folder / "scores/label").mkdir()
    for split in ("train", "valid"):
        shutil.copy(folder / f"{split}.score", folder / f"scores/label/{split}.label")
    return folder


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory):
    """Checkpoints of fairseq's RoBERTa, of ours with everything off, and with evolving attention and disagreement."""
    folder = tmp_path_factory.mktemp("pretrained")
    for name, flags in {
        "roberta": f"--arch roberta {TINY} --criterion masked_lm",
        "off": "--arch diverse_roberta_tiny --criterion masked_lm",
        "evolving": f"{EVOLVING} --criterion masked_lm_with_disagreement --checkpoint-activations",
    }.items():
        (folder / f"{name}.txt").write_text(train(data / "text", folder / name, f"{WORDS} {flags}", base=COMMON))
    return folder


def test_pretraining_with_everything_off_is_fairseqs(pretrained):
    logs = {name: figures((pretrained / f"{name}.txt").read_text()) for name in ("roberta", "off", "evolving")}
    for name in ("loss", "gnorm", "valid_loss"):
        assert logs["roberta"][name] == logs["off"][name] != logs["evolving"][name]
    assert -1 <= logs["evolving"]["valid_disagreement_output"][-1] < 0
    states = [load_checkpoint(pretrained / name / "checkpoint_last.pt")["model"] for name in ("roberta", "off")]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def as_in_2019(path, out):
    """A checkpoint like the published roberta.base: arguments, other names, half precision."""
    state = load_checkpoint(path)
    model = {re.sub("^encoder", "decoder", name): value.half() for name, value in state["model"].items()}
    model = {name.replace("layernorm_embedding", "emb_layer_norm"): value for name, value in model.items()}
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 64, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
    args = Namespace(arch="roberta_base", task="masked_lm", criterion="masked_lm", tokens_per_sample=32, **sizes)
    rest = {"optimizer_history": state["optimizer_history"], "extra_state": {"epoch": 1, "val_loss": 1.0}}
    torch.save({"args": args, "model": model, **rest}, out)


@pytest.mark.parametrize("start", ["roberta", "old", "evolving"])
def test_fine_tuning_and_evaluation(data, pretrained, tmp_path, start):
    """fairseq's README: --restore-file with resets; validation and prediction give the figures of training."""
    path = pretrained / start / "checkpoint_last.pt"
    if start == "old":
        path = tmp_path / "model.pt"
        as_in_2019(pretrained / "roberta/checkpoint_last.pt", path)
    reset = f"--restore-file {path} --reset-optimizer --reset-dataloader --reset-meters --reset-lr-scheduler"
    more = "_with_disagreement" * (start == "evolving")
    flags = f"{CLASSES} {EVOLVING} --criterion sentence_prediction{more} {reset}"
    values = figures(log := train(data / "pairs", tmp_path, flags, base=COMMON))
    new = "warm start: new in this model: encoder.sentence_encoder.layers.1.self_attn.evolving.conv.weight"
    assert (new in log) == (start != "evolving") and len(values["valid_loss"]) == 1
    if start != "evolving":
        return
    best = tmp_path / "checkpoint_best.pt"
    asked = f"{SENTENCES} --num-classes 2 --criterion sentence_prediction --path {best} --cpu --num-workers 0"
    again = figures(run("validate", data / "pairs", *asked.split(), "--log-format", "json").stdout)
    for name in ("loss", "accuracy", "mcc"):
        assert again[f"valid_{name}"][-1] == pytest.approx(values[f"valid_{name}"][0], abs=2e-3)

    hub = DiverseRobertaModel.from_pretrained(str(tmp_path), "checkpoint_best.pt", str(data / "pairs"), bpe=None).eval()
    right = 0
    columns = [(data / f"valid.{name}").read_text().splitlines() for name in ("input0", "input1", "label")]
    for first, second, label in zip(*columns, strict=True):
        line = f"<s> {first} </s> </s> {second} </s>"
        tokens = hub.task.source_dictionary.encode_line(line, append_eos=False, add_if_not_exist=False).long()
        best_class = hub.predict("sentence_classification_head", tokens).argmax() + hub.task.label_dictionary.nspecial
        right += hub.task.label_dictionary[int(best_class)] == label
    assert 100 * right / len(columns[0]) == pytest.approx(values["valid_accuracy"][0], abs=0.06)


def choices(data, out):
    """The sentences as a task of choosing one of three."""
    shutil.copytree(data / "scores", out)
    shutil.copytree(data / "pairs/input0", out / "input2")
    for split in ("train", "valid"):
        shutil.copy(data / f"{split}.label", out / f"label/{split}.label")


@pytest.mark.parametrize("kind", ["prediction", "ranking"])
def test_other_dictionaries_than_the_pretrained_models_are_refused(data, pretrained, tmp_path, kind):
    path, other = pretrained / "evolving/checkpoint_last.pt", tmp_path / "other"
    choices(data, other) if kind == "ranking" else shutil.copytree(data / "pairs", other)
    for words in other.glob("input*/dict.txt"):
        words.write_text("".join(reversed(words.read_text().splitlines(keepends=True))))
    task = SENTENCES.replace("sentence_prediction", f"sentence_{kind}")
    flags = f"{COMMON} {task} {EVOLVING} --criterion sentence_{kind} --num-classes 2 --finetune-from-model {path}"
    said = refused("train", other, *flags.split(), "--max-update", 1, "--save-dir", tmp_path / "out")
    assert f"error: {path}: does not fit these data: the source dictionary has other words" in said


def test_regression(data, pretrained, tmp_path):
    flags = f"{SCORES} {EVOLVING} --criterion sentence_prediction_with_disagreement --max-epoch 2"
    flags += f" --finetune-from-model {pretrained}/evolving/checkpoint_last.pt"
    values = figures(train(data / "scores", tmp_path, flags, 99, COMMON))
    assert len(values["valid_pearson"]) == len(values["valid_spearman"]) == 2
    assert values["valid_loss"][1] < values["valid_loss"][0] and "valid_accuracy" not in values


def test_ranking_saves_predictions(data, pretrained, tmp_path):
    """fairseq's task of choosing one of several sentences, with its flag --save-predictions."""
    choices(data, tmp_path / "choices")
    task = SENTENCES.replace("sentence_prediction", "sentence_ranking")
    flags = f"{task} {EVOLVING} --criterion sentence_ranking --num-classes 2 --save-predictions {tmp_path}/predictions"
    flags += f" --finetune-from-model {pretrained}/roberta/checkpoint_last.pt"
    values = figures(train(tmp_path / "choices", tmp_path / "out", flags, 1, COMMON))
    labels = (data / "valid.label").read_text().split()
    saved = (tmp_path / "predictions").read_text().splitlines()[-len(labels) :]  # before it fairseq tries one batch
    lines = [line.split() for line in saved]
    assert sorted((int(number), label) for number, _, label in lines) == [*enumerate(labels)]
    right = sum(prediction == label for _, prediction, label in lines)
    assert values["valid_accuracy"][-1] == pytest.approx(100 * right / len(labels), abs=0.06)


def test_resumed_fine_tuning_equals_the_uninterrupted(data, pretrained, tmp_path):
    flags = f"{CLASSES} {EVOLVING} --criterion sentence_prediction --encoder-layerdrop 0.3"
    flags += f" --finetune-from-model {pretrained}/roberta/checkpoint_last.pt"
    assert "warm start" not in train_resumed(data / "pairs", tmp_path, flags, 3, 6, COMMON)


def test_two_processes_equal_one_with_doubled_accumulation(data, tmp_path):
    classes = f"{SENTENCES} --num-classes 2"  # on a CPU, fairseq cannot gather the predictions of --report-mcc
    flags = f"{COMMON} {classes} {EVOLVING} --criterion sentence_prediction --max-update 3 --dropout 0"
    flags += " --attention-dropout 0 --optimizer sgd --lr 0.05 --find-unused-parameters"
    equal_in_two_processes(tmp_path, ("loss", "gnorm", "valid_loss"), data / "pairs", *flags.split())


@pytest.mark.parametrize(
    ("device", "kind"),
    [("cpu", "--bf16"), *(pytest.param("cuda", kind, marks=ON_A_GPU) for kind in ("--bf16", "--fp16", "--amp"))],
)
def test_training_in_half_types(data, tmp_path, device, kind):
    flags = f"{WORDS} {EVOLVING} --criterion masked_lm_with_disagreement --fp16-init-scale 4"
    runs = {tmp_path / "single": flags, tmp_path / "half": f"{flags} {kind}"}
    exact, rounded = (figures(train(data / "text", out, line, 3, COMMON, device)) for out, line in runs.items())
    assert rounded["loss"] == pytest.approx(exact["loss"], rel=0.02)
    weights, half = (load_checkpoint(out / "checkpoint_last.pt")["model"] for out in runs)
    assert not all(torch.equal(value, half[name]) for name, value in weights.items())


@pytest.mark.parametrize(
    ("folder", "flags", "message"),
    [
        ("pairs", "--num-classes 1", "--num-classes: too few, or a label that is not in label/dict.txt"),
        ("pairs", "--num-classes -1", "--num-classes: give their number"),
        ("pairs", "--num-classes 1 --regression-target", "--regression-target they need scores in"),
        ("scores", "", "scores/label/dict.txt: missing; data with scores in place of classes need --num-"),
        ("pairs", "--arch transformer_tiny", "--arch: TransformerModel is no classifier of sentences; use "),
        ("pairs", "--max-positions 9", "is longer than the 9 positions of model and task: raise"),
        ("pairs", "--train-subset absent", "pairs/input0/absent: no such split; see --train-subset"),
    ],
)
def test_user_errors_are_one_line(data, tmp_path, folder, flags, message):
    flags = f"{COMMON} {CLASSES} {EVOLVING} --criterion sentence_prediction --max-update 1 {flags}"
    last = refused("train", data / folder, *flags.split(), "--save-dir", tmp_path).splitlines()[-1]
    assert message in last and last.startswith("error: ")
