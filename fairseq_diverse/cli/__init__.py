"""The console command ``fairseq-diverse``: one module per subcommand.

A subcommand module has a docstring (its help), ``EXAMPLE``, ``add_arguments(parser)`` and ``main(args)``,
which returns an exit code or None. The files of arguments in ``READ`` must exist before anything slow is imported.
A ``ValueError`` or ``OSError`` is a user error and printed as one line.
"""

import argparse
import difflib
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from fairseq_diverse import __version__
from fairseq_diverse.cli import user_dir
from fairseq_diverse.host.starting import import_less
from fairseq_diverse.support.errors import FORGOTTEN, printable
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.support.pictures import for_paper
from fairseq_diverse.support.processes import Stopped, stopped_by_signals

EXAMPLE = "fairseq-diverse run toy --help    # the flags of a command, and an example"
QUIET, VERBOSE = ("-q", "--quiet"), ("-v", "--verbose")
AS_WRITTEN = argparse.RawDescriptionHelpFormatter
READ = ("checkpoint", "checkpoints", "path", "data", "folder", "gold")  # arguments that are files to be read
SHELLS = ("bash", "zsh", "tcsh")
DOCTOR = "fairseq-diverse doctor"
COMMANDS = {
    "doctor": "check the installation",
    "user-dir": "print the folder to give to fairseq's commands as --user-dir",
    "demo": "a comparison on the embedded corpus, from the data to a page",
    "toy": "write the embedded corpus",
    "prepare": "clean, tokenize, segment and binarize a corpus or a GLUE task",
    "parse": "parse tokenized text with spaCy, benepar, stanza or a PCFG",
    "score-trees": "compare constituency trees with gold trees",
    "binarize-syntax": "add the trees of the source to binarized data",
    "translate": "translate raw text",
    "run": "train, translate and score the rows of a table",
    "report": "show the results of a table",
    "score": "score translations, with intervals and significance tests",
    "average": "average checkpoints",
    "export": "write a model to share, or for plain fairseq",
    "push": "upload a shared model to the Hugging Face hub",
    "convert": "turn a model of transformers into a checkpoint of fairseq",
    "size": "count the parameters and FLOPs of an architecture",
    "heads": "measure what heads attend to and how different they are",
    "plot": "draw attention maps, learning curves and results of a table",
    "check": "check every property of a mechanism",
    "logic": "write data for logical inference",
    "accuracy": "measure the accuracy of classifiers",
    "glue": "score fine-tuned models on GLUE tasks",
    "rationales": "explain what a classifier of documents predicts",
}


class Parser(argparse.ArgumentParser):
    """argparse's, which takes numbers that are none of C, and makes an empty list of ``--flag=--``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", int, whole_number)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)


def whole_number(text: str) -> int:
    """An ``int`` of C, in place of Python's. Raises ArgumentTypeError, ValueError: too large, or not a whole number."""
    if abs(number := int(text)) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text}: at most 2147483647")
    return number


whole_number.__name__ = "int"  # argparse names it in "invalid int value"


def first_lines(numbers: Sequence[int]) -> str:
    """The first ten line numbers, for messages."""
    return ", ".join(map(str, numbers[:10])) + " ..." * (len(numbers) > 10)


def named_path(text: str, what: str) -> tuple[str, str]:
    """The two sides of ``NAME=PATH``; ``what`` is the name of the path in errors."""
    name, _, path = text.partition("=")
    if not (name and path):
        raise ValueError(f"{text}: write NAME={what}")
    return name, path


def named_checkpoints(texts: Sequence[str], distinct: bool = False) -> list[tuple[str, str]]:
    """The two sides of each ``NAME=CHECKPOINT``, of files that exist. ``distinct``: no name comes twice."""
    named = [named_path(text, "CHECKPOINT") for text in texts]
    for number, (name, path) in enumerate(named):
        if not (Path(path).is_file() or Path(path, "config.json").is_file()):  # of a shared model
            raise ValueError(f"{path}: no such checkpoint")
        if distinct and name in dict(named[:number]):
            raise ValueError(f"{name}={path}: the name {name} comes twice")
    return named


def build_parser(argv: list[str], whole: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands; only that of the first word of ``argv`` has its flags, or all of the ``whole``."""
    about, example = "Attention diversity for neural machine translation.", f"example:\n  {EXAMPLE}"
    parser = Parser(prog="fairseq-diverse", description=about, epilog=example, formatter_class=AS_WRITTEN)
    parser.add_argument("--version", action="version", version=f"fairseq-diverse {__version__}")
    _add_own_flags(parser)
    parser.add_argument("--completion", choices=SHELLS, help="print the completion script for a shell")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name in argv[:1] or whole:  # import only this command: the others may be slow or need extras
            module = importlib.import_module(f"fairseq_diverse.cli.{name.replace('-', '_')}")
            texts: dict[str, Any] = {"description": module.__doc__, "epilog": f"example:\n  {module.EXAMPLE}"}
            subparser = subparsers.add_parser(name, help=summary, formatter_class=AS_WRITTEN, **texts)
            module.add_arguments(subparser)
            _add_own_flags(subparser)
            if name in user_dir.COMMANDS:
                user_dir.add_user_dir(subparser)
            subparser.set_defaults(main=module.main, subparser=subparser)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _add_own_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that any command takes, before it and behind it; `main` takes them."""
    parser.add_argument(*QUIET, action="store_true", help="no progress bars, no warnings")
    parser.add_argument(*VERBOSE, action="store_true", help="show fairseq's log messages")


def _check_paths(args: argparse.Namespace) -> None:
    """Check that what a command reads exists, before it imports torch, which takes seconds."""
    flags = args.subparser._option_string_actions
    for name in getattr(args, "read_paths", READ):
        value = getattr(args, name, None)
        kind = "checkpoint" if name in ("checkpoint", "checkpoints", "path") else "file or folder"
        for text in map(str, value if isinstance(value, list) else [value] if value is not None else []):
            named = text.partition("=")[2] or text
            if Path(text).exists() or Path(named).exists():
                continue
            missing = [[path for path in of.split(os.pathsep) if not Path(path).exists()] for of in (named, text)]
            if fewest := min(missing, key=len):
                raise ValueError(f"{f'--{name} ' * (f'--{name}' in flags)}{fewest[0]}: no such {kind}")


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():  # closed, as by some daemons
        if getattr(sys, name) is None:  # else the next file would get its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    # before fairseq is imported, whose text-to-speech task otherwise sets the root logger to DEBUG
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # of torch, about fairseq
    for message in ("'pin_memory' argument", "Support for mismatched key_padding_mask", "`torch.jit.script` is "):
        warnings.filterwarnings("ignore", message)
    if isinstance(sys.stdout, io.TextIOWrapper):  # text is UTF-8 in every locale; names of files may be anything
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    import_less()
    if {*QUIET} & {*argv}:
        os.environ["TQDM_DISABLE"] = "1"
        logging.root.setLevel(logging.ERROR)
    if {*VERBOSE} & {*argv}:
        logging.root.setLevel(logging.INFO)
    argv = [word for word in argv if word not in QUIET + VERBOSE]
    folder, command = None, argv[0] if argv else ""
    try:
        if command in user_dir.COMMANDS:
            only = Parser(add_help=False, allow_abbrev=False)  # other flags exist only after the folder is imported
            user_dir.add_user_dir(only)
            known, argv = only.parse_known_args(argv)
            folder = known.user_dir
        if folder is not None and command != "average":
            user_dir.register_with(folder)
        if command == "--completion" and argv[1:2] and argv[1] in SHELLS:
            shtab = needed("shtab", f"--completion needs shtab; install it: {install('completion')}")
            print(shtab.complete(build_parser([], whole=True), argv[1]))
            return 0
        parser = build_parser(argv)
        if command and not command.startswith("-") and command not in COMMANDS:
            near = difflib.get_close_matches(command, COMMANDS, n=1)
            parser.error("; nearest: ".join([f"no command {command}", *near]) + "; --help lists all")
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            command_parser = getattr(args, "subparser", parser)
            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, command_parser._option_string_actions, n=1)
            problem = "; nearest: ".join([f"unrecognized arguments: {' '.join(unknown)}", *near])
            placed = flag.endswith("-on") and command in user_dir.COMMANDS and folder is None
            command_parser.error(problem + FORGOTTEN * placed)
        args.user_dir, args.words = folder, argv
        _check_paths(args)
        with stopped_by_signals(), for_paper(args) if hasattr(args, "no_title") else nullcontext():
            code = args.main(args) or 0
            print(end="", flush=True)
            return code
    except (ValueError, OSError) as error:
        _discard_output()
        if isinstance(error, BrokenPipeError) and error.filename is None:  # of stdout, as in `report ... | head`
            return 141
        print(f"fairseq-diverse {command}: {printable(error)}", file=sys.stderr)
        return 2
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name == "fairseq_diverse":
            raise
        absent = f"{name} is not installed; install what the commands need: {install('fairseq')}"
        problem = absent if isinstance(error, ModuleNotFoundError) and error.name == name else f"{error}; see {DOCTOR}"
        print(f"fairseq-diverse {command}: {printable(problem)}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"\nfairseq-diverse {command}: stopped by signal {stop.args[0]}", file=sys.stderr)
        return 128 + stop.args[0]
    except KeyboardInterrupt:
        print(f"\nfairseq-diverse {command}: interrupted", file=sys.stderr)
        return 130


def _discard_output() -> None:
    """Discard output that stdout cannot take; otherwise the interpreter reports it again at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
