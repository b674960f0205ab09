"""Upload a shared model, a folder of `export --to safetensors`, to the Hugging Face hub. Log in with `hf auth login`.

Files that are there are replaced; README.md is the model card, complete it first.
"""

import argparse
from pathlib import Path

from fairseq_diverse import register

EXAMPLE = "fairseq-diverse push shared/my-model --to USER/my-model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder of the shared model")
    parser.add_argument("--to", required=True, metavar="USER/NAME", help="name on the hub; created where it is new")
    parser.add_argument("--private", action="store_true", help="only for you, where it is new")


def main(args: argparse.Namespace) -> None:
    register()
    from fairseq_diverse.models.sharing import push

    print(push(args.folder, args.to, args.private))
