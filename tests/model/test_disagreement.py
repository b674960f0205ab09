"""The regularizer: value, loss, logging, accumulation, LayerDrop, refusals."""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.logging import metrics

from fairseq_diverse.attention.request import TERMS, AttentionRequest
from fairseq_diverse.criterions.disagreement import DisagreementConfig, DisagreementMixin
from fairseq_diverse.criterions.observed import ObservedModel
from fairseq_diverse.criterions.with_disagreement import (
    LabelSmoothedCrossEntropyWithDisagreement,
    LabelSmoothedCrossEntropyWithDisagreementConfig,
)
from fairseq_diverse.support.errors import UserError
from tests.cases import batch, build_model, dictionary
from tests.reference import agreement as reference
from tests.refusals import refusal


def criterion(**flags):
    cfg = LabelSmoothedCrossEntropyWithDisagreementConfig(label_smoothing=0.1, sentence_avg=False)
    for key, value in flags.items():
        setattr(cfg, key, value)
    task = SimpleNamespace(target_dictionary=dictionary())
    return LabelSmoothedCrossEntropyWithDisagreement.build_criterion(cfg, task)


def sample(**options):
    net_input = batch(**options)
    target = net_input["prev_output_tokens"]
    return {"net_input": net_input, "target": target, "ntokens": int((target != dictionary().pad()).sum())}


def test_the_model_measures_what_the_paper_defines():
    """Compared with loops over the maps and value projections of the same forward pass."""
    model = build_model().double().eval()
    seen = {}
    for number, layer in enumerate(model.decoder.layers, 1):
        layer.encoder_attn.v_proj.register_forward_hook(lambda m, i, out, n=number: seen.__setitem__(n, out))
    request = AttentionRequest(TERMS, "cross:1-2", weights="cross")
    net_input = batch()
    _, extra = model(**net_input, attention_request=request)
    real_source = (net_input["src_tokens"] != dictionary().pad()).tolist()
    real_target = (net_input["prev_output_tokens"] != dictionary().pad()).tolist()
    expected = torch.zeros(len(TERMS), dtype=torch.float64)
    for number in (1, 2):
        values = seen[number].view(8, 3, 4, 6).permute(1, 2, 0, 3)  # (B, H, S, D)
        weights = extra["maps"]["cross", number].transpose(0, 1)
        expected += torch.tensor(
            [
                reference.cosine_agreement(values.tolist(), real_source),
                reference.position_agreement(weights.tolist(), real_target),
                reference.cosine_agreement((weights @ values).tolist(), real_target),
                reference.difference_agreement(weights.tolist(), real_target),
            ],
            dtype=torch.float64,
        )
    torch.testing.assert_close(extra["agreement"], expected / 2)


def test_the_position_term_of_maps_with_negative_weights():
    model = build_model({"differential_on": "encoder"}).double().eval()
    request = AttentionRequest(("position",), "encoder:2", weights="encoder")
    _, extra = model(**(net_input := batch()), attention_request=request)
    maps = extra["maps"]["encoder", 2].transpose(0, 1)
    assert (maps < 0).any()
    expected = reference.position_agreement(maps.tolist(), (net_input["src_tokens"] != dictionary().pad()).tolist())
    assert extra["agreement"].item() == pytest.approx(expected)


def test_mean_over_layers_then_components():
    model = build_model().eval()

    def measure(on):
        return model(**batch(), attention_request=AttentionRequest(("output",), on))[1]["agreement"]

    encoder = (measure("encoder:1") + measure("encoder:2")) / 2
    cross = (measure("cross:1") + measure("cross:2") + measure("cross:3")) / 3
    torch.testing.assert_close(measure("encoder"), encoder)
    torch.testing.assert_close(measure("encoder,cross"), (encoder + cross) / 2)


@pytest.mark.parametrize("training", [False, True])
def test_loss_is_likelihood_plus_weighted_agreement_times_sample_size(training):
    """Logged is the likelihood alone, in training too; every term but that of the maps moves the values."""
    model = build_model().train(training)
    plain = criterion(disagreement_weight=0.0)(model, sample())
    for terms in ("output", "subspace", "subspace,position,output"):
        loss, size, log = criterion(disagreement=terms, disagreement_weight=0.7)(model, sample())
        request = AttentionRequest(tuple(terms.split(",")), "encoder,cross,decoder")
        agreement = model(**sample()["net_input"], attention_request=request)[1]["agreement"]
        values = [layer.encoder_attn.v_proj.weight for layer in model.decoder.layers]
        assert all(found.any() for found in torch.autograd.grad(agreement.sum(), values, retain_graph=True))
        torch.testing.assert_close(loss, plain[0] + 0.7 * size * agreement.sum())
        torch.testing.assert_close([log["loss"], log["nll_loss"]], [plain[0].detach(), plain[2]["nll_loss"]])
        for term, value in zip(terms.split(","), agreement, strict=True):
            torch.testing.assert_close(log[f"disagreement_{term}"], -value.detach() * size)
            assert not log[f"disagreement_{term}"].requires_grad


def test_each_component_may_have_a_weight():
    """The authors' code: the encoder's mean, and half of each of the decoder's two."""
    model = build_model().eval()
    plain = criterion(disagreement_weight=0.0)(model, sample())[0]
    means = [
        model(**sample()["net_input"], attention_request=AttentionRequest(("output",), on))[1]["agreement"].sum()
        for on in ("encoder", "cross:1+3", "decoder")
    ]
    weights = "encoder:1, decoder:0.25,cross:0.5"
    weighted = criterion(disagreement_on="encoder,cross:1+3,decoder", disagreement_weight=weights)
    loss, size, log = weighted(model, sample())
    expected = 1 * means[0] + 0.5 * means[1] + 0.25 * means[2]
    torch.testing.assert_close(loss, plain + size * expected)
    torch.testing.assert_close(log["disagreement_output"], -(expected / 1.75 * size).detach())
    none = criterion(disagreement_weight="encoder:0,cross:0,decoder:0")(model, sample())[0]
    torch.testing.assert_close(none, plain)


def test_weights_are_those_of_the_components_that_ran():
    model = build_model({"decoder_layerdrop": 1.0})
    weighted = AttentionRequest(("output",), "encoder,cross", shares={"encoder": 1, "cross": 3})
    got, expected = (
        model(**batch(), attention_request=request)[1]["agreement"]
        for request in (weighted, AttentionRequest(("output",), "encoder"))
    )
    torch.testing.assert_close(got, expected)


def test_losses_of_single_tokens_are_the_likelihood_alone():
    model = build_model().eval()
    plain, *_ = criterion(disagreement_weight=0.0)(model, sample(), reduce=False)
    each, _, log = criterion()(model, sample(), reduce=False)
    assert len(each) == sample()["target"].numel() and each.equal(plain) and log["disagreement_output"] < 0


def test_of_several_calls_of_the_model_the_last_counts():
    observed = ObservedModel(lambda **net_input: (None, net_input))
    for number in (1, 2):
        observed(number=number)
        assert observed.extra == {"number": number}


def test_only_a_criterion_that_reads_the_alignment_asks_for_it():
    class Aligned(DisagreementMixin, LabelSmoothedCrossEntropyCriterionWithAlignment):
        pass

    assert Aligned.request_of(DisagreementConfig()).alignment and not criterion().request.alignment


PAGE = (Path(__file__).resolve().parents[2] / "docs/adding-a-mechanism.md").read_text(encoding="utf-8")
SHARPNESS = re.search(r"```python\n(from dataclasses.*?class WithSharpness.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def sharpness(monkeypatch):
    """Makes a module of source text."""

    def of(source):
        code = types.ModuleType("sharpness")
        monkeypatch.setitem(sys.modules, "sharpness", code)  # dataclasses look for it
        monkeypatch.delitem(CRITERION_REGISTRY, "label_smoothed_cross_entropy_with_sharpness", raising=False)
        exec(source, code.__dict__)
        return code

    return of


def test_a_criterion_takes_the_losses_of_stages(sharpness):
    """As docs/adding-a-mechanism.md changes its criterion."""
    instead = re.search(r"`(terms = list\(.*?\))` takes", PAGE)[1]
    code = sharpness(re.sub(r"terms = \[\]\n.*?(?=\n        if terms)", instead, SHARPNESS, flags=re.DOTALL))
    cfg = code.SharpnessConfig(label_smoothing=0.1, sentence_avg=False, sharpness_on="encoder", sharpness_weight=0.5)
    made = code.WithSharpness.build_criterion(cfg, SimpleNamespace(target_dictionary=dictionary()))
    model = build_model().eval()
    plain, forward = criterion(disagreement_weight=0.0)(model, sample())[0], model.forward
    losses = {("encoder", 1): torch.tensor(2.0), ("cross", 2): torch.tensor(4.0)}
    model.forward = lambda **net_input: ((found := forward(**net_input))[0], {**found[1], "losses": losses})
    assert (made(model, sample())[0] - plain).item() == pytest.approx(0.5 * sample()["ntokens"] * 3, rel=1e-4)


def test_another_loss_term_asks_the_model_in_the_same_pass(sharpness):
    """The criterion of docs/adding-a-mechanism.md, alone and with disagreement."""
    code = sharpness(SHARPNESS)

    @dataclass
    class BothConfig(DisagreementConfig, code.SharpnessConfig):
        pass

    class Both(DisagreementMixin, code.WithSharpness):
        pass

    cfg = BothConfig(label_smoothing=0.1, sentence_avg=False, sharpness_on="encoder:2,cross:1", sharpness_weight=0.5)
    model, task = build_model().eval(), SimpleNamespace(target_dictionary=dictionary())
    plain = criterion(disagreement_weight=0.0)(model, sample())[0]
    found = [kind.build_criterion(cfg, task)(model, sample())[0] - plain for kind in (code.WithSharpness, Both)]
    extra = model(**batch(), attention_request=AttentionRequest(weights="encoder:2,cross:1"))[1]
    expected = []
    for of, place in (("src_tokens", ("encoder", 2)), ("prev_output_tokens", ("cross", 1))):
        real = (batch()[of] != dictionary().pad()).nonzero().tolist()
        rows = [extra["maps"][place][h, b, t].tolist() for h in range(4) for b, t in real]
        expected.append(sum(weight**2 for row in rows for weight in row) / len(rows))
    assert found[0].item() == pytest.approx(0.5 * sample()["ntokens"] * sum(expected) / 2, rel=1e-4)
    torch.testing.assert_close(found[1] - found[0], criterion()(model, sample())[0] - plain, rtol=1e-4, atol=1e-4)


def test_another_loss_term_is_logged_by_the_token(sharpness):
    """Of two batches, also where fairseq has added them up over processes."""
    code = sharpness(SHARPNESS)
    cfg = code.SharpnessConfig(label_smoothing=0.1, sentence_avg=False, sharpness_on="cross", sharpness_weight=1.0)
    made = code.WithSharpness.build_criterion(cfg, SimpleNamespace(target_dictionary=dictionary()))
    loss, size, log = made(build_model().eval(), sample())
    added = (loss - log["loss"]).item() / size
    logs = [log, {key: 3 * value for key, value in log.items()}]
    for given in (logs, [{key: 4 * value for key, value in log.items()}]):
        with metrics.aggregate(new_root=True) as logged:
            made.reduce_metrics(given)
        assert logged.get_smoothed_value("sharpness") == pytest.approx(added, abs=1e-4) and 0 < added < 1


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"terms": ("output",), "on": "cross"}, {"terms": ("subspace",), "on": "cross"}, "two losses ask for 'terms'"),
        ({"weights": "encoder"}, {"weights": "cross"}, "two losses ask for 'weights' in an AttentionRequest"),
        ({"inside": "encoder"}, {"inside": "cross"}, "two losses ask for 'inside' in an AttentionRequest"),
        ({}, {"weights": "encoder:9", "flag": "--sharpness-on"}, "--sharpness-on 'encoder:9': layer 9"),
    ],
)
def test_errors_of_joined_requests_say_which(first, second, message):
    joined = AttentionRequest(**first), AttentionRequest(**second)
    with pytest.raises(UserError, match=message):
        build_model()(**batch(), attention_request=joined)


def test_joined_requests_get_what_either_asks_for():
    """Also what only the second asks for, or only one reads."""
    model = build_model({"talking": "both", "talking_on": "cross"})
    without, inside = AttentionRequest(alignment=False), AttentionRequest(inside="cross")
    for joined in ((without, inside), (inside, without)):
        _, extra = model(**batch(), attention_request=joined)
        assert set(extra["inside"]) == {("cross", layer) for layer in (1, 2, 3)} and extra["attn"][0] is not None
    weighted = AttentionRequest(("output",), "encoder,cross", shares={"encoder": 1, "cross": 3})
    alone, first, second = (
        model(**batch(), attention_request=requests)[1]["agreement"]
        for requests in (weighted, (weighted, inside), (inside, weighted))
    )
    assert alone.equal(first) and alone.equal(second)
    _, extra = model(**batch(), attention_request=(without, without))
    assert not extra["inside"] and extra["attn"][0] is None


def test_centred_terms():
    """The two cosine terms of the same forward, against loops; the logged names stay; off is as before."""
    model = build_model().double().eval()
    seen = []
    model.decoder.layers[1].encoder_attn.v_proj.register_forward_hook(lambda module, args, out: seen.append(out))
    inside = model(**batch(), attention_request=AttentionRequest(inside="cross:2"))[1]["inside"]["cross", 2]
    keys, queries = ((batch()[of] != dictionary().pad()).tolist() for of in ("src_tokens", "prev_output_tokens"))
    values = seen[0].view(8, 3, 4, 6).permute(1, 2, 0, 3)  # (B, H, S, D)
    for term, vectors, real in (("output", inside[0], queries), ("subspace", values, keys)):
        expected = reference.cosine_agreement(reference.centred(vectors.tolist(), real), real)
        centred = criterion(disagreement=term, disagreement_on="cross:2", disagreement_centre=True)
        plain = criterion(disagreement=term, disagreement_on="cross:2")
        (loss, size, log), (uncentred, _, plain_log) = centred(model, sample()), plain(model, sample())
        assert set(log) == set(plain_log) and loss.item() != pytest.approx(uncentred.item())
        assert log[f"disagreement_{term}"].item() == pytest.approx(-expected * size)
        off = criterion(disagreement=term, disagreement_on="cross:2", disagreement_centre=False)(model, sample())
        assert torch.equal(off[0], uncentred)


def test_logged_values():
    model = build_model()
    made = criterion(disagreement="position,output")
    with metrics.aggregate(new_root=True) as logged:
        made.reduce_metrics([made(model, sample())[2], made(model, sample(seed=1))[2]])
    values = logged.get_smoothed_values()
    total = values["disagreement_position"] + values["disagreement_output"]
    assert values["disagreement"] == pytest.approx(total, abs=1e-3)
    assert -1 <= values["disagreement_output"] < 0
    logs = [
        {"loss": 1.0, "nll_loss": 1.0, "ntokens": size, "sample_size": size, "disagreement_output": figure * size}
        for figure, size in ((-0.2, 6), (-0.6, 2))
    ]
    for parts in ([logs], [logs[:1], logs[1:]]):  # batches of 6 and 2 tokens: of one update, and of one validation
        with metrics.aggregate(new_root=True) as logged:
            for part in parts:
                made.reduce_metrics(part)
        values = logged.get_smoothed_values()
        assert values["disagreement_output"] == values["disagreement"] == pytest.approx(-0.3)


def gradient(parts, sentence_avg=False, **flags):
    """Of unequal batches in one update, divided as fairseq divides it."""
    model, made, total = build_model().eval(), criterion(**flags), 0
    made.sentence_avg = bool(sentence_avg)
    for part in parts:
        loss, size, _ = made(model, part)
        loss.backward()
        total += size
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / total


@pytest.mark.parametrize(
    ("source", "terms", "on", "moved"),
    [
        ((6, 6, 6, 6), "subspace,position,output", "encoder,cross,decoder", 0.0),  # source and target alike in each
        ((8, 5, 7, 4), "position,output", "cross,decoder", 0.0),  # means over target positions
        ((8, 5, 7, 4), "output", "encoder", 0.1),  # means over source positions
    ],
)
def test_accumulation_over_quarter_batches(source, terms, on, moved):
    """The whole batch's gradient of the regularizer, or about it where the ratio of source to target tokens differs."""
    whole = sample(source=source, target=(6, 6, 6, 6))
    net_inputs = [{key: value[i : i + 1] for key, value in whole["net_input"].items()} for i in range(4)]
    target, ntokens = whole["target"], whole["ntokens"] // 4
    quarters = [{"net_input": one, "target": target[i : i + 1], "ntokens": ntokens} for i, one in enumerate(net_inputs)]
    regularized = {"disagreement": terms, "disagreement_on": on, "disagreement_weight": 2.0}
    plain = {"disagreement_weight": 0.0}
    expected, found = (gradient(x, **regularized) - gradient(x, **plain) for x in ([whole], quarters))
    assert ((found - expected).norm() / expected.norm()).item() == pytest.approx(moved, rel=0.5, abs=1e-4)


def test_averaging_over_sentences_keeps_the_weight_against_the_likelihood():
    """lambda means the same: the two parts of the gradient grow alike, by the tokens of a sentence."""
    parts = (sample(), sample(source=(9, 3), target=(2, 8), seed=1))
    found = {(avg, weight): gradient(parts, avg, disagreement_weight=weight) for avg in (0, 1) for weight in (0, 1)}
    ratios = [((found[avg, 1] - found[avg, 0]).norm() / found[avg, 0].norm()).item() for avg in (0, 1)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-4) and ratios[0] > 0.05
    tokens, sentences = (6 + 7 + 4) + (3 + 9), 3 + 2
    torch.testing.assert_close(found[1, 1], found[0, 1] * tokens / sentences)


def test_layerdrop_divides_by_the_layers_that_ran_which_keep_their_numbers():
    model, full, terms = build_model({"encoder_layerdrop": 0.5}), build_model(), ("output", "subspace")
    full.load_state_dict(model.state_dict())

    def measure(of, on, seed=0):
        torch.manual_seed(seed)
        return of(**batch(), attention_request=AttentionRequest(terms, on))[1]["agreement"]

    ran = set()
    for seed in range(30):
        torch.manual_seed(seed)
        ran.add(layers := tuple(layer.number for layer in model.encoder.layers))
        assert bool(measure(model, "encoder:2", seed).all()) == (2 in layers)
        if layers == (1,):
            torch.testing.assert_close(measure(model, "encoder", seed), measure(full, "encoder:1"))
        if layers == ():
            assert measure(model, "encoder", seed).tolist() == [0, 0]
    assert {(), (1,), (2,), (1, 2)} == ran


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"disagreement_weight": float("nan")}, "--disagreement-weight nan: must be a number >= 0"),
        ({"disagreement_weight": float("inf")}, "--disagreement-weight inf: must be a number >= 0"),
        ({"disagreement_weight": -0.5}, "--disagreement-weight -0.5: must be a number >= 0"),
        ({"disagreement_weight": "half"}, "--disagreement-weight half: must be a number >= 0, or one for each"),
        ({"disagreement_weight": "encoder:1,cross:-1,decoder:1"}, "--disagreement-weight encoder:1,cross:-1,decoder:1"),
        (
            {"disagreement_weight": "encoder:1,cross:0.5"},
            "--disagreement-weight encoder:1,cross:0.5: give one weight for each component of --disagreement-on: "
            "encoder, cross, decoder",
        ),
        ({"disagreement": "outputs"}, "--disagreement 'outputs': allowed are subspace, position, output, difference"),
        ({"disagreement": "difference", "disagreement_centre": True}, "--disagreement-centre: the difference term"),
        ({"disagreement": ""}, "--disagreement '': allowed are"),
        ({"disagreement": "output,output"}, "each once"),
        ({"disagreement_on": "encodr"}, "--disagreement-on 'encodr': unknown component"),
        ({"disagreement_on": ""}, "names no attention"),
        ({"disagreement": "output,position", "disagreement_centre": True}, "--disagreement-centre: the position term"),
    ],
)
def test_refused_when_built(flags, message):
    assert message in refusal(criterion, **flags)


def test_models_and_criterions_that_do_not_fit_are_refused_at_the_first_forward():
    for on, flags, message in (
        ("cross:4", {}, "--disagreement-on 'cross:4': layer 4 of cross is out of range; it has 3"),
        ("cross", {"decoder_attention_heads": 1}, "--disagreement-on 'cross': cross attention has one head"),
        ("cross", {"arch": "transformer"}, "--arch"),
    ):
        with pytest.raises(UserError, match=message):
            criterion(disagreement_on=on)(build_model(flags), sample(parsed=False))

    class OfNothing(FairseqCriterion):
        def forward(self, model, sample, reduce=True):
            return torch.zeros(()), 1, {}

    class Own(DisagreementMixin, OfNothing):
        pass

    made = Own.build_criterion(DisagreementConfig(), SimpleNamespace(target_dictionary=dictionary()))
    with pytest.raises(UserError, match="--criterion Own: this criterion does not call the model"):
        made(build_model(), sample())

    def own(**net_input):
        raise TypeError("of the model itself")

    with pytest.raises(TypeError, match="of the model itself"):
        criterion()(own, sample())
