"""The mechanisms and tiny models that the property tests run over; a new mechanism adds one line to ``MECHANISMS``."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

import fairseq_diverse
from fairseq_diverse.attention import placements, registry
from fairseq_diverse.attention.request import TERMS

fairseq_diverse.register()

# name -> flags; "{on}" stands for the component
MECHANISMS: dict[str, dict[str, Any]] = {
    "simple-routing": {"routing": "simple", "routing_on": "{on}"},
    "em-routing": {"routing": "em", "routing_on": "{on}"},
    "em-routing-capsules": {"routing": "em", "routing_on": "{on}", "routing_capsules": 6, "routing_activation": "none"},
    "relative": {"relative_on": "{on}", "relative_limit": 3},
    "localness": {"localness_on": "{on}"},
    "dependency": {"syntax": "dependency", "syntax_on": "{on}"},
    "phrase": {"syntax": "phrase", "syntax_on": "{on}", "phrase_limit": 2},
    "enliven": {
        **{"enliven": "enliven", "enliven_on": "{on}", "enliven_gate": "0.5"},
        **{"syntax": "phrase", "syntax_on": "{on}", "relative_on": "{on}", "localness_on": "{on}"},
    },
    "enliven-dynamic": {"enliven": "enliven", "enliven_on": "{on}", "syntax": "dependency", "syntax_on": "{on}"},
    "prune": {"enliven": "prune", "enliven_on": "{on}", "enliven_gate": "0.5"},
    "qk-width": {"qk_head_dim": 5, "qk_head_dim_on": "{on}"},
    "talking": {"talking": "both", "talking_on": "{on}"},
    "evolving": {"evolving_on": "{on}", "evolving_conv": "0.4"},
    "evolving-wide": {"evolving_on": "{on}", "evolving_conv": "0.4", "evolving_kernel": 5, "talking": "logits"},
    "interacting-concat": {"interacting": "concat", "interacting_on": "{on}"},
    "interacting-sum": {"interacting": "sum", "interacting_on": "{on}", "qk_head_dim": 5, "qk_head_dim_on": "{on}"},
}


def terms(flags: dict[str, Any]) -> tuple[str, ...]:
    """The disagreement terms that heads have with these flags."""
    return tuple(term for term in TERMS if term != "position" or "interacting" not in flags)


def components(flags: dict[str, Any]) -> tuple[str, ...]:
    """Where the mechanism that ``flags`` place is defined."""
    placed = [
        registry.MECHANISMS[key.removesuffix("_on").replace("_", "-")]
        for key, value in flags.items()
        if value == "{on}"
    ]
    return tuple(c for c in placements.COMPONENTS if all(c in mechanism.components for mechanism in placed))


CASES = [
    (f"{name}-{component}", {key: component if value == "{on}" else value for key, value in flags.items()})
    for name, flags in MECHANISMS.items()
    for component in components(flags)
]
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

TINY = {
    "encoder_embed_dim": 24,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_embed_dim": 28,
    "share_all_embeddings": True,
    "dropout": 0.0,
    "max_source_positions": 64,
    "max_target_positions": 64,
}


def dictionary(words: int = 30) -> Dictionary:
    """A dictionary of ``words`` words beside fairseq's four symbols."""
    made = Dictionary()
    for word in range(words):
        made.add_symbol(f"w{word}")
    return made


def task(words: int = 30) -> Any:
    """What a model needs of a task."""
    made = dictionary(words)
    return SimpleNamespace(source_dictionary=made, target_dictionary=made)


def build_model(flags: dict[str, Any] | None = None, arch: str = "diverse_transformer", seed: int = 1) -> Any:
    """A tiny model of an architecture with ``flags`` on top."""
    torch.manual_seed(seed)
    args = Namespace(arch=arch, **{**TINY, **(flags or {})})
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task())


def trees(subwords: int, generator: torch.Generator) -> Tensor:
    """(subwords + 1, 5) of a sentence and its EOS: every third subword goes on with the word before it."""

    def random(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    word = [i - (i + 1) // 3 for i in range(subwords)]
    rows = []
    for w in range(word[-1] + 1):
        start, end = max(0, w - random(3)), min(word[-1] + 1, w + 1 + random(3))
        rows.append([w, random(w) if w else w, start, end, 1 + random(5)])
    eos = word[-1] + 1
    return torch.tensor([rows[w] for w in word] + [[eos, eos, eos, eos + 1, 0]])


def batch(
    source: tuple[int, ...] = (7, 4, 5),
    target: tuple[int, ...] = (5, 6, 3),
    seed: int = 0,
    parsed: bool = True,
    sides: tuple[str, str] = ("left", "right"),
) -> dict[str, Tensor]:
    """``net_input`` of sentences with these lengths (without EOS), source and target padded on these sides."""
    generator = torch.Generator().manual_seed(seed)
    words = dictionary()
    src = torch.full((len(source), max(source) + 1), words.pad())
    tgt = torch.full((len(target), max(target) + 1), words.pad())
    starts = {
        side: [0 if at == "right" else max(of_side) - length for length in of_side]
        for side, of_side, at in zip(("source", "target"), (source, target), sides, strict=True)
    }
    for row, (s, t) in enumerate(zip(source, target, strict=True)):
        first, start = starts["source"][row], starts["target"][row]
        src[row, first : first + s] = torch.randint(4, len(words), (s,), generator=generator)
        src[row, first + s] = words.eos()
        tgt[row, start] = words.eos()
        tgt[row, start + 1 : start + 1 + t] = torch.randint(4, len(words), (t,), generator=generator)
    sample = {"src_tokens": src, "src_lengths": torch.tensor(source) + 1, "prev_output_tokens": tgt}
    if parsed:
        sample["source_trees"] = torch.tensor([-1, -1, 0, 0, 0]).repeat(*src.shape, 1)
        for row, length in enumerate(source):
            first = starts["source"][row]
            sample["source_trees"][row, first : first + length + 1] = trees(length, generator)
    return sample
