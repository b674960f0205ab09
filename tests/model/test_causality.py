"""No output at target position t depends on a target token after t."""

import pytest

from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_later_tokens_change_nothing_earlier(name, flags):
    properties.causality(flags)
