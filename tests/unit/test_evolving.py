"""Evolving attention equals its loop version, reads the cells given in the paper, and has no unused parameters."""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch.autograd import gradcheck

from fairseq_diverse.attention.functional.evolving import evolve_logits
from fairseq_diverse.attention.kernels import cpu
from fairseq_diverse.attention.placements import COMPONENTS
from tests.cases import batch, build_model
from tests.reference import evolving as reference

B, H, T, S = 2, 2, 5, 6


def case(component, kernel, columns=S):
    torch.manual_seed(0)
    maps = [torch.randn(B, H, T, columns, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    weight, bias = torch.randn(H, H, kernel, kernel, dtype=torch.float64), torch.randn(H, dtype=torch.float64)
    real = torch.tensor([[True] * columns, [False, False] + [True] * (columns - 2)])[:, None, None]
    cells = real.expand(B, 1, T, columns)
    if component == "decoder":
        cells = cells & torch.ones(T, columns).tril().bool()
    return maps, weight.requires_grad_(), bias.requires_grad_(), cells


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("carried", [False, True])
def test_equals_the_loop(component, kernel, carried):
    (logits, below), weight, bias, cells = case(component, kernel)
    previous = below if carried else None

    def evolve(*x):
        return evolve_logits(x[0], previous if x[1] is None else x[1], *x[2:], component, 0.3, 0.4, cells)

    expected = [
        reference.evolve_logits(
            logits[b].tolist(), below[b].tolist() if carried else None, weight.tolist(), bias.tolist(), component,
            0.3, 0.4, cells[b, 0].tolist(),
        )
        for b in range(B)
    ]  # fmt: skip
    got = evolve(logits, previous, weight, bias)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert gradcheck(evolve, (logits, previous, weight, bias))


@pytest.mark.parametrize(
    ("component", "kernel", "expected"),
    [
        ("encoder", 3, {(t, s) for t in (2, 3, 4) for s in (2, 3, 4)}),
        ("decoder", 3, {(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)}),
        ("cross", 3, {(t, s) for t in (1, 2, 3) for s in (2, 3, 4)}),
        ("decoder", 1, {(3, 3)}),
        ("encoder", 5, {(t, s) for t in (1, 2, 3, 4) for s in (1, 2, 3, 4, 5)}),
        ("cross", 5, {(t, s) for t in (0, 1, 2, 3) for s in (1, 2, 3, 4, 5)}),
    ],
)
def test_receptive_field_of_a_cell(component, kernel, expected):
    """For cell (3, 3), on the diagonal; future cells are never read."""
    logits = torch.randn(1, H, T, S, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.rand(H, H, kernel, kernel).double(), torch.full((H,), 100.0).double()  # ReLU lets all pass
    causal = torch.ones(T, S).tril().bool()[None, None] if component == "decoder" else None
    out = evolve_logits(logits, None, weight, bias, component, 0.5, 1.0, causal)
    out[0, :, 3, 3].sum().backward()
    seen = {(t, s) for _, t, s in logits.grad[0].nonzero().tolist()}
    assert seen == expected


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("shape", [(B, 1, T, 1), (1, 1, 1, S), (T, S), (B, 1, 1, 1)])
def test_cells_may_be_broadcast(component, shape):
    logits, weight, bias, cells = (
        torch.randn(B, H, T, S),
        torch.randn(H, H, 3, 3),
        torch.randn(H),
        torch.rand(shape) > 0.3,
    )
    got, expected = (
        evolve_logits(logits, None, weight, bias, component, 0.5, 0.5, where)
        for where in (cells, cells.expand(B, 1, T, S))
    )
    torch.testing.assert_close(got, expected)


def test_no_convolution_and_no_carry_give_the_logits():
    (logits, previous), weight, bias, cells = case("encoder", 3)
    assert evolve_logits(logits, previous, None, None, "encoder", 0.0, 0.0, cells).equal(logits)
    assert evolve_logits(logits, previous, weight, bias, "decoder", 0.7, 0.0, cells) is logits
    assert evolve_logits(logits, None, None, None, "decoder", 0.0, 0.0, None, above=2).equal(logits[:, :, 2:])
    carried = evolve_logits(logits, previous, None, None, "encoder", 0.25, 0.0, cells)
    torch.testing.assert_close(carried, 0.25 * previous + 0.75 * logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("component", COMPONENTS)
def test_logits_beyond_half_types_stay_finite_under_autocast(component, dtype):
    """A map of half types may be in the layer before or after one of float32."""
    logits, weight, bias = torch.full((B, H, T, S), -1e5), torch.randn(H, H, 3, 3), torch.randn(H)
    cells = torch.rand(B, 1, T, S) > 0.3
    expected = evolve_logits(logits, None, weight, bias, component, 0.5, 0.5, cells)
    with torch.autocast("cpu", dtype):
        assert evolve_logits(logits, None, weight, bias, component, 0.5, 0.5, cells).equal(expected)
    small = torch.randn(B, H, T, S)
    for pair in ((small.to(dtype), small), (small, small.to(dtype)), (small.to(dtype), logits)):
        assert evolve_logits(*pair, weight, bias, component, 0.5, 0.5, cells).isfinite().all()


def test_beta_zero_makes_no_convolution_in_that_component():
    flags = {"evolving_on": "encoder,decoder:2,cross", "evolving_conv": "encoder:0, decoder:0, cross:0.3"}
    model = build_model(flags)
    names = {name.rsplit(".", 1)[0] for name, _ in model.named_parameters() if ".evolving." in name}
    assert names == {f"decoder.layers.{n}.encoder_attn.evolving.conv" for n in (0, 1, 2)}
    assert model.decoder.layers[1].self_attn.is_plain
    assert [layer.self_attn.evolving.carry_ratio for layer in model.encoder.layers] == [0.5, 0.5]
    model.eval()
    changed = build_model({**flags, "evolving_carry": 0.0}).eval()
    changed.load_state_dict(model.state_dict())
    assert changed.encoder.layers[0].self_attn.is_plain
    assert not torch.allclose(model(**batch())[0], changed(**batch())[0])


def test_convolutions_start_with_torchs_values():
    conv = build_model({"evolving_on": "encoder"}).encoder.layers[0].self_attn.evolving.conv
    for parameter in conv.parameters():
        assert parameter.abs().min() > 0 and parameter.abs().max() <= (4 * 3 * 3) ** -0.5


def test_one_convolution_an_attention(monkeypatch):
    calls, original = [], F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *a, **k: calls.append(1) or original(*a, **k))
    for conv, count in (("0.1", 2 + 3 + 3), ("encoder:0,decoder:0.1,cross:0.1", 3 + 3)):
        calls.clear()
        with cpu.disabled():
            build_model({"evolving_on": "encoder,decoder,cross", "evolving_conv": conv})(**batch())
        assert len(calls) == count


def test_alpha_of_the_lite_size():
    for suffix, carry in (("", 0.5), ("_lite", 0.1)):
        args = Namespace()
        ARCH_CONFIG_REGISTRY[f"wang2021_evolving{suffix}"](args)
        assert (args.evolving_carry, args.evolving_conv, args.evolving_kernel) == (carry, "0.1", 3)


def spy(evolving, look):
    """Call ``look`` with the logits, the carried map and the result of every call of the stage."""
    stage = evolving.logits

    def logits(logits, context):
        out = stage(logits, context)
        look(logits, context.previous, out)
        return out

    evolving.logits = logits


def test_the_carried_map_is_that_of_the_last_layer_that_ran():
    """Under LayerDrop; the first layer that runs gets no map."""
    model = build_model({"encoder_layers": 4, "evolving_on": "encoder", "encoder_layerdrop": 0.5}).eval()
    ran, counts = [], set()
    for layer in model.encoder.layers:
        spy(layer.self_attn.evolving, lambda logits, previous, out: ran.append((previous, out)))
    model.train()
    for _ in range(12):
        ran.clear()
        model(**batch())
        counts.add(len(ran))
        assert all(below is before for (below, _), before in zip(ran, [None, *(out for _, out in ran)], strict=False))
    assert len(counts) > 1 and max(counts) > 1


def test_the_carried_map_goes_to_the_next_placed_layer():
    """A layer in between without evolving attention passes it on."""
    flags = {"encoder_layers": 3, "evolving_on": "encoder:1+3", "evolving_conv": "0"}
    model = build_model(flags).eval()
    seen = {}
    for number in (0, 2):
        attention = model.encoder.layers[number].self_attn
        spy(attention.evolving, lambda *figures, n=number: seen.__setitem__(n, figures))
    model(**batch())
    assert seen[0][1] is None and seen[2][1] is seen[0][2]
    torch.testing.assert_close(seen[2][2], (seen[2][0] + seen[2][1]) / 2)
    assert seen[2][2].isfinite().all()


@pytest.mark.parametrize("extra", [{"talking": "both"}, {"syntax": "dependency"}, {"syntax": "phrase"}])
def test_no_infinity_reaches_the_convolution(extra):
    model = build_model({"evolving_on": "encoder,decoder,cross", "syntax_on": "encoder", **extra})
    largest = []
    for layer in model.encoder.layers:
        spy(layer.self_attn.evolving, lambda logits, previous, out: largest.append(out.abs().max()))
    model(**batch())[0].sum().backward()
    assert len(largest) == 2 and all(x.isfinite() and x < 1e3 for x in largest)
    assert all(p.grad.isfinite().all() for p in model.parameters())
