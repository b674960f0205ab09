"""The formulas: tensors in, tensors out; torch only."""

from fairseq_diverse.attention.functional.agreement import (
    difference_agreement,
    output_agreement,
    position_agreement,
    subspace_agreement,
)
from fairseq_diverse.attention.functional.differential import differential_attention, differential_ratio
from fairseq_diverse.attention.functional.enlivening import head_confidence, redundant_heads, syntactic_attention
from fairseq_diverse.attention.functional.evolving import evolve_logits
from fairseq_diverse.attention.functional.gating import gate_heads
from fairseq_diverse.attention.functional.interacting import interacting_attention, interacting_weights
from fairseq_diverse.attention.functional.key_norm import normalize_queries_and_keys
from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.functional.mixing import mix_heads
from fairseq_diverse.attention.functional.position import (
    bucket_starts,
    localness_bias,
    position_bias,
    relative_logits,
    relative_values,
    shared_localness_bias,
)
from fairseq_diverse.attention.functional.rotary import alibi_bias, alibi_slopes, rotate
from fairseq_diverse.attention.functional.routing import em_routing, mean_of_votes, simple_routing
from fairseq_diverse.attention.functional.syntax import (
    dependency_relation,
    phrase_bias,
    phrase_distance,
    phrase_relation,
)
from fairseq_diverse.attention.functional.synthesizer import at_positions, dense_logits, random_logits

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "at_positions",
    "bucket_starts",
    "dense_logits",
    "dependency_relation",
    "difference_agreement",
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
    "mean_of_votes",
    "mix_heads",
    "normalize_queries_and_keys",
    "output_agreement",
    "phrase_bias",
    "phrase_distance",
    "phrase_relation",
    "position_agreement",
    "position_bias",
    "random_logits",
    "redundant_heads",
    "relative_logits",
    "relative_values",
    "rotate",
    "shared_localness_bias",
    "simple_routing",
    "subspace_agreement",
    "syntactic_attention",
]
