"""No output at target position t depends on a target token after t."""

import pytest
import torch

from tests.cases import ALL_ON, CASES, batch, build_model


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_later_tokens_change_nothing_earlier(name, flags):
    model = build_model(flags).eval()
    sample = batch(target=(6, 6, 6))
    with torch.no_grad():
        before, _ = model(**sample)
        for position in range(1, 7):
            changed = {**sample, "prev_output_tokens": sample["prev_output_tokens"].clone()}
            changed["prev_output_tokens"][:, position:] = 4 + (changed["prev_output_tokens"][:, position:] + 7) % 26
            after, _ = model(**changed)
            torch.testing.assert_close(after[:, :position], before[:, :position], rtol=1e-6, atol=1e-6)
            assert not torch.allclose(after[:, position:], before[:, position:])
