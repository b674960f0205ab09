"""Write a translation model for plain fairseq, whose models other programs convert.

The model's mechanisms must be off; training with --disagreement is allowed. Otherwise one line says what cannot be
exported.
"""

import argparse
from pathlib import Path

PATHS = ("checkpoints",)
EXAMPLE = "fairseq-diverse export --to fairseq --out plain.pt average.pt"
OTHERS = {
    "ctranslate2": "convert the file of --to fairseq with ct2-fairseq-converter (docs/export.md)",
    "huggingface": "no class of transformers fits fairseq's transformer: Marian's has other positions, and FSMT's "
    "decodes wrongly since it lost its own",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", metavar="CHECKPOINT", help="checkpoint of fairseq-train, or an average")
    parser.add_argument("--to", required=True, choices=("fairseq", *OTHERS), help="the program")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="checkpoint to write")


def main(args: argparse.Namespace) -> None:
    if args.to in OTHERS:
        raise ValueError(f"--to {args.to}: {OTHERS[args.to]}")
    if args.out.is_dir():
        raise ValueError(f"--out {args.out}: a folder; name a file")
    if args.out.resolve() == Path(args.checkpoints).resolve():
        raise ValueError(f"--out {args.out}: is the checkpoint; name another file")
    from fairseq_diverse import register

    register()
    from fairseq_diverse.models.plain import to_fairseq

    to_fairseq(args.checkpoints, args.out)
    print(f"{args.out}: for fairseq-generate, without --user-dir")
