"""``python -m benchmarks.votes_precision``: what bfloat16 takes from routing, and what a float32 product of the votes
would cost on a GPU (modelled).

The error is that of the capsules, |result - exact| / |exact|, where numbers are rounded to bfloat16 as --bf16 and
autocast do: the heads' outputs, weights, hidden units, votes and capsules. Routing itself is computed in float32.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import gpu_rows
from fairseq_diverse.attention.functional.routing import em_routing, simple_routing
from fairseq_diverse.attention.mechanisms.routing import RoutedAggregation
from fairseq_diverse.attention.settings import AttentionShape
from fairseq_diverse.checkpoints.loading import load_checkpoint

WIDTH, HEADS, TOKENS = 512, 8, 256
PLACES = ("input", "hidden product", "votes' weights", "votes", "capsules")
ROUNDED = {  # what is rounded in each column
    "all": PLACES,
    "all, votes' product in float32": ("input", "hidden product", "capsules"),
    **{place: (place,) for place in PLACES[:-1]},
}


def capsules(routed: RoutedAggregation, x: Tensor, rounded: Sequence[str]) -> Tensor:
    """``RoutedAggregation.combine`` in float64, with some numbers rounded to bfloat16."""

    def at(place: str, tensor: Tensor) -> Tensor:
        return tensor.bfloat16().double() if place in rounded else tensor

    normed = at("hidden product", routed.layer_norm(at("input", x)))
    hidden = F.linear(normed, at("hidden product", routed.hidden.weight), routed.hidden.bias)
    hidden = at("hidden product", F.relu(hidden))
    votes = at("votes", F.linear(hidden, at("votes' weights", routed.votes.weight), routed.votes.bias))
    votes = votes.unflatten(-1, (routed.votes_of, routed.capsules, -1))
    if routed.kind == "simple":
        return at("capsules", simple_routing(votes, routed.iterations))
    betas = routed.beta_a, routed.beta_u
    return at("capsules", em_routing(votes, *betas, routed.iterations, activation=betas[0] is not None))


def made(kind: str, width: int = WIDTH, heads: int = HEADS, **settings: Any) -> RoutedAggregation:
    """With initial weights."""
    where = AttentionShape.of("encoder", 1, width, heads)
    return RoutedAggregation(RoutedAggregation.Settings(kind=kind, **settings), where).double()


def cases(path: str | None) -> Iterator[tuple[str, RoutedAggregation]]:
    """With initial weights; with heads that nearly agree; those of a checkpoint."""
    for kind in ("em", "simple"):
        yield f"{kind}, initial weights", made(kind)
        for share in (0.1, 0.01):
            agreeing = made(kind)
            with torch.no_grad():
                common, own = agreeing.votes.weight[:WIDTH].repeat(HEADS, 1), agreeing.votes.weight
                own.copy_(common + share * own)
            yield f"{kind}, heads differ by {share:.0%}", agreeing
    model = load_checkpoint(path) if path else None
    if model is not None:
        args, end = model["cfg"]["model"], ".votes.weight"
        names = (name.removesuffix(end) for name in model["model"] if name.endswith(f".aggregate{end}"))
        for name in names:
            its = {
                key.removeprefix(f"{name}."): x.double()
                for key, x in model["model"].items()
                if key.startswith(f"{name}.")
            }
            width = its["hidden.bias"].numel()
            settings = {field: getattr(args, f"routing_{field}") for field in ("iterations", "capsules", "activation")}
            routed = made(args.routing, width, its["votes.bias"].numel() // width, **settings)
            routed.load_state_dict(its)
            yield name.removesuffix(".aggregate"), routed


def plain_error() -> str:
    """Of the output projection of an attention without routing: input, weight and output are rounded."""
    x, weight = torch.randn(TOKENS, WIDTH).double(), torch.randn(WIDTH, WIDTH).double() * WIDTH**-0.5
    exact = x @ weight
    rounded = (x.bfloat16().double() @ weight.bfloat16().double()).bfloat16().double()
    return f"{((rounded - exact).norm() / exact.norm()).item():.2%}"


def errors(routed: RoutedAggregation) -> list[str]:
    """One for each column."""
    torch.manual_seed(1)
    x = torch.randn(TOKENS, routed.hidden.in_features, dtype=torch.float64)
    with torch.no_grad():
        exact = capsules(routed, x, ())
        found = (capsules(routed, x, rounded) - exact for rounded in ROUNDED.values())
        return [f"{(difference.norm() / exact.norm()).item():.2%}" for difference in found]


def in_float32(self: RoutedAggregation, concatenated: Tensor) -> Tensor:
    """``RoutedAggregation.combine`` with the votes' product in float32."""
    hidden = F.relu(self.hidden(self.layer_norm(concatenated)))
    votes = F.linear(hidden.float(), self.votes.weight.float(), self.votes.bias.float())
    votes = votes.unflatten(-1, (self.votes_of, self.capsules, -1))
    return em_routing(votes, self.beta_a.float(), self.beta_u.float(), self.iterations).type_as(concatenated)


def costs() -> Iterator[list[str]]:
    """Of a training step of Base in float16: milliseconds of work, and what is kept."""
    combine: Callable[..., Tensor] = RoutedAggregation.combine
    for name, way in (("half types", combine), ("float32", in_float32)):
        with mock.patch.object(RoutedAggregation, "combine", way):
            for row, its in gpu_rows.count("^base 32 training: em routing encoder(:1-2)?$").items():
                work = (f"{gpu_rows.total(its, device) * 1e3:.1f}" for device in ("A100", "H100"))
                yield [f"{row.partition(': ')[2]}, votes' product in {name}", *work, f"{its['kept'] / 1e9:.2f}"]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.votes_precision", description=__doc__)
    parser.add_argument("--path", help="a checkpoint of a model with routing")
    parser.add_argument("--no-cost", action="store_true", help="errors only")
    args = parser.parse_args(given)
    torch.manual_seed(0)
    plain = ["plain output projection", plain_error(), *[""] * (len(ROUNDED) - 1)]
    rows = [plain, *([name, *errors(of)] for name, of in cases(args.path))]
    print("\n".join(gpu_rows.table(["error", *ROUNDED], rows)))
    if not args.no_cost:
        print("\n".join(["", *gpu_rows.table(["modelled", "A100 ms", "H100 ms", "kept GB"], costs())]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
