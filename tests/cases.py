"""Cases of the property tests: every example of each mechanism on every component, and all mechanisms together."""

import re

import pytest

from fairseq_diverse.testing.models import ROBERTA, batch, build_model, cases, dictionary, places, terms

__all__ = ["ALL_ON", "CASES", "ROBERTA_CASES", "batch", "build_model", "dictionary", "first_of_each", "terms"]

CASES = cases()


def first_of_each(cases):
    """The cases as parameters of a test; all but the first of each mechanism are slow."""
    first = {re.sub(r"(-\d)?-[a-z]+$", "", name): name for name, _ in reversed(cases)}.values()
    return [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] not in first)) for case in cases]


ROBERTA_CASES = cases(where=lambda flags: tuple(place for place in places(flags) if place == ROBERTA))
ALL_ON = (
    "all-on",
    {
        "routing": "em",
        "routing_on": "encoder,decoder",
        "relative_on": "encoder,decoder",
        "relative_limit": 2,
        "localness_on": "encoder",
        "qk_head_dim": 5,
        "talking": "both",
        "talking_on": "encoder,decoder",
        "evolving_on": "encoder,decoder",
        "evolving_conv": "0.4",
        "interacting": "concat",
        "interacting_on": "cross",
        "syntax": "phrase",
        "syntax_on": "encoder",
        "enliven": "enliven",
        "enliven_on": "encoder",
        "enliven_gate": "0.5",
    },
)
