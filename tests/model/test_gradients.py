"""Every parameter gets a finite gradient, the same one with activation checkpointing."""

import pytest
import torch

from fairseq_diverse.attention.request import AttentionRequest
from tests.cases import ALL_ON, CASES, batch, build_model, terms


def everything(flags):
    return AttentionRequest(terms(flags), "encoder,cross,decoder")


def gradients(flags, request=None, checkpointing=False):
    model = build_model({**flags, "checkpoint_activations": checkpointing})
    output, extra = model(**batch(), attention_request=request)
    loss = output.float().square().mean()
    if request is not None:
        loss = loss + extra["agreement"].sum()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("disagreement", [False, True], ids=["likelihood", "with disagreement"])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_every_parameter_and_checkpointing(name, flags, disagreement):
    request = everything(flags) if disagreement else None
    plain = gradients(flags, request)
    for parameter, gradient in plain.items():
        assert gradient is not None and gradient.isfinite().all(), parameter
        if not parameter.endswith("k_proj.bias"):  # softmax ignores what is added to every key
            assert gradient.abs().max() > 0, parameter
    for parameter, gradient in gradients(flags, request, checkpointing=True).items():
        torch.testing.assert_close(gradient, plain[parameter], msg=parameter)


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES])
def test_layerdrop_runs_with_any_subset_of_layers(name, flags):
    model = build_model({**flags, "encoder_layerdrop": 0.6, "decoder_layerdrop": 0.6})
    for seed in range(8):
        torch.manual_seed(seed)
        output, extra = model(**batch(), attention_request=everything(flags))
        (output.float().mean() + extra["agreement"].sum()).backward()
        assert output.isfinite().all() and (extra["agreement"] >= 0).all() and (extra["agreement"] <= 1).all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_routed_query_gradients_at_initialisation_are_those_of_the_linear_model():
    """METHODS: the LayerNorm and the initial variances of the votes keep them; an Xavier-wide version had 1/12."""

    def query_gradient(flags):
        sizes = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 128, "encoder_layers": 2}
        norms = []
        for seed in range(3):
            model = build_model({**sizes, **flags, "decoder_ffn_embed_dim": 128}, seed=seed)
            output, _ = model(**batch(seed=seed))
            lprobs = model.get_normalized_probs((output, None), log_probs=True)
            lprobs.gather(-1, batch(seed=seed)["prev_output_tokens"].unsqueeze(-1)).mean().backward()
            norms += [layer.self_attn.q_proj.weight.grad.norm() for layer in model.encoder.layers]
        return torch.stack(norms).mean()

    linear = query_gradient({})
    for kind in ("em", "simple"):
        ratio = (query_gradient({"routing": kind, "routing_on": "encoder"}) / linear).item()
        assert 0.5 <= ratio <= 2, (kind, ratio)
