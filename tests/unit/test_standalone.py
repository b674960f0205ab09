"""The attention without fairseq equals the fairseq version and torch's module, and does not import fairseq."""

import dataclasses
import re
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_diverse.attention import StandaloneAttention
from fairseq_diverse.attention.registry import MECHANISMS, read_settings
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.testing.models import at, examples, placed
from tests.cases import CASES, batch, build_model
from tests.refusals import refused

B, T, S, C, H = 3, 8, 6, 24, 4
WITHOUT_TREES = [name for name in MECHANISMS if name not in ("syntax", "enliven")]


def test_off_it_is_torchs_attention():
    theirs, ours = nn.MultiheadAttention(C, H, batch_first=True), StandaloneAttention(C, H)
    projections = zip((ours.q_proj, ours.k_proj, ours.v_proj), theirs.in_proj_weight.chunk(3), strict=True)
    with torch.no_grad():
        for projection, weight in projections:
            projection.weight.copy_(weight)
            projection.bias.normal_()
        theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    x, keys = torch.randn(B, T, C), torch.randn(B, S, C)
    padding = torch.arange(S) >= torch.tensor([[6], [4], [5]])
    future = torch.ones(T, S).triu(2).bool()
    added = torch.zeros(T, S).masked_fill(future, -torch.inf)
    biased = torch.where(future, -torch.inf, torch.randn(T, S))
    for options in (
        {}, {"key_padding_mask": padding}, {"attn_mask": future}, {"attn_mask": added}, {"attn_mask": biased},
        {"attn_mask": biased.expand(B * H, T, S)},
        {"key_padding_mask": torch.randn(B, S).masked_fill(padding, -torch.inf)},
        {"key_padding_mask": torch.randn(B, S), "attn_mask": biased}, {"attn_mask": added.clamp(min=torch.finfo().min)},
        {"key_padding_mask": padding, "attn_mask": future, "average_attn_weights": False},
        {"key_padding_mask": padding, "need_weights": False}
    ):  # fmt: skip
        (value, weights), (expected, expected_weights) = (m(x, keys, keys, **options) for m in (ours, theirs))
        torch.testing.assert_close(value, expected)
        if expected_weights is None:
            assert weights is None
        else:
            torch.testing.assert_close(weights, expected_weights)


@pytest.mark.parametrize(("mechanisms", "factor"), [({}, 1), ({"interacting": {"kind": "concat"}}, H)])
@pytest.mark.parametrize(("kdim", "gain"), [(None, 2**-0.5), (7, 1)])
def test_initial_values_are_those_of_fairseqs_attention(mechanisms, factor, kdim, gain):
    torch.manual_seed(0)
    attention = StandaloneAttention(C, H, kdim=kdim, mechanisms=mechanisms)
    gains = {attention.q_proj: gain, attention.k_proj: gain, attention.v_proj: gain, attention.out_proj: factor}
    for projection, its in gains.items():
        bound = its * (6 / sum(projection.weight.shape)) ** 0.5
        assert 0.9 * bound < projection.weight.abs().max() <= bound
    assert not attention.out_proj.bias.any()


def test_dropout_biases_and_a_mask_for_each_sentence():
    x = torch.randn(B, T, C)
    dropping = StandaloneAttention(C, H, dropout=0.5)
    assert not torch.equal(dropping(x, x, x)[0], dropping(x, x, x)[0])
    assert torch.equal(dropping.eval()(x, x, x)[0], dropping(x, x, x)[0])
    assert not any(name.endswith("bias") for name in StandaloneAttention(C, H, bias=False).state_dict())
    masks = torch.rand(B, T, T) > 0.5
    masks[..., 0] = False
    value = dropping(x, x, x, attn_mask=masks)[0]
    for b, mask in enumerate(masks):
        torch.testing.assert_close(value[b : b + 1], dropping(*[x[b : b + 1]] * 3, attn_mask=mask)[0])


def test_queries_may_have_their_own_width():
    attention = StandaloneAttention(C, H, qdim=10, kdim=7, vdim=5, mechanisms={"gated": {"kind": "element"}})
    x, keys, values = torch.randn(B, T, 10), torch.randn(B, S, 7), torch.randn(B, S, 5)
    projections = ((attention.q_proj, x), (attention.k_proj, keys), (attention.v_proj, values))
    q, k, v = (projection(given).unflatten(-1, (H, -1)).transpose(1, 2) for projection, given in projections)
    heads = ((q @ k.mT / (C / H) ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
    expected = attention.out_proj(heads * (x @ attention.gated.projection.weight.t()).sigmoid())
    torch.testing.assert_close(attention(x, keys, values)[0], expected)


def settings_by_name(flags):
    """The settings of every mechanism that is on, as ``StandaloneAttention`` takes them."""
    found = {name: dataclasses.asdict(read_settings(Namespace(**flags), name)) for name in placed(flags)}
    return {name: {field: value for field, value in its.items() if field != "on"} for name, its in found.items()}


class Block(nn.Module):
    """A post-norm encoder layer, as torch's and fairseq's."""

    def __init__(self, attention):
        super().__init__()
        self.attention, self.norm_1, self.norm_2 = attention, nn.LayerNorm(C), nn.LayerNorm(C)
        self.fc1, self.fc2 = nn.Linear(C, 20), nn.Linear(20, C)

    def forward(self, x, padding, trees, previous):
        attended = self.attention.attend(x, x, x, padding, query_padding_mask=padding, trees=trees, previous=previous)
        x = self.norm_1(x + attended.value)
        return self.norm_2(x + self.fc2(self.fc1(x).relu())), attended.carry


@pytest.mark.parametrize(("name", "flags"), [case for case in CASES if case[0].endswith("-encoder")])
def test_a_block_with_it_equals_fairseqs_layer(name, flags):
    model = build_model(flags).eval()
    sample = batch()
    padding = sample["src_tokens"] == 1
    related = relate(sample["source_trees"], ("dependency", "constituency"))
    x = torch.randn(*padding.shape, C)
    carried, other_carried = {}, {}
    expected, got = x.transpose(0, 1), x
    for number, layer in enumerate(model.encoder.layers, 1):
        attention = StandaloneAttention(C, H, mechanisms=settings_by_name(at(flags, "encoder")), layer=number).eval()
        attention.load_state_dict(layer.self_attn.state_dict())
        block = Block(attention)
        block.norm_1, block.norm_2, block.fc1, block.fc2 = (
            layer.self_attn_layer_norm, layer.final_layer_norm, layer.fc1, layer.fc2
        )  # fmt: skip
        expected, attentions = layer(expected, padding, relations=related, carried=carried)
        carried = attentions["encoder"].carry
        got, other_carried = block(got, padding, sample["source_trees"], other_carried)
        torch.testing.assert_close(got[~padding], expected.transpose(0, 1)[~padding])
        assert carried.keys() == other_carried.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanisms": {"nothing": {}}}, "'nothing' is not one of"),
        ({"mechanisms": {"routing": {"rounds": 3}}}, "routing has no setting 'rounds'"),
        ({"mechanisms": {"routing": {"kind": "em", "on": "cross"}}}, "routing has 'on'; leave it out"),
        ({"mechanisms": {"routing": {"kind": "EM"}}}, "--routing 'EM': allowed are none, simple, em"),
        ({"mechanisms": {"localness": {}}, "component": "decoder"}, "localness is defined on encoder only"),
        ({"mechanisms": {"interacting": {"kind": "sum"}, "talking": {"kind": "both"}}}, "encoder:1 also has talking"),
        ({"mechanisms": ["evolving"]}, "mechanisms .'evolving'.: give a dictionary, name -> settings"),
        ({"mechanisms": {"routing": "em"}}, "mechanisms: routing 'em': give a dictionary of its settings"),
        (
            {"component": "decodr"},
            "component 'decodr', layer 1: encoder, decoder, cross are known, layers are numbered",
        ),
        ({"layer": 0}, "component 'encoder', layer 0: encoder"),
        ({"num_heads": 5}, "num_heads 5: must divide embed_dim 24"),
        ({"mechanisms": {"routing": {"kind": "em", "iterations": True}}}, "--routing-iterations True: must be an int"),
        ({"mechanisms": {"routing": {"iterations": 5}}}, "routing is off without 'kind'; give one, or leave routing"),
    ],
)
def test_errors_are_one_line(options, message):
    refused(message, StandaloneAttention, **{"embed_dim": C, "num_heads": H, **options})


def test_a_query_that_sees_nothing_sees_everything():
    """Its output is finite, and the same on both routes."""
    attention, x = StandaloneAttention(C, H), torch.randn(B, T, C)
    hidden = (torch.arange(T) < 3)[:, None].expand(T, T)
    expected = attention(x, x, x)[0]
    for need_weights in (True, False):
        torch.testing.assert_close(
            attention(x, x, x, attn_mask=hidden, need_weights=need_weights)[0][:, :3], expected[:, :3]
        )


def test_one_padding_mask_for_all_sentences():
    attention, x, ends = StandaloneAttention(C, H).eval(), torch.randn(B, T, C), torch.arange(T)[None] >= 5
    for keys, queries in ((ends, None), (None, ends)):
        one, each = (
            attention.attend(x, x, x, keys, query_padding_mask=queries, terms=("subspace", "position", "output"))
            for keys, queries in (
                (keys, queries),
                [mask if mask is None else mask.expand(B, T) for mask in (keys, queries)],
            )
        )
        torch.testing.assert_close(one.agreement, each.agreement)


def test_trees_of_another_length_are_refused():
    attention, x = StandaloneAttention(C, H, mechanisms={"syntax": {"kind": "dependency"}}), torch.randn(B, T, C)
    trees = batch()["source_trees"][:, 1:]
    refused(r"^trees \(3, 7, 5\): must be \(3, 8, 5\)", attention.attend, x, x, x, trees=trees)


def test_masks_that_interacting_heads_cannot_use_are_refused():
    """Not left out: numbers to add, one mask for each head. A mask of 0 and -inf is one of booleans."""
    attention = StandaloneAttention(12, 4, mechanisms={"interacting": {"kind": "sum"}})
    x, future = torch.randn(2, 3, 12), torch.full((3, 3), -torch.inf).triu(1)
    assert attention(x, x, x, attn_mask=future)[0].equal(attention(x, x, x, attn_mask=future < 0)[0])
    refused(r"^attn_mask: interacting adds no numbers to its logits", attention, x, x, x, attn_mask=future.exp())
    exported = torch.export.export(attention, (x, x, x, None, True, future)).module()  # torch's layers give numbers
    torch.testing.assert_close(exported(x, x, x, None, True, future)[0], attention(x, x, x, attn_mask=future)[0])
    with pytest.raises(RuntimeError, match="adds no numbers to its logits"):
        exported(x, x, x, None, True, future.exp())
    refused(r"^attn_mask: interacting heads share one mask", attention, x, x, x, attn_mask=future.expand(8, 3, 3) < 0)


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo().min, -1e9, -1e4])
@pytest.mark.parametrize(
    "flags", [{"evolving": {"conv": "0.4"}}, {"talking": {"kind": "both"}}, {"routing": {"kind": "em"}}]
)
def test_a_number_that_hides_is_as_true(hidden, flags):
    """Mechanisms that change logits must not see it."""
    attention = StandaloneAttention(C, H, mechanisms=flags, component="decoder")
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, future, padding = torch.randn(B, T, C), torch.ones(T, T).triu(1).bool(), torch.zeros(B, T, dtype=torch.bool)
    padding[1, 5:] = True
    expected = attention(x, x, x, padding, attn_mask=future)[0]
    mask, ends = (torch.zeros(hide.shape).masked_fill(hide, hidden) for hide in (future, padding))
    torch.testing.assert_close(attention(x, x, x, ends, attn_mask=mask)[0], expected)


@pytest.mark.parametrize("gate", [{}, {"enliven": {"kind": "enliven", "gate": "1"}}])
def test_numbers_of_a_mask_are_added_to_those_of_mechanisms(gate):
    attention = StandaloneAttention(C, H, mechanisms={"localness": {}, **gate})
    x, mask, trees = torch.randn(B, T, C), torch.randn(T, T), batch()["source_trees"]
    without, added = (attention.attend(x, x, x, None, True, numbers, trees=trees).weights for numbers in (None, mask))
    torch.testing.assert_close(added, (without.log() + mask).softmax(-1))


@pytest.mark.parametrize(
    ("name", "component"),
    [(name, part) for name in WITHOUT_TREES for part in ("encoder", "decoder") if part in MECHANISMS[name].components],
)
def test_padding_beside_a_sentence_does_not_change_it(name, component):
    """Called as torch's module, without ``query_padding_mask``."""
    settings = settings_by_name(at(examples(name)[0], component))
    attention = StandaloneAttention(C, H, mechanisms=settings, component=component).eval()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, future = torch.randn(1, T, C), torch.ones(T, T).triu(1).bool() if component == "decoder" else None
    alone = attention(x[:, :5], x[:, :5], x[:, :5], attn_mask=None if future is None else future[:5, :5])[0]
    padding = torch.arange(T)[None] >= 5
    beside = attention(x, x, x, padding, attn_mask=future)[0]
    torch.testing.assert_close(beside[:, :5], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WITHOUT_TREES)
def test_second_derivatives_are_exact_or_refused(name):
    for flags in examples(name):
        attention = StandaloneAttention(C, H, mechanisms=settings_by_name(at(flags, "encoder"))).double().eval()
        x, direction = torch.randn(2, B, T, C, dtype=torch.float64).unbind()

        def gradient(at, attention=attention, **options):
            at = at.detach().requires_grad_()
            value = attention.attend(at, at, at, need_weights=True).value
            return torch.autograd.grad(value.square().sum(), at, **options)[0], at

        def second(gradient=gradient, x=x, direction=direction):
            first, at_x = gradient(x, create_graph=True)
            return torch.autograd.grad((first * direction).sum(), at_x)[0]

        before, after = (gradient(x + step * direction)[0] for step in (-1e-6, 1e-6))
        try:
            torch.testing.assert_close(second(), (after - before) / 2e-6, rtol=1e-5, atol=1e-5)
        except RuntimeError as error:  # of a backward pass of our own, or torch's fused kernel
            assert name in ("routing", "interacting")
            assert re.search("has no second derivative|derivative for .* is not implemented", str(error))


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", WITHOUT_TREES)
def test_torch_exports_it_for_any_size(name, padded):
    settings = settings_by_name(at(examples(name)[0], "encoder"))
    attention = StandaloneAttention(C, H, mechanisms=settings).eval()
    sizes = {n: torch.export.Dim(size, min=2, max=99) for n, size in enumerate(("sentences", "length"))}

    def inputs(sentences, tokens):
        x, padding = torch.randn(sentences, tokens, C), torch.zeros(sentences, tokens, dtype=torch.bool)
        padding[1, tokens // 2 + 1 :] = True
        return (x, x, x, padding) if padded else (x, x, x)

    given = inputs(3, T)
    exported = torch.export.export(attention, given, dynamic_shapes=(sizes,) * len(given)).module()
    for sentences, tokens in ((2, 2), (5, T + 9), (2, 32)):
        given = inputs(sentences, tokens)
        torch.testing.assert_close(exported(*given)[0], attention(*given)[0])


def test_torchs_transformer_takes_it():
    """With the setting that the documentation names; without it, evaluation reads weights of its own attention."""
    model = nn.Transformer(C, H, 1, 1, 16, 0.0, batch_first=True).eval()
    model.encoder.use_nested_tensor = False
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    places = (encoder, "self_attn", "encoder"), (decoder, "self_attn", "decoder"), (decoder, "multihead_attn", "cross")
    for layer, name, component in places:
        setattr(layer, name, StandaloneAttention(C, H, mechanisms={"talking": {"kind": "both"}}, component=component))
    x, y, padding = torch.randn(1, S, C), torch.randn(1, T, C), torch.arange(S)[None] >= S - 2
    hidden = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(T), "tgt_is_causal": True}
    with torch.no_grad():
        together = model(x, y, **hidden, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        torch.testing.assert_close(together, model(x[:, :-2], y, **hidden))


@pytest.mark.parametrize("mode", ["layer", "encoder", "put there later"])
def test_torchs_layers_take_it(mode):
    """In evaluation they must not take their own fast path, which computes plain attention."""
    layer = nn.TransformerEncoderLayer(C, H, 16, 0.0, batch_first=True)
    attention = StandaloneAttention(C, H, mechanisms={"talking": {"kind": "both"}})
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, padding = torch.randn(B, T, C), torch.arange(T)[None] >= torch.tensor([[T], [T - 2], [3]])
    if mode != "put there later":
        layer.self_attn = attention
    model = layer if mode == "layer" else nn.TransformerEncoder(layer, 1, enable_nested_tensor=mode == "encoder")
    block = layer if mode == "layer" else model.layers[0]
    block.self_attn = attention
    expected = block.norm1(x + attention(x, x, x, padding)[0])
    expected = block.norm2(expected + block.linear2(block.linear1(expected).relu()))
    for training in (True, False):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                found = model.train(training)(x, src_key_padding_mask=padding)
                torch.testing.assert_close(found[~padding], expected[~padding])


@pytest.mark.parametrize("mechanisms", [{"routing": {"kind": "em"}}, {"interacting": {"kind": "sum"}}])
def test_fake_tensors_reach_no_kernel(mechanisms):
    with FakeTensorMode():
        attention, x = StandaloneAttention(C, H, mechanisms=mechanisms), torch.randn(B, T, C)
        assert attention(x, x, x)[0].shape == (B, T, C)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"query": (T, C)}, rf"query \({T}, {C}\): must have three dimensions"),
        ({"key_padding_mask": (S,)}, rf"key_padding_mask \({S},\): must be \({B}, {S}\)$"),
        ({"key_padding_mask": (B, T)}, rf"key_padding_mask \({B}, {T}\): must be \({B}, {S}\)$"),
        ({"attn_mask": (S, T)}, rf"attn_mask \({S}, {T}\): must be \({T}, {S}\) or .*\({B * H}, {T}, {S}\)$"),
        ({"attn_mask": (B,)}, rf"attn_mask \({B},\): must be"),
        ({"attn_mask": (B, 1, T, S)}, rf"attn_mask \({B}, 1, {T}, {S}\): must be"),
        ({"query_padding_mask": (B, S)}, rf"query_padding_mask \({B}, {S}\): must be \({B}, {T}\)$"),
    ],
)
def test_a_wrong_shape_is_named(given, message):
    """Not broadcast to heads or positions that it does not belong to."""
    tensors = {"query": torch.randn(B, T, C), **dict.fromkeys(("key", "value"), torch.randn(B, S, C))}
    tensors |= {name: torch.ones(shape, dtype=torch.bool) for name, shape in given.items()}
    refused(message, StandaloneAttention(C, H).attend, **tensors)


def test_a_mask_may_be_broadcast():
    attention, x, mask = StandaloneAttention(C, H), torch.randn(B, T, C), torch.ones(T, T).triu(1).bool()
    expected = attention(x, x, x, attn_mask=mask)[0]
    torch.testing.assert_close(attention(x, x, x, attn_mask=mask[None])[0], expected)
    first = torch.arange(T)[None] > 0
    assert attention(x, x, x, attn_mask=first)[0].equal(attention(x, x, x, first)[0])


def test_calls_that_cannot_be_right_are_refused():
    """As by torch: masks of integers, whose 1 may mean hidden or seen; is_causal alone, which hides nothing; one value
    for all keys, which torch's fused attention takes on a CPU."""
    attention, x, one = StandaloneAttention(C, H), torch.randn(B, T, C), torch.randn(B, 1, C)
    for name, mask in (("key_padding_mask", torch.ones(B, T).long()), ("attn_mask", torch.ones(T, T).byte())):
        refused(rf"^{name}: torch\.u?int.*; give booleans", attention, x, x, x, **{name: mask})
    refused("give attn_mask, too", attention, x, x, x, is_causal=True)
    refused(rf"^key \({B}, {T}\), value \({B}, 1\): give as many", attention, x, x, one)
    for terms in (("outputs",), "output"):
        said = r"^terms .*output.*: give a tuple of subspace, position, output,"
        refused(said, attention.attend, x, x, x, terms=terms)
        refused(said, AttentionRequest, terms, "encoder")
    for name in ("rotary", "alibi", "relative", "position-bias"):
        distances = StandaloneAttention(C, H, mechanisms={name: {}})
        refused(rf"^{T} queries, {T - 1} keys: {name} takes queries as the last", distances, x, x[:, 1:], x[:, 1:])
    localness = StandaloneAttention(C, H, mechanisms={"localness": {}})
    assert localness(x, x[:, 1:], x[:, 1:])[0].shape == x.shape  # which reads no positions of queries
    second = StandaloneAttention(C, H, mechanisms={"position-bias": {}}, layer=2)
    refused("^position-bias: only the first layer has its parameters; give the carry of the layer", second, x, x, x)
    assert second.attend(x, x, x, previous=distances.attend(x, x, x).carry).value.shape == x.shape
    parsed = StandaloneAttention(C, H, mechanisms={"syntax": {"kind": "dependency"}})
    refused("this attention needs dependency trees", parsed, x, x, x)


WITHOUT_FAIRSEQ = """
import sys
sys.modules["fairseq"] = None  # as if it were not installed
import torch
before = set(sys.modules)
from fairseq_diverse.attention.functional import em_routing
from fairseq_diverse.attention import StandaloneAttention
import fairseq_diverse
heavy = {name.split(".")[0] for name in set(sys.modules) - before} & {"fairseq", "omegaconf", "hydra", "sacrebleu"}
assert not heavy - {"fairseq"}, heavy
x = torch.randn(2, 3, 8)
mechanisms = {"evolving": {}, "routing": {"kind": "em"}}
assert StandaloneAttention(8, 2, mechanisms=mechanisms)(x, x, x)[0].shape == x.shape
assert fairseq_diverse.__version__
"""


def test_it_needs_only_torch_and_prints_nothing():
    done = subprocess.run([sys.executable, "-c", WITHOUT_FAIRSEQ], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
