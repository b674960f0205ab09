"""Pairs of formulae with their relation, in the files of Bowman et al. (2015)."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.data.formulas import RELATIONS, TAUTOLOGY, VARIABLES, random_formula, relation, truth_table
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, read_lines, refuse_foreign

MOST_OPERATORS = 12
MOST_VARIABLES = 4  # in one pair, as in the original data
TEST_SHARE = 0.15
RECORD = "logic.json"  # the arguments with which the files were written
TRIES = 200  # per pair; there are few short formulae


class Pair(NamedTuple):
    relation: str
    left: tuple[str, ...]
    right: tuple[str, ...]


def write_corpus(
    out: Path, pairs: int, seed: int = 1, balance: bool = False, done: Callable[[], object] = lambda: None
) -> dict[int, Counter[str]]:
    """Write ``trainN`` and ``testN`` for N = 0 to 12 operators in the longer formula; 15% of the pairs are for testing.

    A line is ``relation<TAB>left<TAB>right``. No formula is a tautology or a contradiction; no pair occurs twice. The
    same arguments give the same files; the arguments are written to ``logic.json``. Returns the counts of the
    relations, by N. Raises ``ValueError``: ``out`` has files that another program wrote.

    Args:
        pairs: number for each N; fewer if there are not enough.
        balance: equal numbers of each relation, if there are enough; otherwise the natural distribution.
        done: called after each N.
    """
    mix = {}
    lengths = range(MOST_OPERATORS + 1)
    refuse_foreign(out, [f"{name}{count}" for name in ("train", "test") for count in lengths], RECORD)
    with atomic_write(out / RECORD) as file:
        json.dump({"pairs": pairs, "seed": seed, "balance": balance}, file)
    for count in lengths:
        rng = random.Random(f"{seed} {count}")
        found = _draw(count, pairs, balance, rng)
        rng.shuffle(found)
        split = max(1, round(len(found) * TEST_SHARE))
        for name, part in (("test", found[:split]), ("train", found[split:])):
            with atomic_write(out / f"{name}{count}") as file:
                file.writelines(f"{p.relation}\t{' '.join(p.left)}\t{' '.join(p.right)}\n" for p in part)
        mix[count] = Counter(pair.relation for pair in found)
        done()
    return mix


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file. Raises ``UserError``: the file is missing or empty, or a line is not a relation and two
    formulae."""
    try:
        lines = read_lines(path)
    except ValueError as error:
        raise UserError(f"{error}; create it with `fairseq-diverse logic --out DIR`") from None
    if not lines:
        raise UserError(f"{path}: empty; create it with `fairseq-diverse logic --out DIR`")
    pairs: list[Pair] = []
    known: set[tuple[str, ...]] = set()
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        name, *cells = line.split("\t")
        sides = [tuple(cell.split()) for cell in cells]
        if len(sides) != 2 or name not in RELATIONS:
            relations = " ".join(RELATIONS)
            raise UserError(f"{where}: RELATION<TAB>FORMULA<TAB>FORMULA expected; relations are {relations}")
        for side in {*sides} - known:
            try:
                truth_table(side)
            except ValueError as error:
                forms = "a to f, ( not X ), ( X ( and Y ) ), ( X ( or Y ) )"
                raise UserError(f"{where}: {error}; formulae are {forms}") from None
            known.add(side)
        pairs.append(Pair(name, *sides))
    return pairs


def _draw(count: int, pairs: int, balance: bool, rng: random.Random) -> list[Pair]:
    """Different pairs whose longer formula has ``count`` operators."""
    limits = dict.fromkeys(RELATIONS, -(-pairs // len(RELATIONS)) if balance else pairs)
    found: dict[Pair, None] = {}
    mix: Counter[str] = Counter()
    for _ in range(TRIES * pairs):
        if len(found) == pairs:
            break
        variables = rng.sample(VARIABLES, MOST_VARIABLES)
        sizes = [count, rng.randint(0, count)]
        rng.shuffle(sizes)
        sides = [tuple(random_formula(size, variables, rng)) for size in sizes]
        tables = [truth_table(side) for side in sides]
        if {0, TAUTOLOGY} & set(tables):
            continue
        pair = Pair(relation(*tables), *sides)
        if pair not in found and mix[pair.relation] < limits[pair.relation]:
            found[pair] = None
            mix[pair.relation] += 1
    return list(found)
