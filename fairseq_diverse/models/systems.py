"""The systems and sizes of the named architectures; known without fairseq, whose import takes seconds."""

from collections.abc import Iterable

Systems = dict[str, dict[str, object]]
EVERYWHERE = "encoder,decoder,cross"

SIZES = ("", "_tiny", "_lite", "_iwslt_de_en", "_big")
SYSTEMS: Systems = {
    "diverse_transformer": {},
    "li2021_aggregation": {"routing": "em", "routing_on": "encoder:1-2"},
    "zhang2021_dea": {"syntax": "dependency", "syntax_on": "encoder:1"},
    "zhang2021_lpea": {"syntax": "phrase", "syntax_on": "encoder:1", "enliven": "enliven", "enliven_on": "encoder:1"},
    "li2022_talking": {"talking": "both"},
    "li2022_interacting": {"interacting": "concat"},
    "wang2021_evolving": {"evolving_on": EVERYWHERE},
    "ye2025_differential": {"differential_on": EVERYWHERE},
    "qiu2025_gated": {"gated": "element"},
}

ROBERTA_SIZES = ("", "_large", "_tiny")
ROBERTA_SYSTEMS: Systems = {
    "diverse_roberta": {},
    # alpha: the smallest of the grid {0.1, 0.2, 0.4} of Wang et al. (2021), section 4.2, as is beta, 0.1 by default
    "wang2021_evolving_roberta": {"evolving_on": "encoder", "evolving_carry": 0.1},
}
BERT_SYSTEMS: Systems = {"diverse_bert": {}, "wang2021_evolving_bert": ROBERTA_SYSTEMS["wang2021_evolving_roberta"]}
BERT_ARCHITECTURES = [system + size for system in BERT_SYSTEMS for size in ROBERTA_SIZES]

T5_SIZES = ("", "_small", "_large", "_tiny")
T5_SYSTEMS: Systems = {"diverse_t5": {}, "wang2021_evolving_t5": {"evolving_on": EVERYWHERE, "evolving_carry": 0.1}}

EVERY = ((SYSTEMS, SIZES), (ROBERTA_SYSTEMS | BERT_SYSTEMS, ROBERTA_SIZES), (T5_SYSTEMS, T5_SIZES))
ARCHITECTURES = [system + size for systems, sizes in EVERY for system in systems for size in sizes]


def unknown(name: str, more: Iterable[str] = ()) -> str:
    """The message for a name that is no architecture; ``more`` are those of a user's folder."""
    parts = [f"{', '.join(of)}, each also with {', '.join(filter(None, sizes))} at its end" for of, sizes in EVERY]
    parts += [arch for arch in more if arch not in ARCHITECTURES]
    return f"--arch {name}: unknown; known are {'; '.join(parts)}"
