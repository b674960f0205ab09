"""What the attentions of a model return besides their outputs, collected while its layers run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_diverse.attention.body import AttentionOutput
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.request import ResolvedRequest

Place = tuple[str, int]  # component and layer
AttentionMaps = dict[Place, Tensor]


class Loop:
    """A stack of layers for fairseq's own loop over them, in which ``run`` calls each layer."""

    def __init__(self, stack: Any, run: Callable[..., Any]) -> None:
        self.stack, self.layers = stack, (partial(run, layer) for layer in stack.layers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)


class Extras(NamedTuple):
    """The results of the layers that ran."""

    agreement: dict[str, list[Tensor]]  # component -> (K,) of each measured layer
    maps: AttentionMaps  # (H, B, T, S)
    inside: dict[Place, tuple[Tensor, Tensor]]  # head outputs (B, H, T, D), plain weights (B, H, T, S)
    losses: AttentionMaps  # (), the sum of the mechanisms' ``add_loss``
    redundant: dict[int, Tensor]  # layer of the encoder -> (B, H), True at redundant heads; with --enliven
    carried: dict[str, Mapping[str, Tensor]]  # component -> mechanism -> what the last layer carries

    @classmethod
    def none(cls) -> "Extras":
        return cls({}, {}, {}, {}, {}, {component: {} for component in COMPONENTS})

    def add(self, component: str, layer: int, output: AttentionOutput, maps: bool = True) -> None:
        """Add what an attention returned, with or without its map."""
        place = component, layer
        self.carried[component] = output.carry
        if output.agreement is not None:
            self.agreement.setdefault(component, []).append(output.agreement)
        if output.weights is not None and maps:
            self.maps[place] = output.weights.transpose(0, 1)
        if output.heads is not None and output.plain_weights is not None:
            self.inside[place] = output.heads, output.plain_weights
        if output.loss is not None:
            self.losses[place] = output.loss
        if output.redundant is not None and component == "encoder":
            self.redundant[layer] = output.redundant

    def __or__(self, other: "Extras") -> "Extras":
        return Extras(*(one | another for one, another in zip(self, other, strict=True)))  # type: ignore

    def results(self, request: ResolvedRequest, like: Tensor) -> dict[str, Any]:
        """The results by name, see ``DiverseTransformerModel.forward``.

        ``agreement`` is (K,), by term: the mean over the layers of each component that ran, then over components, by
        the request's shares. If no layer was measured, every term is 0.
        """
        means = {name: torch.stack(self.agreement[name]).mean(0) for name in COMPONENTS if name in self.agreement}
        agreement = torch.zeros(len(request.terms), device=like.device)
        if means:
            agreement = torch.stack([*means.values()]).mean(0)
        if means and request.shares:
            shares = {name: request.shares[name] for name in means}
            weighted = torch.stack([share * means[name] for name, share in shares.items()]).sum(0)
            agreement = weighted / max(sum(shares.values()), 1e-12)
        fields = {name: getattr(self, name) for name in ("maps", "inside", "losses", "redundant")}
        return {"agreement": agreement, **fields}
