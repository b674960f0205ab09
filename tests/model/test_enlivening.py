"""Redundant heads get the mechanisms, important ones the plain logits; pruned ones nothing."""

import pytest
import torch
from fairseq.logging import metrics

from fairseq_diverse.attention.functional import redundant_heads, syntax
from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.functional.position import localness_bias, relative_logits, relative_values
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.tasks.translation_with_syntax import TranslationWithSyntax
from tests.cases import batch, build_model
from tests.reference import syntax as reference

H, D = 4, 6
GATED = {
    "dependency": {"syntax": "dependency"},
    "phrase": {"syntax": "phrase", "phrase_limit": 2},
    "relative": {"relative_on": "encoder:1", "relative_limit": 2},
    "localness": {"localness_on": "encoder:1"},
    "all": {"syntax": "phrase", "relative_on": "encoder:1", "localness_on": "encoder:1"},
}
ENLIVENED = {"enliven": "enliven", "enliven_gate": "0.5"}


def run(flags):
    """The first layer's attention (out_proj and v_proj the identity): its input, heads (B, H, T, D) and redundancy."""
    model = build_model({**flags, "encoder_layers": 1}).double().eval()
    attention = model.encoder.layers[0].self_attn
    seen = {}
    for projection in (attention.out_proj, attention.v_proj):
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    attention.out_proj.register_forward_hook(lambda module, inputs, out: seen.__setitem__("heads", out))
    attention.q_proj.register_forward_hook(lambda module, inputs, out: seen.__setitem__("x", inputs[0]))
    for parameter in attention.q_proj, attention.k_proj:
        torch.nn.init.normal_(parameter.weight, std=0.5)
    with torch.no_grad():
        _, extra = model(**batch(), attention_request=AttentionRequest(weights="encoder"))
    split = {name: x.unflatten(-1, (H, D)).permute(1, 2, 0, 3) for name, x in seen.items()}
    return attention, split["x"], split["heads"], extra


def expected_heads(attention, x, flags, mechanisms):
    """Every head by the formulas, with and without the mechanisms."""
    word, head, start, end, layer = batch()["source_trees"].unbind(-1)
    valid = word >= 0
    q, k = (
        (x.permute(2, 0, 1, 3).flatten(2) @ p.weight.t() + p.bias).unflatten(-1, (H, D)).permute(1, 2, 0, 3)
        for p in (attention.q_proj, attention.k_proj)
    )
    logits, allowed = q @ k.transpose(-1, -2) / D**0.5, valid[:, None, None]
    if mechanisms and flags.get("syntax") == "dependency":
        allowed = syntax.dependency_relation(word, head)[:, None]
    if mechanisms and flags.get("syntax") == "phrase":
        own = attention.syntax
        distance = syntax.phrase_distance(layer, own.limit)
        bias = syntax.phrase_bias(own.embedding, own.hidden.weight, own.hidden.bias, own.out[0], distance)
        logits = logits + bias[:, None]
        allowed = syntax.phrase_relation(word, start, end)[:, None]
    if mechanisms and "relative_on" in flags:
        logits = logits + relative_logits(q, attention.relative.keys, q.size(2)) / D**0.5
    if mechanisms and "localness_on" in flags:
        own = attention.localness
        logits = logits + localness_bias(q, *((a.weight, a.bias) for a in (own.hidden, own.centre, own.window)), valid)
    weights = masked_softmax(logits, allowed)
    heads = weights @ x
    if mechanisms and "relative_on" in flags:
        heads = heads + relative_values(weights, attention.relative.values)
    return heads, weights


@pytest.mark.parametrize("name", GATED)
def test_by_head(name):
    flags = GATED[name]
    attention, x, heads, extra = run({**flags, **ENLIVENED})
    plain, plain_weights = expected_heads(attention, x, flags, False)
    lively, lively_weights = expected_heads(attention, x, flags, True)
    word, head = batch()["source_trees"].unbind(-1)[:2]
    for b in range(3):
        real = word[b] >= 0
        relation = reference.dependency_relation(word[b].tolist(), head[b].tolist())
        for h in range(H):
            attended = reference.syntactic_attention(plain_weights[b, h].tolist(), relation, real.tolist())
            redundant = attended <= 0.5
            assert extra["redundant"][1][b, h].item() == redundant
            torch.testing.assert_close(heads[b, h][real], (lively if redundant else plain)[b, h][real])
            shown = extra["maps"]["encoder", 1][h, b][real]
            torch.testing.assert_close(shown, (lively_weights if redundant else plain_weights)[b, h][real])
    assert 0 < extra["redundant"][1].float().mean() < 1


@pytest.mark.parametrize("flags", [{}, {"rotary_on": "encoder"}, {"qk_norm_on": "encoder"}])
def test_diagnostics_judge_the_weights_that_enlivening_judges(flags):
    everywhere = {"syntax": "phrase", "syntax_on": "encoder", "enliven_on": "encoder"}
    model = build_model({**flags, **ENLIVENED, **everywhere}).double().eval()
    for parameter in model.encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    trees = batch()["source_trees"]
    relation = relate(trees, ("dependency",)).dependency
    with torch.no_grad():
        extra = model(**batch(), attention_request=AttentionRequest(inside="encoder"))[1]
    chosen = [extra["redundant"][layer] for layer in (1, 2)]
    for layer, redundant in enumerate(chosen, 1):
        weights = extra["inside"]["encoder", layer][1]
        assert torch.equal(redundant_heads(weights, relation, trees[..., 0] >= 0, 0.5), redundant)
    assert 0 < torch.stack(chosen).float().mean() < 1


@pytest.mark.parametrize("gate", [None, "0.5", "1", "dynamic"])
def test_without_a_gate_every_head_has_the_mechanisms_and_pruned_heads_are_zero(gate):
    flags = {"enliven": "prune", "enliven_gate": gate} if gate else GATED["all"]
    attention, x, heads, extra = run(flags)
    expected, _ = expected_heads(attention, x, flags, mechanisms=gate is None)
    assert bool(extra["redundant"]) == bool(gate)
    if gate:
        expected = expected.masked_fill(extra["redundant"][1][..., None, None], 0)
    real = batch()["source_trees"][..., 0] >= 0
    torch.testing.assert_close(heads.transpose(1, 2)[real], expected.transpose(1, 2)[real])


def test_the_gate_is_not_differentiated_and_every_parameter_is_used_where_no_head_is_redundant():
    model = build_model({**GATED["all"], "enliven": "enliven", "enliven_gate": "0.000001"})
    output, extra = model(**batch())
    output.sum().backward()
    assert not extra["redundant"][1].any()
    assert all(p.grad is not None for p in model.parameters())


def test_a_sentence_without_a_tree_gets_plain_attention():
    """Word 0, head 0, span [0, 1), layer 0 everywhere: everything is related."""
    sample = batch()
    sample["source_trees"][sample["source_trees"][..., 0] >= 0] = torch.tensor([0, 0, 0, 1, 0])
    baseline, model = build_model().eval(), build_model({"syntax": "dependency"}).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**sample)[0], baseline(**batch())[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ({"syntax": "dependency"}, "dependency trees"),
        ({"syntax": "phrase"}, "constituency trees"),
        ({"enliven": "prune"}, "dependency trees"),
        ({"syntax": "phrase", "enliven": "enliven"}, "dependency and constituency trees"),
    ],
)
def test_missing_trees_are_named(flags, needed):
    with pytest.raises(UserError, match=f"this model needs {needed}"):
        build_model(flags)(**batch(parsed=False))


def test_the_logged_share_of_redundant_heads_counts_sentences():
    """Over batches of one and of three sentences."""
    task = object.__new__(TranslationWithSyntax)
    task.trees = ("constituency",)

    def step(heads, observed):
        observed.extra = {"redundant": {1: heads}}  # (B, H)

    with metrics.aggregate(new_root=True) as logged:
        for heads in (torch.ones(1, 4), torch.zeros(3, 4)):
            task._log_redundant(step, heads, None)
    assert logged.get_smoothed_values()["redundant_1"] == 0.25
