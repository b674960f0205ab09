"""``python -m benchmarks.half_types``: does a training with ``--bf16`` reach the likelihood of one in float32?

Every mechanism at every component where it is defined, a small model, the embedded corpus; each training is a fork of
this process on one thread. What is done already is kept: a second call resumes.
"""

import argparse
import json
import logging
import math
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from fairseq_cli import train
from tqdm import tqdm

import fairseq_diverse
from benchmarks.gpu_rows import VARIANTS, placed, table
from benchmarks.sides import EVERYWHERE
from fairseq_diverse.experiments.runs import provenance
from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.testing.models import components

RESULTS = Path(__file__).with_name("results") / "half-types.json"
SEEDS = {"float32": (1, 2, 3), "bfloat16": (1, 2)}
DISAGREEMENT = {
    "criterion": "label_smoothed_cross_entropy_with_disagreement",
    "disagreement": "subspace,position,output",
    "disagreement_on": EVERYWHERE,
    "disagreement_weight": 0.1,
}
FLAGS = (
    "--arch diverse_transformer --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --decoder-embed-dim 64 "
    "--encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 --encoder-attention-heads 4 --decoder-attention-heads 4 "
    "--encoder-normalize-before --decoder-normalize-before --share-all-embeddings --dropout 0.1 "
    "--label-smoothing 0.1 --optimizer adam --adam-betas (0.9,0.98) --lr 0.005 --lr-scheduler inverse_sqrt "
    "--max-tokens 1400 --cpu --num-workers 0 --no-save --validate-interval 1000000 --log-format json --log-interval 50"
)


def systems() -> dict[str, dict[str, Any]]:
    """The flags of every row, as attributes of parsed arguments."""
    rows = {name: placed(name, ",".join(components(flags))) for name, flags in VARIANTS.items()}
    return {**rows, "disagreement": DISAGREEMENT}


def arguments(flags: dict[str, Any], seed: int, half: bool, data: Path, updates: int) -> list[str]:
    """Those of ``fairseq-train``."""
    trees = "syntax" in flags or "enliven" in flags
    given = {"criterion": "label_smoothed_cross_entropy", "seed": seed, "max_update": updates, **flags}
    given |= {"task": "translation_with_syntax" if trees else "translation", "warmup_updates": updates // 4}
    added = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    user_dir = str(Path(fairseq_diverse.__file__).parent)
    return [str(data), "--user-dir", user_dir, *FLAGS.split(), *added, *(["--bf16"] if half else [])]


def nll(command: list[str]) -> float:
    """Nats a token of the validation split after training in a fork.

    Raises:
        RuntimeError: the training failed; the message has the end of its log.
    """
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as log:
        process = multiprocessing.get_context("fork").Process(target=_train, args=(command, log.name))
        process.start()
        process.join()
        text = log.read()
    found = re.findall(r"\| valid \| (\{.*\})$", text, re.MULTILINE)
    if process.exitcode or not found:
        raise RuntimeError(f"fairseq-train {' '.join(command)}:\n{text[-2000:]}")
    return float(json.loads(found[-1])["valid_nll_loss"]) * math.log(2)


def _train(command: list[str], log: str) -> None:
    sys.argv = ["fairseq-train", *command]
    with open(log, "w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        logging.getLogger("fairseq").setLevel(logging.INFO)
        train.cli_main()


def rows(trained: dict[str, dict[str, float]]) -> Iterator[list[str]]:
    """The table's rows: mean in float32 and the largest difference between its seeds; bfloat16 less float32 by seed;
    whether their mean is within that difference. Empty where trainings are missing."""
    for name, its in trained.items():
        full = [value for key, value in its.items() if key.startswith("float32")]
        apart, spread = differences(its), max(full) - min(full)
        cells = [f"{mean(full):.3f}", f"{spread:.3f}" if len(full) > 1 else "", ", ".join(f"{x:+.3f}" for x in apart)]
        judged = len(full) > 1 and len(apart) > 0
        yield [name, *cells, ("yes" if abs(mean(apart)) <= spread else "no") if judged else ""]


def differences(its: dict[str, float]) -> list[float]:
    """bfloat16 less float32, by seed."""
    return [its[f"bfloat16 {seed}"] - its[f"float32 {seed}"] for seed in SEEDS["bfloat16"] if f"bfloat16 {seed}" in its]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.half_types", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the prepared embedded corpus, with its trees")
    parser.add_argument("--updates", type=int, default=150, help="of each training (default: 150)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="the rows in whose name this is found")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results (default: {RESULTS.name})")
    parser.add_argument("--table", action="store_true", help="train nothing, print the table of what there is")
    args = parser.parse_args(given)
    if not (args.data / "preprocess.json").is_file():
        parser.error(f"--data {args.data}: no prepared data set; see benchmarks/README.md")
    torch.set_num_threads(1)
    settings = {"updates": args.updates, "flags": FLAGS}
    report = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {}
    if {name: report.get(name, value) for name, value in settings.items()} != settings:
        parser.error(f"{args.results}: of other settings; give another file with --results")
    trained = report.setdefault("nats", {})
    report = {**provenance.collect(), **settings, **report}
    chosen = [(name, flags) for name, flags in systems().items() if re.search(args.only, name)]
    chosen = [system for system in chosen if system[0] in trained or not args.table]
    order = [(kind, seed) for seed in SEEDS["float32"] for kind in SEEDS if seed in SEEDS[kind]]
    work = [] if args.table else [(*system, *which) for which in order for system in chosen]
    for name, flags, kind, seed in tqdm(work, disable=None, unit="training"):
        its = trained.setdefault(name, {})
        if f"{kind} {seed}" not in its:
            its[f"{kind} {seed}"] = nll(arguments(flags, seed, kind == "bfloat16", args.data, args.updates))
            with atomic_write(args.results) as file:
                json.dump(report, file, indent=1)
    heads = ["nats a token", "float32", "between its seeds", "bfloat16 less float32, by seed", "within"]
    print("\n".join(table(heads, rows({name: trained[name] for name, _ in chosen}))))
    apart = [x for name, _ in chosen for x in differences(trained[name])]
    if len(apart) > 1:
        error = stdev(apart) / math.sqrt(len(apart))
        print(f"\nall rows: {mean(apart):+.4f} ± {1.96 * error:.4f} (95%, {len(apart)} pairs)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
