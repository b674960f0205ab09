"""Truth by trying every assignment, relations by their definitions (Bowman et al., 2015)."""

import itertools

WORLDS = [dict(zip("abcdef", values, strict=True)) for values in itertools.product((False, True), repeat=6)]


def truths(formula):
    """The truth of a formula's text for every assignment."""
    python = formula.replace("( and", "and (").replace("( or", "or (")
    return [bool(eval(python, {}, world)) for world in WORLDS]


def relation(left, right):
    pairs = list(zip(truths(left), truths(right), strict=True))
    if all(a == b for a, b in pairs):
        return "="
    if all(a != b for a, b in pairs):
        return "^"
    if not any(a and not b for a, b in pairs):
        return "<"
    if not any(b and not a for a, b in pairs):
        return ">"
    if not any(a and b for a, b in pairs):
        return "|"
    return "v" if all(a or b for a, b in pairs) else "#"
