"""A model with mechanisms loads a plain model's parameters, also if encoder and decoder differ in width."""

import pytest

from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES


@pytest.mark.parametrize(("name", "flags"), [*CASES, ALL_ON])
def test_parameters_of_the_plain_model_are_loaded_and_the_rest_is_unchanged(name, flags):
    properties.warm_start(flags)
