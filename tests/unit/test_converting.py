"""Models of transformers become checkpoints here: the same outputs and subwords; one line for what does not fit."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration, T5Tokenizer

from fairseq_diverse.cli import main
from fairseq_diverse.models.loading import load_models
from fairseq_diverse.preparation.subwords import T5_MODEL, Subwords
from fairseq_diverse.preparation.wordpiece import SPECIAL
from tests.refusals import refused

TEXT = Path(__file__).read_text(encoding="utf-8").splitlines()
PIECES = 120
ROWS = PIECES + 100 + 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random T5 1.0 as ``save_pretrained`` writes it, with pieces of this file."""
    out = tmp_path_factory.mktemp("t5")
    written = io.BytesIO()
    options = {**T5_MODEL, "vocab_size": PIECES, "minloglevel": 2, "hard_vocab_limit": True}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=written, **options)
    (out / "spiece.model").write_bytes(written.getvalue())
    torch.manual_seed(0)
    shape = {"d_model": 24, "d_kv": 6, "num_heads": 4, "d_ff": 20, "num_layers": 2, "vocab_size": ROWS}
    T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0)).save_pretrained(out)
    return out


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


def convert(folder, out, capsys):
    capsys.readouterr()  # of transformers, which shows its progress
    code = main(["convert", str(folder), "--out", str(out)])
    said = capsys.readouterr()
    return code, said.out + said.err


def numbers(line, folder, words):
    pieces = Subwords("t5", folder / "spiece.model").segment(line).split()
    return [words.index(piece) if piece in words else 3 for piece in pieces] + [2]


@pytest.mark.parametrize("weights", ["safetensors", "bin"])
def test_a_t5_with_its_subwords(folder, copied, tmp_path, capsys, weights):
    if weights == "bin":
        torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
        (copied / "model.safetensors").unlink()
    assert convert(copied, tmp_path / "out", capsys) == (0, f"{tmp_path / 'out'}: diverse_t5\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dict.txt", "model.pt", "spiece.model"]
    lines = (tmp_path / "out/dict.txt").read_text().splitlines()
    words = ["<s>", "<pad>", "</s>", "<unk>", *(line.rpartition(" ")[0] for line in lines)]
    assert len(words) == ROWS and words[-1] == "<extra_id_0>" and words[-100] == "<extra_id_99>"
    for side in ("source", "target"):
        shutil.copy(tmp_path / "out/dict.txt", tmp_path / f"dict.{side}.txt")
    data = {"source_lang": "source", "target_lang": "target"}
    (model,), _, task = load_models([tmp_path / "out/model.pt"], tmp_path, **data)
    assert task.source_dictionary.symbols == words
    tokenizer, its = T5Tokenizer.from_pretrained(folder), T5ForConditionalGeneration.from_pretrained(folder)
    for line in ("the folder", "ein Zebra sat"):
        theirs, ours = tokenizer(line).input_ids, numbers(line, tmp_path / "out", words)
        with torch.no_grad():
            start = torch.tensor([[0, *theirs]])
            expected = its.eval()(input_ids=torch.tensor([theirs]), decoder_input_ids=start[:, :-1]).logits
            previous = torch.tensor([[2, *ours[:-1]]])
            got = model.eval()(torch.tensor([ours]), torch.tensor([len(ours)]), previous)[0]
        for there, here in zip(theirs, ours, strict=True):
            torch.testing.assert_close(got[..., here], expected[..., there], atol=1e-4, rtol=0)


def changed(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def put_nan(tensors):
    tensors["encoder.final_layer_norm.weight"][3] = float("nan")


UNSCALED = {"tie_word_embeddings": False, "scale_decoder_outputs": False}  # of transformers 4, and of 5


NO_T5 = [
    (lambda its: changed(its, model_type="gpt2"), r"config.json: model_type 'gpt2'; known: .*t5"),
    (lambda its: changed(its, **UNSCALED), "feed_forward_proj relu with tie_word_embeddings False"),
    (lambda its: changed(its, layer_norm_epsilon=1e-5), "config.json: layer_norm_epsilon 1e-05: not supported"),
    (lambda its: changed(its, vocab_size=220), "220 rows of embeddings; 120 pieces, 100 sentinels and <s> need 22"),
    (lambda its: changed(its, vocab_size=10**12), "1000000000000 rows of embeddings; 120 pieces, 100 sentinels"),
    (lambda its: changed(its, vocab_size="many"), "config.json: vocab_size 'many': must be a whole number above 0"),
    (lambda its: changed(its, relative_attention_num_buckets=10**9), "--position-bias-buckets 1000000000: must be"),
    (lambda its: changed(its, vocab_size=225), "shared.weight: 224 rows, but config.json has 225"),
    (lambda its: changed(its, d_ff=21), "fc1.weight is in another shape: its weights do not fit its config.json"),
    (lambda its: changed(its, num_layers=3), "encoder.layers.2.* is missing or too many"),
    (lambda its: changed(its, d_model="24"), "config.json: d_model '24': must be a whole number above 0"),
    (lambda its: changed(its, num_layers=10**9), "refused: its setting encoder_layers = 1000000000 is not that of"),
    (lambda its: (its / "config.json").write_text("{"), "config.json: damaged, not whole JSON"),
    (lambda its: (its / "config.json").unlink(), "no config.json; give a folder"),
    (lambda its: (its / "spiece.model").unlink(), "no spiece.model, the model of its subwords"),
    (lambda its: (its / "spiece.model").write_bytes(b"no"), "spiece.model: damaged, or not a model of sentence"),
    (lambda its: (its / "model.safetensors").unlink(), "no weights; looked for "),
    (lambda its: (its / "model.safetensors").write_bytes(b"xx"), "model.safetensors: damaged or cut off"),
    (
        lambda its: rewritten(its, lambda tensors: tensors.pop("shared.weight")),
        "shared.weight: 0 rows, but config.json",
    ),
    (lambda its: changed(its, **UNSCALED, feed_forward_proj="gated-gelu"), "lm_head.weight: 0 rows, but config.json"),
    (lambda its: rewritten(its, put_nan), "encoder.layer_norm.weight has the value nan; the file is damaged"),
    (lambda its: rewritten(its, lambda tensors: tensors.update(x=torch.ones(1))), "x: no parameter of T5"),
]


@pytest.fixture
def bert(tmp_path):
    """A random BERT as ``save_pretrained`` writes it, with more rows than words."""
    out = tmp_path / "bert"
    out.mkdir()
    (out / "vocab.txt").write_text("\n".join([*SPECIAL, "dog", "##s", "bark"]))
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 4}
    transformers.BertForPreTraining(BertConfig(vocab_size=10, max_position_embeddings=16, **shape)).save_pretrained(out)
    return out


@pytest.mark.parametrize("weights", ["safetensors", "bin", "BertModel", "BertForMaskedLM"])
def test_a_bert_with_its_vocabulary(bert, tmp_path, capsys, weights):
    if weights == "bin":
        torch.save(load_file(bert / "model.safetensors"), bert / "pytorch_model.bin")
        (bert / "model.safetensors").unlink()
    elif weights != "safetensors":
        getattr(transformers, weights).from_pretrained(bert).save_pretrained(bert)
    assert convert(bert, tmp_path / "out", capsys) == (0, f"{tmp_path / 'out'}: diverse_bert\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dict.txt", "model.pt", "vocab.txt"]
    assert (tmp_path / "out/dict.txt").read_text() == "dog 1\n##s 1\nbark 1\n<mask> 1\n"
    if weights == "BertModel":  # predicts no words
        refused(r"was trained without encoder\.lm_head\.bi", load_models, [tmp_path / "out/model.pt"], tmp_path / "out")
        return
    (model,), _, task = load_models([tmp_path / "out/model.pt"], tmp_path / "out")
    words = task.source_dictionary
    with torch.no_grad():
        its = BertForMaskedLM.from_pretrained(bert).eval()(input_ids=torch.tensor([[0, 5, 6, 4, 2]])).logits
        got = model.eval()(torch.tensor([[words.index(word) for word in ("<s>", "dog", "##s", "<mask>", "</s>")]]))[0]
    order = [0, 1, 2, 3, 5, 6, 7, 4]  # [MASK] is the last one here
    torch.testing.assert_close(got, its[..., order], atol=1e-5, rtol=0)


def without(name):
    return lambda tensors: [tensors.pop(key) for key in [*tensors] if key.startswith(name)]


NO_BERT = [
    (lambda its: changed(its, layer_norm_eps=1e-5), "config.json: layer_norm_eps 1e-05: not supported, only 1e-12"),
    (lambda its: changed(its, position_embedding_type="relative_key"), "position_embedding_type relative_key: not"),
    (lambda its: changed(its, tie_word_embeddings=False), "tie_word_embeddings False: not supported, only True"),
    (lambda its: changed(its, hidden_dropout_prob="many"), "could not convert string to float: 'many'"),
    (lambda its: changed(its, hidden_act="silu"), "hidden_act silu: not supported, only gelu, gelu_new, relu"),
    (lambda its: changed(its, vocab_size=7), "vocab.txt: 8 subwords, config.json has 7"),
    (lambda its: changed(its, vocab_size=11), r"embed_tokens.weight is \(10, 24\), but config.json has \(11, 24\)"),
    (lambda its: changed(its, hidden_size=32), r"embed_tokens.weight is \(10, 24\), but config.json has \(10,"),
    (lambda its: changed(its, intermediate_size=21), "fc1.weight is in another shape: its weights do not fit"),
    (lambda its: changed(its, num_hidden_layers=3), "layers.2.* is missing or too many"),
    (lambda its: changed(its, num_hidden_layers=1), "layers.1.* is missing or too many"),
    (lambda its: changed(its, num_attention_heads="4"), "config.json: num_attention_heads '4': must be a whole"),
    (lambda its: changed(its, num_attention_heads=5), "--encoder-attention-heads 5: must divide the width"),
    (lambda its: (its / "vocab.txt").unlink(), "vocab.txt: cannot be read .* the vocabulary of a BERT is needed"),
    (lambda its: (its / "vocab.txt").write_text("dog\n"), r"vocab.txt: lacks \[CLS\], "),
    (lambda its: rewritten(its, without("bert.embeddings.word")), "embed_tokens.weight is missing or too many"),
    (lambda its: rewritten(its, without("bert.pooler.dense.bias")), "pooler: needs weight and bias"),
    (lambda its: rewritten(its, without("cls.predictions.transform.dense.b")), "lm_head.dense.bias is missing or"),
    (lambda its: rewritten(its, lambda tensors: tensors.update(x=torch.ones(1))), "x: no parameter of BERT"),
    (lambda its: (its / "model.safetensors").write_bytes(b"xx"), "model.safetensors: damaged or cut off"),
]


@pytest.mark.parametrize(
    ("model", "break_it", "message"), [*(("copied", *case) for case in NO_T5), *(("bert", *case) for case in NO_BERT)]
)
def test_what_does_not_fit_is_one_line(model, break_it, message, request, tmp_path, capsys):
    break_it(folder := request.getfixturevalue(model))
    code, said = convert(folder, tmp_path / "out", capsys)
    assert code == 2 and re.search(message, said) and said.count("\n") == 1, said
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_a_checkpoint_is_no_folder_of_a_model(folder, tmp_path, capsys):
    code, said = convert(folder / "model.safetensors", tmp_path / "out", capsys)
    assert (
        code == 2 and "model.safetensors: a file; give a folder that save_pretrained" in said and "--finetune" in said
    )


def test_code_in_a_file_is_not_run(bert, tmp_path, capsys):
    (bert / "model.safetensors").unlink()
    (bert / "pytorch_model.bin").write_bytes(b"cbuiltins\neval\n(S'1'\ntR.")
    code, said = convert(bert, tmp_path / "out", capsys)
    assert code == 2 and "pytorch_model.bin: refused: it names " in said and said.count("\n") == 1, said


def test_nothing_is_replaced(folder, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("x")
    assert "exists; name a new folder" in convert(folder, tmp_path / "out", capsys)[1]
    assert (tmp_path / "out/mine").read_text() == "x"
