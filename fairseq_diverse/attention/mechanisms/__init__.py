"""The mechanisms of the package, one file each, registered in the order in which they run in a stage."""

from fairseq_diverse.attention.mechanisms import (  # noqa: F401, I001
    query_key_width,
    syntax,
    enlivening,
    value_residual,
    qk_norm,
    rotary,
    relative,
    localness,
    alibi,
    position_bias,
    synthesizer,
    talking,
    residual_logits,
    evolving,
    interacting,
    differential,
    gated,
    routing,
)
