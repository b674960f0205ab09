"""Routing equals the loop version; gradients are right and finite."""

import pytest
import torch
from torch.autograd import gradcheck

from fairseq_diverse.attention.functional.routing import CHUNK, em_routing, mean_of_votes, simple_routing
from fairseq_diverse.attention.kernels import cpu
from fairseq_diverse.attention.kernels import routing as kernels
from tests.reference import routing as reference
from tests.reference import routing_by_autograd as plain
from tests.refusals import refused

B, H = 3, 4
SHAPES = [(12, 1), (6, 2), (1, 12)]


@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_simple_routing_equals_the_loop(n, d, iterations):
    votes = torch.randn(B, H, n, d, dtype=torch.float64)
    got = simple_routing(votes, iterations)
    expected = [reference.simple_routing(sentence, iterations) for sentence in votes.tolist()]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("activation", [True, False])
def test_em_routing_equals_the_loop(n, d, iterations, activation):
    votes = torch.randn(B, H, n, d, dtype=torch.float64)
    beta_a, beta_u = torch.randn(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    got = em_routing(votes, beta_a, beta_u, iterations, activation)
    betas = beta_a.tolist(), beta_u.tolist()
    expected = [reference.em_routing(sentence, *betas, iterations, activation) for sentence in votes.tolist()]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_the_control_is_the_mean_of_the_votes():
    votes = torch.randn(B, H, 6, 2, dtype=torch.float64)
    expected = [[sum(head[n][i] for head in heads) / H for n in range(6) for i in range(2)] for heads in votes.tolist()]
    torch.testing.assert_close(mean_of_votes(votes), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("n", "d"), [(5, 1), (3, 2)])
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_gradients(n, d, iterations):
    votes = torch.randn(2, H, n, d, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda v: simple_routing(v, iterations), votes)
    betas = [torch.randn(n, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert gradcheck(lambda v, a, u: em_routing(v, a, u, iterations), (votes, *betas))
    assert gradcheck(lambda v: em_routing(v, None, None, iterations, activation=False), votes)


@pytest.fixture(params=["C", "torch"])
def kernel(request, monkeypatch):
    """Both versions of the fast functions; the C one always exists, since make setup needs a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "usable", lambda *inputs: False)
    else:
        assert cpu.library("routing") is not None


@pytest.mark.parametrize("shape", [(6, 2), (12, 1)])
@pytest.mark.parametrize("chunk", [1, 100, 2**16])
@pytest.mark.parametrize(
    ("dtype", "iterations", "tolerance"),
    [(torch.float64, 3, 1e-6), (torch.bfloat16, 3, 2e-2), *((torch.float32, count, 1e-4) for count in range(1, 6))],
)
@pytest.mark.parametrize("kind", ["simple", "em", "em-none"])
def test_the_fast_version_equals_the_plain_one(kind, dtype, iterations, tolerance, chunk, shape, kernel, monkeypatch):
    """Which equals the loop, as the fast one does in float64."""
    monkeypatch.setitem(CHUNK, "cpu", chunk)
    results = []
    for simple, em in ((simple_routing, em_routing), (plain.simple_routing, plain.em_routing)):
        torch.manual_seed(0)
        votes = torch.randn(2, B, H, *shape).to(dtype).requires_grad_()
        betas = [torch.randn(2 * shape[0])[::2].requires_grad_() for _ in range(2)]  # strided
        out = simple(votes, iterations) if kind == "simple" else em(votes, *betas, iterations, kind == "em")
        (out.float() * torch.arange(12)).sum().backward()
        results.append([out, votes.grad, *([beta.grad for beta in betas] if kind == "em" else [])])
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("heads", "shift"), [(2, 0), (2, 100), (8, 100)])
def test_votes_that_nearly_agree_keep_full_precision(heads, shift, kernel):
    """With two heads some votes always agree; the inverse of their tiny variance amplifies rounding errors."""
    torch.manual_seed(0)
    votes, grad = torch.randn(32, heads, 64, 1) + shift, torch.randn(32, 64)
    gradients = []
    for f, dtype in ((em_routing, torch.float32), (plain.em_routing, torch.float64)):
        v = votes.to(dtype).requires_grad_()
        betas = torch.zeros(64, dtype=dtype), torch.zeros(64, dtype=dtype)
        gradients.append(torch.autograd.grad(f(v, *betas), v, grad.to(dtype))[0].double())
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


def test_gradients_of_costs_are_precise_for_certain_capsules(kernel):
    """Votes of one head: A is nearly 1, and 1 - A would round to 0."""
    torch.manual_seed(0)
    votes, grad = 1e-2 * torch.randn(3, 2, 4, 1), torch.randn(3, 4)
    gradients = []
    for f, dtype in ((em_routing, torch.float32), (plain.em_routing, torch.float64)):
        betas = [(5 * torch.ones(4, dtype=dtype)).requires_grad_(), torch.zeros(4, dtype=dtype, requires_grad=True)]
        gradients.append(torch.autograd.grad(f(votes.to(dtype), *betas), betas, grad.to(dtype))[0].double())
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=0)
    assert gradients[1].abs().max() > 0


def test_no_iteration_and_activation_without_its_costs_are_refused():
    refused("needs beta_a and beta_u", em_routing, torch.randn(2, 3, 4, 1), torch.zeros(4), None)
    refused("at least 1, not 0", simple_routing, torch.zeros(1, H, 2, 1), 0)
    refused("at least 1, not 0", em_routing, torch.zeros(1, H, 2, 1), torch.zeros(2), torch.zeros(2), 0)


@pytest.mark.parametrize("scale", [1e9, 1e12])
def test_absurd_votes_stay_finite(scale, kernel):
    votes = (scale * torch.randn(B, H, 12, 1)).requires_grad_()
    betas = [torch.zeros(12, requires_grad=True) for _ in range(2)]
    for out in (em_routing(votes, *betas), simple_routing(votes)):
        assert out.isfinite().all() and torch.autograd.grad(out.sum(), votes)[0].isfinite().all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_tokens_are_split_among_threads(threads, kernel):
    before = torch.get_num_threads()
    torch.manual_seed(0)
    votes = torch.randn(5, H, 12, 1, requires_grad=True)
    betas = [torch.randn(12, requires_grad=True) for _ in range(2)]
    plain.em_routing(votes, *betas).square().sum().backward()
    expected = [x.grad.clone() for x in (votes, *betas)]
    for x in (votes, *betas):
        x.grad = None
    try:
        torch.set_num_threads(threads)
        em_routing(votes, *betas).square().sum().backward()
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close([x.grad for x in (votes, *betas)], expected, rtol=1e-4, atol=1e-5)


def test_strided_and_empty_votes(kernel):
    votes = torch.randn(H, 12, 5, 1, requires_grad=True)
    got, expected = (f(votes.permute(2, 0, 1, 3)) for f in (simple_routing, plain.simple_routing))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), votes)[0] for x in (got, expected)))
    empty = torch.zeros(0, H, 12, 1, requires_grad=True)
    em_routing(empty, torch.zeros(12), torch.zeros(12)).sum().backward()
    assert empty.grad.shape == empty.shape


@pytest.mark.parametrize("kind", ["simple", "em"])
def test_memory_kept_for_backward_is_at_most_one_and_a_half_times_the_votes(kind, kernel):
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    votes = torch.randn(64, H, 12, 1, requires_grad=True)
    betas = [torch.zeros(12, requires_grad=True) for _ in range(2)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = simple_routing(votes) if kind == "simple" else em_routing(votes, *betas)
    assert out.requires_grad and sum(kept.values()) <= 1.5 * votes.nbytes


def hard_votes():
    random = torch.randn(B, H, 12, 1)
    votes = {"zero": 0 * random, "equal": torch.ones_like(random), "equal heads": random[:, :1].expand(B, H, 12, 1)}
    large = {"large": 1e3 * random, "large equal": torch.full_like(random, 1e3), "wide": 1e3 * random.view(B, H, 3, 4)}
    return votes | large


@pytest.mark.parametrize("name", hard_votes())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["simple", "em", "em-none"])
def test_finite_forward_and_backward(name, dtype, kind, kernel):
    votes = hard_votes()[name].to(dtype).requires_grad_()
    n = votes.size(-2)
    betas = [torch.zeros(n, requires_grad=True) for _ in range(2)]
    for iterations in (1, 3, 5):
        if kind == "simple":
            out = simple_routing(votes, iterations)
        else:
            out = em_routing(votes, *betas, iterations, activation=kind == "em")
        assert out.dtype == dtype and out.isfinite().all()
        out.float().sum().backward()
        assert votes.grad.isfinite().all()
    if kind == "em":
        assert all(beta.grad.isfinite().all() for beta in betas)
