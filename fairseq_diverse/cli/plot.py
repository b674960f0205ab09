"""Draw attention maps, heads of several models, learning curves, results of tables, or sentence lengths."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_diverse import register
from fairseq_diverse.cli import named_checkpoints, named_path, report
from fairseq_diverse.cli.run import add_table_arguments, read_table
from fairseq_diverse.cli.user_dir import add_user_dir
from fairseq_diverse.experiments.kinds.kind import kind_of
from fairseq_diverse.experiments.kinds.lines import grouped
from fairseq_diverse.experiments.tables.load import Table, select_rows
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.pipeline import FILE
from fairseq_diverse.reports.groups import compare_groups, draw_groups
from fairseq_diverse.reports.learning_curves import METRICS, draw_learning_curves, read_training
from fairseq_diverse.reports.lines import compare, measures_of, of_test
from fairseq_diverse.reports.report import tests_of
from fairseq_diverse.reports.row_pictures import (
    MINUTES,
    SPEED,
    curves,
    draw_curves,
    draw_rows,
    draw_verdict,
    published_figure,
)
from fairseq_diverse.reports.sentences import find_records, known_property
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.support.paths import source_prefix
from fairseq_diverse.support.pictures import Figure, add_picture_arguments, fitting, save_figure
from fairseq_diverse.support.tables import one_line, readable

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_diverse.analysis.attention_maps import Panel, SentencePair
    from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel as Model

EXAMPLE = "fairseq-diverse plot attention --path best.pt --data data --source 'A dog runs.' --layer 3 --out maps.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    rows = "results of a table's rows, against a flag, against the baseline, or by groups of test sentences"
    for name, add, draw, summary in (
        ("attention", add_attention, plot_attention, "per-head maps of a sentence pair"),
        ("head-map", add_head_map, plot_head_map, "the encoder heads of several models in two dimensions"),
        ("curves", add_curves, plot_curves, "training and validation loss against updates and time"),
        ("rows", add_rows, plot_rows, rows),
        ("lengths", add_lengths, plot_lengths, "sentence lengths of training sets"),
    ):
        kind = kinds.add_parser(name, help=summary, description=draw.__doc__)
        kind.set_defaults(draw=draw, subparser=kind)
        add(kind)
        add_picture_arguments(kind, "picture to write", required=True)
        add_user_dir(kind)


def main(args: argparse.Namespace) -> None:
    if figure := args.draw(args):
        save_figure(figure, args.out)
        print(args.out)


def add_head_map(parser: argparse.ArgumentParser) -> None:
    models = "baseline=base.pt disagreement=dis.pt"
    parser.epilog = f"example: fairseq-diverse plot head-map {models} --data data/multi30k_en_de --out heads.png"
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="NAME=CHECKPOINT", help="a model and its name in the picture")
    add("--data", required=True, help="binarized data that they were trained on")
    add("--split", default="valid", help="split to average over (default: valid)")
    add("--seed", type=int, default=1, help="seed of t-SNE (default: 1)")


def plot_head_map(args: argparse.Namespace) -> Figure:
    """Draw the encoder heads of several models: on the left by t-SNE of each head's mean output over layers and words
    of a split (Li et al., 2021, Fig. 3), on the right the cosine similarity of every two heads of a model. Trust the
    similarities: where so few points lie depends on the seed of t-SNE. The command prints the mean similarity (1: all
    heads are alike) with pairs of a head and itself, as in the paper, and without."""
    from fairseq_diverse.analysis.head_map import draw_head_map, mean_cosine, mean_heads, similarity
    from fairseq_diverse.models.loading import load_model, require_translation

    register()
    heads: dict[str, Any] = {}
    for name, path in named_checkpoints(args.checkpoints, distinct=True):
        model, task = load_model(path, args.data)
        require_translation(path, task)
        task.load_dataset(args.split)
        batches = task.get_batch_iterator(task.dataset(args.split), max_sentences=64).next_epoch_itr(shuffle=False)
        heads[name] = means = mean_heads(model, batches, task.source_dictionary.pad())
        different = f"; of two different heads {mean_cosine(means):.3f}" * (len(means) > 1)
        alike = f"similarity {similarity(means):.3f}{different}"
        print(f"{one_line(name)}: {len(means)} heads, means over the encoder's layers; {alike}")
    return draw_head_map(heads, args.seed)


def add_curves(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: fairseq-diverse plot curves lite=runs/A/seed1 evolving=runs/B/seed1 --out curves.png"
    add = parser.add_argument
    add("logs", nargs="+", metavar="NAME=LOG", help="a log of fairseq-train --log-format json, or a run's folder")
    loss = "loss: the training objective (default); nll_loss: without label smoothing and regularizers"
    add("--metric", choices=tuple(METRICS), default="loss", help=loss)
    add("--smooth", type=int, metavar="N", help="running mean of N logged values (default: 1/50 of all; 1: as logged)")


def plot_curves(args: argparse.Namespace) -> Figure:
    """Draw training and validation loss against updates and against the minutes spent in updates. The training curve is
    a running mean of the logged values, which are pale; validations are dots."""
    if args.smooth is not None and args.smooth < 1:
        raise UserError(f"--smooth {args.smooth}: at least 1 is needed")
    named = (named_path(text, "LOG") for text in args.logs)
    trainings = grouped((name, read_training(Path(path), args.metric)) for name, path in named)
    return draw_learning_curves(trainings, args.metric, args.smooth)


def add_rows(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: fairseq-diverse plot rows multi30k-li2022 --out heads.png"
    add_table_arguments(parser)
    report.add_comparison_arguments(parser)
    parser.set_defaults(finished=False)
    add = parser.add_argument
    add("--x", metavar="FLAG", help="the flag, then flags that change with it, comma-separated (default: the table's)")
    add("--by", metavar="PROPERTY", help="draw differences in NLL by length, rare-words, attachment or verb-final")
    add("--verdict", action="store_true", help="draw differences to the baseline, of translations in NLL and BLEU")
    measures = "what --x draws: measures of the report, the table's further metrics, speed and epoch_minutes (default: "
    add("--metrics", metavar="LIST", help=f"{measures}bleu,nll)")


def plot_rows(args: argparse.Namespace) -> Figure:
    """Draw the scores of a table's rows, and their differences to the baseline. --x, or a table with `x`: against the
    value of a flag, one curve for rows that differ only in it, means over seeds with one standard deviation (one seed:
    95% bootstrap interval). A row without a number for it is a dashed line. --verdict draws each row's differences to
    its baseline, with intervals, as in `report --verdict`; --by draws differences in NLL by groups of test sentences,
    as in `report --by`. All but --x use the first test set, or that of --test."""
    table = read_table(args)
    if args.by and args.verdict:
        raise UserError("--by and --verdict: one of them")
    against = args.x or (table.x and not args.by and not args.verdict)
    return _draw_against_flag(args, table) if against else _draw_by_row(args, table)


def _draw_against_flag(args: argparse.Namespace, table: Table) -> Figure:
    if refused := [flag for flag in ("seeds", "baseline", "without", "best", "test") if getattr(args, flag)]:
        raise UserError(f"--{refused[0]}: is for --verdict and --by")
    rows = select_rows(table, args.rows)
    kind = kind_of(rows[0])
    if kind.task_table(rows) or any(kind_of(row) is not kind for row in rows):
        raise UserError(f"--x: {table.name} has rows that do not have the same measures; choose others with --rows")
    flags = [flag.strip().removeprefix("--") for flag in args.x.split(",")] if args.x else table.x
    measures = {measure.key: measure for measure in (*kind.measures(rows), *([SPEED, MINUTES] if kind.speeds else ()))}
    usual = ["bleu", "nll"] if "bleu" in measures else [name for name, measure in measures.items() if measure.compared]
    grouped, summaries = curves(rows, flags), report.source_of(args).summaries(rows)
    if not any(summaries.values()):
        of_paper = [key for key in usual if any(published_figure(row, measures[key]) is not None for row in rows)]
        usual = of_paper or usual
    chosen = [name.strip() for name in args.metrics.split(",")] if args.metrics else usual
    if not set(chosen) <= set(measures):
        raise UserError(f"--metrics {args.metrics}: {table.name} has {', '.join(measures)}")
    if not any(summaries.values()) and not any(row.published for row in rows):
        raise UserError(report.nothing_finished(args.table))
    for name in chosen:
        if lacking := [row.name for row in rows if None in map(measures[name].figure, summaries[row.name])]:
            raise UserError(
                f"--metrics {name}: not measured of {', '.join(lacking)}; leave out the metric or these rows"
            )
    return draw_curves(grouped, summaries, flags[0], [measures[name] for name in chosen], table.rows)


def _draw_by_row(args: argparse.Namespace, table: Table) -> Figure:
    """The picture of --by or --verdict, or of the rows' scores."""
    if args.metrics:
        raise UserError(f"--metrics: goes with --x, the flag in which the rows differ; {table.name} has no `x`")
    by = known_property(args.by) if args.by else ""
    selection = report.selection_of(args, table)
    kind, source = selection.kinds[0], selection.source
    runs = selection.of_kind(kind)
    drawn = kind.draws_rows and any(measure.compared for measure in measures_of(runs))
    if not drawn or (by and "by" not in kind.views):
        flag = f"--by {by}: " * bool(by)
        raise UserError(f"plot rows: {flag}not for rows of kind {kind.name}; choose others with --rows")
    names, (test, *_) = tests_of(runs, args.test)
    title = selection.table.title + f": {test}" * (len(names) > 1)
    shown = of_test(runs, test)
    if by:
        lines = compare_groups(shown, find_records(runs.rows, runs.summaries, source.results, source.runs), by, test)
    else:
        lines, measures = list(compare(shown).lines), measures_of(shown)
    if not by and not args.verdict:
        if not any(line.seeds for line in lines):
            raise UserError(report.nothing_finished(args.table))
        return draw_rows(lines, measures, kind.items)
    if not any(line.differences for line in lines):
        flag = f"--by {by}" if by else "--verdict"
        raise UserError(f"{flag}: no row of {selection.table.name} has a finished run beside one of its baseline")
    return draw_groups(lines, f"{title}: by {by}") if by else draw_verdict(lines, measures, title)


def add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: fairseq-diverse plot lengths --data data/multi30k_en_de --out lengths.png"
    parser.add_argument("--data", required=True, nargs="+", metavar="DATA", help="binarized data sets")


def plot_lengths(args: argparse.Namespace) -> Figure:
    """Draw the lengths of training sentences in tokens: source and target, one panel per data set (Li and Luo, 2022,
    Fig. 3). The command prints the shortest, the longest and the mean length."""
    from fairseq_diverse.analysis.sentence_lengths import draw_sentence_lengths
    from fairseq_diverse.data.lengths import sentence_lengths

    drawn = {}
    for data in dict.fromkeys(args.data):
        name = Path(data).resolve().name
        drawn[data if name in drawn else name] = sides = sentence_lengths(data)
        for side, lengths in zip(("source", "target"), sides, strict=True):
            print(f"{data}: {side}: {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.2f}")
    return draw_sentence_lengths(drawn)


def add_attention(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"example: {EXAMPLE}"
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


def plot_attention(args: argparse.Namespace) -> None:
    """Draw attention maps: the weights of each head for one sentence pair, one panel per head. Rows are attending
    words, columns are attended words. Weights are summed over the subwords of a column and averaged over those of a row
    (--subwords: one row and column per subword), with interacting heads also over the heads of the keys. An encoder
    layer with syntax or enlivening gets one row of panels per head: its weights without any mechanism, and with the
    mechanisms, marked as enlivened, pruned or important; with syntax, the first row starts with the factors of the
    weights. Several checkpoints are drawn side by side, one row per head (Zhang et al., 2021, Fig. 5). More:
    docs/analyses.md."""
    if args.split is not None and args.sentence is None:
        raise UserError(f"--split {args.split}: is for --sentence; leave it out with --source")
    from fairseq_diverse.analysis.attention_maps import draw_panels, side_by_side
    from fairseq_diverse.models.loading import load_model, require_translation

    register()
    alone = len(args.path) == 1 and ("=" not in args.path[0] or Path(args.path[0]).exists())
    named = [("", args.path[0])] if alone else named_checkpoints(args.path, distinct=True)
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
    """Of one layer a panel for each head, or for syntax or enlivening in the encoder a row for each head; of several
    layers a row for each layer."""
    from fairseq_diverse.analysis import attention_maps as maps_of

    one_layer = args.layers is None
    layers = str(args.layer) if one_layer else args.layers.replace(",", "+")
    if not one_layer and layers != "all" and not set(layers) <= set("0123456789-+"):
        raise UserError(f"--layers {args.layers!r}: all, or numbers of layers such as 1-3 or 1,4 expected")
    on = args.component if layers == "all" else f"{args.component}:{layers}"
    flag = "--layer" if one_layer else "--layers"
    queries, keys = pair.labels(args.component, args.subwords)
    panels = []
    for (_, layer), maps in maps_of.attention_maps(model, pair.sample, on, flag).items():
        heads, weights = parse_heads(args.heads, len(maps)), maps_of.by_words(maps[:, 0], queries, keys)
        prefix = f"{name}, " if name else "" if one_layer else f"layer {layer}, "
        compared = one_layer and args.component == "encoder"
        plain = maps_of.compare_with_plain(model, pair.sample, layer) if compared else None
        if plain:
            enlivening = model.encoder.layers[layer - 1].self_attn.mechanism("enliven")
            prune = enlivening is not None and enlivening.prune
            panels += maps_of.comparison_panels(plain.by_words(keys), weights, heads, prune, prefix)
        else:
            columns = len(heads) if not one_layer else 1 if name else fitting(4, maps_of.panel_width(keys))
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
    """The trees of a raw sentence, by the parsers of the data's trees. Raises UserError: the data have none, or the
    parsers find no tree."""
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
