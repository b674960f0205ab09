"""Agreement equals the loop version; gradients are right and finite."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from fairseq_diverse.attention.functional.agreement import (
    difference_agreement,
    output_agreement,
    position_agreement,
    subspace_agreement,
)
from tests.reference import agreement as reference
from tests.refusals import refused

B, H, T, S, D = 3, 4, 5, 7, 6
centred_subspace, centred_output = (partial(f, centre=True) for f in (subspace_agreement, output_agreement))
CENTRED = [centred_subspace, centred_output]
ALL = [subspace_agreement, position_agreement, output_agreement, difference_agreement, *CENTRED]
VALID = torch.tensor([[True] * T, [False, False, True, True, True], [True, False, False, False, False]])


@pytest.mark.parametrize("function", [subspace_agreement, output_agreement])
def test_cosine_terms_equal_the_loop(function):
    vectors = torch.randn(B, H, T, D, dtype=torch.float64)
    vectors[0, 1, 2] = 0  # a zero vector agrees with nothing
    expected = reference.cosine_agreement(vectors.tolist(), VALID.tolist())
    assert function(vectors, VALID).item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(function(vectors, VALID, centre=False), function(vectors, VALID))
    centred = reference.centred(vectors.tolist(), VALID.tolist())
    expected = reference.cosine_agreement(centred, VALID.tolist())
    assert function(vectors, VALID, centre=True).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("function", CENTRED)
def test_an_offset_of_a_head_changes_nothing_where_heads_are_centred(function):
    vectors = torch.randn(B, H, T, D, dtype=torch.float64)
    moved = vectors + 10 + torch.randn(H, 1, D, dtype=torch.float64)
    torch.testing.assert_close(function(moved, VALID), function(vectors, VALID))
    assert function.func(moved, VALID) > 0.9 > 0.6 > function.func(vectors, VALID)


def test_terms_of_maps_equal_the_loops():
    weights = torch.randn(B, H, T, S, dtype=torch.float64).softmax(-1)
    for term, loop in (
        (position_agreement, reference.position_agreement),
        (difference_agreement, reference.difference_agreement),
    ):
        expected = loop(weights.tolist(), VALID.tolist())
        assert term(weights, VALID).item() == pytest.approx(expected, abs=1e-12)
    assert difference_agreement(weights[:, :1].expand_as(weights), VALID).item() == pytest.approx(0)


@pytest.mark.parametrize("function", ALL)
def test_gradients(function):
    inputs = torch.rand(B, H, T, D, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: function(x, VALID), inputs)


@pytest.mark.parametrize("function", [subspace_agreement, output_agreement])
def test_agreement_is_one_for_equal_heads_and_zero_vectors_have_zero_gradient(function):
    same = torch.randn(B, 1, T, D).expand(B, H, T, D)
    assert function(same, VALID).item() == pytest.approx(1)
    zeros = torch.zeros(B, H, T, D, requires_grad=True)
    function(zeros, VALID).backward()
    assert torch.equal(zeros.grad, torch.zeros_like(zeros))
    tiny = torch.full((B, H, T, D), 1e-10, requires_grad=True)
    function(tiny, VALID).backward()
    assert torch.equal(tiny.grad, torch.zeros_like(tiny))


@pytest.mark.parametrize("function", [subspace_agreement, output_agreement])
def test_short_vectors_agree_like_long_ones(function):
    vectors = torch.randn(B, H, T, D)
    torch.testing.assert_close(function(1e-6 * vectors, VALID), function(vectors, VALID))


@pytest.mark.parametrize("function", ALL)
def test_padding_has_no_influence_and_no_gradient(function):
    inputs = torch.rand(B, H, T, D)
    changed = inputs.clone()
    changed.transpose(1, 2)[~VALID] = 1e4
    changed.requires_grad_()
    figure = function(changed, VALID)
    assert torch.equal(figure, function(inputs, VALID))
    figure.backward()
    assert not changed.grad.transpose(1, 2)[~VALID].any()
    assert function(inputs, torch.zeros_like(VALID)).item() == 0


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_measured_in_float32(function, dtype):
    inputs = (torch.randn(B, H, T, D) * 100).to(dtype).requires_grad_()
    figure = function(inputs, VALID)
    assert figure.dtype == torch.float32 and figure.isfinite()
    figure.backward()
    assert inputs.grad.isfinite().all()


@pytest.mark.parametrize("function", ALL)
def test_one_head_is_refused(function):
    refused("at least 2 heads, not 1", function, torch.rand(B, 1, T, D), VALID)
