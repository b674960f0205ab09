"""``python -m benchmarks.gpu_model``: what training and translation cost on a GPU, modelled without one."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import scaling
from benchmarks.gpu_counting import DEVICES
from benchmarks.gpu_rows import CASES, GENERATION, LAUNCH, ROWS, attentions, count, ratio, table, total
from fairseq_diverse.support.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/gpu-model.json"


def training_rows(figures: dict[str, Any], case: str) -> Iterator[list[str]]:
    off = figures[f"{case} training: off"]
    for row in ROWS:
        its = figures[f"{case} training: {row.name}"]
        yield [
            row.name,
            f"{total(its, 'launches'):,}",
            f"{total(its, 'bytes') / 1e9:.1f}",
            f"{total(its, 'flops') / 1e12:.2f}",
            f"{its['kept'] / 1e9:.2f}",
            *(f"{total(its, device) * 1e3:.1f}" for device in DEVICES),
            f"{total(its, 'launches') * LAUNCH * 1e3:.1f}",
            *(ratio(total(off, name), total(its, name)) for name in (*DEVICES, "launches")),
            f"{row.paper:.2f}" if row.paper and case.startswith("base") else "",
        ]


def attention_rows(figures: dict[str, Any], case: str) -> Iterator[list[str]]:
    for name, *_ in attentions():
        its = figures[f"{case} attention: {name}"]
        yield [
            name,
            *(f"{its[phase]['launches']}" for phase in ("forward", "backward")),
            *(f"{its[phase]['bytes'] / 1e6:,.0f}" for phase in ("forward", "backward")),
            *(f"{its[phase]['flops'] / 1e9:.1f}" for phase in ("forward", "backward")),
            f"{its['kept'] / 1e6:.0f}",
            str(its["syncs"]),
            *(f"{total(its, device) * 1e6:,.0f}" for device in DEVICES),
        ]


def generation_rows(figures: dict[str, Any]) -> Iterator[list[str]]:
    case, steps = f"base {GENERATION['steps']} generation", GENERATION["steps"]

    def launches(name: str) -> tuple[int, int]:
        its = figures[f"{case}: {name}"]
        return its["encoder"]["launches"], its["step"]["launches"]

    for row in ROWS:
        if not row.terms:
            sums = [encoder + steps * step for encoder, step in (launches("off"), launches(row.name))]
            yield [row.name, *map(str, launches(row.name)), ratio(*sums)]


def optimizer_rows(figures: dict[str, Any]) -> Iterator[list[str]]:
    for flag, name in (("--fp16", "base 32 training: off"), ("--bf16", "base 32 bfloat16: off")):
        its = figures[name]["optimizer"]
        milliseconds = [f"{its[device] * 1e3:.1f}" for device in DEVICES]
        yield [
            f"`{flag}`",
            f"{its['launches']:,}",
            f"{its['bytes'] / 1e9:.1f}",
            *milliseconds,
            f"{its['launches'] * LAUNCH * 1e3:.1f}",
        ]


def tables(figures: dict[str, Any]) -> dict[str, list[str]]:
    """The tables of ``results/gpu.md`` by name."""
    times = [f"{name} ms" for name in DEVICES]
    training = ["modelled", "launches", "GB", "TFLOP", "kept GB", *times, "launches ms"]
    training += [f"{name} speed" for name in (*DEVICES, "launches")] + ["paper"]
    pairs = [f"{of}{phase}" for of in ("launches", "MB", "GFLOP") for phase in ("", ", backward")]
    attention = ["modelled", *pairs, "kept MB", "syncs", *(f"{name} µs" for name in DEVICES)]
    made = {
        "optimizer": table(["modelled", "launches", "GB", *times, "launches ms"], optimizer_rows(figures)),
        "generation": table(["modelled", "encoder", "decoder step", "launches speed"], generation_rows(figures)),
    }
    for size, length in CASES:
        case = f"{size} {length}"
        made[f"training {case}"] = table(training, training_rows(figures, case))
        made[f"attention {case}"] = table(attention, attention_rows(figures, case))
    return made


def refresh(text: str, made: dict[str, list[str]]) -> str:
    """A page with these tables between ``<!-- modelled: NAME -->`` and ``<!-- end -->``."""

    def block(found: re.Match[str]) -> str:
        return "\n".join([found[1], *made[found[2]], "<!-- end -->"])

    return re.sub(r"(<!-- modelled: (.+?) -->)\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def read(path: Path = RESULTS) -> dict[str, Any]:
    """The figures of the last count."""
    return json.loads(path.read_text(encoding="utf-8"))["figures"]


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS, pages: Path = ROOT / "results") -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_model", description=__doc__)
    parser.add_argument("--write", action="store_true", help="count everything, write the figures and both pages")
    parser.add_argument("--only", default="", metavar="PATTERN", help="count, and write or print, what has this in it")
    parser.add_argument("--pages", action="store_true", help="write both pages from the figures that are there")
    args = parser.parse_args(arguments)
    if args.pages and (args.write or args.only):
        parser.error("--pages: counts nothing; leave off --write and --only")
    if args.write and args.only:
        before, now = (text.partition("+")[0] for text in (json.loads(results.read_text())["torch"], torch.__version__))
        if before != now:
            parser.error(f"--only: the other figures are of torch {before}, this is {now}; count all")
    try:
        figures = {} if args.pages else count(args.only)
    except re.error as error:
        parser.error(f"--only {args.only!r}: not a regular expression ({error})")
    if not (figures or args.pages):
        parser.error(f"--only {args.only!r}: nothing has that in its name")
    if not (args.write or args.pages):
        for name, its in figures.items():
            print(f"{name}: {json.dumps(its)}")
        return 0
    if args.write:
        figures = (read(results) if args.only else {}) | figures
        with atomic_write(results) as file:
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(its)}" for name, its in figures.items())
            file.write(f'{{"torch": {json.dumps(torch.__version__)},\n"figures": {{\n{lines}\n}}}}\n')
    figures = read(results)
    for name, made in {"gpu.md": tables(figures), "scaling.md": scaling.tables(figures)}.items():
        text = refresh((pages / name).read_text(encoding="utf-8"), made)
        with atomic_write(pages / name) as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
