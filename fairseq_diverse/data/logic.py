"""Formulae over six variables, the relation of two, and pairs of them in the files of Bowman et al. (2015).

A formula is a variable, ``( not X )`` or ``( X ( and Y ) )`` with ``and`` or ``or``. Its truth table is an integer of
64 bits, one per assignment of the variables."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, read_lines, refuse_foreign

VARIABLES = ("a", "b", "c", "d", "e", "f")
OPERATORS = ("not", "and", "or")
SYMBOLS = ("(", ")", *OPERATORS, *VARIABLES)
RELATIONS = ("#", "<", "=", ">", "^", "v", "|")
TAUTOLOGY = 2**2 ** len(VARIABLES) - 1  # truth table
TABLES = {
    name: sum(1 << assignment for assignment in range(2 ** len(VARIABLES)) if assignment >> number & 1)
    for number, name in enumerate(VARIABLES)
}
MOST_OPERATORS = 12
MOST_VARIABLES = 4  # in one pair, as in the original data
TEST_SHARE = 0.15
RECORD = "logic.json"  # the arguments with which the files were written
TRIES = 200  # per pair; there are few short formulae


def truth_table(formula: Sequence[str]) -> int:
    """The truth table, 64 bits, of a formula of ``SYMBOLS``. Raises ``ValueError``: it is not a formula."""
    stack: list[Any] = []  # symbols, tables, and halves such as ("and", table)
    for symbol in formula:
        if symbol in TABLES:
            stack.append(TABLES[symbol])
        elif symbol in SYMBOLS and symbol != ")":
            stack.append(symbol)
        else:
            start = max((place for place, item in enumerate(stack) if item == "("), default=len(stack))
            group, stack = stack[start + 1 :], stack[:start]
            match group:
                case ["not", int(table)] if symbol == ")":
                    stack.append(TAUTOLOGY ^ table)
                case [("and" | "or") as operator, int(table)] if symbol == ")":
                    stack.append((operator, table))
                case [int(table), ("and", int(other))] if symbol == ")":
                    stack.append(table & other)
                case [int(table), ("or", int(other))] if symbol == ")":
                    stack.append(table | other)
                case _:
                    raise ValueError(f"{' '.join(formula)}: not a formula")
    if len(stack) != 1 or not isinstance(stack[0], int):
        raise ValueError(f"{' '.join(formula)}: not a formula")
    return stack[0]


def relation(left: int, right: int) -> str:
    """One of ``RELATIONS`` between two formulae, given as truth tables, neither tautologies nor contradictions.

        =  equivalence          the same truth table
        ^  negation             true where the other is false
        <  forward entailment   right is true wherever left is; > is the reverse
        |  alternation          never true together
        v  cover                never false together
        #  independence         none of these

    Source: Bowman et al. (2015), section 3."""
    if left == right:
        return "="
    if left & right == 0:
        return "^" if left | right == TAUTOLOGY else "|"
    if left | right == TAUTOLOGY:
        return "v"
    return "<" if left & right == left else ">" if left & right == right else "#"


def random_formula(count: int, variables: Sequence[str], rng: random.Random) -> list[str]:
    """The symbols of a random formula with ``count`` operators.

    ``not``, ``and`` and ``or`` are equally likely, and so is every split of the remaining operators between the two
    sides of ``and`` and ``or``.
    """
    if count == 0:
        return [rng.choice(variables)]
    operator = rng.choice(OPERATORS)
    if operator == "not":
        return ["(", "not", *random_formula(count - 1, variables, rng), ")"]
    left = rng.randint(0, count - 1)
    sides = [random_formula(part, variables, rng) for part in (left, count - 1 - left)]
    return ["(", *sides[0], "(", operator, *sides[1], ")", ")"]


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
    with ExitStack() as stack:  # all files are renamed into place at the end
        for count in lengths:
            rng = random.Random(f"{seed} {count}")
            drawn = _draw(count, pairs, balance, rng)
            rng.shuffle(drawn)
            split = max(1, round(len(drawn) * TEST_SHARE))
            for name, part in (("test", drawn[:split]), ("train", drawn[split:])):
                file = stack.enter_context(atomic_write(out / f"{name}{count}"))
                file.writelines(f"{p.relation}\t{' '.join(p.left)}\t{' '.join(p.right)}\n" for p in part)
            mix[count] = Counter(pair.relation for pair in drawn)
            done()
        record = {"pairs": pairs, "seed": seed, "balance": balance}
        json.dump(record, stack.enter_context(atomic_write(out / RECORD)))
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
    drawn: dict[Pair, None] = {}
    mix: Counter[str] = Counter()
    for _ in range(TRIES * pairs):
        if len(drawn) == pairs:
            break
        variables = rng.sample(VARIABLES, MOST_VARIABLES)
        sizes = [count, rng.randint(0, count)]
        rng.shuffle(sizes)
        sides = [tuple(random_formula(size, variables, rng)) for size in sizes]
        tables = [truth_table(side) for side in sides]
        if {0, TAUTOLOGY} & set(tables):
            continue
        pair = Pair(relation(*tables), *sides)
        if pair not in drawn and mix[pair.relation] < limits[pair.relation]:
            drawn[pair] = None
            mix[pair.relation] += 1
    return list(drawn)
