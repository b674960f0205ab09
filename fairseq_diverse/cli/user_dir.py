"""Print the folder of this package, to give to fairseq's commands as --user-dir. They then work in any folder."""

import argparse

from fairseq_diverse import register
from fairseq_diverse.host.programs import check_user_dir, import_user_dir
from fairseq_diverse.support.paths import PACKAGE

EXAMPLE = 'fairseq-train DATA --user-dir "$(fairseq-diverse user-dir)" --arch diverse_transformer ...'

# the commands that build models or read their flags; `average` needs no model but has the flag, too
COMMANDS = {"accuracy", "average", "check", "export", "glue", "heads", "plot", "rationales", "report", "run", "size"}
COMMANDS |= {"translate"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def main(args: argparse.Namespace) -> None:
    print(PACKAGE)


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user-dir", metavar="DIR", help="folder of a package that registers mechanisms of your own")


def register_with(user_dir: str | None) -> None:
    """Register the package with fairseq, and import a user's folder as ``fairseq-train --user-dir`` does. Raises
    ValueError: the folder does not exist, or fairseq cannot import it."""
    if user_dir is not None:
        check_user_dir(user_dir)
    register()
    if user_dir is not None:
        import_user_dir(user_dir)
