"""What `check` promises of a mechanism holds for each setting of each one on each component, all together, and none."""

import pytest
import torch

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES

EVERY = [("off", {}), *CASES, ALL_ON]
HERE = {  # instead of forty steps; a target's padding is on the right
    "step by step = full pass, beam 1": lambda flags: properties.step_by_step(flags, beam=1),
    "step by step = full pass, padded on the right": lambda flags: properties.step_by_step(flags, side="right"),
    "float32 finite, without maps": lambda flags: properties.half_types(flags, torch.float32),
    "float32 finite, with maps": lambda flags: properties.half_types(flags, torch.float32, need_weights=True),
    "float16 finite, without maps": lambda flags: properties.half_types(flags, torch.float16),
}
ALONE = "gradients, also with activation checkpointing"
HOLDS = {title: holds for title, holds in properties.PROPERTIES.items() if title != "one graph of torch.compile"} | HERE
# other types and the disagreement's gradients show these, too
SLOW = {title for title in HOLDS if title.startswith("float32") or title in ("float16 finite, without maps", ALONE)}


@pytest.mark.parametrize("title", [pytest.param(title, marks=[pytest.mark.slow] * (title in SLOW)) for title in HOLDS])
@pytest.mark.parametrize(("name", "flags"), EVERY)
def test_properties(name, flags, title):
    if flags or title != "has an effect":
        HOLDS[title](flags)


NEUTRAL = [name for name, kind in MECHANISMS.items() if kind.neutral is not None or kind.neutral_zeros]


@pytest.mark.parametrize(("name", "place"), [(n, place) for n in NEUTRAL for place in properties.defined_at(n)])
def test_neutral_settings_equal_the_baseline(name, place):
    properties.neutral_is_the_baseline(name, place)
