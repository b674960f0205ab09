"""Write data for logical inference: pairs of random formulae and the relation between them.

The files have the format of Bowman et al. (2015): trainN and testN, where the longer formula has N = 0 to 12 operators.
Train on them with --task logical_inference.
"""

import argparse
from pathlib import Path

from tqdm import tqdm

from fairseq_diverse.data.logic import MOST_OPERATORS, RELATIONS, write_corpus
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.tables import in_columns

EXAMPLE = "fairseq-diverse logic --out logic-data --pairs 20000 --seed 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    add("--pairs", type=int, default=20_000, metavar="N", help="pairs for each length (default: 20,000)")
    add("--seed", type=int, default=1, metavar="S", help="random seed (default: 1)")
    add("--balance", action="store_true", help="equal numbers of each relation, if there are enough")


def main(args: argparse.Namespace) -> None:
    if args.pairs < 2:
        raise UserError(f"--pairs {args.pairs}: at least 2, one to train on and one to test")
    with tqdm(total=MOST_OPERATORS + 1, desc="lengths", disable=None) as bar:
        mix = write_corpus(args.out, args.pairs, args.seed, args.balance, bar.update)
    rows: list[list[object]] = [["operators", "pairs", *RELATIONS]]
    for count, relations in mix.items():
        total = relations.total()
        rows.append([count, f"{total:,}", *(f"{relations[name] / total:.1%}" for name in RELATIONS)])
    print(in_columns(rows, left=()))
    print(f"{args.out}: train0 to train{MOST_OPERATORS}, test0 to test{MOST_OPERATORS}")
