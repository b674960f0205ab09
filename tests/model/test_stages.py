"""A whole attention and feed-forward network equal the formulas, the stages in the order of METHODS section 0."""

import math

import pytest
import torch
import torch.nn.functional as F

from fairseq_diverse.attention.functional.masking import attend_somewhere
from fairseq_diverse.attention.functional.position import relative_logits, relative_values
from fairseq_diverse.attention.functional.syntax import dependency_relation
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import Measurement
from fairseq_diverse.models.layers import feed_forward
from tests.cases import batch, build_model
from tests.reference import differential, evolving, heads

T, B, C, H = 5, 2, 24, 4
MAPS = Measurement(weights=True)
REAL = torch.tensor([[True] * T, [False, False, True, True, True]])  # padded on the left


def attention_of(flags):
    """The second encoder layer's attention in float64, every parameter random; its input."""
    attention = build_model({"encoder_embed_dim": C, **flags}).double().encoder.layers[1].self_attn
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention, torch.randn(T, B, C, dtype=torch.float64)


def split(x):
    """(T, B, C) -> (B, H, T, D)."""
    return x.unflatten(-1, (H, -1)).permute(1, 2, 0, 3)


@pytest.mark.parametrize("key_width", [0, 5])
@pytest.mark.parametrize("combine", ["concat", "sum"])
def test_interacting_heads(combine, key_width):
    attention, x = attention_of({"interacting": combine, "qk_head_dim": key_width})
    with torch.no_grad():
        q, k, v = (split(project(x)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        got = attention.eval().attend(x, x, x, ~REAL, measurement=MAPS)
        for b in range(B):
            given = [y[b].tolist() for y in (q, k, v)]
            rows, maps = heads.interacting_attention(*given, REAL[b].expand(T, T).tolist(), combine)
            outputs = torch.tensor(rows, dtype=torch.float64)  # concat keeps H W_o
            expected = attention.out_proj(outputs / (H if combine == "concat" else 1))
            torch.testing.assert_close(got.value[:, b], expected, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(got.weights[b], torch.tensor(maps, dtype=torch.float64))


@pytest.mark.parametrize(("key_width", "kind"), [(0, "none"), (4, "none"), (0, "dependency")])
def test_differential_attention(key_width, kind):
    """Its halves of the queries are divided by sqrt(Dk / 2), not sqrt(Dk); both maps have the masks of mechanisms."""
    flags = {"differential_on": "encoder", "qk_head_dim": key_width, "syntax": kind, "syntax_on": "encoder"}
    attention, x = attention_of(flags)
    word, head = (torch.where(REAL, x, -1) for x in (torch.arange(T), T - 1))
    trees = torch.stack([word, head, *[torch.zeros_like(word)] * 3], -1)
    seen = REAL[:, None] & dependency_relation(word, head) if kind == "dependency" else REAL[:, None].expand(B, T, T)
    own, initial = attention.differential, 0.8 - 0.6 * math.exp(-0.3)
    vectors = [vector.tolist() for vector in (own.query_1, own.key_1, own.query_2, own.key_2)]
    ratio = differential.differential_ratio(*vectors, initial)
    with torch.no_grad():
        q, k, v = (split(project(x)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        got = attention.eval().attend(x, x, x, ~REAL, measurement=MAPS, relations=relate(trees, ("dependency",)))
        for b in range(B):
            allowed = attend_somewhere(seen[b]).tolist()
            given = allowed, ratio, own.gain.tolist(), initial
            of_heads = [[y[b, h].tolist() for y in (q, k, v)] for h in range(H)]
            found = zip(*(differential.differential_attention(*head, *given) for head in of_heads), strict=True)
            outputs, maps = (torch.tensor(y, dtype=torch.float64) for y in found)
            torch.testing.assert_close(got.value[:, b], attention.out_proj(outputs.permute(1, 0, 2).flatten(1)))
            torch.testing.assert_close(got.weights[b], maps)


def test_concatenated_pairs_start_and_learn_like_plain_heads():
    """W_o has Xavier's values; with equal maps, an update of Adam changes the output as much as with plain heads."""
    model = build_model({"encoder_embed_dim": C, "interacting": "concat"})
    bound = (6 / (H * C + C)) ** 0.5
    assert 0.9 * bound < (model.encoder.layers[1].self_attn.out_proj.weight / H).abs().max() <= bound
    pairs, x = attention_of({"interacting": "concat"})
    plain, _ = attention_of({})
    with torch.no_grad():
        for attention in (pairs, plain):
            attention.q_proj.weight.zero_(), attention.q_proj.bias.zero_()
        plain.v_proj.load_state_dict(pairs.v_proj.state_dict())
        plain.out_proj.bias.copy_(pairs.out_proj.bias)
        plain.out_proj.weight.copy_(pairs.out_proj.weight.unflatten(1, (H, C)).mean(1))
    for _ in range(2):
        outputs = [attention.eval()(x, x, x)[0] for attention in (pairs, plain)]
        torch.testing.assert_close(*outputs)
        for attention, output in zip((pairs, plain), outputs, strict=True):
            output.square().sum().backward()
            torch.optim.Adam(attention.out_proj.parameters(), lr=0.1, eps=0).step()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_bias_then_talking_then_evolving_then_mask_then_softmax_then_talking_then_dropout(dropout):
    """Syntax masks the softmax, but not the convolution."""
    attention, x = attention_of(
        {"syntax": "dependency", "syntax_on": "encoder",
         "relative_on": "encoder", "relative_limit": 2, "talking": "both", "evolving_on": "encoder",
         "evolving_carry": 0.3, "evolving_conv": "0.4", "attention_dropout": dropout}
    )  # fmt: skip
    previous = torch.randn(B, H, T, T, dtype=torch.float64)
    before, after = attention.talking.before.tolist(), attention.talking.after.tolist()
    kernel = attention.evolving.conv.weight.tolist(), attention.evolving.conv.bias.tolist()
    cells = (REAL[:, :, None] & REAL[:, None]).tolist()
    trees = batch((T - 1, T - 3), (1, 1))["source_trees"]
    related = dependency_relation(trees[..., 0], trees[..., 1])
    assert torch.equal(trees[..., 0] >= 0, REAL) and (related != REAL[:, None]).any()
    with torch.no_grad():
        torch.manual_seed(2)
        got = attention.attend(
            x, x, x, ~REAL, query_padding_mask=~REAL, relations=relate(trees, ("dependency",)), measurement=MAPS,
            carried={"evolving": previous},
        )  # fmt: skip
        q, k, v = (split(project(x)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        q = q * (C // H) ** -0.5
        logits = q @ k.transpose(-1, -2) + relative_logits(q, attention.relative.keys, T)
        evolved = torch.tensor(
            [
                evolving.evolve_logits(
                    heads.mix_heads(logits[b].tolist(), before), previous[b].tolist(), *kernel, "encoder", 0.3, 0.4,
                    cells[b],
                )
                for b in range(B)
            ],
            dtype=torch.float64,
        )  # fmt: skip
        weights = evolved.masked_fill(~attend_somewhere(related & REAL[:, None])[:, None], -torch.inf).softmax(-1)
        mixed = torch.tensor([heads.mix_heads(maps.tolist(), after) for maps in weights], dtype=torch.float64)
        torch.manual_seed(2)
        dropped = F.dropout(mixed, dropout)
        values = dropped @ v + relative_values(dropped, attention.relative.values)
        expected = attention.out_proj(values.permute(2, 0, 1, 3).flatten(2))
    torch.testing.assert_close(got.weights, weights)
    torch.testing.assert_close(got.carry["evolving"], evolved)
    torch.testing.assert_close(got.value, expected)


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
