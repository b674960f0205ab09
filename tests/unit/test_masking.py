"""Masks: the formulas, in every type."""

import pytest
import torch

from fairseq_diverse.attention.functional.masking import additive_mask, masked_logits, masked_softmax


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("level", [0.0, -6e4, 6e4])
def test_masked_softmax_is_that_of_the_allowed_keys_alone(dtype, level):
    """0 at the others, also where the allowed logits are near the least number of the type; in at least float32."""
    torch.manual_seed(0)
    logits = (torch.randn(2, 3, 5, 7) + level).to(dtype).requires_grad_()
    allowed = torch.rand(2, 1, 5, 7) < 0.6
    allowed[..., 3] = True
    weights = masked_softmax(logits, allowed)
    grad = torch.randn_like(weights)
    (got,) = torch.autograd.grad(weights, logits, grad)
    assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and got.dtype == dtype
    plain = logits.detach().to(weights.dtype).requires_grad_()
    expected = plain.masked_fill(~allowed, -torch.inf).softmax(-1)
    assert weights.equal(expected) and not weights[~allowed.expand_as(weights)].any()
    assert got.equal(torch.autograd.grad(expected, plain, grad)[0].to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_without_an_allowed_key_is_uniform(dtype):
    weights = masked_softmax(torch.randn(1, 1, 2, 4).to(dtype), torch.zeros(1, 1, 2, 4, dtype=torch.bool))
    assert weights.equal(torch.full((1, 1, 2, 4), 0.25))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masked_logits_of_half_types_are_in_float32(dtype):
    logits, allowed = torch.randn(2, 4).to(dtype), torch.tensor([True, False, True, True])
    masked = masked_logits(logits, allowed)
    assert masked.equal(logits.float().masked_fill(~allowed, torch.finfo(torch.float32).min))
    assert masked_logits(logits, None).equal(logits.float())


def test_a_bias_and_a_mask_as_one_mask():
    bias, allowed = torch.tensor([[7e4, -7e4, 9e4, 69999]]), torch.tensor([[True, True, False, True]])
    assert additive_mask(bias, allowed, torch.float32).tolist() == [[7e4, -7e4, -torch.inf, 69999]]
    assert additive_mask(bias, None, torch.float64).tolist() == bias.tolist()
    assert additive_mask(bias, allowed, torch.float16).tolist() == [[0, -torch.inf, -torch.inf, -1]]  # 0 is weight 1
    assert additive_mask(bias, None, torch.float16).tolist() == [[-20000, -torch.inf, 0, -20000]]
