"""A mechanism that carries a tensor to the next layer."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fairseq_diverse.attention import MECHANISMS, Mechanism, MechanismSettings, placement, register_mechanism


@dataclass(frozen=True)
class On(MechanismSettings):
    on: str = placement("", "placement; empty = off")


class CarriesValues(Mechanism):
    """values + share * values of the first layer (Zhou et al., 2024, "Value residual learning")"""

    Settings = On

    def __init__(self, settings, where):
        super().__init__(settings, where)
        self.share = nn.Parameter(torch.tensor(0.5))

    def qkv(self, context):
        context.carry = context.v if context.previous is None else context.previous
        return context.q, context.k, context.v + self.share * context.carry


@pytest.fixture
def carrying():
    """Another mechanism that carries a tensor: value-residual."""
    before = dict(MECHANISMS)
    register_mechanism("value-residual")(CarriesValues)
    yield
    MECHANISMS.clear()
    MECHANISMS.update(before)
