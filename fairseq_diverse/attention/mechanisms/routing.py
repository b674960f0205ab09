"""Routing-by-agreement in place of the output projection (Li et al., 2021, section 3.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_diverse.attention.functional.routing import em_routing, mean_of_votes, simple_routing
from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("routing")
class RoutedAggregation(Mechanism):
    """Combine the heads by routing their votes.

        V = W2 ReLU(W1 LayerNorm(O) + b1) + b2,  O the concatenated head outputs,  V read as H x N x (d/N)

    Source: Li et al. (2021), Eqs. 8-9, as in the released code, which matches the parameter counts of Tables 3-5. The
    LayerNorm and the initial variances (2/d for W1, 1/d for W2) keep the gradient of the linear aggregation.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "none",
            "combine heads by routing-by-agreement; mean: the same network without routing, as a control",
            choices=("none", "simple", "em", "mean"),
        )
        on: str = placement("encoder:1-2", "placement of routing")
        iterations: int = option(3, "number of routing iterations, at least 1")
        capsules: int = option(
            0,
            "number of output capsules, a divisor of the model width; 0 = the width, as in the paper; other values "
            "are experimental",
        )
        activation: str = option("learned", "activation probabilities of --routing em", choices=("learned", "none"))

        @property
        def unused(self) -> tuple[str, ...]:
            return {"mean": ("iterations", "capsules", "activation"), "simple": ("activation",)}.get(self.kind, ())

        def check(self, where: AttentionShape) -> None:
            if self.iterations < 1:
                raise UserError(f"--routing-iterations {self.iterations}: must be at least 1")
            if self.capsules < 0 or where.width % (self.capsules or where.width):
                raise UserError(
                    f"--routing-capsules {self.capsules}: must divide the width {where.width} (or be 0 for the width)"
                )
            if self.capsules == 1 and self.kind == "em" and self.activation == "learned":
                raise UserError(
                    "--routing-capsules 1: the activation of a single capsule is 0 and nothing trains; give more "
                    "capsules, or --routing-activation none"
                )

    key = "aggregate"
    examples = (
        {"routing": "simple", "routing_on": "{on}"},
        {"routing": "em", "routing_on": "{on}"},
        {"routing": "em", "routing_on": "{on}", "routing_capsules": 6, "routing_activation": "none"},
        {"routing": "mean", "routing_on": "{on}"},
    )

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        width, self.votes_of = where.width, where.heads
        self.kind, self.iterations, self.capsules = settings.kind, settings.iterations, settings.capsules or width
        self.layer_norm = nn.LayerNorm(where.out_width)
        self.hidden = nn.Linear(where.out_width, width)
        self.votes = nn.Linear(width, where.heads * width)
        nn.init.normal_(self.hidden.weight, std=(2 / where.out_width) ** 0.5)
        nn.init.normal_(self.votes.weight, std=(1 / width) ** 0.5)
        nn.init.zeros_(self.hidden.bias)
        nn.init.zeros_(self.votes.bias)
        self.beta_a = self.beta_u = None
        if self.kind == "em" and settings.activation == "learned":
            self.beta_a = nn.Parameter(torch.zeros(self.capsules))
            self.beta_u = nn.Parameter(torch.zeros(self.capsules))

    def combine(self, concatenated: Tensor) -> Tensor:
        """(..., H D) concatenated heads -> (..., d) concatenated capsules."""
        votes = self.votes(F.relu(self.hidden(self.layer_norm(concatenated))))
        votes = votes.unflatten(-1, (self.votes_of, self.capsules, -1))
        if self.kind == "mean":
            return mean_of_votes(votes)
        if self.kind == "simple":
            return simple_routing(votes, self.iterations)
        return em_routing(votes, self.beta_a, self.beta_u, self.iterations, activation=self.beta_a is not None)
