"""Pairs of formulae with their relation, in the files of Bowman et al. (2015)."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.logic.formulas import (
    EVERYTHING,
    RELATIONS,
    VARIABLES,
    operators,
    random_formula,
    relation,
    truth_table,
)
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, read_lines, refuse_foreign

MOST_OPERATORS = 12
MOST_VARIABLES = 4  # in one pair, as in the original
TEST_SHARE = 0.15
RECORD = "logic.json"  # of what made the files
TRIES = 200  # for each pair asked for; short formulae run out


class Pair(NamedTuple):
    relation: str
    left: tuple[str, ...]
    right: tuple[str, ...]


def write_corpus(
    out: Path, pairs: int, seed: int = 1, balance: bool = False, done: Callable[[], object] = lambda: None
) -> dict[int, Counter[str]]:
    """Write ``trainN`` and ``testN`` for N = 0 to 12, the operators of the longer formula; 15% are for testing.

    A line is ``relation<TAB>left<TAB>right``. No formula is a tautology or a contradiction, no pair occurs twice. The
    same arguments give the same files; they are written to ``logic.json``.

    Args:
        pairs: for every N, as far as there are so many.
        balance: as many of each relation as of any other, as far as there are so many; otherwise as they come.
        done: called after every N.

    Returns:
        How often each relation occurs, by N.

    Raises:
        ValueError: ``out`` holds such files of another origin.
    """
    mix = {}
    lengths = range(MOST_OPERATORS + 1)
    refuse_foreign(out, [f"{name}{count}" for name in ("train", "test") for count in lengths], RECORD)
    with atomic_write(out / RECORD) as file:
        json.dump({"pairs": pairs, "seed": seed, "balance": balance}, file)
    for count in lengths:
        numbers = random.Random(f"{seed} {count}")
        found = _draw(count, pairs, balance, numbers)
        numbers.shuffle(found)
        split = max(1, round(len(found) * TEST_SHARE))
        for name, part in (("test", found[:split]), ("train", found[split:])):
            with atomic_write(out / f"{name}{count}") as file:
                file.writelines(f"{p.relation}\t{' '.join(p.left)}\t{' '.join(p.right)}\n" for p in part)
        mix[count] = Counter(pair.relation for pair in found)
        done()
    return mix


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file.

    Raises:
        UserError: the file is missing or empty, or a line is not a relation and two formulae.
    """
    try:
        lines = read_lines(path)
    except ValueError as error:
        raise UserError(f"{error}; `fairseq-diverse logic --out DIR` writes such files") from None
    if not lines:
        raise UserError(f"{path}: empty; `fairseq-diverse logic --out DIR` writes such files")
    pairs: list[Pair] = []
    known: set[tuple[str, ...]] = set()
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        sides = [tuple(cell.split()) for cell in cells[1:]]
        if len(cells) != 3 or cells[0] not in RELATIONS:
            raise UserError(
                f"{path}, line {number}: RELATION<TAB>FORMULA<TAB>FORMULA expected; relations are {' '.join(RELATIONS)}"
            )
        for side in {*sides} - known:
            try:
                truth_table(side)
            except ValueError as error:
                raise UserError(
                    f"{path}, line {number}: {error}; formulae are a to f, ( not X ), ( X ( and Y ) ), ( X ( or Y ) )"
                ) from None
            known.add(side)
        pairs.append(Pair(cells[0], *sides))
    return pairs


def _draw(count: int, pairs: int, balance: bool, numbers: random.Random) -> list[Pair]:
    """Different pairs whose longer formula has ``count`` operators."""
    limits = dict.fromkeys(RELATIONS, -(-pairs // len(RELATIONS)) if balance else pairs)
    found: dict[Pair, None] = {}
    mix: Counter[str] = Counter()
    for _ in range(TRIES * pairs):
        if len(found) == pairs:
            break
        variables = numbers.sample(VARIABLES, MOST_VARIABLES)
        sizes = [count, numbers.randint(0, count)]
        numbers.shuffle(sizes)
        sides = [tuple(random_formula(size, variables, numbers)) for size in sizes]
        tables = [truth_table(side) for side in sides]
        if {0, EVERYTHING} & set(tables):
            continue
        pair = Pair(relation(*tables), *sides)
        if pair not in found and mix[pair.relation] < limits[pair.relation]:
            found[pair] = None
            mix[pair.relation] += 1
    assert all(max(operators(pair.left), operators(pair.right)) == count for pair in found)
    return list(found)
