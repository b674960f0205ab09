"""Make a data set ready for fairseq-train: clean, tokenize, segment into subwords, binarize.

NAME is a configuration of configs/data/ or a YAML file of your own. The result is one directory: dict.*.txt and the
binarized splits train, valid and test, preprocess.json (everything that was done), and text/ with the same splits as
text: cleaned, tokenized (tok.*) and segmented (bpe.*). It appears when it is complete; nothing is left of a run that
was stopped. Training pairs with an empty side are dropped; line separators inside a line (U+2028, U+0085, ...) and
NUL become a space; both are counted. Lines of valid and test are never dropped.
"""

import argparse
from pathlib import Path

from fairseq_diverse.paths import config_names, config_path, runs_dir

EXAMPLE = "fairseq-diverse prepare multi30k_en_de --raw multi30k --out data/multi30k_en_de"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="NAME", help=f"{', '.join(config_names('data'))}, or a YAML file")
    parser.add_argument("--raw", type=Path, required=True, help="directory of the raw files")
    parser.add_argument("--out", type=Path, help="directory to make (default: data/NAME in the directory of runs)")
    parser.add_argument(
        "--strict", action="store_true", help="refuse unclean lines instead of mending or dropping them"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a data set that was prepared otherwise")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.preparation import DataConfig, prepare

    if args.workers < 1:
        raise ValueError(f"--workers: at least 1 is needed, got {args.workers}")
    config = DataConfig.load(config_path("data", args.config))
    out = (args.out or runs_dir() / "data" / config.name).resolve()
    made = prepare(config, args.raw, out, strict=args.strict, workers=args.workers, overwrite=args.overwrite)
    if not made:
        print(f"already prepared: {out}")
