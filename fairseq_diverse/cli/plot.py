"""Draw attention maps, heads of several models, learning curves, results of tables, or sentence lengths."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_diverse.cli import distinct_checkpoints, named_path, plot_attention
from fairseq_diverse.cli.report import (
    add_comparison_arguments,
    add_source_arguments,
    nothing_finished,
    selection_of,
    source_of,
)
from fairseq_diverse.cli.run import add_table_arguments, read_table
from fairseq_diverse.cli.user_dir import add_user_dir
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import add_picture_arguments, for_paper, save_figure
from fairseq_diverse.support.tables import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fairseq_diverse.experiments.kinds.lines import Measure
    from fairseq_diverse.experiments.rows import Row
    from fairseq_diverse.experiments.tables.load import Table
    from fairseq_diverse.reports.learning_curves import Training

EXAMPLE = plot_attention.EXAMPLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for add, draw in (
        (plot_attention.add_parser, plot_attention.plot_attention),
        (add_head_map, plot_head_map),
        (add_curves, plot_curves),
        (add_rows, plot_rows),
        (add_lengths, plot_lengths),
    ):
        kind = add(kinds)
        kind.set_defaults(subparser=kind, draw=draw)
        add_picture_arguments(kind, "picture to write", required=True)
        add_user_dir(kind)


def main(args: argparse.Namespace) -> None:
    with for_paper(args):
        args.draw(args)


def add_head_map(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser(
        "head-map",
        help="the encoder heads of several models in two dimensions",
        description="Draw the encoder heads of several models: on the left by t-SNE of each head's mean output over "
        "layers and words of a split (Li et al., 2021, Fig. 3), on the right the cosine similarity of every two heads "
        "of a model. Trust the similarities: where so few points lie depends on the seed of t-SNE. The command prints "
        "the mean similarity (1: all heads are alike) with pairs of a head and itself, as in the paper, and without.",
        epilog="example: fairseq-diverse plot head-map baseline=base.pt disagreement=dis.pt --data data/multi30k_en_de "
        "--out heads.png",
    )
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="NAME=CHECKPOINT", help="a model and its name in the picture")
    add("--data", required=True, help="binarized data that they were trained on")
    add("--split", default="valid", help="split to average over (default: valid)")
    add("--seed", type=int, default=1, help="seed of t-SNE (default: 1)")
    parser.set_defaults(read_paths=("checkpoints", "data"))
    return parser


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
        heads[name] = means = mean_heads(model, batches, task.source_dictionary.pad())
        different = f"; of two different heads {mean_cosine(means):.3f}" * (len(means) > 1)
        alike = f"similarity {similarity(means):.3f}{different}"
        print(f"{one_line(name)}: {len(means)} heads, means over the encoder's layers; {alike}")
    save_figure(draw_head_map(heads, args.seed), args.out)
    print(args.out)


def add_curves(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser(
        "curves",
        help="training and validation loss against updates and time",
        description="Draw training and validation loss against updates and against the minutes spent in updates. The "
        "training curve is a running mean of the logged values, which are pale; validations are dots.",
        epilog="example: fairseq-diverse plot curves lite=runs/A/seed1 evolving=runs/B/seed1 --out curves.png",
    )
    parser.add_argument(
        "logs", nargs="+", metavar="NAME=LOG", help="a log of fairseq-train --log-format json, or a run's folder"
    )
    parser.add_argument(
        "--metric",
        choices=("loss", "nll_loss"),
        default="loss",
        help="loss: the training objective (default); nll_loss: without label smoothing and regularizers",
    )
    parser.add_argument(
        "--smooth", type=int, metavar="N", help="running mean of N logged values (default: 1/50 of all; 1: as logged)"
    )
    return parser


def plot_curves(args: argparse.Namespace) -> None:
    from fairseq_diverse.reports.learning_curves import draw_learning_curves, read_training

    if args.smooth is not None and args.smooth < 1:
        raise UserError(f"--smooth {args.smooth}: at least 1 is needed")
    trainings: dict[str, list[Training]] = {}
    for text in args.logs:
        name, path = named_path(text, "LOG")
        trainings.setdefault(name, []).append(read_training(Path(path), args.metric))
    save_figure(draw_learning_curves(trainings, args.metric, args.smooth), args.out)
    print(args.out)


def add_rows(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser(
        "rows",
        help="results of a table's rows, against a flag, against the baseline, or by groups of test sentences",
        description="Draw the scores of a table's rows, and their differences to the baseline. --x, or a table with "
        "`x`: against the value of a flag, one curve for rows that differ only in it, means over seeds with one "
        "standard deviation (one seed: 95% bootstrap interval). A row without a number for it is a dashed line. "
        "--verdict draws each row's differences to its baseline, with intervals, as in `report --verdict`; --by draws "
        "differences in NLL by groups of test sentences, as in `report --by`. All but --x use the first test set, or "
        "that of --test.",
        epilog="example: fairseq-diverse plot rows multi30k-li2022 --out heads.png",
    )
    add_table_arguments(parser)
    add_source_arguments(parser)
    add_comparison_arguments(parser)
    parser.set_defaults(finished=False)
    add = parser.add_argument
    add("--x", metavar="FLAG", help="the flag, then flags that change with it, comma-separated (default: the table's)")
    add("--by", metavar="PROPERTY", help="draw differences in NLL by length, rare-words, attachment or verb-final")
    add("--verdict", action="store_true", help="draw differences to the baseline, of translations in NLL and BLEU")
    add(
        "--metrics",
        metavar="LIST",
        help="what --x draws: measures of the report, the table's further metrics, speed and epoch_minutes (default: "
        "bleu,nll)",
    )
    return parser


def plot_rows(args: argparse.Namespace) -> None:
    from fairseq_diverse.experiments.tables.load import select_rows

    table = read_table(args)
    if args.by and args.verdict:
        raise UserError("--by and --verdict: one of them")
    if args.x or (table.x and not args.by and not args.verdict):
        figure = _against_flag(args, table, select_rows(table, args.rows))
    else:
        figure = _by_row(args, table)
    save_figure(figure, args.out)
    print(args.out)


def _against_flag(args: argparse.Namespace, table: "Table", rows: "list[Row]") -> "Figure":
    """The picture of --x."""
    from fairseq_diverse.experiments.kinds.kind import kind_of
    from fairseq_diverse.reports.row_curves import MINUTES, SPEED, curves, draw_curves

    if given := [flag for flag in ("seeds", "baseline", "without", "best", "test") if getattr(args, flag)]:
        raise UserError(f"--{given[0]}: is for --verdict and --by")
    kind = kind_of(rows[0])
    if kind.task_table(rows) or any(kind_of(row) is not kind for row in rows):
        raise UserError(f"--x: {table.name} has rows that do not have the same measures; choose others with --rows")
    flags = [flag.strip().removeprefix("--") for flag in args.x.split(",")] if args.x else table.x
    measures = {measure.key: measure for measure in (*kind.measures(rows), *([SPEED, MINUTES] if kind.speeds else ()))}
    chosen = [name.strip() for name in args.metrics.split(",")] if args.metrics else _default_metrics(measures)
    if not set(chosen) <= set(measures):
        raise UserError(f"--metrics {args.metrics}: {table.name} has {', '.join(measures)}")
    grouped, summaries = curves(rows, flags), source_of(args).summaries(rows)
    theirs = {row.name: row for row in rows if row.published}
    if not any(summaries.values()) and not theirs:
        raise UserError(nothing_finished(args.table))
    return draw_curves(grouped, summaries, flags[0], [measures[name] for name in chosen], table.rows)


def _default_metrics(measures: "dict[str, Measure]") -> list[str]:
    """BLEU and NLL of translations, of other kinds what is compared."""
    return ["bleu", "nll"] if "bleu" in measures else [name for name, measure in measures.items() if measure.compared]


def _by_row(args: argparse.Namespace, table: "Table") -> "Figure":
    """The picture of --by or --verdict, or of the rows' scores."""
    from fairseq_diverse.reports.comparable import measures_of
    from fairseq_diverse.reports.groups import compare_groups, draw_groups
    from fairseq_diverse.reports.lines import compare, of_test
    from fairseq_diverse.reports.report import tests_of
    from fairseq_diverse.reports.row_dots import draw_rows, draw_verdict
    from fairseq_diverse.reports.sentences import find_records, known_property

    if args.metrics:
        raise UserError(f"--metrics: goes with --x, the flag in which the rows differ; {table.name} has no `x`")
    by = known_property(args.by) if args.by else ""
    selection = selection_of(args, table)
    kind, source = selection.kinds[0], selection.source
    if not kind.draws_rows or (by and "by" not in kind.views):
        given = f"--by {by}: " * bool(by)
        raise UserError(f"plot rows: {given}not for rows of kind {kind.name}; choose others with --rows")
    runs = selection.of_kind(kind)
    names, (test, *_) = tests_of(runs, args.test)
    title = selection.table.title + f": {test}" * (len(names) > 1)
    shown = of_test(runs, test)
    if by:
        groups = compare_groups(shown, find_records(runs.rows, runs.summaries, source.results, source.runs), by, test)
        compared, figure = any(line.differences for line in groups), partial(draw_groups, groups, f"{title}: by {by}")
    else:
        lines, measures = compare(shown).lines, measures_of(shown)
        compared = any(line.differences for line in lines)
        figure = partial(draw_verdict, lines, measures, title)
        if not args.verdict:
            if not any(line.seeds for line in lines):
                raise UserError(nothing_finished(args.table))
            return draw_rows(lines, measures, kind.items)
    if not compared:
        given = f"--by {by}" if by else "--verdict"
        raise UserError(f"{given}: no row of {selection.table.name} has a finished run beside one of its baseline")
    return figure()


def add_lengths(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser(
        "lengths",
        help="sentence lengths of training sets",
        description="Draw the lengths of training sentences in tokens: source and target, one panel per data set (Li "
        "and Luo, 2022, Fig. 3). The command prints the shortest, the longest and the mean length.",
        epilog="example: fairseq-diverse plot lengths --data data/multi30k_en_de --out lengths.png",
    )
    parser.add_argument("--data", required=True, nargs="+", metavar="DATA", help="binarized data sets")
    parser.set_defaults(read_paths=("data",))
    return parser


def plot_lengths(args: argparse.Namespace) -> None:
    from fairseq_diverse.analysis.sentence_lengths import draw_sentence_lengths
    from fairseq_diverse.data.lengths import sentence_lengths

    drawn = {}
    for data in dict.fromkeys(args.data):
        name = Path(data).resolve().name
        drawn[data if name in drawn else name] = sides = sentence_lengths(data)
        for side, lengths in zip(("source", "target"), sides, strict=True):
            print(f"{data}: {side}: {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.2f}")
    save_figure(draw_sentence_lengths(drawn), args.out)
    print(args.out)
