"""``python -m benchmarks.gpu_check``: training and translation measured on this machine's GPU with what the model
(results/gpu.md) predicts; ``scripts/gpu-check.sh`` runs it after the tests that need a GPU. Rows that are there already
and not measured again stay, with their commit."""

import argparse
import functools
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from tqdm import tqdm

from benchmarks.__main__ import device_name
from benchmarks.gpu_counting import (
    DEVICES,
    TOKENS,
    System,
    build,
    count_generation,
    count_training,
    make_batch,
    training,
)
from benchmarks.gpu_rows import GENERATION, ROWS, Row, table, total
from benchmarks.harness import Sample, alternate, median_interval, timed
from benchmarks.scaling import memory
from fairseq_diverse.experiments.runs import provenance
from fairseq_diverse.host.graphs import EAGER, GraphSteps
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
BEAM = GENERATION["beam"]
MEASURES = ("training", "generation", "compiled", "captured", "captured generation")
CAPTURED = argparse.Namespace(criterion="label_smoothed_cross_entropy_with_disagreement")  # its flags
BESIDE = {"compiled": "not compiled", "captured": "not captured", "captured generation": "not captured"}  # else off


def to_device(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {name: to_device(of, device) for name, of in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def make_training(system: System, args: argparse.Namespace, captured: bool = False) -> Sample:
    """Seconds of a training step, as ``count_training`` counts it."""
    model = build(args.size, system.flags, args.device).to(DTYPES[args.dtype])
    model.graph_steps = GraphSteps(CAPTURED) if captured else None
    sample = to_device(make_batch(model, args.length, args.tokens), args.device)
    return timed(training(model, system, sample, DTYPES[args.dtype]), args.device)


def make_generation(system: System, args: argparse.Namespace, captured: bool = False) -> Sample:
    """Seconds of a batch through fairseq's beam search, all hypotheses of ``args.length`` tokens."""
    model = build(args.size, system.flags, args.device).to(DTYPES[args.dtype]).eval()
    model.graph_steps = GraphSteps(CAPTURED) if captured else None
    model.make_generation_fast_(beamable_mm_beam_size=BEAM, need_attn=False)
    search = SequenceGenerator(
        [model], model.decoder.dictionary, beam_size=BEAM, min_len=args.length, max_len_a=0, max_len_b=args.length
    )
    sample = to_device(make_batch(model, args.length, args.sentences * args.length), args.device)
    return timed(lambda: search.generate([model], sample), args.device)


def profile(make: Callable[[], Sample], device: str) -> dict[str, Any]:
    """Of a step: bytes on the GPU at its peak, kernels and copies that it ran, and their seconds together."""
    if device == "cpu":
        return {"bytes": None, "kernels": None, "kernel_seconds": None}
    sample = make()
    sample()
    torch.cuda.reset_peak_memory_stats()
    sample()
    bytes_at_peak = torch.cuda.max_memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        sample()
    ran = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    ran = [event for event in ran if not event.is_user_annotation]
    busy = sum(event.time_range.elapsed_us() for event in ran) * 1e-6
    return {"bytes": bytes_at_peak, "kernels": len(ran), "kernel_seconds": float(f"{busy:.4g}")}


@functools.cache
def modelled() -> dict[str, Any]:
    """What the pages have: counts in float16 of ``TOKENS`` a side."""
    return json.loads((ROOT / "benchmarks/results/gpu-model.json").read_text(encoding="utf-8"))["figures"]


def step_of(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """What the model counts of a training step; what the pages do not have is counted now."""
    name = f"{args.size} {args.length} training: {row.name}"
    if (args.dtype, args.tokens) == ("float16", TOKENS) and name in modelled():
        return modelled()[name]
    return count_training(args.size, row.system, args.length, DTYPES[args.dtype], args.tokens)


def launches_of(row: Row, args: argparse.Namespace) -> int:
    """What the model counts of translating a batch."""
    name = f"{args.size} {args.length} generation: {row.name}"
    its = modelled().get(name) if args.sentences == GENERATION["sentences"] else None
    its = its or count_generation(args.size, row.system.flags, args.length, args.sentences, BEAM)
    return its["encoder"]["launches"] + args.length * its["step"]["launches"]


def measure(what: str, row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """Training or generation of a row beside ``off``, or with what is compiled or captured beside the same without;
    ``args.length`` is one length."""
    predicted: dict[str, float] = {}
    systems = row.system, row.system if what in BESIDE else ROWS[0].system
    if what == "compiled":
        systems = replace(row.system, flags={**row.system.flags, "compile_layers": True}), row.system
    elif what == "training":
        theirs, mine = (step_of(x, args) for x in (ROWS[0], row))
        predicted = {of: total(theirs, of) / total(mine, of) for of in (*DEVICES, "launches")}
    elif what == "generation":
        predicted = {"launches": launches_of(ROWS[0], args) / launches_of(row, args)}
    make = make_generation if what.endswith("generation") else make_training
    ours = partial(make, systems[0], args, what.startswith("captured"))
    reference = partial(make, systems[1], args)
    samples = alternate(ours, reference, args.pairs, warm_up=EAGER + 2, blocks=min(2, args.pairs))
    ratios = [other / one for one, other in samples]
    result = {
        "row": row.name,
        "measure": what,
        "length": args.length,
        "pairs": args.pairs,
        "speed": round(statistics.median(ratios), 4),
        "interval": [round(x, 4) for x in median_interval(ratios)],
        "seconds": [float(f"{statistics.median(side):.4g}") for side in zip(*samples, strict=True)],
        "predicted": {of: round(speed, 4) for of, speed in predicted.items()},
    }
    if what == "training":
        result |= profile(ours, args.device) | {
            "predicted_launches": total(mine, "launches"),
            "predicted_seconds": {of: float(f"{total(mine, of):.4g}") for of in DEVICES},
            "predicted_bytes": memory(mine),
            "paper": row.paper and round(row.paper, 4),
        }
    return result


def page(report: dict[str, Any]) -> str:
    """``results/gpu-DEVICE.md``."""
    what = f"size `{report['size']}`, {report['dtype']}, {report['tokens']:,} tokens a side in sentences of T"
    lines = [
        f"# Measured on {report['device']}",
        "",
        f"`scripts/gpu-check.sh`, {what}; torch {report['versions']['torch']}.",
    ]
    if report["dry_run"]:
        lines.append("**A dry run with tiny models on a CPU: the figures mean nothing.**")
    lines += [
        "",
        "*Speed* is the time of `off` over the row's, measured: the median over pairs of steps, and its interval; of",
        "compiled layers and captured steps, the time without them over that with them, for one batch again and again.",
        "*Kernels* are what the GPU ran in a step by torch's profiler, with copies; *busy ms* is their time together.",
        "Columns marked modelled are what the model of [gpu.md](gpu.md) predicted at the row's *commit*.",
        "",
    ]
    for measure in MEASURES:
        for length in sorted({row["length"] for row in report["rows"]}):
            if rows := [row for row in report["rows"] if (row["measure"], row["length"]) == (measure, length)]:
                cells = [_cells(row) for row in rows]
                heads = [f"{measure}, T = {length}", *cells[0]]
                lines += [f"## {measure.capitalize()}, T = {length}", ""]
                lines += [
                    *table(heads, ([row["row"], *its.values()] for row, its in zip(rows, cells, strict=True))),
                    "",
                ]
    return "\n".join(lines).rstrip() + "\n"


def kept(file: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier report with the same settings, on the same device, with the same torch."""
    if not file.exists():
        return []
    settings = ("device", "size", "dtype", "tokens", "sentences", "dry_run")
    names = {row.name for row in ROWS}
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        same = all(before[key] == report[key] for key in settings)
        if not same or before["versions"]["torch"] != report["versions"]["torch"]:
            return []
        return [{"commit": _commit(before), **row} for row in before["rows"] if row["row"] in names]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: not a report of this program; move it away") from None


def merge(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows measured now in place of those measured before, in the order of a whole report."""
    names = [row.name for row in ROWS]
    rows = {(MEASURES.index(row["measure"]), row["length"], row["row"]): row for row in [*before, *now]}
    return [rows[key] for key in sorted(rows, key=lambda key: (*key[:2], names.index(key[2])))]


def _commit(report: dict[str, Any]) -> str:
    return (report["commit"] or "no commit")[:10]


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """What follows the name, by column."""
    mine, theirs = row["seconds"]
    cells = {"speed": f"{row['speed']:.3f}", "interval": "-".join(f"{x:.3f}" for x in row["interval"][:2])}
    cells |= {f"speed by {name}, modelled": f"{speed:.2f}" for name, speed in row["predicted"].items()}
    beside = f"ms, {BESIDE[row['measure']]}" if row["measure"] in BESIDE else "ms of off"
    cells |= {"ms": f"{mine * 1e3:.1f}", beside: f"{theirs * 1e3:.1f}"}
    if row["measure"] == "training":
        cells |= {"kernels": f"{row['kernels']:,}" if row["kernels"] else ""}
        cells |= {"launches, modelled": f"{row['predicted_launches']:,}"}
        cells |= {"busy ms": f"{row['kernel_seconds'] * 1e3:.1f}" if row["kernels"] else ""}
        cells |= {f"{name} ms, modelled": f"{s * 1e3:.1f}" for name, s in row["predicted_seconds"].items()}
        cells |= {"paper": f"{row['paper']:.2f}" if row["paper"] else ""}
        sizes = {"peak GB": row["bytes"], "peak GB, modelled": row["predicted_bytes"]}
        cells |= {name: f"{size / 1e9:.2f}" if size else "" for name, size in sizes.items()}
    return cells | {"commit": row["commit"]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--size", choices=("tiny", "base", "big"), default="base", help="of configs/size")
    parser.add_argument("--dtype", choices=[*DTYPES], default="float16")
    parser.add_argument(
        "--length", type=int, nargs="+", default=[32, 512], help="tokens of a sentence (default: 32 512)"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a training batch, a side (default: 4096)")
    parser.add_argument(
        "--sentences", type=int, default=32, help="of a batch to translate, at the first length (default: 32)"
    )
    parser.add_argument(
        "--measure",
        nargs="+",
        choices=MEASURES,
        default=MEASURES[:2],
        help="compiled: training with --compile-layers beside that without, minutes a row; captured: training or "
        "generation with --graph-steps beside that without (default: training generation)",
    )
    parser.add_argument("--pairs", type=int, default=30, help="pairs of runs a row (default: 30)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="the rows in whose name this is found")
    parser.add_argument("--out", type=Path, help="folder for both files (default: benchmarks/results and results)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, tiny sizes, one pair: does it run at all?")
    parser.add_argument("--check", action="store_true", help="only check the flags and that there is a GPU")
    args = parser.parse_args(arguments)
    args.device = "cpu" if args.dry_run else "cuda"
    if args.dry_run:
        tiny = {"size": "tiny", "dtype": "bfloat16", "length": [8], "tokens": 32, "sentences": 2, "pairs": 1}
        args = argparse.Namespace(**vars(args) | tiny)
    elif not torch.cuda.is_available():
        parser.error("torch sees no CUDA device, fairseq-diverse doctor says why; --dry-run runs on the CPU")
    for name in ("length", "tokens", "sentences", "pairs"):
        for value in [*args.length] if name == "length" else [getattr(args, name)]:
            if value < 1:
                parser.error(f"--{name} {value}: must be at least 1")
    if args.tokens < max(args.length):
        parser.error(f"--tokens {args.tokens}: at least {max(args.length)}, one sentence of --length")
    try:
        rows = [row for row in ROWS if re.search(args.only, row.name)]
    except re.error as error:
        parser.error(f"--only {args.only!r}: not a regular expression ({error})")
    if not rows:
        parser.error(f"--only {args.only!r}: no row has that in its name")
    if args.check:
        return 0
    work = [("training", row, length) for length in args.length for row in rows if "training" in args.measure]
    for what in args.measure:
        if what != "training":
            translated = what.endswith("generation")  # disagreement terms change training alone
            work += [(what, row, args.length[0]) for row in rows if not (translated and row.terms)]
    name = device_name(args.device)
    slug = re.sub(r"\W+", "-", name.lower()).strip("-")
    usual = {"size": "base", "dtype": "float16", "tokens": TOKENS, "sentences": 32}
    slug += "".join(f"-{getattr(args, key)}" for key in usual if not args.dry_run and getattr(args, key) != usual[key])
    slug += "-dry-run" * args.dry_run
    settings = {
        key: getattr(args, key) for key in ("size", "dtype", "length", "tokens", "sentences", "pairs", "dry_run")
    }
    report: dict[str, Any] = {**provenance.collect(), "device": name, **settings}
    results = (args.out or ROOT / "benchmarks/results") / f"{slug}.json"
    try:
        report["rows"] = kept(results, report)
        for what, row, length in tqdm(work, disable=None, unit="row"):
            its = argparse.Namespace(**vars(args) | {"length": length})
            report["rows"] = merge(report["rows"], [{**measure(what, row, its), "commit": _commit(report)}])
            with atomic_write(results) as file:
                json.dump(report, file, indent=1)
            with atomic_write((args.out or ROOT / "results") / f"gpu-{slug}.md") as file:
                file.write(page(report))
    except UserError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--out: {error}")
    for folder, file in (("benchmarks/results", f"{slug}.json"), ("results", f"gpu-{slug}.md")):
        print((args.out or ROOT / folder) / file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
