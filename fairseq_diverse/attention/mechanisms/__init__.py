"""The mechanisms of the package, one file each, registered in the order in which they run in a stage."""

from fairseq_diverse.attention.mechanisms import (  # noqa: F401, I001
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
