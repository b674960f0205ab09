"""Write a translation model for other programs: plain fairseq (a checkpoint) or CTranslate2 (a folder).

The model's mechanisms must be off; training with --disagreement is allowed. Otherwise one line says what cannot be
exported. A model written for CTranslate2 is loaded again and compared with fairseq's.
"""

import argparse
from pathlib import Path

PATHS = ("checkpoints", "data")
EXAMPLE = "fairseq-diverse export --to ctranslate2 --data data/multi30k_en_de --out exported average.pt"
TYPES = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", metavar="CHECKPOINT", help="checkpoint of fairseq-train, or an average")
    parser.add_argument("--to", required=True, choices=("fairseq", "ctranslate2", "huggingface"), help="the program")
    parser.add_argument("--out", required=True, type=Path, metavar="PATH", help="a file for fairseq, else a new folder")
    parser.add_argument("--data", metavar="DIR", help="prepared data set of the training (needed for ctranslate2)")
    parser.add_argument("--quantization", choices=TYPES, help="type of CTranslate2's weights (default: float32)")


def main(args: argparse.Namespace) -> None:
    if args.to == "huggingface":
        raise ValueError(
            "--to huggingface: no class of transformers fits fairseq's transformer: Marian's has other positions, and "
            "FSMT's decodes wrongly since it lost its own; use --to ctranslate2"
        )
    if args.quantization and args.to != "ctranslate2":
        raise ValueError(f"--quantization {args.quantization}: goes with --to ctranslate2")
    if args.to == "ctranslate2" and not args.data:
        raise ValueError("--to ctranslate2 needs --data, the prepared data of the model's training")
    if args.to == "fairseq" and args.out.is_dir():
        raise ValueError(f"--out {args.out}: a folder; name a file")
    if args.out.resolve() == Path(args.checkpoints).resolve():
        raise ValueError(f"--out {args.out}: is the checkpoint; name another file")
    from fairseq_diverse import register

    register()
    if args.to == "fairseq":
        from fairseq_diverse.exporting.plain import to_fairseq

        to_fairseq(args.checkpoints, args.out)
        print(f"{args.out}: for fairseq-generate, without --user-dir")
    else:
        from fairseq_diverse.exporting.ctranslate2 import to_ctranslate2

        to_ctranslate2(args.checkpoints, args.data, args.out, args.quantization)
        print(f"{args.out}: for ctranslate2.Translator; in float32 its log probabilities are those of fairseq")
