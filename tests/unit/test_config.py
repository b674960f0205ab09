"""The placement language and the flags made from the mechanisms."""

import argparse
import dataclasses
import re

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY

import fairseq_diverse
from fairseq_diverse.attention import registry
from fairseq_diverse.attention.placements import parse_placement, resolve_placement
from fairseq_diverse.attention.registry import MECHANISMS, fill_defaults, flag_name, read_settings
from tests.refusals import refusal, refused

fairseq_diverse.register()
LAYERS = {"encoder": 6, "decoder": 5, "cross": 5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}), (" ", {}), ("encoder", {"encoder": {1, 2, 3, 4, 5, 6}}), ("encoder:1", {"encoder": {1}}),
        ("encoder:1-2,cross", {"encoder": {1, 2}, "cross": {1, 2, 3, 4, 5}}),
        ("decoder:1+4-5,encoder:1", {"decoder": {1, 4, 5}, "encoder": {1}}),
        (" encoder:2 , cross:5 ", {"encoder": {2}, "cross": {5}})
    ],
)  # fmt: skip
def test_placements(text, expected):
    assert resolve_placement("--x-on", text, LAYERS) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("enc", "unknown component 'enc'"), ("encoder:", "'' is not a layer"), ("encoder:0", "layers count from 1"),
        ("encoder:3-2", "the range '3-2' is reversed"), ("encoder:1-", "'1-' is not a layer"),
        ("encoder:-1", "'-1' is not a layer"), ("encoder:a", "'a' is not a layer"),
        ("encoder:1+", "'' is not a layer"), ("encoder,encoder:1", "component 'encoder' is given twice"),
        ("encoder,,cross", "unknown component ''")
    ],
)  # fmt: skip
def test_bad_placements_name_flag_text_and_what_is_allowed(text, problem):
    error = refusal(parse_placement, "--routing-on", text)
    for part in ("--routing-on", repr(text), problem, "allowed: component[:layers]"):
        assert part in error


def test_a_layer_out_of_range_is_refused():
    said = "--x-on 'decoder:6': layer 6 of decoder is out of range; it has 5 layers"
    refused(said, resolve_placement, "--x-on", "decoder:6", LAYERS)


def test_every_flag_reaches_its_field():
    parser = argparse.ArgumentParser()
    registry.add_flags(parser)
    for mechanism, kind in MECHANISMS.items():
        for f in dataclasses.fields(kind.Settings):
            sample = {"int": "7", "float": "0.25", "str": "cross:2"}[getattr(f.type, "__name__", f.type)]
            value = f.metadata["choices"][-1] if "choices" in f.metadata else sample
            args = parser.parse_args([flag_name(mechanism, f.name), value])
            assert str(getattr(read_settings(args, mechanism), f.name)) == value


@pytest.mark.parametrize(
    ("mechanism", "flags", "field", "value"),
    [
        ("evolving", {"evolving_conv": 0.2}, "conv", "0.2"), ("evolving", {"evolving_carry": "0.2"}, "carry", 0.2),
        ("evolving", {"evolving_carry": 1}, "carry", 1.0), ("evolving", {"evolving_kernel": 5.0}, "kernel", 5),
        ("qk-head-dim", {"qk_head_dim": "5"}, "kind", 5), ("enliven", {"enliven_gate": 0.5}, "gate", "0.5")
    ],
)  # fmt: skip
def test_values_from_python_take_the_type_of_their_flag(mechanism, flags, field, value):
    found = getattr(read_settings(argparse.Namespace(**flags), mechanism), field)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "flags", [{"qk_head_dim": 2.5}, {"evolving_kernel": "x"}, {"evolving_on": None}, {"evolving_on": ["encoder"]}]
)
def test_values_of_another_type_are_refused(flags):
    (name, value), flag = *flags.items(), next(iter(flags)).replace("_", "-")
    mechanism = "evolving" if name.startswith("evolving") else "qk-head-dim"
    refused(re.escape(f"--{flag} {value!r}: "), read_settings, argparse.Namespace(**flags), mechanism)


def test_flags_missing_in_old_checkpoints_have_their_default():
    args = argparse.Namespace()
    assert read_settings(args, "routing") == MECHANISMS["routing"].Settings()
    fill_defaults(args)
    assert args.routing == "none" and args.routing_on == "encoder:1-2" and args.routing_iterations == 3


def test_settings_of_a_mechanism_that_is_off_give_a_warning(caplog):
    def plain(**flags):
        args = argparse.Namespace(**flags)
        fill_defaults(args)
        return args

    usual = plain(evolving_carry=0.1)
    off = {"evolving_carry": 0.3, "evolving_kernel": 4, "routing_on": "cross", "talking_on": "cross"}
    assert registry.without_effect(plain(evolving_carry=0.1), usual) == []
    assert registry.without_effect(plain(**off), usual) == [
        "--talking-on cross has no effect: talking is off, --talking switches it on",
        "--evolving-carry 0.3 has no effect: evolving is off, --evolving-on switches it on",
        "--evolving-kernel 4 has no effect: evolving is off, --evolving-on switches it on",
        "--routing-on cross has no effect: routing is off, --routing switches it on",
    ]
    assert registry.without_effect(plain(**off, evolving_on="cross", routing="em", talking="both"), usual) == []
    unread = {"routing": "mean", "routing_iterations": 5, "syntax": "dependency", "phrase_limit": 3}
    assert registry.without_effect(plain(**unread, evolving_carry=0.1), usual) == [
        "--phrase-limit 3 has no effect: with --syntax dependency",
        "--routing-iterations 5 has no effect: with --routing mean",
    ]
    for arch, warned in (("wang2021_evolving_lite", False), ("diverse_transformer_lite", True)):
        caplog.clear()
        args = argparse.Namespace(evolving_carry=0.3)
        for _ in range(2):  # as fairseq does: one warning
            ARCH_CONFIG_REGISTRY[arch](args)
        assert [r.getMessage().split(":")[0] for r in caplog.records] == warned * ["--evolving-carry 0.3 has no effect"]
