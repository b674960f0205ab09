"""A sentence alone equals the same in a padded batch; rows of nothing but padding are finite."""

import pytest
import torch

from fairseq_diverse.attention.relations import relate
from tests.cases import ALL_ON, CASES, batch, build_model, dictionary, terms


@pytest.mark.parametrize("sides", [("left", "right"), ("right", "right"), ("left", "left")])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_alone_equals_in_a_batch(name, flags, sides):
    model = build_model(flags).eval()
    sample = batch(sides=sides)
    pad = dictionary().pad()
    with torch.no_grad():
        together, _ = model(**sample)
        for row in range(3):
            src, tgt = sample["src_tokens"][row], sample["prev_output_tokens"][row]
            trees = sample["source_trees"][row][src != pad][None]
            real = tgt != pad
            src, tgt = src[src != pad][None], tgt[real][None]
            alone, _ = model(src, torch.tensor([src.size(1)]), tgt, source_trees=trees)
            torch.testing.assert_close(together[row, real], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES])
def test_rows_of_all_padding_are_finite(name, flags, dtype, need_weights):
    """In plain fairseq such a row is NaN, forward and backward; a staged attention keeps it finite."""
    model = build_model(flags).to(dtype)
    component = next((value for key, value in flags.items() if key.endswith("_on")), "encoder")
    layer = model.encoder.layers[0] if component == "encoder" else model.decoder.layers[0]
    attention = layer.encoder_attn if component == "cross" else layer.self_attn
    x = torch.randn(5, 3, 24, dtype=dtype)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1] = True
    trees = batch((4, 4, 4))["source_trees"].masked_fill(padding.unsqueeze(-1), -1)
    out = attention.attend(
        x,
        x,
        x,
        padding,
        query_padding_mask=padding,
        relations=relate(trees, ("dependency", "constituency")),
        need_head_weights=need_weights,
        terms=terms(flags) if need_weights else ("output",),
    )
    (out.value.float().sum() + out.agreement.sum()).backward()
    assert out.value.isfinite().all() and out.agreement.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())
