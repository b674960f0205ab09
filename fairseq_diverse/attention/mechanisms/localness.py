"""Localness: a learned Gaussian window (Yang et al., 2018)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.position import localness_bias, shared_localness_bias
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement


@register_mechanism("localness")
class Localness(Mechanism):
    """A Gaussian window around a position predicted from each query.

    Source: Yang et al. (2018), section 3. With the parameters of each head, as in the authors' code, (HD)^2 + HD +
    2 (H^2 D + H) parameters (270,864 at Base); shared over heads D^2 + 2 D (4,224).
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement of localness; empty = off")
        form: str = option(
            "heads",
            "parameters of each head, as in the authors' code, or shared over the heads",
            choices=("heads", "shared"),
            older="shared",
        )

    components = ("encoder",)
    examples = tuple({"localness_on": "{on}", "localness_form": form} for form in ("heads", "shared"))

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.shared = settings.form == "shared"
        self.hidden: Any
        self.centre: Any
        self.window: Any
        if not self.shared:
            width = where.heads * where.key_width
            self.hidden, self.centre, self.window = (nn.Linear(width, n) for n in (width, where.heads, where.heads))
        else:
            self.hidden = nn.Parameter(torch.empty(where.key_width, where.key_width))
            self.centre = nn.Parameter(torch.empty(1, where.key_width))
            self.window = nn.Parameter(torch.empty(1, where.key_width))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def bias(self, context: AttentionContext) -> Tensor:
        """(B, H, T, T)"""
        query = context.q / context.scale
        layers = self.hidden, self.centre, self.window
        if self.shared:
            hidden, (centre,), (window,) = layers
            return shared_localness_bias(query, hidden, centre, window, context.valid_keys)
        hidden, centre, window = ((layer.weight, layer.bias) for layer in layers)
        return localness_bias(query, hidden, centre, window, context.valid_keys)
