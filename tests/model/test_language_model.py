"""fairseq's RoBERTa with mechanisms: off = fairseq's, every property of the encoder, initial values, warm start."""

import re
from argparse import ArgumentParser
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.sentence_prediction import SentencePredictionCriterion
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.criterions.with_disagreement import (
    MaskedLmWithDisagreement,
    MaskedLmWithDisagreementConfig,
    SentencePredictionWithDisagreement,
    SentencePredictionWithDisagreementConfig,
)
from fairseq_diverse.models.roberta import DiverseRobertaModel
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing import properties
from fairseq_diverse.testing.models import OF_ROBERTA
from tests.cases import ROBERTA_CASES, batch, build_model, dictionary

CFG = SimpleNamespace(num_classes=1)
TASK = SimpleNamespace(target_dictionary=dictionary(), label_dictionary=dictionary(), cfg=CFG)
HEAD = "sentence_classification_head"
VARIANTS = [
    {},
    {"encoder_normalize_before": True, "layernorm_embedding": False, "untie_weights_roberta": True},
    {"no_token_positional_embeddings": True},
    {"encoder_layerdrop": 0.4, "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
    {"checkpoint_activations": True},
    {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 2},
    {"encoder_layers_to_keep": "1"},
]


def roberta(flags=None, arch="diverse_roberta", seed=1, classes=0):
    model = build_model(flags, arch, seed)
    if classes:
        model.register_classification_head(HEAD, num_classes=classes)
    return model


def words(seed=0):
    """Sentences of 8, 5 and 6 words."""
    return {name: batch(seed=seed, parsed=False)[name] for name in ("src_tokens", "src_lengths")}


def masked(seed=0):
    """A sample of ``masked_lm``: every third word is a target."""
    net_input = words(seed)
    tokens, pad = net_input["src_tokens"], dictionary().pad()
    target = torch.where((torch.arange(tokens.size(1)) % 3 == 0) & (tokens != pad), tokens, pad)
    return {"net_input": net_input, "target": target, "ntokens": int((tokens != pad).sum()), "nsentences": len(tokens)}


def labelled(target=(1, 0, 1)):
    """A sample of ``sentence_prediction``."""
    return {"net_input": words(), "target": torch.tensor(target), "ntokens": 19, "nsentences": 3}


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda flags: "+".join(flags) or "plain")
def test_off_is_fairseqs_roberta(flags):
    theirs, ours = (roberta(flags, arch, classes=2) for arch in ("roberta", "diverse_roberta"))
    assert list(theirs.state_dict()) == list(ours.state_dict())
    results = [[dict(model.state_dict())] for model in (theirs, ours)]
    mask = words()["src_tokens"] == 5
    for mode in (True, False):
        for more in ({"masked_tokens": mask, "return_all_hiddens": True}, {"classification_head_name": HEAD}):
            for model, found in zip((theirs.train(mode), ours.train(mode)), results, strict=True):
                torch.manual_seed(3)
                output, extra = model(**words(), **more)
                assert output.size(-1) in (len(dictionary()), 2)
                found += [output, extra["inner_states"] or []]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    tokens = words()["src_tokens"]
    embedded = 2 * theirs.encoder.sentence_encoder.embed_tokens(tokens)
    expected, got = (one.encoder.extract_features(tokens, token_embeddings=embedded)[0] for one in (theirs, ours))
    assert torch.equal(expected, got) and not torch.equal(got, ours.encoder.extract_features(tokens)[0])


@pytest.mark.parametrize("arch", OF_ROBERTA)
def test_rotary_positions_in_place_of_learned_ones(arch):
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = vars(parser.parse_args(["--no-token-positional-embeddings", "--rotary-on", "encoder"]))
    model = build_model({"arch": arch, **{name: value for name, value in args.items() if value}}).eval()
    assert model.encoder.sentence_encoder.embed_positions is None
    tokens = words()["src_tokens"]
    tokens[:, 1:5] = torch.arange(5, 9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 10  # of N(0, 0.02)
        x, moved = (model(tokens[:, order])[0] for order in ([0, 1, 2, 3, 4], [0, 2, 1, 3, 4]))
    assert not torch.allclose(x[:, 0], moved[:, 0], atol=1e-4)


# what a language model has of its own: its loop over tokens, its heads and the initial values of BERT; one graph of
# torch.compile is of an encoder's attention, which is the same
PROPERTIES = [
    title
    for title in properties.PROPERTIES
    if properties.applies(title, "roberta") and not re.match("gradients = |bfloat16|float16|one graph", title)
]


@pytest.mark.parametrize("title", PROPERTIES)
@pytest.mark.parametrize(("name", "flags"), ROBERTA_CASES)
def test_properties(name, flags, title):
    properties.PROPERTIES[title](flags)


@pytest.mark.parametrize(("name", "flags"), ROBERTA_CASES)
def test_in_bfloat16(name, flags):
    model = roberta(flags, classes=2)
    expected = model(**words(), classification_head_name=HEAD)[0]
    got = model.bfloat16()(**words(), classification_head_name=HEAD)[0]
    torch.testing.assert_close(got.float(), expected, atol=0.01, rtol=0.1)
    got.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.encoder.layers.parameters())


def test_mechanisms_keep_their_initial_values_and_the_rest_has_berts():
    width, heads = 24, 4
    cases = [  # flags, parameter, standard deviation
        ({}, "out_proj", 0.02),
        ({"gated": "element"}, "gated.projection", (2 / (width + width)) ** 0.5),
        ({"routing": "em"}, "aggregate.hidden", (2 / width) ** 0.5),
        ({"evolving_on": "encoder"}, "evolving.conv", (1 / 3 / (heads * 9)) ** 0.5),
        ({"qk_head_dim": 30, "interacting": "concat"}, "out_proj", 0.02 * heads),
        ({"qk_head_dim": 30, "interacting": "concat"}, "q_proj", 0.02),
    ]
    for flags, name, expected in cases:
        attention = roberta(flags).encoder.layers[0].self_attn
        assert attention.get_parameter(f"{name}.weight").std().item() == pytest.approx(expected, rel=0.15), name


def test_refusals():
    """Those of flags: ``test_placement.py``."""
    with pytest.raises(SystemExit, match="fairseq-hydra-train ignores misspelt flags of DiverseRobertaModel"):
        DiverseRobertaModel.build_model(OmegaConf.create({}), TASK)
    with pytest.raises(UserError, match="DiverseRobertaModel: TorchScript is not supported"):
        torch.jit.script(roberta())
    assert roberta({"mha_heads_to_keep": 2}).args.mha_heads_to_keep == 2


def old_names(state):
    """As in the checkpoints of 2019: the encoder is a decoder, and one matrix holds the three projections."""
    state = {name.replace("layernorm_embedding", "emb_layer_norm"): value for name, value in state.items()}
    for layer in range(2):
        prefix = f"encoder.sentence_encoder.layers.{layer}.self_attn"
        for part in ("weight", "bias"):
            three = [state.pop(f"{prefix}.{name}_proj.{part}") for name in "qkv"]
            state[f"{prefix}.in_proj_{part}"] = torch.cat(three)
    return {re.sub("^encoder", "decoder", name): value for name, value in state.items() if not name.endswith("version")}


@pytest.mark.parametrize("rename", [dict, old_names], ids=["new", "old"])
@pytest.mark.parametrize("kept", [None, "1"], ids=["all", "second layer"])
def test_checkpoints_of_fairseq_become_models_with_mechanisms(rename, kept, caplog):
    theirs = roberta({}, "roberta", classes=3)
    state = rename(theirs.state_dict())
    for flags, new in (({}, ""), ({"evolving_on": "encoder"}, "layers.0.self_attn.evolving.conv.weight")):
        ours = roberta({**flags, "encoder_layers_to_keep": kept}, seed=2, classes=2)
        initial = {name: value.clone() for name, value in ours.state_dict().items()}
        caplog.clear()
        ours.load_state_dict(dict(state), model_cfg=ours.args)
        assert ("warm start: new in this model" in caplog.text) == bool(new) and new in caplog.text
        expected = dict(initial)
        for name, value in theirs.state_dict().items():
            name = name.replace("layers.0", "dropped").replace("layers.1", "layers.0") if kept else name
            if name in initial and not name.startswith("classification_heads"):  # of another number of classes
                expected[name] = value
        for name, value in ours.state_dict().items():
            assert torch.equal(value, expected[name]) or name.endswith("version"), name
    roberta({}, "roberta", seed=3, classes=3).load_state_dict(roberta(seed=4, classes=3).state_dict(), strict=True)


def test_disagreement_of_the_layers():
    model = roberta({"evolving_on": "encoder"}).eval()

    def measure(on, **more):
        return model(**words(), attention_request=AttentionRequest(("output", "position"), on), **more)[1]["agreement"]

    torch.testing.assert_close(measure("encoder"), (measure("encoder:1") + measure("encoder:2")) / 2)
    assert torch.equal(measure("encoder"), measure("encoder", features_only=True)) and measure("encoder").min() > 0
    with pytest.raises(UserError, match="--disagreement-on 'decoder': this model has no decoder attention"):
        measure("decoder")


def test_heads_that_are_left_after_pruning_are_measured():
    """As fairseq's trainer prunes them."""
    model = roberta().eval()
    for layer in model.encoder.sentence_encoder.layers:
        reserved = layer.self_attn._get_reserve_head_index(num_heads_to_keep=2)
        layer.self_attn._adaptive_prune_heads(reserve_head_index=reserved)
        layer.self_attn._set_skip_embed_dim_check()
    output, extra = model(**words(), attention_request=AttentionRequest(("output", "subspace"), "encoder"))
    torch.testing.assert_close(output, model(**words())[0])
    assert ((extra["agreement"] > 0) & (extra["agreement"] <= 1)).all()


def built(kind, **flags):
    words = MaskedLmWithDisagreementConfig(tpu=False)
    cfg = words if kind is MaskedLmWithDisagreement else SentencePredictionWithDisagreementConfig()
    for name, value in flags.items():
        setattr(cfg, name, value)
    return kind.build_criterion(cfg, TASK)


@pytest.mark.parametrize(
    ("kind", "sample", "flags"),
    [
        (MaskedLmWithDisagreement, masked(), {}),
        (SentencePredictionWithDisagreement, labelled(), {}),
        (SentencePredictionWithDisagreement, labelled((0.5, 0.0, 1.0)), {"regression_target": True}),
    ],
    ids=["masked words", "classes", "regression"],
)
def test_criterions_with_disagreement(kind, sample, flags):
    """loss = likelihood + weight * count * agreement; logged are the likelihood and -agreement."""
    model = roberta(classes=1 if flags else 2).eval()
    off = built(kind, **flags, disagreement_weight=0.0)
    plain, size, expected = super(kind, off).forward.__func__(off, model, sample)
    criterion = built(kind, **flags, disagreement_weight=0.7, disagreement="output,position")
    loss, count, log = criterion(model, sample)
    request = AttentionRequest(("output", "position"), "encoder")
    agreement = model(**sample["net_input"], attention_request=request)[1]["agreement"]
    assert count == size == (sum(row.sum() for row in sample["target"] != 1) if "Lm" in kind.__name__ else 3)
    torch.testing.assert_close(loss, plain + 0.7 * count * agreement.sum())
    torch.testing.assert_close(log["loss"], expected["loss"])
    with metrics.aggregate(new_root=True) as logged:
        kind.reduce_metrics([log, log])
    assert logged.get_smoothed_values()["disagreement_position"] == pytest.approx(-agreement[1].item(), abs=1e-3)
    with pytest.raises(UserError, match="--arch: disagreement needs a model that measures its heads"):
        criterion(roberta({}, "roberta", classes=1 if flags else 2), sample)


def test_predictions_are_not_summed_over_processes():
    for kind in (SentencePredictionCriterion, SentencePredictionWithDisagreement):
        for flag in ("report_mcc", "report_acc_and_f1", "report_pearson_and_spearman"):
            assert not built(kind, **{flag: True}).logging_outputs_can_be_summed()
        assert built(kind).logging_outputs_can_be_summed()
