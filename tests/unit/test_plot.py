"""Attention maps of a tiny untrained model, and their picture."""

import sys

import pytest
import torch

from fairseq_diverse.cli.plot import parse_heads
from fairseq_diverse.config import COMPONENTS
from fairseq_diverse.errors import UserError
from fairseq_diverse.evaluation.attention_maps import (
    SentencePair,
    attention_maps,
    compare_with_plain,
    comparison_panels,
    draw_panels,
    head_panels,
)
from tests.cases import ALL_ON, batch, build_model


@pytest.mark.parametrize("flags", [{}, ALL_ON[1]], ids=["off", "all on"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_maps_are_the_weights_of_each_head(component, flags):
    model = build_model({**flags, "attention_dropout": 0.5}).train()
    maps = attention_maps(model, batch((7,), (5,)), component, "--layer")
    assert list(maps) == [(component, layer) for layer in range(1, 3 if component == "encoder" else 4)]
    queries, keys = {"encoder": (8, 8), "decoder": (6, 6), "cross": (6, 8)}[component]
    for weights in maps.values():
        assert weights.shape == (4, 1, queries, keys)
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, 1, queries))  # no dropout
        if component == "decoder":
            assert not weights.triu(1).any()


def test_a_layer_that_the_model_lacks():
    with pytest.raises(UserError, match="--layer 'decoder:4': layer 4 of decoder is out of range; it has 3 layers"):
        attention_maps(build_model(), batch(), "decoder:4", "--layer")


def test_labels_say_what_a_query_is():
    pair = SentencePair(["a", "</s>"], ["x", "y", "</s>"], {})
    assert pair.labels("encoder") == (["a", "</s>"], ["a", "</s>"])
    assert pair.labels("decoder") == (["</s>", "x", "y"], ["</s>", "x", "y"])
    assert pair.labels("cross") == (["x", "y", "</s>"], ["a", "</s>"])


@pytest.mark.parametrize("heads", [[2], [1, 2, 3, 4], [4, 1, 6, 2, 3, 7], list(range(1, 17))])
def test_one_panel_a_head_on_one_scale(heads, tmp_path):
    maps = torch.rand(16, 3, 5)
    queries, keys = ["ein", "$x$", "</s>"], ["a", "$", "very@@", "long", "</s>"]
    figure = draw_panels(head_panels(maps, heads), queries, keys, "cross-attention, layer 2")
    *panels, bar = figure.axes
    assert [panel.get_title() for panel in panels] == [f"head {head}" for head in heads]
    assert bar.get_ylabel() == "attention weight" and figure.get_suptitle() == "cross-attention, layer 2"
    for panel, head in zip(panels, heads, strict=True):
        image = panel.get_images()[0]
        assert image.get_clim() == (0, 1)
        assert torch.equal(torch.tensor(image.get_array()), maps[head - 1])
        assert [label.get_text() for label in panel.get_xticklabels()] == keys
        assert [label.get_text() for label in panel.get_yticklabels()] == queries
    figure.savefig(tmp_path / "maps.png")  # "$x$" is no formula
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["dependency", "phrase"])
def test_syntax_beside_the_plain_heads(kind):
    """An enlivened head is its plain weights times the mask, normalized; an important one its plain weights."""
    model, sample = (
        build_model({"syntax": kind, "enliven": "enliven", "enliven_gate": "0.45"}).eval(),
        batch((7,), (5,)),
    )
    maps = attention_maps(model, sample, "encoder:1", "--layer")["encoder", 1][:, 0]
    comparison = compare_with_plain(model, sample, 1)
    assert compare_with_plain(model, sample, 2) is None
    assert 0 < comparison.redundant.sum() < 4
    masked = comparison.plain * comparison.mask.nan_to_num(0)
    expected = torch.where(comparison.redundant[:, None, None], masked / masked.sum(-1, keepdim=True), comparison.plain)
    torch.testing.assert_close(maps, expected)
    rows = comparison_panels(comparison, maps, [3, 1], prune=False)
    titles = [[panel and panel[0] for panel in row] for row in rows]
    names = ["enlivened" if head else "important" for head in comparison.redundant[[2, 0]]]
    assert titles == [
        ["syntax mask", "head 3, plain", f"head 3, {names[0]}"], [None, "head 1, plain", f"head 1, {names[1]}"]
    ]  # fmt: skip
    words = [*map(str, range(8))]
    *panels, _ = draw_panels(rows, words, words, "").axes
    assert [panel.get_title() for panel in panels] == [title for row in titles for title in row if title]


def test_labels_do_not_overlap():
    """40 subwords on both axes: each row and column is at least as wide as its letters are high."""
    words = [f"subword{i}" for i in range(40)]
    figure = draw_panels(
        head_panels(torch.rand(16, 40, 40), range(1, 17)), words, words, "encoder self-attention, layer 1"
    )
    figure.canvas.draw()
    panel = figure.axes[0]
    height = panel.get_yticklabels()[0].get_window_extent().height
    extent = panel.get_window_extent()
    assert min(extent.height, extent.width) / 40 > 0.9 * height


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'fairseq-diverse\[plots\]'"):
        draw_panels(head_panels(torch.rand(1, 2, 2), [1]), ["a", "b"], ["a", "b"], "")


def test_heads():
    assert parse_heads(None, 3) == [1, 2, 3]
    assert parse_heads("3, 1", 4) == [3, 1]
    for text in ("0", "5", "1,1", "a", "", "1-2"):
        with pytest.raises(ValueError, match=f"--heads {text}: different numbers from 1 to 4"):
            parse_heads(text, 4)
