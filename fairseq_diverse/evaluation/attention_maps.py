"""The attention weights of each head for one sentence pair, and their picture."""

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models.transformer import TransformerModel
from torch import Tensor

from fairseq_diverse.errors import UserError
from fairseq_diverse.evaluation.pictures import new_figure
from fairseq_diverse.models.diverse_transformer import AttentionMaps, DiverseTransformerModel
from fairseq_diverse.models.loading import load_models
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.request import AttentionRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, LETTER = 0.15, 0.07  # inches a row, and a letter of a 7-point label
MOST_PIXELS = 10_000  # a side; larger pictures are drawn coarser


def attention_maps(model: DiverseTransformerModel, sample: dict[str, Tensor], on: str, flag: str) -> AttentionMaps:
    """The weights after the softmax, before weight mixing and dropout; the model is put in evaluation mode.

    Args:
        sample: a batch's ``net_input``.
        on: placement of the attentions, for example ``encoder:1,cross``.
        flag: the flag that errors name.

    Returns:
        ``{(component, layer): (H, B, T, S)}``; the rows of a real query sum to 1.

    Raises:
        UserError: a placement that the model does not have.
    """
    model.eval()
    with torch.no_grad():
        request = AttentionRequest(weights=on, flag=flag)
        return model(**sample, features_only=True, attention_request=request)[1]["maps"]


def load_model(path: str | Path, data: str | Path) -> tuple[DiverseTransformerModel, Any]:
    """The model of a checkpoint, and its task with the dictionaries of ``data``.

    A checkpoint of fairseq's ``transformer`` becomes the same model with every mechanism off.

    Raises:
        UserError: as ``load_models``, or another kind of model.
    """
    (model,), cfg, task = load_models([path], data)
    if type(model) is TransformerModel:
        plain = model
        model = DiverseTransformerModel.build_model(Namespace(**vars(cfg.model)), task)
        model.load_state_dict(plain.state_dict())
    if not isinstance(model, DiverseTransformerModel):
        raise UserError(f"{path}: a {cfg.model._name} model; diverse_transformer or transformer is needed")
    return model.eval(), task


@dataclass(frozen=True)
class SentencePair:
    """Subwords of both sides, each with the closing ``</s>``, and the model's ``net_input`` of this one pair."""

    source: list[str]
    target: list[str]
    sample: dict[str, Tensor]

    def labels(self, component: str) -> tuple[list[str], list[str]]:
        """Queries and keys of a component's map.

        A query of the decoder is the subword that it has read last (``</s>`` at the start); a query of the
        cross-attention is the subword that it is about to write.
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
    """Segment a raw pair as the model's data; without a target, the model's translation (beam 5) is taken.

    Args:
        trees: (T, 5) of the source's subwords, for a model that needs them.

    Raises:
        UserError: an empty sentence, one longer than the model's positions, or one without the trees it needs.
    """
    if model.encoder.plan.trees and trees is None:
        raise UserError(f"--source: this model needs {' and '.join(model.encoder.plan.trees)} trees; take --sentence N")
    dictionaries = {"source": task.source_dictionary, "target": task.target_dictionary}
    limits = dict(zip(dictionaries, model.max_positions(), strict=True))

    def encode(side: str, raw: str) -> tuple[list[str], Tensor]:
        words = preprocessing.encode(raw, side).split()
        if not 0 < len(words) < limits[side]:
            raise UserError(f"--{side}: {len(words)} subwords; the model takes 1 to {limits[side] - 1}")
        ids = dictionaries[side].encode_line(" ".join(words), add_if_not_exist=False).long()  # closes with </s>
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


def draw_heads(maps: Tensor, heads: Sequence[int], queries: Sequence[str], keys: Sequence[str], title: str) -> "Figure":
    """One panel a head, all on the colour scale 0 to 1.

    Args:
        maps: (H, T, S) weights.
        heads: numbers of the heads to draw, from 1.
        queries, keys: T labels of the rows and S of the columns.

    Raises:
        UserError: matplotlib is not installed.
    """
    columns = min(len(heads), 4)
    rows = math.ceil(len(heads) / columns)
    width = max(1.5, CELL * len(keys)) + LETTER * max(map(len, queries)) + 0.4
    height = max(1.5, CELL * len(queries)) + LETTER * max(map(len, keys)) + 0.5
    size = (columns * width + 1, rows * height + 0.5)
    figure = new_figure(*size, dpi=min(150, MOST_PIXELS / max(size)))
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, head in zip(panels, heads, strict=False):
        image = panel.imshow(maps[head - 1].float().numpy(), vmin=0, vmax=1, aspect="auto")
        panel.set_title(f"head {head}", fontsize=9)
        panel.set_xticks(range(len(keys)), keys, rotation=90, fontsize=7, parse_math=False)
        panel.set_yticks(range(len(queries)), queries, fontsize=7, parse_math=False)
    for panel in panels[len(heads) :]:
        panel.remove()
    figure.colorbar(image, ax=figure.axes, label="attention weight", shrink=0.8)
    return figure
