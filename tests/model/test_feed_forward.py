"""The gated feed-forward network."""

import torch
import torch.nn.functional as F

from fairseq_diverse.models.layers import feed_forward
from fairseq_diverse.testing.models import build_model


def test_a_gated_feed_forward_network_equals_its_formula():
    torch.manual_seed(0)
    model = build_model({"gated_feed_forward": True, "activation_fn": "gelu"}).double().eval()
    for layer in (*model.encoder.layers, *model.decoder.layers):
        width, x = layer.fc2.in_features, torch.randn(4, 3, layer.fc2.out_features, dtype=torch.float64)
        assert layer.fc1.out_features == 2 * width
        (gate, other), (gate_bias, bias) = layer.fc1.weight.split(width), layer.fc1.bias.split(width)
        gated = F.gelu(F.linear(x, gate, gate_bias)) * F.linear(x, other, bias)
        torch.testing.assert_close(feed_forward(layer, x), layer.final_layer_norm(x + layer.fc2(gated)))
    assert build_model({}).decoder.layers[0].fc1.out_features == width
