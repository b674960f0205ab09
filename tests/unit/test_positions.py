"""Rotary positions, ALiBi, normalized queries and keys, residual logits and Synthesizer equal their loops."""

import pytest
import torch

from fairseq_diverse.attention import StandaloneAttention
from fairseq_diverse.attention.functional import (
    alibi_bias,
    alibi_slopes,
    at_positions,
    bucket_starts,
    dense_logits,
    normalize_queries_and_keys,
    position_bias,
    random_logits,
    rotate,
)
from fairseq_diverse.attention.functional.rotary import rotation
from fairseq_diverse.attention.mechanisms.position_bias import PositionBias
from fairseq_diverse.attention.mechanisms.synthesizer import Synthesizer
from fairseq_diverse.attention.settings import AttentionShape
from tests.cases import build_model
from tests.reference import positions as reference
from tests.refusals import refused

B, H, T, S, D, N, C = 2, 3, 4, 6, 8, 9, 5


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [D, 5])
def test_rotated_queries_and_keys_equal_the_loop(width):
    q, k = drawn(B, H, T, width), drawn(B, H, S, width, seed=1)
    turned_q, turned_k = rotate(q, k)
    for b in range(B):
        for h in range(H):
            expected = torch.tensor(reference.rotated(k[b, h].tolist()), dtype=torch.float64)
            torch.testing.assert_close(turned_k[b, h], expected)
            expected = torch.tensor(reference.rotated(q[b, h].tolist(), first=S - T), dtype=torch.float64)
            torch.testing.assert_close(turned_q[b, h], expected)
    torch.testing.assert_close(turned_k.norm(dim=-1), k.norm(dim=-1))
    both, other = rotate(torch.cat([q, q], -1), torch.cat([k, k], -1), maps=2)  # as differential attention has them
    torch.testing.assert_close((both, other), (torch.cat([turned_q] * 2, -1), torch.cat([turned_k] * 2, -1)))
    assert torch.autograd.gradcheck(rotate, (q.requires_grad_(), k.requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_of_half_types_are_rounded_once(dtype):
    k = torch.ones(1, 1, 3000, D)
    assert rotation(k.to(dtype)).equal(rotation(k).to(dtype))


def test_only_distances_matter():
    q, k = (drawn(1, 1, 1, D, seed=seed).expand(1, 1, S, D) for seed in (0, 1))
    products = torch.matmul(*(x if i == 0 else x.transpose(-1, -2) for i, x in enumerate(rotate(q, k))))[0, 0]
    for distance in range(1 - S, S):
        on_diagonal = products.diagonal(distance)
        torch.testing.assert_close(on_diagonal, on_diagonal[:1].expand_as(on_diagonal))
    assert products[0].unique().numel() == S


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 20])
def test_slopes_and_biases_of_alibi_equal_the_loop(heads):
    assert alibi_slopes(heads) == pytest.approx(reference.slopes(heads))
    bias = alibi_bias(torch.tensor(alibi_slopes(heads)).double(), T, S)
    expected = torch.tensor(reference.alibi(heads, T, S), dtype=torch.float64)
    torch.testing.assert_close(bias[0], expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 12), (6, 50), (4, 3)])
@pytest.mark.parametrize("both", [True, False])
def test_position_bias_of_t5_equals_the_loop(buckets, farthest, both):
    table = drawn(buckets, H).requires_grad_()
    starts = torch.tensor(bucket_starts(buckets // (1 + both), farthest))
    for queries, keys in ((T, S), (150, 150), (1, 140)):
        expected = torch.tensor(reference.t5_bias(table.tolist(), queries, keys, both, farthest), dtype=torch.float64)
        torch.testing.assert_close(position_bias(table, starts, queries, keys, both)[0], expected, rtol=0, atol=0)
    assert torch.autograd.gradcheck(lambda table: position_bias(table, starts, T, S, both), table)


def test_normalized_queries_and_keys_equal_the_loop():
    q, k, query_gain, key_gain, temperature = (drawn(B, H, T, D), drawn(B, H, S, D), drawn(D), drawn(D), drawn(H))
    scale = D**-0.5
    got_q, got_k = normalize_queries_and_keys(q * scale, k, query_gain, key_gain, temperature, scale)
    for b in range(B):
        for h in range(H):
            normed = [reference.rms_normed(x, query_gain.tolist()) for x in q[b, h].tolist()]
            torch.testing.assert_close(got_q[b, h], temperature[h] * torch.tensor(normed, dtype=torch.float64))
            normed = [reference.rms_normed(x, key_gain.tolist()) for x in k[b, h].tolist()]
            torch.testing.assert_close(got_k[b, h], torch.tensor(normed, dtype=torch.float64))
    inputs = [x.clone().requires_grad_() for x in (q, k, query_gain, key_gain, temperature)]
    assert torch.autograd.gradcheck(lambda *x: normalize_queries_and_keys(*x, scale), inputs)


PADDED = torch.tensor([[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])  # two tokens of padding on the left, none


@pytest.mark.parametrize("positions", [None, PADDED])
def test_synthesized_logits_equal_the_loop(positions):
    table, x = drawn(H, N, N), drawn(B, T, C)
    inner, inner_bias, outer, outer_bias = drawn(H * D, C), drawn(H * D), drawn(H, N, D), drawn(H, N)
    learned = random_logits(table, positions, T, S).expand(B, H, T, S)
    dense = at_positions(dense_logits(x, inner, inner_bias, outer, outer_bias), positions, S)
    for b in range(B):
        places = list(range(S)) if positions is None else positions[b].tolist()
        for h in range(H):
            expected = reference.random_logits(table[h].tolist(), places, T)
            torch.testing.assert_close(learned[b, h], torch.tensor(expected, dtype=torch.float64))
            part = slice(h * D, (h + 1) * D)
            arguments = (x[b], inner[part], inner_bias[part], outer[h], outer_bias[h])
            expected = torch.tensor(reference.dense_logits(*(a.tolist() for a in arguments)), dtype=torch.float64)
            torch.testing.assert_close(dense[b, h], expected[:, places])
    inputs = [t.clone().requires_grad_() for t in (x, inner, inner_bias, outer, outer_bias)]
    assert torch.autograd.gradcheck(lambda *t: at_positions(dense_logits(*t), positions, S), inputs)
    assert torch.autograd.gradcheck(lambda t: random_logits(t, positions, T, S), (table.clone().requires_grad_(),))


@pytest.mark.parametrize("kind", ["random", "dense", "random-mixed", "dense-mixed"])
def test_weights_of_a_synthesizer(kind):
    torch.manual_seed(0)
    mechanisms = {"synthesizer": {"kind": kind, "positions": N}, "position-bias": {}}
    attention = StandaloneAttention(C * H, H, mechanisms=mechanisms).double()
    synthesizer, x, bias = attention.synthesizer, drawn(B, S, C * H), attention.position_bias
    bias.table.data.normal_()
    if kind.startswith("random"):
        made = synthesizer.table[None, :, :S, :S]
    else:
        parameters = synthesizer.inner.weight, synthesizer.inner.bias, synthesizer.outer, synthesizer.outer_bias
        made = dense_logits(x, *parameters)[..., :S]
    if kind.endswith("mixed"):
        q, k = (p(x).unflatten(-1, (H, C)).transpose(1, 2) for p in (attention.q_proj, attention.k_proj))
        with torch.no_grad():
            synthesizer.shares.copy_(torch.tensor([1.0, 0.0]))
        share = 1 / (1 + 2.718281828459045**-1)
        made = share * (q @ k.transpose(-1, -2)) * C**-0.5 + (1 - share) * made
    else:
        assert attention.q_proj.weight.numel() == 0
    output = attention.attend(x, x, x, None, need_weights=True)
    made = made + position_bias(bias.table, bias.starts, S, S, True)  # whole, also where the logits are an average
    torch.testing.assert_close(output.weights, made.softmax(-1).expand(B, H, S, S))


def test_the_table_of_position_biases_starts_as_in_the_authors_code():
    shape, settings = AttentionShape.of("encoder", 1, 512, 8), PositionBias.Settings("encoder", 1024, 1000)
    assert PositionBias(settings, shape).table.std().item() == pytest.approx(512**-0.5, rel=0.05)


def test_initial_values_of_a_synthesizer():
    torch.manual_seed(0)
    shape = AttentionShape.of("encoder", 1, 256, 4)
    dense, random = (Synthesizer(Synthesizer.Settings(kind, positions=64), shape) for kind in ("dense-mixed", "random"))
    for x in (dense.inner.weight, *dense.outer):
        bound = (6 / sum(x.shape)) ** 0.5
        assert 0.9 * bound < x.abs().max() <= bound
    assert not any(x.any() for x in (dense.inner.bias, dense.outer_bias, dense.shares))
    assert random.table.std().item() == pytest.approx(1, rel=0.05)


def test_a_sentence_longer_than_the_positions_of_a_synthesizer():
    attention = StandaloneAttention(C * H, H, mechanisms={"synthesizer": {"kind": "dense", "positions": S}}).double()
    refused("--synthesizer-positions 6: a sentence has 7", attention.attend, *3 * [drawn(B, S + 1, C * H)], None)
    flags = {"synthesizer": "dense-mixed", "synthesizer_positions": 10, "gated": "head"}
    for side, limits in (("encoder", (10, 64)), ("decoder:2", (64, 10))):
        assert build_model({**flags, "synthesizer_on": side}).max_positions() == limits  # training and decoding obey
    assert build_model({**flags, "synthesizer_on": "encoder"}, "diverse_roberta").max_positions() == 10


def test_logits_are_added_from_layer_to_layer():
    torch.manual_seed(0)
    layers = [StandaloneAttention(C * H, H, mechanisms={"residual-logits": {}}).double() for _ in range(3)]
    x, carry, total = drawn(B, S, C * H), {}, 0
    for layer in layers:
        q, k = (p(x).unflatten(-1, (H, C)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj))
        total = total + (q @ k.transpose(-1, -2)) * C**-0.5
        output = layer.attend(x, x, x, None, need_weights=True, previous=carry)
        torch.testing.assert_close(output.weights, total.softmax(-1))
        x, carry = output.value, output.carry
