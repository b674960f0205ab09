"""The votes of routed aggregation are Eqs. 8-9 of Li et al. (2021), with their initial variances."""

import pytest
import torch

from fairseq_diverse.attention.mechanisms.routing import RoutedAggregation
from fairseq_diverse.attention.settings import AttentionShape
from tests.reference.routing import em_routing, simple_routing


def loop(module, heads, row):
    """One token: LayerNorm, W1, ReLU, W2, read as H x N x D, routed; with loops."""
    weights = {name: p.tolist() for name, p in module.named_parameters()}
    width = len(row)
    mean = sum(row) / width
    deviation = (sum((x - mean) ** 2 for x in row) / width + 1e-5) ** 0.5
    gain, offset = weights["layer_norm.weight"], weights["layer_norm.bias"]
    normal = [(x - mean) / deviation * g + o for x, g, o in zip(row, gain, offset, strict=True)]

    def linear(name, x):
        rows = zip(weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True)
        return [sum(w * v for w, v in zip(line, x, strict=True)) + b for line, b in rows]

    votes = linear("votes", [max(0.0, x) for x in linear("hidden", normal)])
    n = module.capsules
    d = len(weights["votes.bias"]) // heads // n
    read = [[[votes[(h * n + i) * d + k] for k in range(d)] for i in range(n)] for h in range(heads)]
    if module.kind == "simple":
        return simple_routing(read, module.iterations)
    betas = [weights.get(name, [0.0] * n) for name in ("beta_a", "beta_u")]
    return em_routing(read, *betas, module.iterations, "beta_a" in weights)


@pytest.mark.parametrize(
    ("kind", "iterations", "capsules", "activation"),
    [
        ("simple", 1, 0, "learned"),
        ("simple", 4, 0, "learned"),
        ("em", 1, 0, "learned"),
        ("em", 3, 4, "none"),
        ("em", 4, 4, "learned"),
    ],
)
@pytest.mark.parametrize("head_width", [0, 2], ids=["width / heads", "other width"])  # T5's heads may have another
def test_equals_the_loop(kind, iterations, capsules, activation, head_width):
    torch.manual_seed(0)
    settings = RoutedAggregation.Settings(kind, iterations=iterations, capsules=capsules, activation=activation)
    module = RoutedAggregation(settings, AttentionShape.of("encoder", 1, 8, 3, head_width)).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 3 * head_width or 8, dtype=torch.float64)
    expected = torch.tensor([loop(module, 3, row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(module.combine(x), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("head_width", [0, 128])
def test_initial_values(head_width):
    shape = AttentionShape.of("encoder", 1, 256, 4, head_width)
    module = RoutedAggregation(RoutedAggregation.Settings("em"), shape)
    assert module.hidden.weight.var().item() == pytest.approx(2 / (4 * head_width or 256), rel=0.05)
    assert module.votes.weight.var().item() == pytest.approx(1 / 256, rel=0.05)
    for zero in (module.hidden.bias, module.votes.bias, module.beta_a, module.beta_u):
        assert not zero.any()
