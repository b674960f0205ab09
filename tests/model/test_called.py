"""Mechanisms have an effect and learn; calls leave nothing behind, stay on the device, drop weights, see no future."""

import pytest

from fairseq_diverse.testing.properties import PROPERTIES
from tests.cases import ALL_ON, CASES

TITLES = (
    "has an effect",
    "learns from its initial values",
    "the same twice, and in long sentences",
    "on the device of the queries",
    "gradients that a GPU adds fast",
    "attention dropout",
    "causality in training",
)


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize(("name", "flags"), [*CASES, ALL_ON])
def test_properties_of_calls(name, flags, title):
    PROPERTIES[title](flags)
