"""Properties of every mechanism on every component; each function takes flags and raises ``PropertyFailed``."""

from collections.abc import Callable

import torch

from fairseq_diverse.testing.models import ROBERTA, Flags
from fairseq_diverse.testing.properties.calls import (
    attention_dropout,
    called_twice,
    half_types,
    large_logits,
    on_the_device,
    one_graph,
    routes_agree,
)
from fairseq_diverse.testing.properties.common import (  # noqa: F401  (for those who call one property)
    EVERYWHERE,
    LONGER,
    SIDES,
    PropertyFailed,
    attention_at,
    defined_at,
    require,
    told,
    trained_model,
    where_placed,
)
from fairseq_diverse.testing.properties.definition import (  # noqa: F401
    declared,
    has_an_effect,
    neutral_is_the_baseline,
    off_is_absent,
    reload,
    shapes,
    warm_start,
)
from fairseq_diverse.testing.properties.learning import (
    fast_gradients,
    gradients,
    gradients_in_float64,
    layerdrop,
    learns,
)
from fairseq_diverse.testing.properties.together import with_others  # noqa: F401
from fairseq_diverse.testing.properties.tokens import causality, finished_sentences_leave, padding, step_by_step

# checked and printed by `check`, for each setting on each component
PROPERTIES: dict[str, Callable[[Flags], None]] = {
    "off = absent": off_is_absent,
    "has an effect": has_an_effect,
    "learns from its initial values": learns,
    "the same twice, and in long sentences": called_twice,
    "on the device of the queries": on_the_device,
    "gradients that a GPU adds fast": fast_gradients,
    "attention dropout": attention_dropout,
    "shapes of what the stages return": shapes,
    "gradients, also with activation checkpointing": gradients,
    "gradients with disagreement": lambda flags: gradients(flags, disagreement=True),
    "gradients = finite differences (float64)": gradients_in_float64,
    "causality": causality,
    "causality in training": lambda flags: causality(flags, training=True),
    "alone = in a padded batch": padding,
    "step by step = full pass, beam 1": lambda flags: step_by_step(flags, beam=1, steps=LONGER),
    "step by step = full pass, beam 5 reordered": step_by_step,
    "finished sentences leave the batch": finished_sentences_leave,
    "bfloat16 finite, without maps": half_types,
    "bfloat16 finite, with maps": lambda flags: half_types(flags, need_weights=True),
    "float16 finite, with maps": lambda flags: half_types(flags, torch.float16, need_weights=True),
    "finite with large logits": large_logits,
    "with maps = without": routes_agree,
    "one graph of torch.compile": one_graph,
    "LayerDrop": layerdrop,
    "warm start from a plain model": warm_start,
}


OF_DECODERS = ("causality", "step by step", "finished sentences")  # their titles' first words


def applies(title: str, place: str) -> bool:
    """Whether a property of ``PROPERTIES`` can be checked at a place."""
    return place != ROBERTA or not title.startswith(OF_DECODERS)
