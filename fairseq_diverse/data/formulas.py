"""Formulae over six variables: text, truth table, and the relation of two formulae.

A formula is a variable, ``( not X )`` or ``( X ( and Y ) )`` with ``and`` or ``or``, as in Bowman et al. (2015).
Its truth table is an integer of 64 bits, one per assignment of the variables.
"""

import random
from collections.abc import Sequence
from typing import Any

VARIABLES = ("a", "b", "c", "d", "e", "f")
OPERATORS = ("not", "and", "or")
SYMBOLS = ("(", ")", *OPERATORS, *VARIABLES)
RELATIONS = ("#", "<", "=", ">", "^", "v", "|")
TAUTOLOGY = 2**2 ** len(VARIABLES) - 1  # truth table
TABLES = {
    name: sum(1 << assignment for assignment in range(2 ** len(VARIABLES)) if assignment >> number & 1)
    for number, name in enumerate(VARIABLES)
}


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
