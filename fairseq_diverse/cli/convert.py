"""Turn a model of transformers into a checkpoint of fairseq with this package's attentions, to fine-tune it.

DIR is a folder that save_pretrained of transformers wrote, or one of the Hugging Face hub: config.json, the weights
(model.safetensors or pytorch_model.bin) and the model or vocabulary of the subwords. Known are BERT, T5 1.0 and T5 1.1.
No code in it is run. The new folder has model.pt, dict.txt, and what `fairseq-diverse prepare` needs of the subwords.
"""

import argparse
from pathlib import Path

from fairseq_diverse import register

EXAMPLE = "fairseq-diverse convert t5-base --out t5-base-fairseq"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder of the model")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")


def main(args: argparse.Namespace) -> None:
    register()
    from fairseq_diverse.models.converting import convert

    print(f"{args.out}: {convert(args.folder, args.out)}")
