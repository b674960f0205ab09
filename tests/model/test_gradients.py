"""Every parameter gets a finite gradient, equal where activations or maps are computed again."""

import pytest
import torch

from fairseq_diverse.models import layers
from tests.cases import CASES, batch, build_model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offload", [False, True])
def test_checkpoints_are_recomputed_in_autocast(offload, dtype):
    """--amp calls backward outside; in float32 kernels take other tensors and drop other weights."""
    model = build_model({"checkpoint_activations": True, "offload_activations": offload})
    seen = []
    for name, module in model.named_modules():
        if name.endswith("k_proj"):
            module.register_forward_hook(lambda module, given, out: seen.append((out.dtype, out.requires_grad)))
    with torch.autocast("cpu", dtype):
        loss = model(**batch())[0].float().square().mean()
    attentions = len(seen)
    loss.backward()
    assert seen == [(dtype, False)] * attentions + [(dtype, True)] * attentions


@pytest.mark.parametrize(("arch", "count"), [("diverse_transformer", 2 + 3), ("diverse_roberta", 2)])
def test_offloading_implies_checkpointing(arch, count, monkeypatch):
    offloaded = []
    wrap = lambda layer, offload_to_cpu: offloaded.append(offload_to_cpu) or layer  # noqa: E731
    monkeypatch.setattr(layers, "checkpoint_wrapper", wrap)
    build_model({"offload_activations": True}, arch)
    assert offloaded == [True] * count
    build_model({"checkpoint_activations": True}, arch)
    assert offloaded[count:] == [False] * count


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_recomputed_maps_give_the_same_losses_and_gradients(name, flags):
    """To the last bit, with the same dropped weights."""
    seen = []
    for recomputed in (False, True):
        model = build_model({**flags, "recompute_maps": recomputed, "attention_dropout": 0.3, "dropout": 0.1}).train()
        torch.manual_seed(1)
        output, extra = model(**batch())
        loss = sum(extra["losses"].values(), output.square().mean())
        loss.backward()
        seen.append({"loss": loss.detach()} | {key: x.grad for key, x in model.named_parameters()})
    assert all(torch.equal(value, seen[1][key]) for key, value in seen[0].items() if value is not None)


def test_routed_query_gradients_at_initialisation_are_those_of_the_linear_model():
    """METHODS: the LayerNorm and the initial variances of the votes keep them; Xavier initialization had 1/12."""

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
