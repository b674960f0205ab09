"""``python -m benchmarks``: measure the rows and print each one when it is done; see README.md."""

import argparse
import functools
import gc
import json
import os
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks import host, parsing, sides
from benchmarks.harness import LEVEL, Sample, alternate, clock, median_interval
from benchmarks.sides import DROPOUT
from fairseq_diverse.cli.user_dir import register_with
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.runs import provenance
from fairseq_diverse.experiments.runs.environment import ALLOCATION
from fairseq_diverse.experiments.tables.load import Table, load_table
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write

RESULTS = Path(__file__).parent / "results"
FEWEST_PAIRS = 30
WARM_UP = 2
BLOCKS = 4


@dataclass(frozen=True)
class Measure:
    """A kind of measurement. For seconds the ratio is of speeds, reference / ours; for bytes it is ours / reference."""

    sampler: Callable[[str, sides.Size, str], Sample]
    seconds: bool = True


MEASURES = {
    "function": Measure(sides.function),
    "function memory": Measure(sides.function_memory, seconds=False),
    "attention": Measure(sides.attention),
    "layer": Measure(sides.layer),
    "memory": Measure(sides.memory, seconds=False),
    "generation": Measure(sides.generation),
    "training": Measure(sides.training),
    "parsing": Measure(parsing.parsing),
    "host training": Measure(host.training),
    "host decoding": Measure(host.decoding),
}
sides.SIDES |= {f"{host.PREFIX}{name}": side for name, side in host.variants().items()}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        published: the ratio in the paper (Base, on a GPU).
        torch: an earlier row, the matrix products of this one in torch.
        expected: the ratio; the table says whether the interval contains it.
    """

    measure: str
    ours: str
    reference: str = "fairseq"
    published: float | None = None
    torch: str = ""
    expected: float | None = None


ROWS = [
    Row("function", "output_agreement", "naive output_agreement"),
    Row("function", "position_agreement", "naive position_agreement"),
    Row("function", "em_routing", "naive em_routing"),
    Row("function", "simple_routing", "naive simple_routing"),
    Row("function memory", "output_agreement", "naive output_agreement"),
    Row("function memory", "em_routing", "naive em_routing"),
    Row("function memory", "em_routing", "the votes"),
    Row("function memory", "simple_routing", "the votes"),
    Row("attention", "talking", "x-transformers"),
    Row("layer", "torch routing encoder:1"),
    Row("layer", "em routing encoder:1", torch="torch routing encoder:1"),
    Row("layer", "naive em routing encoder:1", torch="torch routing encoder:1"),
    Row("memory", "off"),
    Row("memory", "disagreement output"),
    Row("memory", "disagreement all"),
    Row("memory", "em routing encoder"),
    Row("memory", "naive em routing encoder"),
    Row("generation", "off", expected=1.0),
    Row("generation", "em routing encoder"),
    Row("generation", "em routing everywhere"),
    Row("training", "off", expected=1.0),
    Row("training", "off again", "off", expected=1.0),
    Row("training", "disagreement output", published=0.88),
    Row("training", "disagreement position"),
    Row("training", "disagreement subspace"),
    Row("training", "disagreement all"),
    Row("training", "torch routing encoder:1-2"),
    Row("training", "em routing encoder:1-2", published=0.87, torch="torch routing encoder:1-2"),
    Row("training", "simple routing encoder:1-2", torch="torch routing encoder:1-2"),
    Row("training", "both of Li 2021", torch="torch routing encoder:1-2"),
    Row("training", "torch routing encoder"),
    Row("training", "em routing encoder", published=1.20 / 1.92, torch="torch routing encoder"),
    Row("training", "simple routing encoder", published=0.64, torch="torch routing encoder"),
    Row("training", "naive em routing encoder", torch="torch routing encoder"),
    Row("training", "torch routing everywhere"),
    Row("training", "em routing everywhere", published=0.34, torch="torch routing everywhere"),
    Row("training", "talking"),
    *(
        Row(measure, name, published=published if measure == "training" else None)
        for measure in ("generation", "training")
        for name, published in {
            # Zhang et al. (2021), Tables 2 and A2
            "dependency encoder:1": None,
            "phrase encoder:1": 1.18 / 1.21,
            "phrase, enlivened encoder:1": None,
            "pruning encoder:1": 1.23 / 1.21,
            "relative encoder": 1.17 / 1.21,
            "localness encoder": None,
            "differential everywhere": None,
            "gated head everywhere": None,
            "gated element everywhere": None,
        }.items()
    ),
    *(
        Row(measure, f"evolving {place}")
        for measure in ("memory", "generation", "training")
        for place in ("encoder", "everywhere")
    ),
    *(
        row
        for kind in ("concat", "sum")
        for heads, published in {2: 0.97, 4: 0.91, 8: 0.75, 16: 0.47}.items()
        for row in (
            Row("memory", f"{kind} {heads} heads", f"{heads} heads"),
            Row("training", f"torch {kind} {heads} heads", f"{heads} heads"),
            Row("training", f"{kind} {heads} heads", f"{heads} heads", published, f"torch {kind} {heads} heads"),
        )
    ),
    *(
        Row("training", f"{kind} {heads} heads", f"{heads} heads")
        for kind, counts in {"fixed": (2, 8, 32), "talking": (2, 8, 32), "concat": (32,)}.items()
        for heads in counts
    ),
    Row("training", f"off, {DROPOUT}", f"fairseq, {DROPOUT}", expected=1.0),
    Row("training", f"evolving everywhere, {DROPOUT}", f"fairseq, {DROPOUT}"),
    *(Row("training", f"{kind} 8 heads, {DROPOUT}", f"8 heads, {DROPOUT}") for kind in ("talking", "concat", "sum")),
    Row("parsing", "spacy", "spacy alone"),
    Row("parsing", "benepar", "benepar alone"),
    *(
        Row(measure, f"{host.PREFIX}{name}", "fairseq" if name == "off" else f"{host.PREFIX}off")
        for name in sorted(host.variants(), key=lambda name: name != "off")
        for measure in ("host training", "host decoding")
    ),
]

COLUMNS = {"row": 41, "against": 24, "ratio": 6, "95% interval": 13, "paper": 5, "torch": 6, "note": 0}


def rows_of(table: Table) -> list[Row]:
    """Training, memory and generation of every row against its baseline; the sides are the table's from now on."""
    for folder in {row.user_dir for row in table.rows.values() if row.user_dir}:
        register_with(folder)
    if other := [name for name, row in table.rows.items() if kind_of(row).name != "translation"]:
        raise ValueError(f"row {other[0]} does not translate")
    if not (compared := [row for row in table.rows.values() if row.baseline != row.name]):
        raise ValueError("no row but baselines, so that there is nothing to compare")
    sides.SIDES = {name: sides.of_row(row) for name, row in table.rows.items()}
    return [
        Row(measure, row.name, row.baseline) for measure in ("training", "memory", "generation") for row in compared
    ]


def line(cells: Sequence[str]) -> str:
    """One line of the markdown table, with columns wide enough for every row."""
    padded = (f"{cell:{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
    return f"| {' | '.join(padded).rstrip()} |"


def measure(row: Row, size_name: str, size: sides.Size, device: str, pairs: int, bar: Any) -> dict[str, Any]:
    """Measure one row and return it for the JSON file."""
    how = MEASURES[row.measure]
    if not how.seconds:  # the same in every repetition
        pairs = 1
    bar.reset(total=pairs)
    start = time.monotonic()
    make_ours, make_reference = (partial(how.sampler, name, size, device) for name in (row.ours, row.reference))
    warm_up, blocks = (min(WARM_UP, pairs - 1), min(BLOCKS, pairs)) if how.seconds else (0, 1)
    samples = alternate(make_ours, make_reference, pairs, warm_up, blocks, bar.update)
    ratios = [theirs / mine if how.seconds else mine / theirs for mine, theirs in samples]
    interval = median_interval(ratios) if how.seconds else None
    return {
        "size": size_name,
        "measure": row.measure,
        "ours": row.ours,
        "reference": row.reference,
        "unit": "seconds" if how.seconds else "bytes",
        "ratio": round(statistics.median(ratios), 4),
        "interval": interval and [round(x, 4) for x in interval],
        "median": [float(f"{statistics.median(side):.4g}") for side in zip(*samples, strict=True)],
        "ratios": [round(ratio, 4) for ratio in ratios],
        "published": row.published if size_name == "base" else None,
        "minutes": round((time.monotonic() - start) / 60, 1),
    }


@functools.cache
def operators_of(name: str) -> tuple[int, int, int]:
    """Those of a side, which many rows have in common."""
    return host.operators(sides.SIDES[name])


def operators(row: Row) -> dict[str, Any]:
    """For a row of the host, the numbers of operators of both sides."""
    if row.measure not in ("host training", "host decoding"):
        return {}
    counts = [operators_of(name) for name in (row.ours, row.reference)]
    of = slice(0, 2) if row.measure == "host training" else slice(2, 3)
    return {"size": "host", "operators": [count[of] for count in counts]}


def cells(row: Row, result: dict[str, Any], before: Sequence[dict[str, Any]]) -> list[str]:
    """The table's line for a result; ``before`` has the earlier results."""
    low, high, coverage = result["interval"] or (result["ratio"], result["ratio"], 1)
    in_torch = [
        found["ratio"]
        for found in before
        if (found["size"], found["measure"], found["ours"]) == (result["size"], row.measure, row.torch)
    ]
    scale, unit = (1e3, "ms") if result["unit"] == "seconds" else (1e-6, "MB")
    ours, reference = (f"{value * scale:.3g}" for value in result["median"])
    note = f"{ours} / {reference} {unit}"
    if counts := result.get("operators"):
        note += f"; operators {' / '.join(' + '.join(f'{n:,}' for n in side) for side in counts)}"
    if row.expected is not None and coverage >= LEVEL:  # the few pairs of a smoke test are not significant
        note += f"; expected {row.expected:.2f}: {'inside' if low <= row.expected <= high else 'OUTSIDE'}"
    return [
        f"{result['size']} {row.measure}: {row.ours}".replace("host host ", "host ").replace(": host ", ": "),
        row.reference.removeprefix(host.PREFIX),
        f"{result['ratio']:.3f}",
        f"{low:.3f}-{high:.3f}" if result["interval"] else "exact",
        "" if result["published"] is None else f"{result['published']:.2f}",
        f"{in_torch[-1]:.3f}" if in_torch else "",
        note,
    ]


def device_name(device: str) -> str:
    """The processor's name."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return provenance.processor().partition(",")[0]


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--size", choices=("small", "base", "lite"), default="small", help="model size (default: small)"
    )
    parser.add_argument(
        "--table",
        metavar="TABLE",
        help="measure the rows of a table, each against its baseline, in place of the built-in rows: its name, "
        "or a YAML file; the rows' flags make the models, --size gives the vocabulary and the batches",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes and 3 pairs, as a smoke test")
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="only rows whose name, such as 'training: off', matches this regular expression",
    )
    parser.add_argument(
        "--pairs", type=int, help=f"pairs per row, at least {FEWEST_PAIRS} (default); any number with --quick"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--tokens", type=int, help="tokens per training batch, on each side (default: 1024)")
    for name in parsing.BATCHES:
        parser.add_argument(f"--{name}-model", metavar="MODEL", help=f"name or folder, for the row parsing: {name}")
    parser.add_argument("--save", metavar="NAME", help="also write results/<device>-NAME.json after every row")
    args = parser.parse_args(arguments)
    size_name = "quick" if args.quick else args.size
    size = sides.SIZES[size_name]
    if args.tokens is not None:
        size = replace(size, tokens=args.tokens)
    pairs = args.pairs if args.pairs is not None else 3 if args.quick else FEWEST_PAIRS
    rows = ROWS
    if args.table is not None:
        try:
            table = load_table(args.table)
        except ValueError as error:  # names the file
            parser.error(f"--table: {error}")
        try:
            rows, size_name = rows_of(table), table.name
        except ValueError as error:
            parser.error(f"--table {args.table}: {error}")
    try:
        rows = [row for row in rows if re.search(args.only, f"{row.measure}: {row.ours}")]
    except re.error as error:
        parser.error(f"--only {args.only!r}: not a regular expression ({error})")
    if pairs < (1 if args.quick else FEWEST_PAIRS):
        parser.error(f"--pairs {pairs}: at least {FEWEST_PAIRS} make a result (fewer only with --quick)")
    if size.tokens < size.length:
        parser.error(f"--tokens {size.tokens}: at least {size.length}, one sentence")
    if args.threads < 1:
        parser.error(f"--threads {args.threads}: must be at least 1")
    if args.save is not None and not re.fullmatch(r"[\w.-]+", args.save):
        parser.error(f"--save {args.save!r}: letters, digits, '.', '_' and '-' only")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device; fairseq-diverse doctor says why")
    if not rows:
        parser.error(f"--only {args.only!r}: matches no row; without --only all are measured")
    parsing.MODELS = {name: model for name in parsing.BATCHES if (model := getattr(args, f"{name}_model"))}
    without = [row.ours for row in rows if row.measure == "parsing" and row.ours not in parsing.MODELS]
    if len(without) == len(rows):
        parser.error(f"--only {args.only!r}: needs {' and '.join(f'--{name}-model MODEL' for name in without)}")
    rows = [row for row in rows if row.measure != "parsing" or row.ours in parsing.MODELS]

    warnings.filterwarnings("ignore", message="Support for mismatched", category=UserWarning)  # fairseq's own masks
    torch.set_num_threads(args.threads)
    name = device_name(args.device)
    report: dict[str, Any] = {
        **provenance.collect(),
        "device": name,
        "threads": args.threads,
        "clock": clock(args.device),
        "pairs": pairs,
        "blocks": BLOCKS,
        "warm_up": WARM_UP,
        "tokens": size.tokens,
        "ratio": "median over pairs of reference / ours for seconds (speed), of ours / reference for bytes",
        "interval": "distribution-free interval of the median from order statistics: low, high, coverage",
        "rows": [],
    }
    slug = "cpu" if args.device == "cpu" else re.sub(r"\W+", "-", name.lower())
    path, done = results / f"{slug}-{args.save}.json", report["rows"]
    print(
        f"{name}, {args.threads} thread(s), {pairs} pairs; times as speed over the reference, memory as bytes over it"
    )
    print(line([*COLUMNS]), line(["-" * max(width, 4) for width in COLUMNS.values()]), sep="\n", flush=True)
    gc.freeze()  # what was imported is not searched after every row
    try:
        for number, row in enumerate(rows, start=1):
            title = f"{number}/{len(rows)} {row.measure}: {row.ours}"
            with tqdm(desc=title, leave=False, unit="pair", disable=None) as bar:
                result = measure(row, size_name, size, args.device, pairs, bar)
            result |= operators(row)
            print(line(cells(row, result, done)), flush=True)
            done.append(result)
            if args.save is not None:
                with atomic_write(path) as file:
                    json.dump(report, file, indent=1)
            gc.collect()
    except KeyboardInterrupt:
        print(f"stopped: {len(done)} of {len(rows)} rows measured and kept", file=sys.stderr)
        return 130
    except UserError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--save {args.save}: {error}")
    finally:
        gc.unfreeze()
    for name in without:
        print(f"skipped: parsing: {name} needs --{name}-model MODEL")
    return 0


if __name__ == "__main__":
    # set before glibc reads them; variables that are set already do not change
    if missing := {name: value for name, value in ALLOCATION.items() if name not in os.environ}:
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], os.environ | missing)
    sys.exit(main())
