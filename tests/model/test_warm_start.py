"""A plain model's parameters start one with mechanisms, where encoder and decoder have different widths too."""

import pytest

from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES


@pytest.mark.parametrize(("name", "flags"), [*CASES, ALL_ON])
def test_what_the_plain_model_has_is_taken_and_the_rest_is_as_it_was(name, flags):
    properties.warm_start(flags)
