"""With every mechanism off: fairseq's keys, parameters and outputs, bit for bit."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from tests.cases import batch, build_model, dictionary

VARIANTS = [
    {},
    {"encoder_normalize_before": True, "decoder_normalize_before": True},
    {"encoder_layerdrop": 0.4, "decoder_layerdrop": 0.4},
    {"checkpoint_activations": True},
    {"share_all_embeddings": False, "encoder_learned_pos": True, "decoder_output_dim": 16, "layernorm_embedding": True},
    {"no_cross_attention": True},
    {"adaptive_softmax_cutoff": "10,20", "share_all_embeddings": False},
    {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 2},
]


def pair(flags):
    return build_model(flags, "transformer"), build_model(flags, "diverse_transformer")


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda flags: "+".join(flags) or "plain")
def test_same_keys_parameters_and_outputs(flags):
    theirs, ours = pair(flags)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    results = [[dict(model.state_dict())] for model in (theirs, ours)]
    for mode in (True, False):
        for model, found in zip((theirs, ours), results, strict=True):
            torch.manual_seed(3)
            output, extra = model.train(mode)(**batch(parsed=False))
            found += [output, extra["inner_states"], [one for one in extra["attn"] if one is not None]]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("alignment", [{"alignment_layer": 0}, {"alignment_layer": 1, "alignment_heads": 1}], ids=str)
def test_the_alignment_is_of_the_layer_and_the_heads_that_are_asked_for(alignment):
    """Also in training with a criterion that reads no map by itself."""
    theirs, ours = pair({"criterion": "cross_entropy"})
    for mode in (True, False):
        expected, got = (
            model.train(mode)(**batch(parsed=False), **alignment)[1]["attn"][0] for model in (theirs, ours)
        )
        assert torch.equal(expected, got)
    assert not torch.equal(got, ours(**batch(parsed=False))[1]["attn"][0])


def test_arguments_by_place_are_fairseqs():
    """Of the model: all hidden states, features only, the layer and the heads of the alignment."""
    theirs, ours = (model.eval() for model in pair({}))
    sample = batch(parsed=False)
    tokens, before = [sample["src_tokens"], sample["src_lengths"]], sample["prev_output_tokens"]
    expected, got = (model(*tokens, before, False, True, 0, 1) for model in (theirs, ours))
    assert torch.equal(expected[0], got[0]) and torch.equal(expected[1]["attn"][0], got[1]["attn"][0])
    for full in (False, True):  # of the decoder: whether later words are seen, too
        pairs = [model.decoder(before, model.encoder(*tokens), None, True, full, 0, 1) for model in (theirs, ours)]
        assert torch.equal(pairs[0][0], pairs[1][0]) and torch.equal(pairs[0][1]["attn"][0], pairs[1][1]["attn"][0])


def test_projections_that_a_mechanism_reshapes_keep_their_quantization_noise():
    model = build_model({"qk_head_dim": 4, "quant_noise_pq": 0.5, "quant_noise_pq_block_size": 2})
    attention, x = model.encoder.layers[0].self_attn, torch.randn(5, 3, 24)
    for projection in (attention.q_proj, attention.k_proj):
        assert not torch.allclose(projection(x), projection(x))


@pytest.mark.parametrize("arch", ["transformer", "roberta"])
def test_same_losses_over_50_updates_with_dropout(arch):
    losses = []
    for name in (arch, f"diverse_{arch}"):
        model = build_model({"dropout": 0.3, "attention_dropout": 0.1, "activation_dropout": 0.1}, name)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        torch.manual_seed(5)
        losses.append([])
        for update in range(50):
            sample = batch(seed=update, parsed=False)
            lprobs = model.get_normalized_probs((model(**sample)[0], None), log_probs=True).flatten(0, 1)
            target = sample["prev_output_tokens" if arch == "transformer" else "src_tokens"].flatten()
            loss, _ = label_smoothed_nll_loss(lprobs, target, 0.1, ignore_index=dictionary().pad())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]


def test_checkpoints_load_into_each_other():
    theirs, ours = build_model({}, "transformer", seed=1), build_model({}, "diverse_transformer", seed=2)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert torch.equal(theirs.eval()(**batch(parsed=False))[0], ours.eval()(**batch(parsed=False))[0])
    back = build_model({}, "transformer", seed=3)
    back.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(back.eval()(**batch(parsed=False))[0], ours(**batch(parsed=False))[0])
