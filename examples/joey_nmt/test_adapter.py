"""Run by `make test-joeynmt`, in an environment with JoeyNMT 2.3."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from joeynmt.config import ConfigurationError
from joeynmt.helpers import make_model_dir
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.training import train
from joeynmt.transformer_layers import MultiHeadedAttention
from joeynmt.vocabulary import Vocabulary

from examples.joey_nmt import adapter
from fairseq_diverse.toy.corpus import write_corpus

CONFIG = yaml.safe_load((Path(__file__).parent / "config.yaml").read_text())
SPECIAL = SimpleNamespace(
    unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, unk_token="<unk>", pad_token="<pad>", bos_token="<s>",
    eos_token="</s>", sep_token=None, lang_tags=[],
)  # fmt: skip
WORDS = Vocabulary([f"w{n}" for n in range(20)], SPECIAL)
adapter.install()


def model(encoder=(), decoder=(), disagreement=()):
    """A model of the configuration with these mechanisms."""
    cfg = copy.deepcopy(CONFIG["model"])
    cfg["encoder"] |= {"mechanisms": dict(encoder), "disagreement": dict(disagreement)}
    cfg["decoder"] |= {"mechanisms": dict(decoder), "disagreement": dict(disagreement)}
    torch.manual_seed(1)
    built = build_model(cfg, WORDS, WORDS)
    built.loss_function = ("crossentropy", 0.1)
    return built


def batch(target=(5, 6, 7, 8, 9, 10), sizes=(7, 4)):
    """Two sentences of other lengths, as JoeyNMT's ``Batch`` gives them to the model."""
    source = torch.full((2, 7), 1)
    for row, size in enumerate(sizes):
        source[row, :size] = torch.arange(4, 4 + size)
    target = torch.tensor([[*target], [5, 6, 7, 1, 1, 1]])
    before = torch.cat([torch.full((2, 1), 2), target[:, :-1]], 1)
    masks = {"src_mask": (source != 1)[:, None], "trg_mask": (target != 1)[:, None]}
    return {"src": source, "src_length": torch.tensor(sizes), "trg_input": before, "trg": target, **masks}


SETTINGS = {
    "evolving": {"conv": 0.3}, "talking": {"kind": "both"}, "routing": {"kind": "em"}, "interacting": {"kind": "sum"},
    "localness": {}, "relative": {}, "gated": {"kind": "element"}, "differential": {},
}  # fmt: skip


def placed(name):
    """The settings of a mechanism on every component that it has."""
    components = adapter.MECHANISMS[name].components
    later = ",".join(each for each in ("decoder", "cross") if each in components)
    return [{name: SETTINGS[name] | {"on": on}} if on else {} for on in ("encoder", later)]


def test_without_mechanisms_it_is_joeynmts_attention():
    theirs, ours = MultiHeadedAttention(4, 64, 0.0), adapter.DiverseAttention(64, 4, 0.0, "encoder", 1, {}, ())
    names = {"q_proj": "q_layer", "k_proj": "k_layer", "v_proj": "v_layer", "out_proj": "output_layer"}
    for name, other in names.items():
        getattr(ours.attention, name).load_state_dict(getattr(theirs, other).state_dict())
    x, memory = torch.randn(2, 6, 64), torch.randn(2, 7, 64)
    masks = batch()
    causal = masks["trg_mask"] & torch.ones(6, 6, dtype=torch.bool).tril()
    for keys, mask in ((memory, masks["src_mask"]), (x, causal)):
        expected = theirs(keys, keys, x, mask, return_weights=True)
        found = ours(keys, keys, x, adapter.Call(mask, mask is causal), return_weights=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_neither_later_words_nor_padding_change_a_word(name):
    built = model(*placed(name)).eval()
    built.loss_function = ("crossentropy", 0.0)
    with torch.no_grad():
        first, later = (built("loss", **batch(target))[1] for target in ((5, 6, 7, 8, 9, 10), (5, 6, 7, 11, 12, 13)))
        torch.testing.assert_close(first[0, :4], later[0, :4], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(first[0, 4:], later[0, 4:], atol=1e-4)
        one = batch()
        alone = {key: value[1:, :4] if key == "src" else value[1:] for key, value in one.items()}
        alone["src_mask"] = one["src_mask"][1:, :, :4]
        torch.testing.assert_close(built("loss", **alone)[1][0, :3], first[1, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_decoding_finds_what_the_whole_sentence_has(name):
    """Greedy and beam search, step by step, against one pass over their output."""
    built, inputs = model(*placed(name)).eval(), batch()
    source = SimpleNamespace(**inputs, has_trg=False)
    for beam in (1, 3):
        found, scores, _ = search(built, source, 6, beam, -1, return_prob="hyp", generate_unk=True)
        lines = [[*line[: line.index(3)], 3] if 3 in line else line for line in found.tolist()]
        for row, line in enumerate(lines):
            target = torch.tensor([line])
            before = torch.tensor([[2, *line[:-1]]])
            own = {key: value[row : row + 1] for key, value in inputs.items()}
            own |= {"trg": target, "trg_input": before, "trg_mask": torch.ones(1, 1, len(line), dtype=torch.bool)}
            with torch.no_grad():
                whole = built("loss", **own)[1][0].gather(-1, target[0, :, None]).sum()
            assert float(np.sum(scores[row])) == pytest.approx(float(whole), abs=1e-3)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_parameter_gets_a_gradient(name):
    built = model(*placed(name), {"terms": ["output", "subspace"]}).train()
    built("loss", **batch())[0].backward()
    without = {key for key, value in built.named_parameters() if value.grad is None or not value.grad.isfinite().all()}
    assert not without


def test_evolving_attention_sees_the_layer_before():
    with_carry, without = (model({"evolving": {"carry": carry, "conv": 0.3}}).eval() for carry in (0.5, 0.0))
    without.load_state_dict(with_carry.state_dict(), strict=False)
    inputs = batch()
    with torch.no_grad():
        found = [built("encode", **inputs)[0] for built in (with_carry, without)]
    assert not torch.allclose(*found)


def test_disagreement_is_added_in_training_only():
    plain, ours = model(), model(disagreement={"terms": ["output"], "weight": 2.0})
    ours.load_state_dict(plain.state_dict())
    for built in (plain, ours):
        for part in built.modules():
            part.p = 0.0 if isinstance(part, torch.nn.Dropout) else getattr(part, "p", None)
            part.dropout = 0.0 if isinstance(part, adapter.StandaloneAttention) else getattr(part, "dropout", None)
    inputs = batch()
    assert ours.eval()("loss", **inputs)[0] == plain.eval()("loss", **inputs)[0]
    added = ours.train()("loss", **inputs)[0] - plain.train()("loss", **inputs)[0]
    tokens, sides = inputs["trg_mask"].sum(), 2
    assert 0 < added <= 2.0 * tokens * sides + 1e-3


def test_mechanisms_keep_their_initial_values():
    built = model({"talking": {"kind": "both"}})
    fresh = adapter.DiverseAttention(64, 4, 0.1, "encoder", 1, {"talking": {"kind": "both"}}, ()).attention.talking
    for name, value in built.encoder.layers[0].src_src_att.attention.talking.state_dict().items():
        torch.testing.assert_close(value, fresh.state_dict()[name])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nosuch": {}}, "nosuch: not one of"),
        ({"syntax": {"kind": "phrase"}}, "needs trees"),
        ({"routing": {"kind": "em", "on": "encoder:3"}}, "layer 3 of encoder is out of range"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises((ConfigurationError, ValueError), match=message):
        model(wrong)


@pytest.mark.parametrize("mechanisms", [False, True], ids=["plain", "mechanisms"])
def test_200_updates_on_the_embedded_corpus(mechanisms, tmp_path, monkeypatch):
    write_corpus(tmp_path, 1000, 50, 50, 1)
    cfg = copy.deepcopy(CONFIG)
    if not mechanisms:
        for side in ("encoder", "decoder"):
            for key in ("mechanisms", "disagreement"):
                cfg["model"][side].pop(key, None)
    monkeypatch.chdir(tmp_path)
    make_model_dir(Path(cfg["model_dir"]), overwrite=True)
    (tmp_path / "model").mkdir(exist_ok=True)
    logged = []
    monkeypatch.setattr("joeynmt.training.logger.info", lambda *line: logged.append(line))
    train(0, 1, cfg, skip_test=True)
    text = [line[0] % line[1:] if len(line) > 1 else str(line[0]) for line in logged]
    losses = [float(found[1]) for line in text if (found := re.search(r"Batch Loss:\s+([\d.]+)", line))]
    print("losses:", *losses)
    assert len(losses) == 10 and losses[-1] < 0.8 * losses[0]
    assert len((tmp_path / "model/200.hyps").read_text().splitlines()) == 50  # of the validation
