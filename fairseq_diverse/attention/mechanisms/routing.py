"""Routing-by-agreement in place of the output projection (Li et al., 2021, section 3.2)."""

import torch
from fairseq.modules import LayerNorm
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_diverse.attention.functional.routing import em_routing, simple_routing


class RoutedAggregation(nn.Module):
    """Combine the heads by routing their votes.

        V = W2 ReLU(W1 LayerNorm(O) + b1) + b2,  O the concatenated head outputs,  V read as H x N x (d/N)

    Source: Li et al. (2021), Eqs. 8-9, in the form of the released code, which fits the parameter counts of Tables 3-5;
    the LayerNorm and the initial variances (2/d for W1, 1/d for W2) keep the gradient of the linear aggregation.

    Args:
        width: d.
        heads: H.
        kind: simple or em.
        iterations: T, at least 1.
        capsules: N, a divisor of d; 0 = d.
        activation: learned or none (A = 1); em only.
    """

    def __init__(self, width: int, heads: int, kind: str, iterations: int, capsules: int, activation: str) -> None:
        super().__init__()
        self.heads, self.capsules, self.kind, self.iterations = heads, capsules or width, kind, iterations
        self.layer_norm = LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.votes = nn.Linear(width, heads * width)
        nn.init.normal_(self.hidden.weight, std=(2 / width) ** 0.5)
        nn.init.normal_(self.votes.weight, std=(1 / width) ** 0.5)
        nn.init.zeros_(self.hidden.bias)
        nn.init.zeros_(self.votes.bias)
        self.beta_a = self.beta_u = None
        if kind == "em" and activation == "learned":
            self.beta_a = nn.Parameter(torch.zeros(self.capsules))
            self.beta_u = nn.Parameter(torch.zeros(self.capsules))

    def forward(self, concatenated: Tensor) -> Tensor:
        """(..., d) concatenated heads -> (..., d) concatenated capsules."""
        votes = self.votes(F.relu(self.hidden(self.layer_norm(concatenated))))
        votes = votes.unflatten(-1, (self.heads, self.capsules, -1))
        if self.kind == "simple":
            return simple_routing(votes, self.iterations)
        return em_routing(votes, self.beta_a, self.beta_u, self.iterations, activation=self.beta_a is not None)
