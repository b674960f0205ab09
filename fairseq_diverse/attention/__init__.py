"""Multi-head attention with mechanisms; it needs torch alone."""

from fairseq_diverse.attention import mechanisms
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.precision import at_least_float32
from fairseq_diverse.attention.registry import MECHANISMS, register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.attention.standalone import StandaloneAttention
from fairseq_diverse.support.errors import UserError

__all__ = [
    "COMPONENTS",
    "MECHANISMS",
    "AttentionContext",
    "AttentionShape",
    "Mechanism",
    "MechanismSettings",
    "StandaloneAttention",
    "UserError",
    "at_least_float32",
    "mechanisms",
    "option",
    "placement",
    "register_mechanism",
]
