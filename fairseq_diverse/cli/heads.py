"""Measure what the encoder's heads attend to, and how different the heads of every attention are, on one split.

For each encoder layer and head: confidence, attention to syntactically related words and whether that is redundant, to
the previous, the next and the sentence's rarest token, importance, and the role that follows. For each attention:
cosine, constant share and effective rank of its heads' outputs. docs/analyses.md defines them.
The two syntactic figures need the data's dependency trees (fairseq-diverse binarize-syntax); the number of sentences
without a usable tree, which they leave out, is printed ("without tree" in the JSON).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_diverse import register
from fairseq_diverse.support.files import write_text
from fairseq_diverse.support.paths import source_prefix
from fairseq_diverse.support.pictures import add_picture_arguments, save_figure
from fairseq_diverse.support.tables import in_columns

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64
EXAMPLE = "fairseq-diverse heads --checkpoint average.pt --data data/multi30k_en_de --out heads.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE", help="the model to measure")
    add("--data", required=True, type=Path, help="binarized data that it was trained on")
    add("--split", default="valid", help="split to measure on (default: valid)")
    add("--gate", help="threshold: dynamic or a number in (0, 1] (default: the model's, else dynamic)")
    add("--sentences", type=int, metavar="N", help="only the first N sentences (default: all)")
    add("--json", action="store_true", help="print JSON")
    add("--save", type=Path, metavar="FILE", help="also write the JSON to FILE")
    add_picture_arguments(parser, "also draw a heat map")


def main(args: argparse.Namespace) -> None:
    if args.sentences is not None and args.sentences < 1:
        raise ValueError(f"--sentences {args.sentences}: at least 1 is needed")
    from fairseq_diverse.analysis.heads import draw_figures, inspect_heads
    from fairseq_diverse.analysis.roles import roles
    from fairseq_diverse.attention.mechanisms.enlivening import Enlivening
    from fairseq_diverse.data.trees import SyntaxDataset, available_trees
    from fairseq_diverse.host.data import data_folders
    from fairseq_diverse.models.loading import load_model, require_translation

    register()
    settings = Enlivening.Settings(gate=args.gate or "dynamic")
    try:
        settings.check()
    except ValueError as error:
        raise ValueError(f"--gate {args.gate}:{str(error).partition(':')[2]}") from None
    model, task = load_model(args.checkpoint, args.data)
    require_translation(args.checkpoint, task)
    thresholds = (module.threshold for module in model.modules() if isinstance(module, Enlivening))
    gate = settings.threshold if args.gate else next(thresholds, None)
    folder = Path(data_folders(args.data)[0])
    prefix = source_prefix(folder, args.split, task.cfg.source_lang, task.cfg.target_lang)
    has_trees = "dependency" in available_trees(prefix)
    graphs = SyntaxDataset(str(prefix), ("dependency",)) if has_trees else None
    samples = _samples(model, task, args.split, prefix, args.sentences)
    figures, attentions, without_tree = inspect_heads(model, samples, task.source_dictionary, gate, graphs)
    if without_tree:
        means = "syntactic attention and redundant"
        print(f"{without_tree} sentences without a usable dependency tree are left out of {means}", file=sys.stderr)
    if args.out:
        save_figure(draw_figures(figures), args.out)
    content: dict[str, Any] = {name: values.tolist() for name, values in figures.items()}
    content |= {"roles": roles(figures), "attentions": {f"{c}:{layer}": of for (c, layer), of in attentions.items()}}
    content |= {"without tree": without_tree} if has_trees else {}
    if args.save:
        write_text(args.save, json.dumps(content))
    if args.json:
        print(json.dumps(content))
        return
    print(_head_table(figures, content["roles"]))
    print(f"\n{_attention_table(attentions)}")
    if not has_trees:
        print(f"two more columns need dependency trees: fairseq-diverse binarize-syntax adds them to {folder}")


def _samples(model: Any, task: Any, split: str, prefix: Path, count: int | None) -> Iterator[dict[str, Any]]:
    """Batches of the first sentences of a split, with the trees that the model needs."""
    from fairseq_diverse.data.trees import PairsWithTrees, SyntaxDataset
    from fairseq_diverse.host.data import longest_allowed, sentences_in_order

    task.trees = ()  # the task's own: here trees are read whether the model needs them or not
    task.load_dataset(split)
    pairs = task.dataset(split)
    if needed := model.encoder.plan.trees:
        pairs = PairsWithTrees(pairs, SyntaxDataset(str(prefix), needed))
    order = sentences_in_order(pairs)
    allowed = longest_allowed(task, model)
    order, longer = pairs.filter_indices_by_size(order[order < (count or len(pairs))], allowed)
    if longer:
        print(f"{len(longer)} sentences longer than the model's positions {allowed} are left out", file=sys.stderr)
    for start in range(0, len(order), BATCH):
        yield pairs.collater([pairs[number] for number in order[start : start + BATCH]])


def _head_table(figures: "Mapping[str, Tensor]", roles: Sequence[Sequence[str]]) -> str:
    rows: list[list[object]] = [["layer", "head", *figures, "role"]]
    layers, heads = next(iter(figures.values())).shape
    for layer in range(layers):
        for head in range(heads):
            cells = (f"{values[layer, head]:.3f}" for values in figures.values())
            rows.append([layer + 1, head + 1, *cells, roles[layer][head] or "-"])
        rows.append([layer + 1, "mean", *(f"{values[layer].mean():.3f}" for values in figures.values()), ""])
    return in_columns(rows, left=[len(rows[0]) - 1])


def _attention_table(attentions: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    rows: list[list[object]] = [["attention", "layer", "cosine", "constant share", "effective rank"]]
    for (component, layer), figures in attentions.items():
        cosine = "-" if figures["cosine"] is None else f"{figures['cosine']:.3f}"
        rank = f"{figures['effective rank']:.1f} of {figures['width']}"
        rows.append([component, layer, cosine, f"{figures['constant share']:.3f}", rank])
    return in_columns(rows)
