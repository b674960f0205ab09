"""The attention weights of each head for one sentence pair, and their plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor

from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import AttentionMaps, DiverseTransformerModel
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, LETTER = 0.15, 0.07  # inches per row, and per letter of a 7-point label
MOST_PIXELS = 10_000  # per side; larger plots get a lower resolution


def attention_maps(model: DiverseTransformerModel, sample: dict[str, Tensor], on: str, flag: str) -> AttentionMaps:
    """The weights after the softmax, before weight mixing and dropout; sets the model to evaluation mode.

    Args:
        sample: a batch's ``net_input``.
        on: placement of the attentions, for example ``encoder:1,cross``.
        flag: for error messages.

    Returns:
        ``{(component, layer): (H, B, T, S)}``; the rows of a real query sum to 1.

    Raises:
        UserError: the model does not have the placement.
    """
    model.eval()
    with torch.no_grad():
        request = AttentionRequest(weights=on, flag=flag)
        return model(**sample, features_only=True, attention_request=request)[1]["maps"]


@dataclass(frozen=True)
class SentencePair:
    """Subwords of both sides, with ``</s>``, and the model's ``net_input`` for this pair."""

    source: list[str]
    target: list[str]
    sample: dict[str, Tensor]

    def labels(self, component: str) -> tuple[list[str], list[str]]:
        """Queries and keys of a component's map.

        A query of the decoder is the subword that it read last (``</s>`` at the start); a query of the cross-attention
        is the subword that it writes next.
        """
        read = self.target[-1:] + self.target[:-1]
        return {
            "encoder": (self.source, self.source),
            "decoder": (read, read),
            "cross": (self.target, self.source),
        }[component]


def encode_pair(
    model: DiverseTransformerModel,
    task: Any,
    preprocessing: Preprocessing,
    source: str,
    target: str | None = None,
    trees: Tensor | None = None,
) -> SentencePair:
    """Segment a raw pair like the model's data; without a target, use the model's translation (beam 5).

    Args:
        trees: (T, 5) of the source's subwords, for a model that needs them.

    Raises:
        UserError: a sentence is empty, longer than the model's positions, or without the trees that the model needs.
    """
    if model.encoder.plan.trees and trees is None:
        raise UserError(f"--source: this model needs {' and '.join(model.encoder.plan.trees)} trees; take --sentence N")
    dictionaries = {"source": task.source_dictionary, "target": task.target_dictionary}
    limits = dict(zip(dictionaries, model.max_positions(), strict=True))

    def encode(side: str, raw: str) -> tuple[list[str], Tensor]:
        words = preprocessing.encode(raw, side).split()
        if not 0 < len(words) < limits[side]:
            raise UserError(f"--{side}: {len(words)} subwords; the model takes 1 to {limits[side] - 1}")
        ids = dictionaries[side].encode_line(" ".join(words), add_if_not_exist=False).long()  # ends with </s>
        return [*words, dictionaries[side].eos_word], ids

    source_words, source_ids = encode("source", source)
    sample = {"src_tokens": source_ids[None], "src_lengths": torch.tensor([len(source_ids)])}
    if trees is not None:
        sample["source_trees"] = trees[None]
    if target is None:
        generator = task.build_generator([model], GenerationConfig(beam=5, max_len_a=2, max_len_b=10))
        target_ids = task.inference_step(generator, [model], {"net_input": sample})[0][0]["tokens"]
        target_words = [task.target_dictionary[i] for i in target_ids]
    else:
        target_words, target_ids = encode("target", target)
    return SentencePair(source_words, target_words, {**sample, "prev_output_tokens": target_ids.roll(1)[None]})


@dataclass(frozen=True)
class Comparison:
    """A sentence in an encoder layer with syntax or enlivening (Zhang et al., 2021, Fig. 5)."""

    mask: Tensor  # (T, T) factors of the weights due to syntax, at most 1 in each row; NaN where masked
    plain: Tensor  # (H, T, T) weights without any mechanism
    redundant: Tensor | None  # (H,) bool, with --enliven


def compare_with_plain(model: DiverseTransformerModel, sample: dict[str, Tensor], layer: int) -> Comparison | None:
    """The effect of syntax on the first sentence of a batch; None if the layer has neither syntax nor enlivening.

    Args:
        model: in evaluation mode.
        sample: a batch's ``net_input``.
        layer: of the encoder, from 1.
    """
    attention = model.encoder.layers[layer - 1].self_attn
    syntax = attention.mechanism("syntax")
    if syntax is None and attention.mechanism("enliven") is None:
        return None
    with torch.no_grad():
        extra = model(**sample, features_only=True, attention_request=AttentionRequest(inside="encoder"))[1]
        relations = relate(sample["source_trees"], model.encoder.plan.trees)
        penalty, seen = None, relations.dependency  # decides which heads are redundant
        if syntax is not None:
            penalty, seen = syntax.penalty(relations)
        assert seen is not None
        seen = seen.flatten(0, -3)[0]  # (T, T)
        logits = seen.new_zeros(seen.shape, dtype=torch.float) if penalty is None else penalty.flatten(0, -3)[0]
        logits = logits.masked_fill(~seen, -torch.inf)
        mask = (logits - logits.amax(-1, keepdim=True)).exp().masked_fill(~seen, torch.nan)
    plain = extra["inside"]["encoder", layer][1]
    redundant = extra["redundant"].get(layer)
    return Comparison(mask, plain[0], None if redundant is None else redundant[0])


Panel = tuple[str, Tensor]  # title, (T, S) map


def draw_panels(
    rows: Sequence[Sequence[Panel | None]], queries: Sequence[str], keys: Sequence[str], title: str
) -> "Figure":
    """Maps of one sentence pair, all on the colour scale 0 to 1.

    Args:
        rows: panels, row by row; None = an empty panel.
        queries, keys: labels of the T rows and S columns of a map.

    Raises:
        UserError: matplotlib is not installed.
    """
    columns = max(map(len, rows))
    width = max(1.5, CELL * len(keys)) + LETTER * max(map(len, queries)) + 0.4
    height = max(1.5, CELL * len(queries)) + LETTER * max(map(len, keys)) + 0.5
    size = (columns * width + 1, len(rows) * height + 0.5)
    figure = new_figure(*size, dpi=min(150, MOST_PIXELS / max(size)))
    figure.suptitle(title)
    for places, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for place, panel in zip_longest(places, row):
            if panel is None:
                place.remove()
                continue
            image = place.imshow(panel[1].float().numpy(), vmin=0, vmax=1, aspect="auto")
            place.set_title(panel[0], fontsize=9)
            place.set_xticks(range(len(keys)), keys, rotation=90, fontsize=7, parse_math=False)
            place.set_yticks(range(len(queries)), queries, fontsize=7, parse_math=False)
    figure.colorbar(image, ax=figure.axes, label="attention weight", shrink=0.8)
    return figure


def head_panels(maps: Tensor, heads: Sequence[int], prefix: str = "", columns: int = 4) -> list[list[Panel | None]]:
    """One panel per head.

    Args:
        maps: (H, T, S) weights.
        heads: numbers of the heads to draw, from 1.
        prefix: of every title.
        columns: panels per row.
    """
    panels: list[Panel | None] = [(f"{prefix}head {head}", maps[head - 1]) for head in heads]
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def comparison_panels(
    comparison: Comparison, maps: Tensor, heads: Sequence[int], prune: bool, prefix: str = ""
) -> list[list[Panel | None]]:
    """One row per head: weights without and with syntax; the first row starts with the factors due to syntax."""
    rows: list[list[Panel | None]] = []
    for head in heads:
        name = "with syntax"
        if comparison.redundant is not None:
            name = "important" if not comparison.redundant[head - 1] else "pruned" if prune else "enlivened"
        mask = None if rows else (f"{prefix}syntax mask", comparison.mask)
        plain, present = comparison.plain[head - 1], maps[head - 1]
        rows.append([mask, (f"{prefix}head {head}, plain", plain), (f"{prefix}head {head}, {name}", present)])
    return rows


def side_by_side(models: Sequence[list[list[Panel | None]]]) -> list[list[Panel | None]]:
    """The panels of several models, side by side, one row per head; a model with fewer heads has gaps."""
    rows = zip_longest(*models)
    return [
        [panel for row, of_model in zip(parts, models, strict=True) for panel in row or [None] * len(of_model[0])]
        for parts in rows
    ]
