"""A mechanism at its neutral setting is the baseline."""

import pytest
import torch

from tests.cases import batch, build_model

# flags -> the parameters (ends of their names) that are zero in the neutral setting; how far it may be off
NEUTRAL: list[tuple[dict[str, str], tuple[str, ...], float]] = [
    ({"relative_on": "encoder,decoder"}, (".relative.keys", ".relative.values"), 1e-5),
    ({"talking": "both"}, (), 1e-5),
    ({"evolving_on": "encoder,decoder,cross", "evolving_carry": 0.0, "evolving_conv": "0"}, (), 0),
]


@pytest.mark.parametrize(("flags", "zeroed", "error"), NEUTRAL)
def test_neutral_settings_equal_the_baseline(flags, zeroed, error):
    baseline, model = build_model().eval(), build_model(flags).eval()
    model.load_state_dict(baseline.state_dict(), strict=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(zeroed):
                parameter.zero_()
        got, expected = model(**batch())[0], baseline(**batch())[0]
    torch.testing.assert_close(got, expected, rtol=error, atol=error)
