"""The host's part of a step, counted: no mechanism calls more operators than it may."""

import pytest
import torch

from benchmarks import host
from benchmarks.gpu_rows import VARIANTS

# The most operators that a model with two layers a side calls, with the mechanism wherever it is defined: in the
# forward and the backward pass of training, in a step of decoding. Lower them where a mechanism gets better.
COUNTED_WITH = "2.13"  # torch
LIMITS = {
    "off": (395, 601, 184), "em routing": (495, 797, 222), "simple routing": (483, 749, 214),
    "dependency": (430, 605, 184), "phrase": (504, 703, 184), "phrase, enlivened": (592, 707, 184),
    "pruning": (482, 607, 184), "relative": (525, 761, 220), "localness": (517, 749, 184),
    "localness of heads": (529, 777, 184), "rotary": (521, 681, 220), "alibi": (437, 609, 180),
    "position bias": (505, 695, 179), "qk-norm": (525, 833, 228), "synthesizer dense": (551, 809, 228),
    "residual logits": (464, 676, 194), "value residual": (435, 641, 186), "query width 20": (505, 677, 212),
    "talking": (509, 781, 224), "interacting concat": (485, 661, 262), "interacting sum": (479, 655, 258),
    "evolving": (475, 718, 212), "differential": (587, 875, 275), "gated head": (469, 697, 206),
    "gated element": (469, 687, 206)
}  # fmt: skip


@pytest.mark.skipif(not torch.__version__.startswith(COUNTED_WITH), reason=f"counted with torch {COUNTED_WITH}")
def test_no_mechanism_calls_more_operators_than_it_may():
    sides = host.variants()
    counted = {
        variant: host.operators(
            sides.get(f"{variant} everywhere") or sides.get(f"{variant} encoder") or sides[variant], 2
        )
        for variant in VARIANTS
    }
    above = {name: of for name, of in counted.items() if any(x > y for x, y in zip(of, LIMITS[name], strict=True))}
    assert not above, f"more than in LIMITS: {above}"


def test_the_model_without_mechanisms_calls_no_more_than_fairseqs():
    ours, theirs = (host.operators(host.sides.SIDES[name], 2) for name in ("off", "fairseq"))
    assert ours[0] < theirs[0] and ours[1] < theirs[1] and ours[2] < theirs[2]
