"""The mechanisms of the package, one file each, registered in the order in which they run in a stage."""

from fairseq_diverse.attention.mechanisms import (  # noqa: I001
    query_key_width,
    syntax,
    enlivening,
    relative,
    localness,
    talking,
    evolving,
    interacting,
    differential,
    gated,
    routing,
)

__all__ = [
    "differential",
    "enlivening",
    "evolving",
    "gated",
    "interacting",
    "localness",
    "query_key_width",
    "relative",
    "routing",
    "syntax",
    "talking",
]
