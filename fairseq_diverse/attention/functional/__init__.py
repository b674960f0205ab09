"""The formulas: tensors in, tensors out; torch only."""

from fairseq_diverse.attention.functional.agreement import output_agreement, position_agreement, subspace_agreement
from fairseq_diverse.attention.functional.differential import differential_attention, differential_ratio
from fairseq_diverse.attention.functional.enlivening import head_confidence, redundant_heads, syntactic_attention
from fairseq_diverse.attention.functional.evolving import evolve_logits
from fairseq_diverse.attention.functional.gating import gate_heads
from fairseq_diverse.attention.functional.interacting import interacting_attention, interacting_weights
from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.functional.mixing import mix_heads
from fairseq_diverse.attention.functional.position import localness_bias, relative_logits, relative_values
from fairseq_diverse.attention.functional.routing import em_routing, simple_routing
from fairseq_diverse.attention.functional.syntax import (
    dependency_relation,
    phrase_bias,
    phrase_distance,
    phrase_relation,
)

__all__ = [
    "dependency_relation",
    "differential_attention",
    "differential_ratio",
    "em_routing",
    "evolve_logits",
    "gate_heads",
    "head_confidence",
    "interacting_attention",
    "interacting_weights",
    "localness_bias",
    "masked_softmax",
    "mix_heads",
    "output_agreement",
    "phrase_bias",
    "phrase_distance",
    "phrase_relation",
    "position_agreement",
    "redundant_heads",
    "relative_logits",
    "relative_values",
    "simple_routing",
    "subspace_agreement",
    "syntactic_attention",
]
