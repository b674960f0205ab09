"""Cases of the property tests: every example of each mechanism on every component, and all mechanisms together."""

from fairseq_diverse.testing.models import ROBERTA, TINY, batch, build_model, cases, dictionary, places, task, terms

__all__ = ["ALL_ON", "CASES", "ROBERTA_CASES", "TINY", "batch", "build_model", "dictionary", "task", "terms"]

CASES = cases()
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
