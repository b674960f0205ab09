"""Naive implementations of the functions, independent of the package; its docstrings have the formulas."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_diverse.attention.mechanism import AttentionContext


def _mean_over_pairs(pair: Callable[[int, int], Tensor], heads: int, valid: Tensor) -> Tensor:
    total = torch.stack([pair(i, j) for i in range(heads) for j in range(heads)]).mean(0)  # (B, T)
    return total[valid].mean()


def cosine_agreement(vectors: Tensor, valid: Tensor) -> Tensor:
    """Subspace and output agreement, one pair of heads at a time. vectors: (B, H, T, D), valid: (B, T)."""
    return _mean_over_pairs(
        lambda i, j: F.cosine_similarity(vectors[:, i], vectors[:, j], dim=-1), vectors.size(1), valid
    )


def position_agreement(weights: Tensor, valid: Tensor) -> Tensor:
    """Position agreement, one pair of heads at a time. weights: (B, H, T, S), valid: (B, T)."""
    return _mean_over_pairs(lambda i, j: (weights[:, i] * weights[:, j]).sum(-1), weights.size(1), valid)


def simple_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """Simple routing, step by step under autograd. votes: (..., H, N, D) -> (..., N*D)."""
    logits = torch.zeros_like(votes[..., 0])
    capsules = votes
    for _ in range(iterations):
        share = logits.softmax(-1).unsqueeze(-1)  # (..., H, N, 1)
        mean = (share * votes).sum(-3) / share.sum(-3)
        norm = mean.norm(dim=-1, keepdim=True)
        capsules = mean * norm / (1 + norm**2)
        logits = logits + (capsules.unsqueeze(-3) * votes).sum(-1)
    return capsules.flatten(-2)


def em_routing(votes: Tensor, beta_a: Tensor, beta_u: Tensor, iterations: int = 3) -> Tensor:
    """EM routing, step by step under autograd. votes: (..., H, N, D), betas: (N,) -> (..., N*D)."""
    share = torch.full_like(votes[..., 0], 1 / votes.size(-2))  # (..., H, N)
    for t in range(iterations):
        total = share.sum(-2)  # (..., N)
        weight = share.unsqueeze(-1)
        mean = (weight * votes).sum(-3, keepdim=True) / (total[..., None, :, None] + 1e-9)
        variance = (weight * (votes - mean) ** 2).sum(-3, keepdim=True) / (total[..., None, :, None] + 1e-9) + 1e-9
        cost = (variance.sqrt().log() + (1 + math.log(2 * math.pi)) / 2).sum(-1).squeeze(-2) * total
        temperature = 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)
        activation = torch.sigmoid(temperature * (beta_a - beta_u * total - cost))
        log_p = -((votes - mean) ** 2 / (2 * variance) + (2 * math.pi * variance).log() / 2).sum(-1)  # (..., H, N)
        share = (activation.log().unsqueeze(-2) + log_p).softmax(-1)
    return (activation.unsqueeze(-1) * mean.squeeze(-3)).flatten(-2)


def products_of_pairs(kind: str, context: AttentionContext, need_weights: bool) -> tuple[Tensor, None]:
    """Replaces ``InteractingHeads.attention`` by its matrix products only, the minimum for every implementation: no
    masks, no softmax, no dropout."""
    q, k, v = context.q, context.k, context.v
    batch, heads, queries, _ = q.shape
    logits = q.reshape(batch, 1, heads * queries, -1) @ k.transpose(-1, -2)  # (B, H, H T, S)
    out = (logits @ v).unflatten(2, (heads, queries)).transpose(1, 2)  # (B, H, H, T, D)
    return (out.sum(2) if kind == "sum" else out.transpose(2, 3).flatten(3)), None


class Aggregation(nn.Module):
    """The vote network of a routed attention, W2 ReLU(W1 LayerNorm(O) + b1) + b2, and a naive way to combine the votes.

    Args:
        kind: em, simple, or torch: a plain sum over the heads, so that only the cost of the vote network remains.
    """

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, heads * width)
        )
        self.beta_a, self.beta_u = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def combine(self, concatenated: Tensor) -> Tensor:
        """(..., d) -> (..., d)"""
        votes = self.network(concatenated).unflatten(-1, (self.heads, -1))  # (..., H, d)
        if self.kind == "torch":
            return votes.sum(-2)
        if self.kind == "simple":
            return simple_routing(votes.unsqueeze(-1))
        return em_routing(votes.unsqueeze(-1), self.beta_a, self.beta_u)
