"""Statistics of heads: redundancy equals the model's, importance is a derivative."""

import pytest
import torch

from fairseq_diverse.analysis.heads import FIGURES, draw_figures, inspect_heads
from tests.cases import batch, build_model, dictionary

PAD = dictionary().pad()


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
    figures = inspect_heads(model, [as_sample(batch())], PAD, None, graphs())
    assert set(figures) == set(FIGURES)
    torch.testing.assert_close(figures["redundant"][0], expected)
    assert (figures["confidence"] > 0).all() and (figures["confidence"] <= 1).all()


def test_importance_is_the_derivative_by_a_factor_of_the_head():
    model = build_model().double().eval()
    one = as_sample(batch(source=(6,), target=(5,)))
    figures = inspect_heads(model, [one], PAD, None, graphs=None)
    assert set(figures) == {"confidence", "importance"}

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
    whole = inspect_heads(model, [as_sample(batch())], PAD, 0.5, graphs())
    rows = [as_sample({name: value[row : row + 1] for name, value in batch().items()}) for row in range(3)]
    for row, one in enumerate(rows):
        one["id"] += row
    for name, values in inspect_heads(model, rows, PAD, 0.5, graphs()).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-4, atol=1e-5)


def test_the_model_keeps_its_own_trees():
    """A sentence without dependencies does not lose the constituents that the model reads."""
    model, sample = build_model({"syntax": "phrase"}), as_sample(batch())
    without = [torch.tensor([0, 0, 0, 1, 0]).expand_as(rows) for rows in graphs()]
    importance = [inspect_heads(model, [sample], PAD, None, trees)["importance"] for trees in (graphs(), without)]
    assert torch.equal(*importance)


def test_the_plot_has_one_panel_per_statistic():
    figure = draw_figures({name: torch.rand(3, 4) for name in FIGURES})
    assert [axes.get_title() for axes in figure.axes] == list(FIGURES)
