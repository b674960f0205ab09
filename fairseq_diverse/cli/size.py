"""Count the parameters and FLOPs of an architecture on the model itself.

Takes every model flag of fairseq-train (--encoder-embed-dim, --share-all-embeddings, --routing, ...). FLOPs are those
of one full forward pass over one sentence pair, 2 per multiply-add, where every attention map is computed. They include
matrix products, convolutions, layer normalization and elementwise products, but not embeddings and the softmax layer. A
language model (diverse_bert, diverse_roberta, ...) reads one sentence of --source-length tokens.
--data also prints the largest recommended number of interacting heads (Li and Luo, 2022, Eq. 13) and, for constituency
trees, the mean of the sentences' largest phrase layers, which --phrase-limit should cover (Zhang et al., 2021).
"""

import argparse
import json
import sys
from typing import Any

from fairseq_diverse import register
from fairseq_diverse.support.tables import in_columns

RESOLVED: dict[str, Any] = {"argument_default": argparse.SUPPRESS, "conflict_handler": "resolve"}
EXAMPLE = "fairseq-diverse size --arch diverse_transformer --routing em --routing-on encoder:1-2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    register()
    parser.usage = "fairseq-diverse size {TABLE --row ROW | --arch ARCH} [any model flag] [--source-length N] ..."
    parser.allow_abbrev = False
    add = parser.add_argument
    add("table", nargs="?", metavar="TABLE", help="a table, of which --row names the model")
    add("--row", metavar="ROW", help="the row of TABLE whose model is measured; flags change it")
    add("--arch", help="diverse_transformer, diverse_transformer_lite, ...")
    add("--source-length", type=int, default=30, metavar="N", help="source tokens (default: 30)")
    add("--target-length", type=int, metavar="N", help="target tokens (default: 30)")
    add("--vocabulary", type=int, metavar="N", help="size of each vocabulary (default: those of --data, or 32000)")
    add("--data", metavar="DATA_BIN", help="also measure the training sentences of this data set")
    add("--source-lang", metavar="SOURCE", help="source language of --data (default: by file names)")
    add("--target-lang", metavar="TARGET", help="target language of --data, with --source-lang")
    add("--json", action="store_true", help="print JSON")
    _add_model_flags(parser.add_argument_group("model flags", **RESOLVED))


def _add_model_flags(flags: Any) -> None:
    from fairseq_diverse.models.roberta import DiverseRobertaModel
    from fairseq_diverse.models.t5 import DiverseT5Model

    for model in (DiverseRobertaModel, DiverseT5Model):  # they share most flags; T5 has all of the transformer
        model.add_args(flags)


def _with_row(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments with the model flags of the row that they name, where they do not give others."""
    from fairseq_diverse.cli.user_dir import register_with
    from fairseq_diverse.experiments.flags import to_arguments
    from fairseq_diverse.experiments.tables.load import load_table, select_rows

    table = load_table(args.table)
    if args.row is None:
        raise ValueError(f"--row: which row of {args.table}? {', '.join(table.rows)}")
    row, *others = select_rows(table, args.row, "--row")
    if others:
        raise ValueError(f"--row {args.row}: one row at a time")
    register_with(row.user_dir or None)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, **RESOLVED)
    _add_model_flags(parser)
    parser.add_argument("--arch")
    overrides = {name: value for name, value in vars(args).items() if name != "arch" or value is not None}
    return argparse.Namespace(**vars(parser.parse_known_args(to_arguments(row.train))[0]) | overrides)


def main(args: argparse.Namespace) -> None:
    if args.table is not None:
        args = _with_row(args)
    elif args.arch is None or args.row is not None:
        raise ValueError("which model? Give --arch ARCH, or TABLE --row ROW")
    from fairseq_diverse.analysis.size import measure_size
    from fairseq_diverse.data.lengths import most_heads, phrase_layers, training_lengths, vocabularies
    from fairseq_diverse.host.programs import architectures
    from fairseq_diverse.models.roberta import DiverseRobertaModel

    if args.data and issubclass(architectures().get(args.arch, object), DiverseRobertaModel):
        raise ValueError(f"--data: sentence pairs are for translation, not for {args.arch}; leave the flag out")
    pair = args.source_lang, args.target_lang
    if (pair[0] is None) != (pair[1] is None):
        raise ValueError("--source-lang and --target-lang go together")
    lengths = training_lengths(args.data, *pair) if args.data else None
    symbols = args.vocabulary
    if symbols is None:
        symbols = vocabularies(args.data, *pair) if args.data else 32000
    size = measure_size(args, symbols, args.source_length, args.target_length)
    if lengths is not None:
        limits = {side: most_heads(width, lengths.source) for side, width in size["widths"].items()}
        counts = {side: range(1, count + 1) for side, count in limits.items()}
        admissible = {side: [n for n in counts[side] if width % n == 0] for side, width in size["widths"].items()}
        size["data"] = {**lengths._asdict(), "h_max": limits, "heads": admissible}
        if layers := phrase_layers(args.data, *pair):
            size["data"]["phrase_layers"] = {**layers._asdict(), "limit": layers.limit}
        for component, heads in size["interacting"].items():
            side = "encoder" if component == "encoder" else "decoder"
            if heads > limits[side]:
                bound = f"floor({size['widths'][side]} / {lengths.source:.2f}), width over mean source length"
                text = f"{heads} heads in {component} attention are more than h_max = {limits[side]} = {bound}"
                print(f"warning: {text}", file=sys.stderr)
    print(json.dumps(size, indent=2) if args.json else _table(size))


def _table(size: dict[str, Any]) -> str:
    parameters, flops = size["parameters"], size["flops"]
    tokens = " + ".join(str(size[f"{side}_length"]) for side in ("source", "target") if f"{side}_length" in size)
    rows = [
        ("", "parameters", f"FLOPs ({tokens} tokens)"),
        *((side, f"{parameters[side]:,}", _short(flops[side])) for side in size["widths"]),
        ("without embeddings and softmax", f"{parameters['without_embeddings']:,}", _short(flops["total"])),
        ("  added by mechanisms", f"{parameters['added']:,}", _short(flops["added"])),
    ]
    if "classifier" in parameters:
        rows.append((f"total, {size['vocabulary']:,} symbols", f"{parameters['total']:,}", ""))
        rows.append(("  with BERT's pooler for LM head", f"{parameters['classifier']:,}", ""))
    else:
        symbols = size["vocabulary"]
        counts = f"{symbols:,} symbols a side" if isinstance(symbols, int) else "{:,} and {:,} symbols".format(*symbols)
        rows.append((f"total, {counts}", f"{parameters['total']:,}", ""))
    lines = [size["arch"], in_columns(rows)]
    if data := size.get("data"):
        means = f"{data['source']:.2f} and {data['target']:.2f} tokens (without the end of the sentence)"
        lines += ["", f"{data['sentences']:,} training pairs, mean length {means}"]
        sides = {width: side for side, width in size["widths"].items()}  # one where both widths are the same
        for width, side in sides.items():
            heads = ", ".join(map(str, data["heads"][side])) or "none"
            bound = f"floor({width} / {data['source']:.2f}) = {data['h_max'][side]}"
            lines.append(f"h_max = {bound}; numbers of heads up to it that divide the width: {heads}")
        if layers := data.get("phrase_layers"):
            sentences = f"{layers['sentences']:,} training sentences with a constituency tree"
            covers = f"2k + 1 covers it from --phrase-limit {layers['limit']}"
            lines.append(f"largest phrase layer: mean {layers['mean']:.2f} of {sentences}; {covers}")
    return "\n".join(lines)


def _short(flops: int) -> str:
    return f"{flops / 1e9:.3f}G" if flops >= 1e9 else f"{flops / 1e6:.2f}M"
