"""Parameters and FLOPs of an architecture, counted on the model itself.

Takes every model flag of fairseq-train (--encoder-embed-dim, --share-all-embeddings, --routing, ...). FLOPs are those
of one sentence pair in a full pass, 2 a multiply-add, on the route that makes every attention map: matrix products,
convolutions, layer normalization and elementwise products; without embeddings and softmax layer.
"""

import argparse
import json
from typing import Any

EXAMPLE = "fairseq-diverse size --arch diverse_transformer --routing em --routing-on encoder:1-2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_diverse import register
    from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel

    register()
    parser.usage = "fairseq-diverse size --arch ARCH [any model flag] [--source-length N] [--target-length N] ..."
    parser.allow_abbrev = False
    parser.add_argument("--arch", required=True, help="diverse_transformer, diverse_transformer_lite, ...")
    parser.add_argument("--source-length", type=int, default=30, metavar="N", help="tokens (default: 30)")
    parser.add_argument("--target-length", type=int, default=30, metavar="N", help="tokens (default: 30)")
    parser.add_argument("--vocabulary", type=int, default=32000, metavar="N", help="symbols a side (default: 32000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    flags = parser.add_argument_group("model flags", argument_default=argparse.SUPPRESS)
    DiverseTransformerModel.add_args(flags)


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.evaluation.size import measure_size

    size = measure_size(args, args.vocabulary, args.source_length, args.target_length)
    print(json.dumps(size, indent=2) if args.json else _table(size))


def _table(size: dict[str, Any]) -> str:
    parameters, flops = size["parameters"], size["flops"]
    rows = [
        ("", "parameters", f"FLOPs ({size['source_length']} + {size['target_length']} tokens)"),
        *((side, f"{parameters[side]:,}", _short(flops[side])) for side in ("encoder", "decoder")),
        ("without embeddings and softmax", f"{parameters['without_embeddings']:,}", _short(flops["total"])),
        ("  added by mechanisms", f"{parameters['added']:,}", _short(flops["added"])),
        (f"total, {size['vocabulary']:,} symbols a side", f"{parameters['total']:,}", ""),
    ]
    return "\n".join([size["arch"], *(f"{name:<32}{first:>14}{second:>26}".rstrip() for name, first, second in rows)])


def _short(flops: int) -> str:
    return f"{flops / 1e9:.3f}G" if flops >= 1e9 else f"{flops / 1e6:.2f}M"
