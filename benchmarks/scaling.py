"""The tables of ``results/scaling.md``: trainings at the papers' size on 1, 8 and 64 GPUs, modelled."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.gpu_counting import DEVICES
from benchmarks.gpu_rows import LAUNCH, LENGTHS, ROWS, table

UPDATES = {"base": 100_000, "big": 300_000}  # of configs/size, with 8 x 4,096 tokens
STEPS = {"iwslt14": (50_000, 1), "wmt14": (100_000, 8)}  # of the comparison: updates, batches of 4,096 tokens in each
SEEDS = {"iwslt14": 5, "wmt14": 3}
BATCHES = 8  # of TOKENS in an update
STATE = 18  # bytes a parameter: half 2, float32 copy 4 and gradient 4, Adam 8; the half gradients are in the peak
GRADIENT = 2  # bytes a parameter that are summed over GPUs, in half types
CARDS = (24, 40, 80)  # GB


class Network(NamedTuple):
    """Bytes a second that pass between neighbours in a ring, one way."""

    node: float  # of the GPUs of a node
    nodes: float  # of nodes with 8 GPUs


NETWORKS = {
    # half of NVLink's bytes both ways (data sheets of A100 and H100); eight adapters of 200 or 400 Gb/s in a node (data
    # sheets of DGX A100 and DGX H100)
    "A100": Network(300e9, 200e9),
    "H100": Network(450e9, 400e9),
}
ETHERNET = {"10 Gb/s": 1.25e9, "100 Gb/s": 12.5e9}  # a node


def seconds(its: dict[str, Any], device: str, *phases: str) -> float:
    """What the work takes, or the launches where these take longer."""
    return max(sum(its[p][device] for p in phases), LAUNCH * sum(its[p]["launches"] for p in phases))


def reduction(its: dict[str, Any], gpus: int, bandwidth: float) -> float:
    """Seconds to sum the gradients around a ring of GPUs."""
    return 2 * (gpus - 1) / gpus * GRADIENT * its["parameters"] / bandwidth


def hours(its: dict[str, Any], size: str, device: str, gpus: int) -> tuple[float, float]:
    """Of the training, and the share of it that is communication.

    With up to 8 GPUs the batch is the configuration's, whatever --update-freq it takes; with more it grows with them
    and the number of updates falls.
    """
    accumulated = max(1, BATCHES // gpus)
    network = NETWORKS[device]
    summing = reduction(its, gpus, network.node if gpus <= BATCHES else network.nodes) if gpus > 1 else 0.0
    work = accumulated * seconds(its, device, "forward", "backward") + seconds(its, device, "optimizer")
    return UPDATES[size] * BATCHES / (accumulated * gpus) * (work + summing) / 3600, summing / (work + summing)


def memory(its: dict[str, Any]) -> float:
    return its["parameters"] * STATE + its["peak"]


def longest(memories: dict[int, float], card: float) -> int:
    """The longest of the counted lengths that fits, in batches of ``TOKENS``; 0 for none."""
    return max((length for length, size in memories.items() if size <= card), default=0)


def half(memories: dict[int, float]) -> float:
    """The length at which what grows with it takes half of the memory: of a + b T, a / b."""
    growth = (memories[512] - memories[32]) / (512 - 32)
    return (memories[32] - 32 * growth) / growth if growth > 0 else math.inf


def training_rows(figures: dict[str, Any], size: str) -> Iterator[list[str]]:
    for row in ROWS:
        its = figures[f"{size} 32 training: {row.name}"]
        cells = [row.name, f"{its['parameters'] / 1e6:.1f}M", f"{its['parameters'] * GRADIENT / 1e6:.0f}"]
        for device in DEVICES:
            cells += [f"{hours(its, size, device, gpus)[0]:.2g}" for gpus in (1, 8, 64)]
            cells += [f"{hours(its, size, device, gpus)[1]:.0%}" for gpus in (8, 64)]
        yield cells


def network_rows(figures: dict[str, Any], size: str) -> Iterator[list[str]]:
    """The --update-freq at which the sum over 64 GPUs takes a tenth of an update, at most."""
    for row in ROWS:
        its = figures[f"{size} 32 training: {row.name}"]
        cells = [row.name]
        for device in DEVICES:
            step, once = seconds(its, device, "forward", "backward"), seconds(its, device, "optimizer")
            for bandwidth in (*ETHERNET.values(), NETWORKS[device].nodes):
                cells.append(f"{max(1, math.ceil((9 * reduction(its, 64, bandwidth) - once) / step)):,}")
        yield cells


def memory_rows(figures: dict[str, Any], size: str) -> Iterator[list[str]]:
    for row in ROWS:
        its = {length: memory(figures[f"{size} {length} training: {row.name}"]) for length in LENGTHS}
        fitting, maps = [longest(its, card * 1e9) for card in CARDS], half(its)
        cells = [row.name, *(f"{x / 1e9:.1f}" for x in its.values())]
        yield [*cells, *(f"{x:,}" if x else "none" for x in fitting), f"{maps:,.0f}" if maps < 1e5 else "never"]


def comparison_rows(figures: dict[str, Any], corpus: str) -> Iterator[list[str]]:
    """Hours of one GPU for a training of every system, and for all seeds; in all where the script trains all."""
    updates, batches = STEPS[corpus]
    of, total = f"{corpus} comparison: ", dict.fromkeys(DEVICES, 0.0)
    for name, its in ((name.removeprefix(of), its) for name, its in figures.items() if name.startswith(of)):
        cells = [name, f"{its['parameters'] / 1e6:.1f}M"]
        for device in DEVICES:
            work = batches * seconds(its, device, "forward", "backward") + seconds(its, device, "optimizer")
            hours = updates * work / 3600
            cells += [f"{hours:.2g}", f"{hours * SEEDS[corpus]:.2g}"]
            total[device] += hours * SEEDS[corpus]
        yield cells
    if corpus == "iwslt14":
        yield ["all", "", *(cell for hours in total.values() for cell in ("", f"{hours:.0f}"))]


def tables(figures: dict[str, Any]) -> dict[str, list[str]]:
    """By name."""
    made = {}
    for corpus, seeds in SEEDS.items():
        heads = ["modelled", "parameters"]
        heads += [head for device in DEVICES for head in (f"{device}: a training, hours", f"{seeds} seeds")]
        made[f"comparison {corpus}"] = table(heads, comparison_rows(figures, corpus))
    for size in UPDATES:
        heads = ["modelled", "parameters", "gradients MB"]
        for device in DEVICES:
            heads += [f"{device}: 1 GPU, hours", "8", "64", "summing on 8", "on 64"]
        made[f"training {size}"] = table(heads, training_rows(figures, size))
        heads = ["modelled"] + [f"{device}: {name}" for device in DEVICES for name in (*ETHERNET, "InfiniBand")]
        made[f"network {size}"] = table(heads, network_rows(figures, size))
        heads = ["modelled", *(f"T = {length:,}, GB" for length in LENGTHS)]
        heads += [*(f"longest, {card} GB" for card in CARDS), "maps half"]
        made[f"memory {size}"] = table(heads, memory_rows(figures, size))
    return made
