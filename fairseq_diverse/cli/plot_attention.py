"""Draw attention maps: the weights of each head for one sentence pair, one panel per head.

Rows are attending words, columns are attended words. Weights are summed over the subwords of a column and averaged over
those of a row (--subwords: one row and column per subword), with interacting heads also over the heads of the keys. An
encoder layer with syntax or enlivening gets one row of panels per head: its weights without any mechanism, and with the
mechanisms, marked as enlivened, pruned or important; with syntax, the first row starts with the factors of the weights.
Several checkpoints are drawn side by side, one row per head (Zhang et al., 2021, Fig. 5). More: docs/analyses.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_diverse import register
from fairseq_diverse.cli import named_checkpoints
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.pipeline import FILE
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.support.paths import source_prefix
from fairseq_diverse.support.pictures import fitting, save_figure
from fairseq_diverse.support.tables import readable

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_diverse.analysis.attention_maps import Panel, SentencePair
    from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel as Model

EXAMPLE = "fairseq-diverse plot attention --path best.pt --data data --source 'A dog runs.' --layer 3 --out maps.png"


def add_parser(kinds: Any) -> None:
    texts = {"help": "per-head maps of a sentence pair", "description": __doc__, "epilog": f"example:\n  {EXAMPLE}"}
    parser = kinds.add_parser("attention", **texts, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--path", required=True, nargs="+", metavar="CHECKPOINT", help="one checkpoint, or several as NAME=CHECKPOINT")
    add("--data", required=True, help="prepared data set that it was trained on")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--source", metavar="TEXT", help="raw source sentence; parsed as the data were if need be")
    source.add_argument("--sentence", type=int, metavar="N", help="sentence N of the data's --split, with its trees")
    add("--split", help="split that --sentence counts in (default: test)")
    target = "raw target sentence (default: the model's translation, up to 10 plus twice the source's subwords; for "
    add("--target", metavar="TEXT", help=f"{target}several checkpoints the reference)")
    components = ("encoder", "decoder", "cross")
    add("--component", choices=components, default="encoder", help="attention to draw (default: encoder)")
    layer = parser.add_mutually_exclusive_group(required=True)
    layer.add_argument("--layer", type=int, help="one layer, counted from 1 at the bottom")
    layer.add_argument("--layers", metavar="all|1-3|1,4", help="several layers, one row of panels each")
    add("--heads", metavar="1,2", help="only these heads, counted from 1 (default: all)")
    add("--subwords", action="store_true", help="rows and columns are subwords, not words")
    parser.set_defaults(draw=plot_attention)


def plot_attention(args: argparse.Namespace) -> None:
    if args.split is not None and args.sentence is None:
        raise UserError(f"--split {args.split}: is for --sentence; leave it out with --source")
    from fairseq_diverse.analysis.attention_maps import draw_panels, side_by_side
    from fairseq_diverse.models.loading import load_model, require_translation

    register()
    named = named_checkpoints(args.path, distinct=True) if len(args.path) > 1 else [("", args.path[0])]
    if len(named) > 1 and args.layers is not None:
        raise UserError(f"--layers {args.layers}: of one checkpoint; several are drawn at one --layer")
    prepared = Preprocessing.load(args.data)
    reference = args.target is None and len(named) > 1 and args.component != "encoder"
    if reference and args.sentence is None:
        raise UserError("--target: needed with --source, since the translations of several checkpoints differ")
    pairs, panels = [], []
    for name, path in named:
        model, task = load_model(path, args.data)
        require_translation(path, task)
        pairs.append(_pair(args, model, task, prepared.of_model(task), reference))
        panels.append(_panels(args, model, pairs[-1], name))
    title, axes = _title_and_axes(args)
    labels = pairs[0].labels(args.component, args.subwords)
    drawn = side_by_side(panels) if len(panels) > 1 else panels[0]
    save_figure(draw_panels(drawn, *labels, title, axes), args.out)
    print(readable(" ".join(pairs[0].source)))
    for (name, _), pair in zip(named, pairs, strict=True):
        print(readable(f"{name}: {' '.join(pair.target)}".removeprefix(": ")))
    print(f"{args.out}: {title}")


def _title_and_axes(args: argparse.Namespace) -> tuple[str, tuple[str, str]]:
    name = "cross-attention" if args.component == "cross" else f"{args.component} self-attention"
    layers = f"layer {args.layer}" if args.layers is None else f"layers {args.layers}"
    unit = "subword" if args.subwords else "word"
    attending = {"encoder": f"source {unit}s", "decoder": f"target {unit}s, read last"}
    attending["cross"] = f"target {unit}s, to be written next"
    side = "target" if args.component == "decoder" else "source"
    axes = f"attending: {attending[args.component]}", f"attended to: {side} {unit}s"
    return f"{name}, {layers.replace('layers all', 'all layers')}", axes


def _pair(
    args: argparse.Namespace, model: "Model", task: Any, preprocessing: Preprocessing, reference: bool
) -> "SentencePair":
    """The sentence pair as a model reads it, with the ``reference`` as its target, or with the model's translation."""
    from fairseq_diverse.analysis.attention_maps import encode_pair

    data, split = Path(args.data), args.split or "test"
    source, target, trees = args.source, args.target, None
    if args.sentence is not None:
        source, trees = sentence_of_split(data, split, preprocessing, args.sentence, model.encoder.plan.trees)
    elif needed := model.encoder.plan.trees:
        trees = parsed(data, preprocessing, source, needed)
    if reference:
        target = line_of_split(data, split, preprocessing.target, args.sentence)
    return encode_pair(model, task, preprocessing, source, target, trees)


def _panels(args: argparse.Namespace, model: "Model", pair: "SentencePair", name: str) -> "list[list[Panel | None]]":
    """Of one layer a panel, or for syntax or enlivening in the encoder a row, a head; of several layers a row each."""
    from fairseq_diverse.analysis import attention_maps as maps_of

    one = args.layers is None
    layers = str(args.layer) if one else args.layers.replace(",", "+")
    if not one and layers != "all" and not set(layers) <= set("0123456789-+"):
        raise UserError(f"--layers {args.layers!r}: all, or numbers of layers such as 1-3 or 1,4 expected")
    on, flag = args.component if layers == "all" else f"{args.component}:{layers}", "--layer" if one else "--layers"
    queries, keys = pair.labels(args.component, args.subwords)
    panels = []
    for (_, layer), maps in maps_of.attention_maps(model, pair.sample, on, flag).items():
        heads, weights = parse_heads(args.heads, len(maps)), maps_of.by_words(maps[:, 0], queries, keys)
        prefix = f"{name}, " if name else "" if one else f"layer {layer}, "
        plain = maps_of.compare_with_plain(model, pair.sample, layer) if one and args.component == "encoder" else None
        if plain:
            enlivening = model.encoder.layers[layer - 1].self_attn.mechanism("enliven")
            prune = enlivening is not None and enlivening.prune
            panels += maps_of.comparison_panels(plain.by_words(keys), weights, heads, prune, prefix)
        else:
            columns = len(heads) if not one else 1 if name else fitting(4, maps_of.panel_width(keys))
            prefix += maps_of.map_prefix(model, args.component, layer)
            panels += maps_of.head_panels(weights, heads, prefix, columns)
    return panels


def sentence_of_split(
    data: Path, split: str, preprocessing: Preprocessing, number: int, needed: Sequence[str]
) -> "tuple[str, Tensor | None]":
    """Raw sentence ``number`` of a split, and its trees if a model needs them."""
    from fairseq_diverse.data.trees import SyntaxDataset

    line, source = line_of_split(data, split, preprocessing.source, number), preprocessing.source
    prefix = source_prefix(data, split, source, preprocessing.target)
    return line, SyntaxDataset(str(prefix), needed)[number - 1] if needed else None


def parsed(data: Path, preprocessing: Preprocessing, line: str, needed: Sequence[str]) -> "Tensor":
    """The trees of a raw sentence, by the parsers of the data's trees. Raises UserError: there are none, or no tree."""
    from fairseq_diverse.data.live_trees import LiveTrees
    from fairseq_diverse.syntax.parsers import recorded_parsers

    where, record, source = str(data / FILE), preprocessing.record, preprocessing.source
    recorded = recorded_parsers(record, where) if source == record["source"] else {}
    if missing := [kind for kind in needed if kind not in recorded]:
        lacking = f"{' and '.join(missing)} trees, and {where} names no parser"
        raise UserError(f"--source: needs {lacking}; take --sentence N")
    parsers = {kind: how | {"given": f"{where}: model"} for kind, how in recorded.items()}
    tokenized = preprocessing.tokens["source"].tokenize(line)
    pieces = preprocessing.subwords["source"].segment(tokenized)
    (trees,), unparsed = LiveTrees(needed, parsers, {}, record["bpe"]["kind"])([tokenized], [pieces])
    if unparsed:
        raise UserError("--source: the parsers find no tree of it; take --sentence N")
    return trees


def line_of_split(data: Path, split: str, language: str, number: int) -> str:
    """Raw line ``number`` of a split, counted from 1."""
    lines = read_lines(data / "text" / f"{split}.{language}")
    if not 1 <= number <= len(lines):
        raise ValueError(f"--sentence {number}: the {split} split has sentences 1 to {len(lines)}")
    return lines[number - 1]


def parse_heads(text: str | None, count: int) -> list[int]:
    """The numbers in ``--heads``; all ``count`` heads where it is absent."""
    if text is None:
        return [*range(1, count + 1)]
    heads = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= head <= count for head in heads) or len(set(heads)) < len(heads):
        raise ValueError(f"--heads {text}: different numbers from 1 to {count} expected, joined by commas")
    return heads
