"""Mechanisms of a user: what the registry accepts, and one line for everything else."""

import argparse
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fairseq_diverse.attention import (
    MECHANISMS,
    Mechanism,
    MechanismSettings,
    option,
    placement,
    register_mechanism,
)
from fairseq_diverse.attention.registry import add_flags
from fairseq_diverse.cli import main
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing import properties
from tests.cases import batch, build_model


@pytest.fixture(autouse=True)
def registered_again():
    before = dict(MECHANISMS)
    yield
    MECHANISMS.clear()
    MECHANISMS.update(before)


@dataclass(frozen=True)
class On(MechanismSettings):
    on: str = placement("", "placement; empty = off")


def mechanism(settings=On, **members):
    members.setdefault("logits", lambda self, logits, context: logits)
    return type("Own", (Mechanism,), {"Settings": settings, **members})


def settings(**fields):
    made = {name: option(value, "help") for name, value in fields.items()}
    return dataclass(frozen=True)(
        type("Settings", (On,), {"__annotations__": {k: type(v) for k, v in fields.items()}, **made})
    )


@pytest.mark.parametrize(
    ("name", "cls", "options", "message"),
    [
        ("routing", mechanism(), {}, "'routing': the name is taken by .*RoutedAggregation"),
        ("My_own", mechanism(), {}, "'My_own': a name is lower-case words joined by '-'"),
        ("own", mechanism(), {"before": "nothing"}, "before='nothing' is not a mechanism; known are "),
        (
            "own",
            mechanism(logit=lambda self, logits, context: logits),
            {},
            "'own': logit is not a stage; stages are pro",
        ),
        ("own", type("Own", (Mechanism,), {"Settings": On}), {}, "'own': it has no method for a stage"),
        ("own", mechanism(settings=int), {}, "its class Settings must be a dataclass"),
        ("own", int, {}, "is not a subclass of Mechanism"),
        ("encoder-own", mechanism(), {}, "--encoder-own-on: fairseq reserves flags with this prefix"),
        ("own", mechanism(key="talking"), {}, "its key 'talking' is used by the mechanism 'talking'"),
        ("qk-head", mechanism(settings(dim=1)), {}, "--qk-head-dim is a flag of the mechanism 'qk-head-dim'"),
        ("own", mechanism(settings(values=())), {}, "Settings.values: give option"),
    ],
)
def test_errors_are_one_line(name, cls, options, message):
    before = dict(MECHANISMS)
    with pytest.raises(UserError, match=message) as error:
        register_mechanism(name, **options)(cls)
    assert "\n" not in str(error.value) and before == MECHANISMS


def test_a_flag_of_fairseq_is_refused():
    register_mechanism("dropout")(mechanism(settings(kind=0)))
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout")
    with pytest.raises(UserError, match="'dropout': --dropout is a flag of fairseq"):
        add_flags(parser)


def test_a_key_of_the_attention_is_refused():
    register_mechanism("own")(mechanism(key="k_proj"))
    with pytest.raises(UserError, match="'own': its key 'k_proj' is taken by the attention"):
        build_model({"own_on": "encoder"})


def test_order_of_mechanisms():
    register_mechanism("first", before="talking")(mechanism())
    register_mechanism("last")(mechanism())
    names = [*MECHANISMS]
    assert names.index("first") == names.index("talking") - 1 and names[-1] == "last"


def test_a_mechanism_that_replaces_the_attention_skips_no_stage_silently():
    register_mechanism("own")(mechanism())
    for whole, message in (("differential", "skips the stage"), ("interacting", "not defined for pairs")):
        flags = {"interacting": "sum", "interacting_on": "encoder"} if whole == "interacting" else {}
        flags = flags or {"differential_on": "encoder"}
        with pytest.raises(UserError, match=message):
            build_model({**flags, "own_on": "encoder"})


class ReadsTheFuture(Mechanism):
    """Adds the logits in reverse order, including those of later keys."""

    Settings = On

    def logits(self, logits, context):
        return logits + logits.flip(-1)


class ForgetsThePadding(Mechanism):
    """Divides by the number of keys, including padding."""

    Settings = On

    def heads(self, heads, context):
        return heads / context.k.size(2)


class KeepsStateOnItself(Mechanism):
    """Its state between decoding steps is not reordered with the beams."""

    Settings = On

    def __init__(self, settings, where):
        super().__init__(settings, where)
        self.step, self.mean = nn.Parameter(torch.ones(1)), None

    def gate(self, heads, context):
        if context.memory is None:
            before = heads.roll(1, 2)
            before[:, :, 0] = 0
        else:
            before = torch.zeros_like(heads) if self.mean is None or self.mean.shape != heads.shape else self.mean
            self.mean = heads.detach()
        return heads + self.step * before


@pytest.mark.parametrize(
    ("cls", "holds", "component", "message"),
    [
        (ReadsTheFuture, properties.causality, "decoder", "outputs before position 2: differs by"),
        (
            ForgetsThePadding,
            properties.padding,
            "encoder",
            "a sentence alone, compared with a batch padded left and right: differs by",
        ),
        (KeepsStateOnItself, properties.step_by_step, "decoder", "compared with the full pass: differs by"),
    ],
)
def test_a_broken_mechanism_is_found(cls, holds, component, message):
    register_mechanism("own")(cls)
    holds({})
    with pytest.raises(properties.PropertyFailed, match=message):
        holds({"own_on": component})


def test_without_reordering_only_the_beam_matters():
    register_mechanism("own")(KeepsStateOnItself)
    properties.step_by_step({"own_on": "decoder"}, beam=1)


def test_memory_is_reordered_automatically():
    class Keeps(KeepsStateOnItself):
        def gate(self, heads, context):
            if context.memory is None:
                before = heads.roll(1, 2)
                before[:, :, 0] = 0
            else:
                before = context.memory.get("own", torch.zeros_like(heads))
                context.memory["own"] = heads
            return heads + self.step * before

    register_mechanism("own")(Keeps)
    properties.step_by_step({"own_on": "decoder,cross"})
    properties.finished_sentences_leave({"own_on": "decoder,cross"})


def test_without_stages_it_is_fairseqs_attention():
    register_mechanism("own")(mechanism(build=classmethod(lambda cls, settings, where: None)))
    model = build_model({"own_on": "encoder"})
    assert all(layer.self_attn.is_plain for layer in model.encoder.layers)
    assert torch.equal(model.eval()(**batch())[0], build_model().eval()(**batch())[0])


def test_check_prints_a_table_and_exits_with_1_on_a_failure(monkeypatch, capsys):
    register_mechanism("own")(ReadsTheFuture)
    few = {title: properties.PROPERTIES[title] for title in ("off = absent", "causality")}
    monkeypatch.setattr(properties, "PROPERTIES", few)
    monkeypatch.setattr(properties, "with_others", lambda *_: None)
    monkeypatch.setattr(properties, "reload", lambda *_: [0.0])
    assert main(["check", "own"]) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:28].strip(): line[28:].split() for line in lines if line and not line.startswith(" ")}
    assert rows["property"] == ["encoder", "decoder", "cross", "roberta"]
    assert rows["off = absent"] == ["✓", "✓", "✓", "✓"] and rows["reload in a new process"] == ["✓", "✓", "✓", "-"]
    assert rows["causality"] == ["✓", "FAILED", "✓", "-"]
    assert any(line.startswith("  causality at decoder: outputs before position 2: differs by") for line in lines)
    assert lines[-2] == "own: 1 failed"


class ForgetsThePaddingUnlessTrained(Mechanism):
    """Has no effect at its initial values; after training, it reads padding and the future."""

    Settings = On

    def __init__(self, settings, where):
        super().__init__(settings, where)
        self.share = nn.Parameter(torch.zeros(1))

    def heads(self, heads, context):
        return heads + self.share * context.v.mean(2, keepdim=True)


def test_an_error_hidden_by_initial_values_is_found():
    register_mechanism("own")(ForgetsThePaddingUnlessTrained)
    with pytest.raises(properties.PropertyFailed, match="alone, compared with a batch padded left and right"):
        properties.padding({"own_on": "encoder"})
    with pytest.raises(properties.PropertyFailed, match="outputs before position"):
        properties.causality({"own_on": "decoder"})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"refuses": {"talkng": "no"}}, "refuses: 'talkng' is not a mechanism"),
        ({"neutral": {"own-on": "{on}"}}, "'own-on' is not a setting; write it with _, as in parsed arguments"),
        ({"neutral_zeros": ("nope",)}, "neutral_zeros: 'nope' is not a parameter"),
    ],
)
def test_what_a_class_declares_must_exist(members, message):
    register_mechanism("own")(mechanism(**members))
    with pytest.raises(properties.PropertyFailed, match=message):
        properties.declared("own")


def test_check_finds_a_flag_that_fairseq_has():
    register_mechanism("max")(mechanism(settings(tokens=1)))
    with pytest.raises((UserError, argparse.ArgumentError), match="--max-tokens"):
        properties.declared("max")


def test_components_that_do_not_exist_are_refused():
    with pytest.raises(UserError, match=r"components \('encodr',\): give one or more of encoder, decoder, cross"):
        register_mechanism("own")(mechanism(components=("encodr",)))
