"""Relations, biases and gates equal their loop versions; half types and padding stay finite."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_diverse.attention.functional import position
from fairseq_diverse.attention.functional.enlivening import head_confidence, redundant_heads, syntactic_attention
from fairseq_diverse.attention.functional.syntax import (
    dependency_relation,
    phrase_bias,
    phrase_distance,
    phrase_relation,
)
from fairseq_diverse.attention.mechanisms.localness import Localness
from fairseq_diverse.attention.mechanisms.relative import RelativePositions
from fairseq_diverse.attention.mechanisms.syntax import PhraseAttention, Syntax
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.settings import AttentionShape
from tests.reference import syntax as reference

B, H, T, D, K = 3, 2, 7, 4, 2
VALID = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]]).bool()  # left-padded


def trees() -> tuple[torch.Tensor, ...]:
    """word, head, start, end, layer of the sentences of VALID: some words have two subwords."""
    torch.manual_seed(0)
    parts = []
    for real in VALID.tolist():
        length = sum(real)
        word = [min(i // 2, i - 1) if i else 0 for i in range(length)]
        words = max(word, default=-1) + 1
        head = torch.randint(0, max(words, 1), (words,)).tolist()
        start = [max(0, w - int(torch.randint(0, 3, ()))) for w in range(words)]
        end = [w + 1 + int(torch.randint(0, 3, ())) for w in range(words)]
        layer = torch.randint(0, 9, (words,)).tolist()
        pad = T - length
        columns = ((-1, head), (0, start), (0, end), (0, layer))
        parts.append([[-1] * pad + word, *([empty] * pad + [value[w] for w in word] for empty, value in columns)])
    return tuple(torch.tensor(column) for column in zip(*parts, strict=True))


def softmaxed() -> torch.Tensor:
    return torch.randn(B, H, T, T, dtype=torch.float64).softmax(-1)


def test_relations_equal_the_loops():
    word, head, start, end, layer = trees()
    dependency, phrase = dependency_relation(word, head), phrase_relation(word, start, end)
    for b in range(B):
        columns = [x[b].tolist() for x in (word, head, start, end)]
        assert dependency[b].tolist() == reference.dependency_relation(*columns[:2])
        assert phrase[b].tolist() == reference.phrase_relation(columns[0], *columns[2:])
    for relation in (dependency, phrase):
        assert torch.equal(relation, relation.transpose(1, 2)) and torch.equal(relation.diagonal(0, 1, 2), VALID)
        assert 0 < relation[VALID].float().mean() < 1
    distance = phrase_distance(layer, K)
    assert distance[1, 2, 5] == max(-K, min(K, layer[1, 5] - layer[1, 2])) and distance.abs().max() == K


def test_a_batch_is_related_by_the_columns_of_its_trees():
    word, head, start, end, layer = trees()
    batch = torch.stack((word, head, start, end, layer), -1)
    dependency, phrase = dependency_relation(word, head), phrase_relation(word, start, end)
    assert not torch.equal(dependency, phrase) and not torch.equal(start, layer)
    for needed, expected in (
        (("dependency",), (dependency, None, None)),
        (("constituency",), (None, phrase, layer)),
        (("dependency", "constituency"), (dependency, phrase, layer)),
    ):
        for found, wanted in zip(relate(batch, needed), expected, strict=True):
            assert found is wanted is None or torch.equal(found, wanted)


def test_phrase_bias_equals_the_loop():
    torch.manual_seed(0)
    embedding, weight, bias, out = (torch.randn(*s, dtype=torch.float64) for s in ((2 * K + 1, D), (D, D), (D,), (D,)))
    distance = torch.arange(-K, K + 1).expand(1, 1, -1)
    expected = [reference.phrase_penalty(row, *(x.tolist() for x in (weight, bias, out))) for row in embedding.tolist()]
    got = phrase_bias(embedding, weight, bias, out, distance)
    torch.testing.assert_close(got.flatten(), torch.tensor(expected, dtype=torch.float64))
    halves = [x.half() for x in (embedding, weight, bias, out)]
    assert (got <= 0).all() and phrase_bias(*halves, distance).dtype == torch.float32


def test_autocast_leaves_the_biases_exact():
    torch.manual_seed(0)
    vectors = [torch.randn(*shape) for shape in ((2 * K + 1, D), (D, D), (D,), (D,))]
    q, distance = torch.randn(B, H, T, D), torch.arange(-K, K + 1).expand(1, 1, -1)
    layers = localness_layers()

    def biases():
        shared = position.shared_localness_bias(q, *vectors[1:], VALID)
        return phrase_bias(*vectors, distance), shared, position.localness_bias(q, *layers, VALID)

    expected = biases()
    with torch.autocast("cpu", torch.bfloat16):
        got = biases()
    for mine, exact in zip(got, expected, strict=True):
        assert torch.equal(mine, exact)


def test_heads_that_attend_to_dependencies_are_important_but_with_a_gate_of_one():
    torch.manual_seed(0)
    weights = torch.randn(500, 4, 5, 5).softmax(-1)
    everything, valid = torch.ones(500, 5, 5, dtype=torch.bool), torch.ones(500, 5, dtype=torch.bool)
    assert redundant_heads(weights, everything, valid, 1.0).all()
    word, head = torch.arange(4)[None], torch.tensor([[1, 1, 1, 2]])
    relation, valid = dependency_relation(word, head), torch.ones(1, 4, dtype=torch.bool)
    on = relation.float() / relation.float().sum(-1, keepdim=True)
    off = (~relation).float() / (~relation).float().sum(-1, keepdim=True).clamp(min=1)
    assert redundant_heads(torch.stack([on, off], 1), relation, valid).tolist() == [[False, True]]


def test_confidence_and_syntactic_attention_equal_the_loops():
    torch.manual_seed(0)
    weights, relation = softmaxed(), dependency_relation(*trees()[:2])
    confidence, attention = head_confidence(weights, VALID), syntactic_attention(weights, relation, VALID)
    for b in range(B):
        for h in range(H):
            rows, kin, real = weights[b, h].tolist(), relation[b].tolist(), VALID[b].tolist()
            assert confidence[b, h].item() == pytest.approx(reference.head_confidence(rows, real))
            assert attention[b, h].item() == pytest.approx(reference.syntactic_attention(rows, kin, real))
    assert torch.equal(redundant_heads(weights, relation, VALID), attention <= 1 / (1 + torch.exp(-confidence)))
    gate = attention[1].min().item()
    assert redundant_heads(weights, relation, VALID, gate)[1].tolist() == (attention[1] <= gate).tolist()
    assert redundant_heads(weights, relation, VALID, 1.0).all()


@pytest.mark.parametrize(
    ("queries", "keys", "limit"), [(T, T, K), (T, T + 3, K), (1, T, K), (1, 1, K), (T, T, T), (T, T, T + 2), (T, T, 1)]
)
def test_relative_positions_equal_the_loops(queries, keys, limit):
    """More keys than queries is a step of incremental decoding."""
    torch.manual_seed(0)
    q, table = (torch.randn(*s, dtype=torch.float64) for s in ((B, H, queries, D), (2 * limit + 1, D)))
    weights = torch.randn(B, H, queries, keys, dtype=torch.float64).softmax(-1)
    logits, values = position.relative_logits(q, table, keys), position.relative_values(weights, table)
    for b in range(B):
        for h in range(H):
            expected = reference.relative_logits(q[b, h].tolist(), table.tolist(), keys)
            torch.testing.assert_close(logits[b, h], torch.tensor(expected, dtype=torch.float64))
            expected = reference.relative_values(weights[b, h].tolist(), table.tolist())
            torch.testing.assert_close(values[b, h], torch.tensor(expected, dtype=torch.float64))
    for x in (q, table, weights):
        x.requires_grad_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda q, table: position.relative_logits(q, table, keys), (q[:1, :2], table))
        assert check(position.relative_values, (weights[:1, :2], table))


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_relative_positions_add_nothing_by_index():
    """A GPU adds numbers of one index one by one: most of a long sentence has the index of a clipped distance."""
    q, table = torch.randn(B, H, T, D, requires_grad=True), torch.randn(2 * K + 1, D, requires_grad=True)
    with Operators() as ran:
        position.relative_values(position.relative_logits(q, table, T).softmax(-1), table).sum().backward()
    assert {"mm", "sum"} <= ran.names and not {"scatter_add", "scatter_add_", "index_put", "index_put_"} & ran.names


def localness_layers(dtype=torch.float32):
    """Weight and bias of the hidden layer, the centres and the windows."""
    return [(torch.randn(n, H * D, dtype=dtype) / D, torch.randn(n, dtype=dtype)) for n in (H * D, H, H)]


def test_localness_equals_the_loop_for_any_padding():
    torch.manual_seed(0)
    q, layers = torch.randn(B, H, T, D, dtype=torch.float64), localness_layers(torch.float64)
    for valid in (VALID, VALID.flip(1)):
        bias = position.localness_bias(q, *layers, valid)
        assert bias.isfinite().all() and (bias <= 0).all()
        for b in range(2):
            lists = [tuple(x.tolist() for x in layer) for layer in layers]
            expected = reference.localness_bias(q[b].tolist(), *lists, valid[b].tolist())
            got = bias[b][:, valid[b]][:, :, valid[b]]
            torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_shared_localness_equals_the_loop_for_any_padding():
    torch.manual_seed(0)
    q, weight = torch.randn(B, H, T, D, dtype=torch.float64), torch.randn(D, D, dtype=torch.float64)
    centre, window = (torch.randn(D, dtype=torch.float64) for _ in range(2))
    for valid in (VALID, VALID.flip(1)):
        bias = position.shared_localness_bias(q, weight, centre, window, valid)
        assert bias.isfinite().all() and (bias <= 0).all()
        for b in range(2):
            for h in range(H):
                arguments = [x.tolist() for x in (q[b, h], weight, centre, window, valid[b])]
                expected = torch.tensor(reference.shared_localness_bias(*arguments), dtype=torch.float64)
                torch.testing.assert_close(bias[b, h][valid[b]][:, valid[b]], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_stay_finite(dtype):
    torch.manual_seed(0)
    q = (100 * torch.randn(B, H, T, D)).to(dtype).requires_grad_()
    weight, centre, window = (torch.randn(*s).to(dtype).requires_grad_() for s in ((D, D), (D,), (D,)))
    table = torch.randn(2 * K + 1, D).to(dtype).requires_grad_()
    bias = position.shared_localness_bias(q, weight, centre, window, VALID)
    layers = [tuple(x.to(dtype).requires_grad_() for x in layer) for layer in localness_layers()]
    total = bias.softmax(-1).square().sum() + position.localness_bias(q, *layers, VALID).softmax(-1).square().sum()
    total = total + position.relative_logits(q, table, T).float().softmax(-1).square().sum()
    total = total + position.relative_values(bias.softmax(-1).to(dtype), table).float().square().mean()
    assert total.isfinite() and bias.isfinite().all()
    for gradient in torch.autograd.grad(total, (q, weight, centre, window, table, *itertools.chain(*layers))):
        assert gradient.isfinite().all()


def test_the_phrase_bias_of_an_attention_is_0_outside_the_phrase():
    """Although masked: talking and evolving read these cells."""
    shape = AttentionShape.of("encoder", 1, H * D, H)
    for one in (shape, replace(shape, key_width=0)):  # without queries and keys, as of the synthesizer alone
        module = PhraseAttention(Syntax.Settings("phrase", limit=K), one)
        bias, seen = module.penalty(relate(torch.stack(trees(), -1), ("constituency",)))
        assert bias[seen].max() < 0 and not bias[~seen].any()


def test_initial_values():
    """Xavier's; the vectors of relative layers have about length 1."""
    torch.manual_seed(0)
    shape = AttentionShape.of("encoder", 1, 512, H * 2)
    relative = RelativePositions(RelativePositions.Settings("encoder"), shape)
    local = [Localness(Localness.Settings("encoder", form), shape) for form in ("heads", "shared")]
    phrase = PhraseAttention(Syntax.Settings("phrase"), shape)
    weights = [x for module in local for x in module.parameters() if x.dim() > 1]
    assert not any(x.any() for x in local[0].parameters() if x.dim() == 1)  # biases
    for x in (*relative.parameters(), *weights, phrase.hidden.weight, phrase.out):
        bound = (6 / sum(x.shape)) ** 0.5
        assert 0.9 * bound < x.abs().max() <= bound
    assert phrase.embedding.std().item() == pytest.approx(shape.key_width**-0.5, rel=0.1)
