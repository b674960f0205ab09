"""Make a data set ready for fairseq-train: fetch, extract, clean, tokenize, segment into subwords, binarize.

With --archives, missing archives are downloaded into DIR, or listed where that cannot be, and the raw files are taken
from them into DIR/NAME. Whatever stops the command, the next one resumes. Line counts are compared with
those that the configuration names. With --raw, the raw files are yours, and nothing is left of a run that was stopped.

NAME is a configuration of configs/data/ or a YAML file of your own. The result is one directory: dict.*.txt and the
binarized splits train, valid and test (further test sets: test1, test2, ...), preprocess.json (everything that was
done), and text/ with the same splits as text: cleaned, tokenized (tok.*) and segmented (bpe.*). It appears when it is
complete. Training pairs with an empty side are dropped; line separators inside a line (U+2028, U+0085, ...) and NUL
become a space; both are counted. Lines of valid and test are never dropped.
"""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_diverse.support.paths import config_names, config_path, runs_dir

if TYPE_CHECKING:
    from fairseq_diverse.preparation import DataConfig

EXAMPLE = "fairseq-diverse prepare multi30k_en_de --raw multi30k --out data/multi30k_en_de"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="NAME", help=f"{', '.join(config_names('data'))}, or a YAML file")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--raw", metavar="DIR", type=Path, help="directory of the raw files")
    given.add_argument("--archives", metavar="DIR", type=Path, help="directory of the archives that hold them")
    parser.add_argument("--no-download", action="store_true", help="say which archives are missing, download none")
    parser.add_argument(
        "--accept-counts", action="store_true", help="go on where line counts differ from those that are expected"
    )
    parser.add_argument("--out", type=Path, help="directory to make (default: data/NAME in the directory of runs)")
    parser.add_argument("--strict", action="store_true", help="refuse unclean lines instead of fixing or dropping them")
    parser.add_argument("--overwrite", action="store_true", help="replace a data set that was prepared otherwise")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.preparation import DataConfig

    if args.workers < 1:
        raise ValueError(f"--workers: at least 1 is needed, got {args.workers}")
    if args.raw and (args.no_download or args.accept_counts):
        raise ValueError("--no-download and --accept-counts go with --archives")
    config = DataConfig.load(config_path("data", args.config))
    out = (args.out or runs_dir() / "data" / config.name).resolve()
    if args.raw:
        _prepare(config, args.raw, out, args)
    else:
        _prepare_from_archives(config, out, args)


def _prepare(config: "DataConfig", raw: Path, out: Path, args: argparse.Namespace, **options: Any) -> None:
    from fairseq_diverse.preparation import prepare

    given = {"strict": args.strict, "workers": args.workers, "overwrite": args.overwrite}
    if not prepare(config, raw, out, **given, **options):
        print(f"already prepared: {out}")


def _prepare_from_archives(config: "DataConfig", out: Path, args: argparse.Namespace) -> None:
    from fairseq_diverse.preparation import extraction
    from fairseq_diverse.preparation.download import fetch
    from fairseq_diverse.preparation.prepare import wrong_pairs
    from fairseq_diverse.support.processes import locked

    if not config.sources:
        raise ValueError(f"--archives: {config.name} names no sources; bring its files and use --raw")
    if args.archives.exists() and not args.archives.is_dir():
        raise ValueError(f"--archives {args.archives}: a file; the folder of the archives is expected")
    raw = args.archives / config.name
    work = out.with_name(f".{out.name}.part")
    if not extraction.is_extracted(config, args.archives, raw):
        if args.no_download:
            fetch(config.sources, args.archives, download=False)
        with locked(args.archives):
            fetch(config.sources, args.archives, download=not args.no_download)
            extraction.extract(config, args.archives, raw)
    _compare(extraction.wrong_lines(config, raw), args.accept_counts, "replace the archive")
    with locked(work):
        try:
            _prepare(config, raw, out, args, hold_out=config.sources.hold_out, work=work / "data")
        finally:
            if not (work / "data").exists():  # complete, or nothing to go on with
                shutil.rmtree(work)
    _compare(wrong_pairs(config, out), args.accept_counts, f"{out} is complete all the same")


def _compare(differences: list[str], accept: bool, otherwise: str) -> None:
    if differences and not accept:
        raise ValueError(f"{'; '.join(differences)}; {otherwise}, or add --accept-counts")
    for difference in differences:
        print(f"accepted: {difference}")
