"""Draw attention maps, heads of several models, learning curves, results of tables, or sentence lengths."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_diverse.cli import named_checkpoints, named_path
from fairseq_diverse.cli.report import (
    add_comparison_arguments,
    add_source_arguments,
    choose,
    nothing_finished,
    read_summaries,
)
from fairseq_diverse.cli.run import add_table_arguments, read_table
from fairseq_diverse.cli.user_dir import add_user_dir
from fairseq_diverse.reports.row_curves import METRICS, curves, draw_curves
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.paths import source_prefix
from fairseq_diverse.support.pictures import FORMATS_TEXT, check_name, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fairseq_diverse.experiments.tables.load import Table
    from fairseq_diverse.preparation import Preprocessing
    from fairseq_diverse.reports.learning_curves import Training

EXAMPLE = (
    "fairseq-diverse plot attention --path checkpoint_best.pt --data data/multi30k_en_de "
    "--source 'A dog runs.' --component cross --layer 3 --out maps.png"
)


ATTENTION = """Draw attention maps: the weights of each head for one sentence pair, one panel per head.

Rows are attending words, columns are attended words. Weights are summed over the subwords of a column and averaged over
those of a row (--subwords: one row and column per subword). All panels share one colour scale; the colour bar shows its
end. With interacting heads, a panel shows one head's queries, averaged over the heads of the keys.

An encoder layer with syntax or enlivening gets one row of panels per head: its weights without any mechanism, and with
the mechanisms, marked as enlivened, pruned or important for this sentence. With syntax, the first row starts with the
factors by which syntax multiplies the weights (white: masked; the largest of a row is 1).
Several checkpoints are drawn side by side, one row per head (Zhang et al., 2021, Fig. 5).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    attention = kinds.add_parser(
        "attention",
        help="per-head maps of a sentence pair",
        description=ATTENTION,
        epilog=f"example:\n  {EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    attention.add_argument(
        "--path", required=True, nargs="+", metavar="CHECKPOINT", help="one checkpoint, or several as NAME=CHECKPOINT"
    )
    attention.add_argument("--data", required=True, help="prepared data set that it was trained on")
    source = attention.add_mutually_exclusive_group(required=True)
    source.add_argument("--source", metavar="TEXT", help="raw source sentence")
    source.add_argument("--sentence", type=int, metavar="N", help="sentence N of the data's --split, with its trees")
    attention.add_argument("--split", help="split that --sentence counts in (default: test)")
    attention.add_argument(
        "--target",
        metavar="TEXT",
        help="raw target sentence (default: the model's translation, up to 10 plus twice the source's subwords; for "
        "several checkpoints the reference)",
    )
    attention.add_argument(
        "--component",
        choices=("encoder", "decoder", "cross"),
        default="encoder",
        help="attention to draw (default: encoder)",
    )
    layer = attention.add_mutually_exclusive_group(required=True)
    layer.add_argument("--layer", type=int, help="one layer, counted from 1 at the bottom")
    layer.add_argument("--layers", metavar="all|1-3|1,4", help="several layers, one row of panels each")
    attention.add_argument("--heads", metavar="1,2", help="only these heads, counted from 1 (default: all)")
    attention.add_argument("--subwords", action="store_true", help="rows and columns are subwords, not words")
    attention.set_defaults(read_paths=("path", "data"))

    heads = kinds.add_parser(
        "head-map",
        help="the encoder heads of several models in two dimensions",
        description="Draw the encoder heads of several models: on the left by t-SNE of each head's mean output over "
        "layers and words of a split (Li et al., 2021, Fig. 3), on the right the cosine similarity of every two heads "
        "of a model. Trust the similarities: where so few points lie depends on the seed of t-SNE. The command prints "
        "the mean similarity (1: all heads are alike) with pairs of a head and itself, as in the paper, and without.",
        epilog="example: fairseq-diverse plot head-map baseline=base.pt disagreement=dis.pt --data data/multi30k_en_de "
        "--out heads.png",
    )
    heads.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT", help="a model and its name in the picture")
    heads.add_argument("--data", required=True, help="binarized data that they were trained on")
    heads.add_argument("--split", default="valid", help="split to average over (default: valid)")
    heads.add_argument("--seed", type=int, default=1, help="seed of t-SNE (default: 1)")
    heads.set_defaults(read_paths=("checkpoints", "data"))

    logs = kinds.add_parser(
        "curves",
        help="training and validation loss against updates and time",
        description="Draw training and validation loss against updates and against the minutes spent in updates. The "
        "training curve is a running mean of the logged values, which are pale; validations are dots.",
        epilog="example: fairseq-diverse plot curves lite=runs/A/seed1 evolving=runs/B/seed1 --out curves.png",
    )
    logs.add_argument(
        "logs", nargs="+", metavar="NAME=LOG", help="a log of fairseq-train --log-format json, or a run's folder"
    )
    logs.add_argument(
        "--metric",
        choices=("loss", "nll_loss"),
        default="loss",
        help="loss: the training objective (default); nll_loss: without label smoothing and regularizers",
    )
    logs.add_argument(
        "--smooth", type=int, metavar="N", help="running mean of N logged values (default: 1/50 of all; 1: as logged)"
    )

    table = kinds.add_parser(
        "rows",
        help="results of a table's rows against a flag, against the baseline, or by groups of test sentences",
        description="Draw a table's results against the value of a flag: one curve for rows that differ only in it, "
        "means over seeds with one standard deviation (one seed: 95% bootstrap interval). A row without a number for "
        "it is a dashed line. --verdict draws each row's differences in NLL and BLEU to its baseline, with intervals, "
        "as in `report --verdict`; --by draws differences in NLL by groups of test sentences, as in `report --by`. "
        "Both use the first test set, or that of --test.",
        epilog="example: fairseq-diverse plot rows multi30k-li2022 --out heads.png",
    )
    add_table_arguments(table)
    add_source_arguments(table)
    add_comparison_arguments(table)
    table.set_defaults(finished=False)
    table.add_argument(
        "--x", metavar="FLAG", help="the flag, then flags that change with it, comma-separated (default: the table's)"
    )
    table.add_argument(
        "--by", metavar="PROPERTY", help="draw differences in NLL by length, rare-words, attachment or verb-final"
    )
    table.add_argument("--verdict", action="store_true", help="draw differences in NLL and BLEU to the baseline")
    table.add_argument(
        "--metrics",
        default="bleu,nll",
        metavar="LIST",
        help=f"what is drawn, out of {', '.join(METRICS)} (default: bleu,nll)",
    )

    lengths = kinds.add_parser(
        "lengths",
        help="sentence lengths of training sets",
        description="Draw the lengths of training sentences in tokens: source and target, one panel per data set (Li "
        "and Luo, 2022, Fig. 3). The command prints the shortest, the longest and the mean length.",
        epilog="example: fairseq-diverse plot lengths --data data/multi30k_en_de --out lengths.png",
    )
    lengths.add_argument("--data", required=True, nargs="+", metavar="DATA", help="binarized data sets")
    lengths.set_defaults(read_paths=("data",))

    for kind in kinds.choices.values():
        kind.set_defaults(subparser=kind)
        kind.add_argument("--out", type=Path, required=True, metavar="FILE", help=f"picture to write, {FORMATS_TEXT}")
        add_user_dir(kind)


def main(args: argparse.Namespace) -> None:
    check_name(args.out)
    kinds = {
        "attention": plot_attention,
        "head-map": plot_head_map,
        "curves": plot_curves,
        "rows": plot_rows,
        "lengths": plot_lengths,
    }
    kinds[args.kind](args)


def plot_lengths(args: argparse.Namespace) -> None:
    from fairseq_diverse.analysis.sentence_lengths import draw_sentence_lengths
    from fairseq_diverse.data.lengths import sentence_lengths

    found = {}
    for data in dict.fromkeys(args.data):
        name = Path(data).resolve().name
        found[data if name in found else name] = sides = sentence_lengths(data)
        for side, lengths in zip(("source", "target"), sides, strict=True):
            print(f"{data}: {side}: {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.2f}")
    save_figure(draw_sentence_lengths(found), args.out)
    print(args.out)


def distinct_checkpoints(texts: Sequence[str]) -> list[tuple[str, str]]:
    """As ``named_checkpoints``, for pictures where each name stands for one checkpoint."""
    named = named_checkpoints(texts)
    for n, (name, path) in enumerate(named):
        if name in dict(named[:n]):
            raise UserError(f"{name}={path}: the name {name} comes twice")
    return named


def plot_head_map(args: argparse.Namespace) -> None:
    from fairseq_diverse import register
    from fairseq_diverse.analysis.head_map import draw_head_map, mean_cosine, mean_heads, similarity
    from fairseq_diverse.models.loading import load_model, require_translation

    register()
    heads: dict[str, Tensor] = {}
    for name, path in distinct_checkpoints(args.checkpoints):
        model, task = load_model(path, args.data)
        require_translation(path, task)
        task.load_dataset(args.split)
        batches = task.get_batch_iterator(task.dataset(args.split), max_sentences=64).next_epoch_itr(shuffle=False)
        heads[name] = mean_heads(model, batches, task.source_dictionary.pad())
        own = heads[name]
        different = f"; of two different heads {mean_cosine(own):.3f}" * (len(own) > 1)
        print(f"{name}: {len(own)} heads, means over the encoder's layers; similarity {similarity(own):.3f}{different}")
    save_figure(draw_head_map(heads, args.seed), args.out)
    print(args.out)


def plot_curves(args: argparse.Namespace) -> None:
    from fairseq_diverse.reports.learning_curves import draw_learning_curves, read_training

    if args.smooth is not None and args.smooth < 1:
        raise UserError(f"--smooth {args.smooth}: at least 1 is needed")
    found: dict[str, list[Training]] = {}
    for text in args.logs:
        name, path = named_path(text, "LOG")
        found.setdefault(name, []).append(read_training(Path(path), args.metric))
    save_figure(draw_learning_curves(found, args.metric, args.smooth), args.out)
    print(args.out)


def plot_rows(args: argparse.Namespace) -> None:
    from fairseq_diverse.experiments.kinds.kind import kind_of
    from fairseq_diverse.experiments.tables.load import select_rows

    metrics = args.metrics.split(",")
    if not set(metrics) <= set(METRICS):
        raise UserError(f"--metrics {args.metrics}: known are {', '.join(METRICS)}")
    table = read_table(args)
    rows = select_rows(table, args.rows)
    if other := next((row for row in rows if kind_of(row).name != "translation"), None):
        raise UserError(f"plot rows: draws rows that translate; row {other.name} does not; choose others with --rows")
    if args.by and args.verdict:
        raise UserError("--by and --verdict: one of them")
    if args.by or args.verdict:
        save_figure(_differences(args, table), args.out)
        print(args.out)
        return
    if given := [flag for flag in ("baseline", "without", "best", "test") if getattr(args, flag)]:
        raise UserError(f"--{given[0]}: is for --verdict and --by")
    flags = [flag.strip().removeprefix("--") for flag in args.x.split(",")] if args.x else table.x
    if not flags:
        raise UserError(f"--x: needed, since {table.name} has no `x`: the flag in which the rows differ")
    found, summaries = curves(rows, flags), read_summaries(args, rows)
    if not any(summaries.values()):
        raise UserError(nothing_finished(args.table))
    figure = draw_curves(found, summaries, flags[0], metrics)
    save_figure(figure, args.out)
    print(args.out)


def _differences(args: argparse.Namespace, table: "Table") -> "Figure":
    """The picture of --by or --verdict."""
    from fairseq_diverse.cli.report_views import folder_of_runs, tests_of
    from fairseq_diverse.experiments.sentences import find_records, known_property
    from fairseq_diverse.reports.groups import compare_groups, draw_groups
    from fairseq_diverse.reports.report import compare, of_test
    from fairseq_diverse.reports.verdict import draw_verdict

    if args.by:
        known_property(args.by)
    asked = choose(args, table)
    names, (test, *_) = tests_of(asked)
    view, further = of_test(asked.rows, asked.summaries, test), of_test(*asked.others, test)
    if args.verdict:
        lines = compare(*view, further)
    else:
        records = find_records(asked.rows, asked.summaries, args.results, folder_of_runs(args))
        lines = compare_groups(*view, records, args.by, test, further)
    if not any("nll_delta" in line for line in lines):
        given = f"--by {args.by}" if args.by else "--verdict"
        raise UserError(f"{given}: no row of {asked.table.name} has a finished run beside one of its baseline")
    title = f"{asked.table.title}: {test}" if len(names) > 1 else asked.table.title
    return draw_groups(lines, f"{title}: by {args.by}") if args.by else draw_verdict(*view, lines, title)


def plot_attention(args: argparse.Namespace) -> None:
    if args.split is not None and args.sentence is None:
        raise UserError(f"--split {args.split}: is for --sentence; leave it out with --source")
    from fairseq_diverse import register
    from fairseq_diverse.analysis.attention_maps import (
        attention_maps,
        by_words,
        compare_with_plain,
        comparison_panels,
        draw_panels,
        encode_pair,
        head_panels,
        map_prefix,
        side_by_side,
    )  # fmt: skip
    from fairseq_diverse.models.loading import load_model, require_translation
    from fairseq_diverse.preparation import Preprocessing

    register()
    named = distinct_checkpoints(args.path) if len(args.path) > 1 else [("", args.path[0])]
    if len(named) > 1 and args.layers is not None:
        raise UserError(f"--layers {args.layers}: of one checkpoint; several are drawn at one --layer")
    split = args.split or "test"
    prepared = Preprocessing.load(args.data)
    given = args.target is not None or len(named) == 1 or args.component == "encoder"
    if not given and args.sentence is None:
        raise UserError("--target: needed with --source, since the translations of several checkpoints differ")
    name = "cross-attention" if args.component == "cross" else f"{args.component} self-attention"
    layers = (
        f"layer {args.layer}" if args.layers is None else f"layers {args.layers}".replace("layers all", "all layers")
    )
    title = f"{name}, {layers}"
    drawn = []
    for of_model, path in named:
        model, task = load_model(path, args.data)
        require_translation(path, task)
        preprocessing = prepared.of_model(task)
        source, target, trees = args.source, args.target, None
        if args.sentence is not None:
            needed = model.encoder.plan.trees
            source, trees = sentence_of_split(Path(args.data), split, preprocessing, args.sentence, needed)
            target = target if given else line_of_split(Path(args.data), split, preprocessing.target, args.sentence)
        pair = encode_pair(model, task, preprocessing, source, target, trees)
        prefix = f"{of_model}, " if of_model else ""
        queries, keys = pair.labels(args.component, args.subwords)
        if args.layers is not None:
            layers = args.layers.replace(",", "+")
            if layers != "all" and not set(layers) <= set("0123456789-+"):
                raise UserError(f"--layers {args.layers!r}: all, or numbers of layers such as 1-3 or 1,4 expected")
            on = args.component if layers == "all" else f"{args.component}:{layers}"
            panels = []
            for (_, layer), maps in attention_maps(model, pair.sample, on, "--layers").items():
                heads = parse_heads(args.heads, len(maps))
                of_layer = f"layer {layer}, {map_prefix(model, args.component, layer)}"
                panels += head_panels(by_words(maps[:, 0], queries, keys), heads, of_layer, len(heads))
        else:
            (maps,) = attention_maps(model, pair.sample, f"{args.component}:{args.layer}", "--layer").values()
            heads = parse_heads(args.heads, len(maps))
            of_words = by_words(maps[:, 0], queries, keys)
            of_layer = prefix + map_prefix(model, args.component, args.layer)
            panels = head_panels(of_words, heads, of_layer, 1 if of_model else 4)
            if args.component == "encoder" and (comparison := compare_with_plain(model, pair.sample, args.layer)):
                enlivening = model.encoder.layers[args.layer - 1].self_attn.mechanism("enliven")
                prune = enlivening is not None and enlivening.prune
                panels = comparison_panels(comparison.by_words(keys), of_words, heads, prune, prefix)
        drawn.append((pair, panels))
    pair, unit = drawn[0][0], "subword" if args.subwords else "word"
    attending = {"encoder": f"source {unit}s", "decoder": f"target {unit}s, read last"}
    attending["cross"] = f"target {unit}s, to be written next"
    axes = [f"attending: {attending[args.component]}"]
    axes.append(f"attended to: {'target' if args.component == 'decoder' else 'source'} {unit}s")
    panels = side_by_side([panels for _, panels in drawn]) if len(drawn) > 1 else drawn[0][1]
    figure = draw_panels(panels, *pair.labels(args.component, args.subwords), title, (axes[0], axes[1]))
    save_figure(figure, args.out)
    print(" ".join(pair.source))
    for (of_model, _), (pair, _) in zip(named, drawn, strict=True):
        print(f"{of_model}: {' '.join(pair.target)}".removeprefix(": "))
    print(f"{args.out}: {title}")


def sentence_of_split(
    data: Path, split: str, preprocessing: "Preprocessing", number: int, needed: Sequence[str]
) -> "tuple[str, Tensor | None]":
    """Raw sentence ``number`` of a split, and its trees if a model needs them."""
    from fairseq_diverse.data.trees import SyntaxDataset

    line, source = line_of_split(data, split, preprocessing.source, number), preprocessing.source
    prefix = source_prefix(data, split, source, preprocessing.target)
    return line, SyntaxDataset(str(prefix), needed)[number - 1] if needed else None


def line_of_split(data: Path, split: str, language: str, number: int) -> str:
    """Raw line ``number`` of a split, counted from 1."""
    from fairseq_diverse.support.files import read_lines

    lines = read_lines(data / "text" / f"{split}.{language}")
    if not 1 <= number <= len(lines):
        raise ValueError(f"--sentence {number}: the {split} split has sentences 1 to {len(lines)}")
    return lines[number - 1]


def parse_heads(text: str | None, count: int) -> list[int]:
    """The numbers in ``--heads``; all ``count`` heads where it is absent."""
    if text is None:
        return list(range(1, count + 1))
    heads = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= head <= count for head in heads) or len(set(heads)) < len(heads):
        raise ValueError(f"--heads {text}: different numbers from 1 to {count} expected, joined by commas")
    return heads
