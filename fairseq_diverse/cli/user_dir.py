"""Print the folder of this package, to give to fairseq's commands as --user-dir. They then work in any folder."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_diverse.support.errors import with_place
from fairseq_diverse.support.paths import PACKAGE

EXAMPLE = 'fairseq-train DATA --user-dir "$(fairseq-diverse user-dir)" --arch diverse_transformer ...'

# the commands that build models or read their flags; `average` needs no model but has the flag, too
COMMANDS = ("accuracy", "average", "check", "export", "glue", "heads", "plot", "report", "run", "size", "translate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def main(args: argparse.Namespace) -> None:
    print(PACKAGE)


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--user-dir``."""
    parser.add_argument(
        "--user-dir", metavar="DIR", help="folder of a Python package that registers mechanisms of your own"
    )


def take_user_dir(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """``--user-dir`` of a command line, and the rest, whose flags exist only after the folder is imported."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_user_dir(parser)
    known, rest = parser.parse_known_args(list(argv))
    return known.user_dir, rest


def register_with(user_dir: str | None) -> None:
    """Register the package with fairseq, and import a user's folder as ``fairseq-train --user-dir`` does.

    Raises:
        ValueError: the folder does not exist, or fairseq cannot import it.
    """
    if user_dir is not None and not Path(user_dir, "__init__.py").is_file():
        raise ValueError(f"--user-dir {user_dir}: no such folder, or one without an __init__.py")
    if user_dir and (name := Path(os.path.abspath(user_dir)).name) in sys.stdlib_module_names:
        raise ValueError(f"--user-dir {user_dir}: {name} is a module of Python; call the folder otherwise")
    from fairseq_diverse import register
    from fairseq_diverse.host.programs import import_user_dir

    register()
    if user_dir is None:
        return
    try:
        import_user_dir(user_dir)
    except ValueError:
        raise
    except SyntaxError as error:
        raise ValueError(f"--user-dir {user_dir}: {error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:  # the folder's code may raise anything
        raise ValueError(f"--user-dir {user_dir}: {with_place(error, user_dir)}") from error
