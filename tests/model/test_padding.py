"""A sentence has the same outputs alone and in a padded batch; rows of all padding are finite."""

import pytest
import torch

from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES


@pytest.mark.parametrize("sides", properties.SIDES)
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_alone_equals_in_a_batch(name, flags, sides):
    properties.padding(flags, [sides])


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES])
def test_rows_of_all_padding_are_finite(name, flags, dtype, need_weights):
    properties.half_types(flags, dtype, need_weights)
