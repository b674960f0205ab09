"""A mechanism at its neutral setting is the baseline."""

import pytest

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.testing import properties

NEUTRAL = [
    (name, component) for name, cls in MECHANISMS.items() if cls.neutral is not None for component in cls.components
]


@pytest.mark.parametrize(("name", "component"), NEUTRAL)
def test_neutral_settings_equal_the_baseline(name, component):
    properties.neutral_is_the_baseline(name, component)
