"""The attention weights of each head for one sentence pair, and their plot."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.host.programs import generation_settings
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel, attentions_at
from fairseq_diverse.models.extras import AttentionMaps
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import Figure, new_figure, set_names, set_note, set_title

logger = logging.getLogger(__name__)

CELL, LETTER = 0.15, 0.07  # inches per row, and per letter of a 7-point label
MOST_PIXELS = 10_000  # per side; larger plots get a lower resolution
WEIGHT, FACTOR = "attention weight", "factor of the weights due to syntax"
COLOURS = {WEIGHT: "viridis", FACTOR: "cividis"}
SIGNED = "RdBu_r"  # of weights below 0 and above; white at 0
QUANTILE, OUTLIER = 0.9, 1.5  # a weight above 1.5 times the 90% quantile of its rows' largest ones is an outlier


def attention_maps(model: DiverseTransformerModel, sample: dict[str, Tensor], on: str, flag: str) -> AttentionMaps:
    """Attention weights after the softmax, before weight mixing and dropout; sets the model to evaluation mode.

    Args:
        sample: a batch's ``net_input``.
        on: placement of the attentions, such as ``encoder:1,cross``.
        flag: name of the flag in error messages.

    Returns:
        ``{(component, layer): (H, B, T, S)}``. Rows of real queries sum to 1 (differential attention: to 1 - lambda;
        another ``normalize``: to what it gives). For interacting heads: the mean over the heads of the keys.

    Raises:
        UserError: the model does not have the placement.
    """
    model.eval()
    with torch.no_grad():
        request = AttentionRequest(weights=on, flag=flag)
        return model(**sample, features_only=True, attention_request=request)[1]["maps"]


class Labels(NamedTuple):
    """What is written along one side of a map: words or subwords, and how many subwords each of them has."""

    texts: list[str]
    sizes: list[int]

    @classmethod
    def of(cls, subwords: Sequence[str]) -> "Labels":
        """Every subword for itself."""
        return cls(list(subwords), [1] * len(subwords))


@dataclass(frozen=True)
class SentencePair:
    """Subwords of both sides, with ``</s>``, their words, and the model's ``net_input`` for this pair."""

    source: list[str]
    target: list[str]
    source_words: Labels
    target_words: Labels
    sample: dict[str, Tensor]

    def labels(self, component: str, subwords: bool = False) -> tuple[Labels, Labels]:
        """Labels of the queries and keys of a component's map, as words or as subwords.

        A query of the decoder is the (sub)word that it read last (``</s>`` at the start); a query of the
        cross-attention is the (sub)word that it writes next.
        """
        source = Labels.of(self.source) if subwords else self.source_words
        target = Labels.of(self.target) if subwords else self.target_words
        inputs = Labels(target.texts[-1:] + target.texts[:-1], target.sizes[-1:] + target.sizes[:-1])  # </s> first
        return {"encoder": (source, source), "decoder": (inputs, inputs), "cross": (target, source)}[component]


def by_words(maps: Tensor, queries: Labels, keys: Labels) -> Tensor:
    """Weights between words from those between subwords: the sum over a key's subwords, the mean over a query's.

        W[i, j] = 1/|i|  sum_{t in i} sum_{s in j} weights[t, s]

    (..., T, S) -> (..., queries, keys); rows that sum to 1 still do.
    """
    rows = torch.stack([row.mean(-2) for row in maps.split(queries.sizes, -2)], -2)
    return torch.stack([column.sum(-1) for column in rows.split(keys.sizes, -1)], -1)


def encode_pair(
    model: DiverseTransformerModel,
    task: Any,
    preprocessing: Preprocessing,
    source: str,
    target: str | None = None,
    trees: Tensor | None = None,
) -> SentencePair:
    """Segment a raw sentence pair like the model's data; without a target, use the model's translation (beam 5).

    The translation ends, with a warning, at 10 plus twice the source's number of subwords.

    Args:
        trees: (T, 5) trees of the source's subwords, for a model that needs them.

    Raises:
        UserError: a sentence is empty, longer than the model's positions, or without the trees that the model needs.
    """
    if model.encoder.plan.trees and trees is None:
        raise UserError(f"--source: this model needs {' and '.join(model.encoder.plan.trees)} trees; take --sentence N")
    dictionaries = {"source": task.source_dictionary, "target": task.target_dictionary}
    limits = dict(zip(dictionaries, model.max_positions(), strict=True))

    def encode(side: str, raw: str) -> tuple[list[str], Tensor]:
        pieces = preprocessing.encode(raw, side).split()
        if not 0 < len(pieces) < limits[side]:
            raise UserError(f"--{side}: {len(pieces)} subwords; the model takes 1 to {limits[side] - 1}")
        ids = dictionaries[side].encode_line(" ".join(pieces), add_if_not_exist=False).long()  # ends with </s>
        return [*pieces, dictionaries[side].eos_word], ids

    source_pieces, source_ids = encode("source", source)
    sample = {"src_tokens": source_ids[None], "src_lengths": torch.tensor([len(source_ids)])}
    if trees is not None:
        sample["source_trees"] = trees[None]
    if target is None:
        generator = task.build_generator([model], generation_settings(beam=5, max_len_a=2, max_len_b=10))
        target_ids = task.inference_step(generator, [model], {"net_input": sample})[0][0]["tokens"]
        target_pieces = [task.target_dictionary[i] for i in target_ids]
        longest = min(2 * len(source_ids) + 10, limits["target"] - 1)
        if len(target_ids) > longest:  # with </s>, which the generator puts there
            ended = f"the translation was ended after {longest} subwords, 2 for each of the source and 10"
            why = "the model has learned too little, or goes on for long; --target TEXT draws another"
            logger.warning(f"warning: {ended}: {why}")
    else:
        target_pieces, target_ids = encode("target", target)

    def words(side: str, pieces: list[str]) -> Labels:
        subwords = preprocessing.subwords[side]
        by_word = [*subwords.words(pieces[:-1]), pieces[-1:]]  # </s> is a word of its own
        return Labels([subwords.join(" ".join(word)) for word in by_word], [len(word) for word in by_word])

    sample["prev_output_tokens"] = target_ids.roll(1)[None]
    both = words("source", source_pieces), words("target", target_pieces)
    return SentencePair(source_pieces, target_pieces, *both, sample)


@dataclass(frozen=True)
class Comparison:
    """A sentence in an encoder layer with syntax or enlivening (Zhang et al., 2021, Fig. 5)."""

    mask: Tensor | None  # (T, T) factors of the weights due to syntax, at most 1; NaN: masked; None: no syntax
    plain: Tensor  # (H, T, T) weights without any mechanism
    redundant: Tensor | None  # (H,) bool, with --enliven

    def by_words(self, words: Labels) -> "Comparison":
        """The same of words; a factor is the mean over the subwords of both, masked where all of them are."""
        mask, sizes = self.mask, torch.tensor(words.sizes)
        if mask is not None:
            masked = by_words(mask.isnan().float(), words, words) >= sizes - 1e-4
            mask = (by_words(mask.nan_to_num(0), words, words) / sizes).masked_fill(masked, torch.nan)
        return Comparison(mask, by_words(self.plain, words, words), self.redundant)


def compare_with_plain(model: DiverseTransformerModel, sample: dict[str, Tensor], layer: int) -> Comparison | None:
    """A layer (from 1) of an encoder with syntax or enlivening, in evaluation mode, on the first sentence of a batch's
    ``net_input``; None if it has neither."""
    attention = model.encoder.layers[layer - 1].self_attn
    syntax = attention.mechanism("syntax")
    if syntax is None and attention.mechanism("enliven") is None:
        return None
    with torch.no_grad():
        extra = model(**sample, features_only=True, attention_request=AttentionRequest(inside="encoder"))[1]
        mask = None
        if syntax is not None:
            penalty, allowed = syntax.penalty(relate(sample["source_trees"], model.encoder.plan.trees))
            allowed = allowed.flatten(0, -3)[0]  # (T, T)
            logits = torch.zeros_like(allowed, dtype=torch.float) if penalty is None else penalty.flatten(0, -3)[0]
            logits = logits.masked_fill(~allowed, -torch.inf)
            mask = (logits - logits.amax(-1, keepdim=True)).exp().masked_fill(~allowed, torch.nan)
    plain = extra["inside"]["encoder", layer][1]
    redundant = extra["redundant"].get(layer)
    return Comparison(mask, plain[0], None if redundant is None else redundant[0])


class Panel(NamedTuple):
    """A map (T, S) under a title; ``values`` names what its colours show: a key of ``COLOURS``."""

    title: str
    map: Tensor
    values: str = WEIGHT


Rows = Sequence[Sequence[Panel | None]]


def panel_width(keys: Labels) -> float:
    return max(1.5, CELL * len(keys.texts)) + 0.4


def draw_panels(
    rows: Rows, queries: Labels, keys: Labels, title: str, axes: tuple[str, str] = ("query", "key")
) -> Figure:
    """Draw maps of one sentence pair; maps of one kind share a colour scale, which a colour bar shows.

    The scale goes from 0 to the largest weight. If that is an outlier (``OUTLIER``), such as the 1 of a decoder's first
    word, which can only attend to itself, the scale ends at the ``QUANTILE`` of the queries' largest weights, and the
    colour bar names the largest weight. With negative weights, as in differential attention, the scale is symmetric
    around 0, by the largest absolute weights.

    Args:
        rows: panels, row by row; None = an empty panel.
        queries, keys: labels of the T rows and S columns of a map.
        axes: names of the rows and of the columns.
    """
    columns = max(map(len, rows))
    width = panel_width(keys)
    height = max(1.5, CELL * len(queries.texts)) + LETTER * max(map(len, keys.texts)) + 0.5
    size = (columns * width + LETTER * max(map(len, queries.texts)) + 1.2, len(rows) * height + 0.8)
    figure = new_figure(*size, dpi=min(150, MOST_PIXELS / max(size)))
    set_title(figure, title)
    figure.supylabel(axes[0], fontsize="small")
    set_note(figure, axes[1])
    limits = {name: _limit([p.map for row in rows for p in row if p and p.values == name]) for name in COLOURS}
    images: dict[str, Any] = {}
    for places, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        texts = queries.texts  # beside the first panel of a row
        for place, panel in zip_longest(places, row):
            if panel is None:
                place.remove()
                continue
            values, (limit, _, signed) = panel.map.float().numpy(), limits[panel.values]
            colours, low = (SIGNED, -limit) if signed else (COLOURS[panel.values], 0)
            images[panel.values] = place.imshow(values, colours, vmin=low, vmax=limit, aspect="auto")
            place.set_title(panel.title, fontsize="small")
            set_names(place.xaxis, keys.texts, rotation=90, fontsize="x-small")
            set_names(place.yaxis, texts, fontsize="x-small")
            texts = [""] * len(texts)
    panels = figure.axes
    for name, image in images.items():
        limit, largest, signed = limits[name]
        ends = f"darkest: ±{limit:.2f} to ±{largest:.2f}" if signed else f"brightest: {limit:.2f} to {largest:.2f}"
        more = f"; {ends}" if largest > limit else ""
        extend = "neither" if not more else "both" if signed else "max"
        bar = figure.colorbar(image, ax=panels, shrink=min(1, 4 / size[1]), aspect=25, extend=extend)
        bar.set_label(name + more, fontsize="small")
    return figure


def _limit(maps: Sequence[Tensor]) -> tuple[float, float, bool]:
    """Where the colour scale of these maps ends, the largest absolute value, and whether a value is negative."""
    peaks = torch.cat([values.float().nan_to_num(0).abs().amax(-1) for values in maps]) if maps else torch.ones(1)
    largest, limit = float(peaks.max()), float(peaks.quantile(QUANTILE))
    signed = any(bool((values < 0).any()) for values in maps)
    return (limit if largest > OUTLIER * limit > 0 else largest), largest, signed


def map_prefix(model: DiverseTransformerModel, component: str, layer: int) -> str:
    """What comes before "head 1" where an attention has no map for each head but a mean for the queries of each."""
    return "" if attentions_at(model, component)[layer - 1].has_maps else "queries of "


def head_panels(maps: Tensor, heads: Sequence[int], prefix: str = "", columns: int = 4) -> list[list[Panel | None]]:
    """One panel per head.

    Args:
        maps: (H, T, S) weights.
        heads: numbers of the heads to draw, from 1.
        prefix: beginning of every title, see ``map_prefix``.
        columns: number of panels per row.
    """
    panels: list[Panel | None] = [Panel(f"{prefix}head {head}", maps[head - 1]) for head in heads]
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def comparison_panels(
    comparison: Comparison, maps: Tensor, heads: Sequence[int], prune: bool, prefix: str = ""
) -> list[list[Panel | None]]:
    """One row per head: weights without and with the mechanisms; the first row starts with the factors due to syntax,
    if there is any.
    """
    rows: list[list[Panel | None]] = []
    for head in heads:
        name = "with syntax"
        if comparison.redundant is not None:
            name = "important" if not comparison.redundant[head - 1] else "pruned" if prune else "enlivened"
        mask = None if rows or comparison.mask is None else Panel(f"{prefix}syntax mask", comparison.mask, FACTOR)
        plain, present = comparison.plain[head - 1], maps[head - 1]
        row = [mask, Panel(f"{prefix}head {head}, plain", plain), Panel(f"{prefix}head {head}, {name}", present)]
        rows.append(row[comparison.mask is None :])
    return rows


def side_by_side(models: Sequence[list[list[Panel | None]]]) -> list[list[Panel | None]]:
    """The panels of several models, side by side, one row per head; a model with fewer heads has gaps."""
    gaps = [[None] * len(panels[0]) for panels in models]
    rows = zip_longest(*models)
    return [[panel for row, gap in zip(parts, gaps, strict=True) for panel in row or gap] for parts in rows]
