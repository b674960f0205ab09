"""Tiny models and batches for checking mechanisms."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import fairseq_diverse
from fairseq_diverse.attention.functional.agreement import OF_MAPS
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.registry import MECHANISMS, attribute_name, read_settings
from fairseq_diverse.attention.relations import PADDING
from fairseq_diverse.attention.request import TERMS
from fairseq_diverse.host.data import numbered_words
from fairseq_diverse.host.programs import architectures, fill_architecture, parser
from fairseq_diverse.support.errors import UserError

fairseq_diverse.register()

Flags = dict[str, Any]  # attributes of parsed arguments, and the architecture if it is not diverse_transformer
ROBERTA = "roberta"  # a place of mechanisms beside the components: the encoder of a language model
OF_ROBERTA = ("diverse_roberta", "diverse_bert")  # architectures there, whose models read one sentence

NO_FLAGS = ("max_positions", "own_mechanisms")  # that parsed arguments may have
TINY = {
    **{"encoder_embed_dim": 24, "encoder_ffn_embed_dim": 20, "encoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_embed_dim": 28, "share_all_embeddings": True},
    **{"dropout": 0.0, "attention_dropout": 0.0, "max_source_positions": 64, "max_target_positions": 64},
}


def placed(flags: Flags) -> list[str]:
    return [name for name in MECHANISMS if read_settings(Namespace(**flags), name).active]


def examples(name: str) -> list[Flags]:
    """The settings with which a mechanism is checked; "{on}" is the component.

    They are the ``examples`` of its class, else every choice of ``kind``, else the defaults.
    """
    cls: Any = MECHANISMS[name]
    if cls.examples:
        return [dict(flags) for flags in cls.examples]
    on = {attribute_name(name, "on"): "{on}"}
    kind = cls.Settings.__dataclass_fields__.get("kind")
    if kind is None:
        return [on]
    if not kind.metadata.get("choices"):
        raise UserError(f"mechanism {name!r}: give kind its choices, or the class examples; with what is it checked?")
    choices = [choice for choice in kind.metadata.get("choices", ()) if choice != kind.default]
    return [{attribute_name(name, "kind"): choice, **on} for choice in choices]


def components(flags: Flags) -> tuple[str, ...]:
    """The components on which every mechanism that ``flags`` place on "{on}" is defined."""
    names = [name for name in MECHANISMS if flags.get(attribute_name(name, "on")) == "{on}"]
    return tuple(c for c in COMPONENTS if all(c in MECHANISMS[name].components for name in names))


def places(flags: Flags) -> tuple[str, ...]:
    """``components``, and ``ROBERTA`` if the mechanisms are defined on the encoder and need no trees."""
    names, on_encoder = components(flags), at(flags, "encoder")
    trees = any(read_settings(Namespace(**on_encoder), name).trees for name in placed(on_encoder))
    return (*names, ROBERTA) if "encoder" in names and not trees else names


def at(flags: Flags, place: str) -> Flags:
    """``flags`` with the mechanism placed on a component, or on ``ROBERTA``."""
    if place == ROBERTA:
        return {**at(flags, "encoder"), "arch": OF_ROBERTA[0]}
    return {name: place if value == "{on}" else value for name, value in flags.items()}


def terms(flags: Flags) -> tuple[str, ...]:
    """The disagreement terms that are defined with these flags."""
    without_maps = [name for name in placed(flags) if not MECHANISMS[name].has_maps]
    return tuple(term for term in TERMS if term not in OF_MAPS or not without_maps)


def cases(
    names: list[str] | None = None, where: Callable[[Flags], tuple[str, ...]] = components
) -> list[tuple[str, Flags]]:
    """Every example of the mechanisms on every component, or at the places that ``where`` gives, with a name."""
    named = []
    for name in names or MECHANISMS:
        for number, flags in enumerate(all_examples := examples(name), 1):
            label = f"{name}-{number}" if len(all_examples) > 1 else name
            named += [(f"{label}-{place}", at(flags, place)) for place in where(flags)]
    return named


def dictionary(words: int = 30) -> Any:
    """A dictionary of ``words`` words and fairseq's four symbols."""
    vocabulary = numbered_words(4)
    for word in range(words):
        vocabulary.add_symbol(f"w{word}")
    return vocabulary


def task() -> Any:
    vocabulary = dictionary()
    return SimpleNamespace(source_dictionary=vocabulary, target_dictionary=vocabulary, max_positions=lambda: 64)


def settings_attributes() -> set[str]:
    """The attributes of the settings of all mechanisms in parsed arguments."""
    return {attribute_name(name, field.name) for name, cls in MECHANISMS.items() for field in fields(cls.Settings)}


@cache
def _attributes() -> set[str]:
    """The other attributes of parsed arguments of all models of this package."""
    parsers = [parser("train")]
    for arch in ("diverse_transformer", "diverse_roberta", "diverse_t5"):
        parsers.append(ArgumentParser())
        architectures()[arch].add_args(parsers[-1])
    attributes = {action.dest for each in parsers for action in each._actions} | {*TINY, *NO_FLAGS}
    return attributes - settings_attributes()  # which a notebook may change


def build_model(flags: Flags | None = None, arch: str = "diverse_transformer", seed: int = 1) -> Any:
    """A tiny model of an architecture, with ``flags``.

    Raises:
        UserError: a flag is unknown.
    """
    torch.manual_seed(seed)
    args = Namespace(**{**TINY, "arch": arch, **(flags or {})})
    if unknown := set(flags or ()) - settings_attributes() - _attributes():
        raise UserError(f"{min(unknown)!r}: not a flag; write it with _, as in parsed arguments")
    fill_architecture(args)
    return architectures()[args.arch].build_model(args, task())


def trees(subwords: int, generator: torch.Generator) -> Tensor:
    """(subwords + 1, 5) of a sentence and its EOS: every third subword continues the word before it."""

    def random(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

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
    """``net_input`` for sentences of these lengths (without EOS), with source and target padded on these sides."""
    generator = torch.Generator().manual_seed(seed)
    words = dictionary()
    src = torch.full((len(source), max(source) + 1), words.pad())
    tgt = torch.full((len(target), max(target) + 1), words.pad())
    starts = {
        side: [0 if at == "right" else max(lengths) - length for length in lengths]
        for side, lengths, at in zip(("source", "target"), (source, target), sides, strict=True)
    }
    for row, (s, t) in enumerate(zip(source, target, strict=True)):
        first, start = starts["source"][row], starts["target"][row]
        src[row, first : first + s] = torch.randint(4, len(words), (s,), generator=generator)
        src[row, first + s] = words.eos()
        tgt[row, start] = words.eos()
        tgt[row, start + 1 : start + 1 + t] = torch.randint(4, len(words), (t,), generator=generator)
    sample = {"src_tokens": src, "src_lengths": torch.tensor(source) + 1, "prev_output_tokens": tgt}
    if parsed:
        sample["source_trees"] = torch.tensor(PADDING).repeat(*src.shape, 1)
        for row, length in enumerate(source):
            first = starts["source"][row]
            sample["source_trees"][row, first : first + length + 1] = trees(length, generator)
    return sample
