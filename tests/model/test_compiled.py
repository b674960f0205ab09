"""--compile-layers: every attention is one graph, and compiled layers give the numbers of others; so does a GPU."""

import copy
import shutil

import pytest
import torch

from fairseq_diverse.attention.kernels import gpu
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models import layers
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES, batch, build_model, first_of_each, terms
from tests.integration.commands import DEVICES, ON_A_GPU


@pytest.fixture
def traced(monkeypatch):
    """Layers are traced, but run by torch as it is; the list grows by a layer's input with each graph."""
    graphs: list = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(layers.DiverseEncoderLayer.run, dynamic=True, backend=backend)
    others = torch.compile(layers.DiverseDecoderLayer.run, dynamic=True, backend=backend)
    functions = {layers.DiverseEncoderLayer.run: compiled, layers.DiverseDecoderLayer.run: others}
    monkeypatch.setattr(layers, "compiled", functions.__getitem__)
    with torch._dynamo.config.patch(recompile_limit=layers.RECOMPILE_LIMIT):
        yield graphs


@pytest.mark.parametrize(("name", "flags"), [*first_of_each(CASES), ALL_ON])
@pytest.mark.parametrize("evaluation", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_attention_is_one_graph(name, flags, evaluation):
    """Of all mechanisms together in evaluation, too."""
    properties.one_graph(flags, evaluation=evaluation or name == ALL_ON[0])


def test_whether_kernels_work_is_asked_once_and_not_traced(monkeypatch):
    asked = []
    monkeypatch.setattr(gpu, "_works", lambda device: asked.append(open(__file__).close()) is None)
    compiled = torch.compile(lambda x: x + gpu._works_here(x.device), fullgraph=True, backend="eager")
    assert [compiled(torch.zeros(2)).tolist() for _ in range(2)] == [[1, 1], [1, 1]] and len(asked) == 1


SOME = {"evolving_on": "encoder", "evolving_conv": "0.4", "routing": "em", "routing_on": "decoder:1,cross:2"}
SIZES = {"encoder_layers": 2, "decoder_layers": 2}


def run(model, request, sample):
    """Outputs, agreement and gradients of one pass."""
    torch.manual_seed(5)
    model.zero_grad()
    output, extra = model(**sample, attention_request=request)
    if model.training:
        (output.square().mean() + extra["agreement"].sum()).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"outputs": output, "agreement": extra["agreement"], **gradients}


CARRYING = {"checkpoint_activations": True, "encoder_layerdrop": 0.4}
CARRYING |= {"residual_logits_on": "encoder,decoder", "value_residual_on": "encoder,decoder,cross"}

MODERN = {"rotary_on": "encoder,decoder", "qk_norm_on": "encoder,decoder,cross", "gated_feed_forward": True}
MODERN |= {"evolving_on": "encoder,decoder,cross", "encoder_normalize_before": True, "decoder_normalize_before": True}


@pytest.mark.parametrize(
    ("some", "modes"),
    [
        (SOME, 2),
        (CARRYING, 1),
        *(pytest.param(some, 2, marks=pytest.mark.slow) for some in (MODERN, {**SOME, **CARRYING})),
    ],
    ids=["", "carrying", "modern", "both"],
)
def test_compiled_layers_give_the_numbers_of_others(traced, some, modes):
    """Carry and agreement pass between layers; with activation checkpointing and LayerDrop too; a copy compiles."""
    flags = {**some, **SIZES, "dropout": 0.1}
    plain, model = (properties.trained_model({**flags, "compile_layers": on}) for on in (False, True))
    assert list(plain.state_dict()) == list(model.state_dict())
    request = AttentionRequest(("position", "output"), properties.EVERYWHERE)
    for training, compiling in ((True, model), (False, copy.deepcopy(model)))[:modes]:
        plain.train(training)
        compiling.train(training)
        for lengths in ((7, 4, 5), (9, 3, 6)):
            sample = batch(lengths, lengths[::-1])
            with torch.set_grad_enabled(training):
                expected, got = (run(which, request, sample) for which in (plain, compiling))
            assert expected.keys() == got.keys()
            for name, value in expected.items():
                torch.testing.assert_close(got[name], value, msg=lambda text, name=name: f"{name}: {text}")
    assert 4 <= len(traced) <= 14  # two kinds of layer, each with and without carry or map, and in evaluation


def test_decoding_is_not_compiled(traced):
    model = build_model({"compile_layers": True, **SIZES}).eval()
    sample = batch()
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"])
        before = len(traced)
        model.decoder(sample["prev_output_tokens"][:, :1], encoded, incremental_state={})
        assert before == len(traced) > 0
        model.make_generation_fast_(beamable_mm_beam_size=2, need_attn=False)
        model(**batch((3, 4, 5), (9, 9, 9)))
    assert before == len(traced)


@pytest.mark.parametrize("arch", ["diverse_transformer", "diverse_roberta"])
def test_every_model_has_the_flag(arch):
    for on in (False, True):
        of = build_model({"compile_layers": on}, arch).modules()
        assert {layer.compiles for layer in of if isinstance(layer, layers.DiverseLayer)} == {on}


@pytest.mark.parametrize(
    ("flag", "value"), [("quant_noise_pq", 0.1), ("quant_noise_scalar", 0.5), ("ddp_backend", "fully_sharded")]
)
def test_what_does_not_work_is_refused(flag, value):
    build_model({flag: value, "compile_layers": False, "quant_noise_pq_block_size": 1})
    with pytest.raises(UserError, match=f"^--compile-layers: does not work with --{flag.replace('_', '-')}"):
        build_model({flag: value, "compile_layers": True, "quant_noise_pq_block_size": 1})


def numbers(layer, length, device):
    """Outputs of an encoder layer, and gradients of its input and parameters."""
    torch.manual_seed(length)
    x = torch.randn(length, 3, 24).to(device).requires_grad_()
    pads = (torch.arange(length).expand(3, -1) >= torch.tensor([[length], [4], [3]])).to(device)
    out = layer(x, encoder_padding_mask=pads)[0]
    return [out, *torch.autograd.grad(out.square().mean(), [x, *layer.parameters()])]


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("aot_eager", "cpu"),  # all that inductor does before it writes code
        pytest.param("inductor", "cuda", marks=ON_A_GPU),
        pytest.param(
            "inductor",
            "cpu",
            marks=[pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")],
        ),
    ],
)
def test_compiled_code_gives_the_numbers_of_torch(monkeypatch, backend, device):
    """With routing's kernel and a convolution inside."""
    flags = {"evolving_on": "encoder", "evolving_conv": "0.4", "routing": "em", "routing_on": "encoder"}
    flags |= {"compile_layers": True}
    layer = properties.trained_model(flags).encoder.layers[0].to(device)
    plain = copy.deepcopy(layer)
    plain.compiles = False
    if backend != "inductor":
        compiled = torch.compile(type(layer).run, dynamic=True, fullgraph=True, backend=backend)
        monkeypatch.setattr(layers, "compiled", lambda function: compiled)
    torch._dynamo.reset()
    for length in (6, 9):
        for expected, got in zip(numbers(plain, length, device), numbers(layer, length, device), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6 if device == "cpu" else 1e-5)


def on(device, flags):
    """Outputs, agreement and gradients of one pass, and the outputs of the last of four steps of decoding."""
    model = properties.trained_model(flags).to(device)
    sample = {name: tensor.to(device) for name, tensor in batch().items()}
    results = run(model, AttentionRequest(terms(flags), properties.EVERYWHERE), sample)
    model.eval()
    words, state = sample["prev_output_tokens"][:, :4], {}
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        for step in range(1, 5):
            results["last step"] = model.decoder(words[:, :step], encoded, incremental_state=state)[0]
    return {name: tensor.detach().cpu() for name, tensor in results.items()}


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_a_gpu_gives_the_numbers_of_the_cpu(name, flags, device):
    torch.testing.assert_close(on(device, flags), on("cpu", flags), rtol=1e-3, atol=1e-4)
