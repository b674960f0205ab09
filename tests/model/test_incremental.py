"""Incremental decoding with randomly reordered beams gives the outputs of the full pass."""

import pytest

from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES


@pytest.mark.parametrize(("beam", "side"), [(1, "left"), (5, "left"), (5, "right")])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_step_by_step_equals_full_pass(name, flags, beam, side):
    properties.step_by_step(flags, beam, side)


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_a_finished_sentence_leaves_the_batch(name, flags):
    """With fewer rows than before, the caches of cross-attention shrink too."""
    properties.finished_sentences_leave(flags)
