"""Statistics of heads: redundancy equals the model's, importance is a derivative."""

import pytest
import torch

from fairseq_diverse.analysis.attention_maps import attention_maps
from fairseq_diverse.analysis.diversity import HeadDiversity, off_diagonal_cosine
from fairseq_diverse.analysis.heads import FIGURES, draw_figures, inspect_heads
from fairseq_diverse.analysis.roles import neighbour_hits, rare_hits, roles
from fairseq_diverse.attention.functional.enlivening import head_confidence
from fairseq_diverse.attention.request import AttentionRequest
from tests.cases import CASES, batch, build_model, dictionary
from tests.reference import roles as reference

WORDS = dictionary()
WORDS.count = [1] * 4 + list(range(30, 0, -1))  # w0 the most frequent, as in a dict.txt
PAD = WORDS.pad()
FREQUENT = 5
LAYERS = {"encoder": 2, "decoder": 3, "cross": 3}


def as_sample(net_input):
    target = net_input["prev_output_tokens"]
    return {"id": torch.arange(len(target)), "net_input": net_input, "target": target}


def graphs():
    """The dependencies of ``batch()``, by sentence, as a data set gives them."""
    inputs = batch()
    return [rows[words != PAD] for rows, words in zip(inputs["source_trees"], inputs["src_tokens"], strict=True)]


@pytest.mark.parametrize("flags", [{}, {"syntax": "phrase", "relative_on": "encoder", "localness_on": "encoder"}])
def test_redundancy_equals_that_of_an_enlivened_model(flags):
    """The same plain weights in the first layer, with any mechanisms."""
    enlivened = build_model({**flags, **({} if flags else {"syntax": "dependency"}), "enliven": "enliven"}).eval()
    model = build_model(flags)
    model.load_state_dict(enlivened.state_dict(), strict=False)
    with torch.no_grad():
        expected = enlivened(**batch())[1]["redundant"][1].double().mean(0)
    figures = inspect_heads(model, [as_sample(batch())], WORDS, None, graphs(), FREQUENT).heads
    assert set(figures) == set(FIGURES)
    torch.testing.assert_close(figures["redundant"][0], expected)
    assert (figures["confidence"] > 0).all() and (figures["confidence"] <= 1).all()


@pytest.mark.parametrize("flags", [flags for name, flags in CASES if name.endswith("-encoder")], ids=str)
def test_shares_are_those_of_the_maps_that_the_model_computes(flags):
    model, sample = build_model(flags), as_sample(batch())
    figures = inspect_heads(model, [sample], WORDS, None, None, FREQUENT).heads
    valid = (tokens := sample["net_input"]["src_tokens"]) != PAD
    maps = attention_maps(model, sample["net_input"], "encoder", "--on")
    inside = model(**sample["net_input"], attention_request=AttentionRequest(inside="encoder"))[1]["inside"]
    for number, attention in enumerate((layer.self_attn for layer in model.encoder.layers), 1):
        used = maps["encoder", number].transpose(0, 1) if attention.has_maps else inside["encoder", number][1]
        counts = torch.tensor(WORDS.count)[tokens]
        rare = rare_hits(used, valid, counts, valid & (tokens != WORDS.eos()), WORDS.count[4 + FREQUENT - 1])
        for name, (hits, asked) in {"next": neighbour_hits(used, valid, 1), "rarest": rare}.items():
            torch.testing.assert_close(figures[name][number - 1], hits.double() / asked)
        judged = used if attention.mechanism("differential") else inside["encoder", number][1]
        torch.testing.assert_close(figures["confidence"][number - 1], head_confidence(judged, valid).double().mean(0))


def test_heads_that_relative_positions_turn_to_the_neighbour_are_positional():
    model = build_model({"relative_on": "encoder", "relative_limit": 3})
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.self_attn.q_proj.weight.zero_()
            layer.self_attn.q_proj.bias.fill_(1)
            keys = layer.self_attn.mechanism("relative").keys.zero_()
            keys[3 - 1] = 20  # one word before
    figures = inspect_heads(model, [as_sample(batch())], WORDS, None, None, FREQUENT).heads
    assert (figures["previous"] == 1).all()
    assert {role.split(",")[0] for layer in roles(figures) for role in layer} == {"positional"}


@pytest.mark.parametrize("flags", [{}, {"adaptive_softmax_cutoff": "10,20", "share_all_embeddings": False}], ids=str)
def test_importance_is_the_derivative_by_a_factor_of_the_head(flags):
    model = build_model(flags).double().eval()
    one = as_sample(batch(source=(6,), target=(5,)))
    figures = inspect_heads(model, [one], WORDS, None, graphs=None).heads  # 30 words, so none beyond the 500 first
    assert set(figures) == {"confidence", "importance", "previous", "next"}

    def loss():
        decoded, extra = model(**one["net_input"])
        log_probabilities = model.get_normalized_probs((decoded, extra), log_probs=True)
        return -log_probabilities.gather(-1, one["target"].unsqueeze(-1)).sum().item()

    with torch.no_grad():
        for layer, encoder_layer in enumerate(model.encoder.layers):
            weight = encoder_layer.self_attn.out_proj.weight
            before, slopes = weight.clone(), []
            for head in range(4):
                ends = []
                for step in (1e-3, -1e-3):
                    weight[:, head * 6 : head * 6 + 6] *= 1 + step
                    ends.append(loss())
                    weight.copy_(before)
                slopes.append(abs(ends[0] - ends[1]) / 2e-3)
            expected = torch.tensor(slopes, dtype=torch.float64)
            torch.testing.assert_close(figures["importance"][layer], expected / expected.norm(), rtol=1e-2, atol=1e-3)


def test_the_mean_over_batches_is_that_over_sentences():
    model = build_model()
    whole = inspect_heads(model, [as_sample(batch())], WORDS, 0.5, graphs(), FREQUENT)
    rows = [as_sample({name: value[row : row + 1] for name, value in batch().items()}) for row in range(3)]
    for row, one in enumerate(rows):
        one["id"] += row
    parts = inspect_heads(model, rows, WORDS, 0.5, graphs(), FREQUENT)
    for name, values in parts.heads.items():
        torch.testing.assert_close(values, whole.heads[name], rtol=1e-4, atol=1e-5)
    assert list(parts.attentions) == [(c, n) for c, count in LAYERS.items() for n in range(1, count + 1)]
    for place, figures in parts.attentions.items():
        assert figures == pytest.approx(whole.attentions[place], rel=1e-4, abs=1e-5)


def test_sentences_without_a_tree_do_not_count_as_syntactic():
    model, trees = build_model(), graphs()
    none = torch.tensor([0, 0, 0, 1, 0])
    found = inspect_heads(model, [as_sample(batch())], WORDS, None, [none.expand_as(trees[0]), *trees[1:]], FREQUENT)
    parsed = as_sample({name: value[1:] for name, value in batch().items()})
    parsed["id"] += 1
    expected = inspect_heads(model, [parsed], WORDS, None, trees, FREQUENT)
    for name in ("syntactic attention", "redundant"):
        torch.testing.assert_close(found.heads[name], expected.heads[name])
    assert (found.without_tree, expected.without_tree) == (1, 0)
    found = inspect_heads(model, [as_sample(batch())], WORDS, None, [none.expand_as(rows) for rows in trees], FREQUENT)
    assert found.without_tree == 3 and set(FIGURES) - set(found.heads) == {"syntactic attention", "redundant"}


def test_the_model_keeps_its_own_trees():
    """A sentence without dependencies does not lose the constituents that the model reads."""
    model, sample = build_model({"syntax": "phrase"}), as_sample(batch())
    without = [torch.tensor([0, 0, 0, 1, 0]).expand_as(rows) for rows in graphs()]
    importance = [inspect_heads(model, [sample], WORDS, None, t).heads["importance"] for t in (graphs(), without)]
    assert torch.equal(*importance)


def test_the_plot_has_one_panel_per_statistic():
    figure = draw_figures({name: torch.rand(3, 4) for name in FIGURES})
    assert [axes.get_title() for axes in figure.axes] == list(FIGURES)


def test_roles_equal_the_loop_and_are_named_by_their_shares():
    torch.manual_seed(0)
    weights = torch.rand(3, 4, 6, 6).softmax(-1)
    real = torch.ones(3, 6, dtype=torch.bool)
    real[1, :2] = real[2, 4:] = False
    weights = (weights * real[:, None, None]) ** 8
    counts = torch.randint(1, 9, (3, 6))
    words = real & (torch.arange(6) != 3)
    for offset in (-1, 1):
        near, asked = neighbour_hits(weights, real, offset)
        rare, queries = rare_hits(weights, real, counts, words, limit := int(counts[0].min()) + 1)
        lists = (x.tolist() for x in (weights, real, counts, words))
        expected = reference.shares(*lists, offset, limit)
        assert [(near / asked).tolist(), (rare / queries).tolist()] == [pytest.approx(share) for share in expected]
    assert rare_hits(weights, real, counts, words, limit=0)[1] == 0  # no sentence with a rare word
    figures = {"previous": [0.9, 0.1, 0.1, 0.95], "next": [0, 0.89, 0, 0], "redundant": [1, 1, 0.4, 0.1]}
    figures = {name: torch.tensor([shares]) for name, shares in figures.items()}
    assert roles(figures) == [["positional", "", "syntactic", "positional, syntactic"]]
    assert roles({**figures, "rarest": torch.tensor([[0.4, 0.6, 0.5, 0]])})[0][1:3] == ["rare words", "syntactic"]


def test_diversity_equals_the_loop_batch_by_batch():
    """With padding, a zero vector and a constant head."""
    torch.manual_seed(0)
    heads = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    heads[:, 1] = heads[0, 1, 0].clone()[None, None]
    heads[0, 2, 1] = 0
    valid = torch.ones(3, 5, dtype=torch.bool)
    valid[0, 3:] = valid[2, :2] = False
    measured = HeadDiversity()
    for row in range(3):
        measured.add(torch.where(valid[row, None, :, None], heads[row : row + 1], 1e4), valid[row : row + 1])
    figures, real = measured.figures(), heads.transpose(1, 2)[valid]
    flat = real.flatten(1)
    assert figures["cosine"] == pytest.approx(reference.off_diagonal_cosine(real.tolist()))
    assert figures["constant share"] == pytest.approx(reference.constant_share(real.tolist()))
    values = torch.linalg.svdvals(flat - flat.mean(0)).tolist()
    assert figures["effective rank"] == pytest.approx(reference.effective_rank(values), rel=1e-5)
    assert figures["effective rank"] < 18 and figures["width"] == 24


def test_diversity_at_its_limits():
    one = torch.randn(1, 1, 5, 6)
    alike, single, still = HeadDiversity(), HeadDiversity(), HeadDiversity()
    valid = torch.ones(1, 5, dtype=torch.bool)
    alike.add(one.expand(1, 4, 5, 6), valid)
    single.add(one, valid)
    still.add(torch.ones(1, 4, 5, 6), valid)
    assert alike.figures()["cosine"] == pytest.approx(1) and single.figures()["cosine"] is None
    assert alike.figures()["effective rank"] == pytest.approx(single.figures()["effective rank"])
    assert (still.figures()["constant share"], still.figures()["effective rank"]) == (1, 0)
    opposite = torch.tensor([[[1.0, 0], [-1, 0]]])
    assert off_diagonal_cosine(opposite) == -1


@pytest.mark.parametrize("flags", [{}, {"gated": "head"}, {"routing": "em", "routing_on": "encoder,decoder,cross"}])
def test_what_is_inside_every_attention_is_what_it_combines(flags):
    model = build_model(flags).eval()
    plain = model(**batch())[0]
    request = AttentionRequest(inside="encoder,decoder,cross:1-3")
    output, extra = model(**batch(), attention_request=request)
    torch.testing.assert_close(output, plain)
    assert set(extra["inside"]) == {(c, n) for c, count in LAYERS.items() for n in range(1, count + 1)}
    attention, combined = model.decoder.layers[1].encoder_attn, []
    attention.combine_heads, combine = lambda heads: combined.append(heads) or combine(heads), attention.combine_heads
    model(**batch(), attention_request=AttentionRequest(inside="cross:2"))
    torch.testing.assert_close(combined[0], extra["inside"]["cross", 2][0].permute(2, 0, 1, 3).flatten(2))
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    weights = extra["inside"]["decoder", 3][1]
    assert not weights[..., future].any() and extra["inside"]["cross", 1][1].shape == (3, 4, 7, 8)
