"""Check every property of a mechanism, on every component on which it is defined.

Prints a table with one row per property and one column per component: a tick, or FAILED, with the differences below.
The exit code is 1 if anything fails. Column `roberta` is the encoder of a language model, for mechanisms that need no
trees. The settings checked are the ``examples`` of the mechanism's class, else every choice of ``kind``, else the
defaults.
"""

import argparse
import difflib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fairseq_diverse.cli.user_dir import register_with
from fairseq_diverse.support.errors import FORGOTTEN

PLACES = ("encoder", "decoder", "cross", "roberta")
EXAMPLE = "fairseq-diverse check temperature --user-dir examples/temperature"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="all, or a mechanism by the name in its flags, such as routing")
    parser.add_argument("--on", choices=PLACES, help="only on this component (default: wherever it is defined)")


def main(args: argparse.Namespace) -> int:
    from fairseq_diverse.attention import mechanisms  # noqa: F401  (without fairseq, which takes seconds)
    from fairseq_diverse.attention.registry import MECHANISMS

    if args.name not in (*MECHANISMS, "all"):
        near = "".join(f"nearest: {name}; " for name in difflib.get_close_matches(args.name, MECHANISMS, n=1))
        known = f"{near}known are {', '.join(MECHANISMS)}, and all"
        raise ValueError(f"{args.name}: not a mechanism; {known}{FORGOTTEN * (args.user_dir is None)}")
    from fairseq_diverse.testing.properties import defined_at

    register_with(args.user_dir)
    names = list(MECHANISMS) if args.name == "all" else [args.name]
    columns = {name: [place for place in defined_at(name) if args.on in (None, place)] for name in names}
    if not any(columns.values()):
        raise ValueError(f"--on {args.on}: {args.name} is defined on {', '.join(defined_at(args.name))} only")
    logger = logging.getLogger("fairseq_diverse")
    before = logger.level
    logger.setLevel(logging.ERROR)  # warm starts log warnings
    try:
        failures = [check(name, places, args.user_dir) for name, places in columns.items() if places]
    finally:
        logger.setLevel(before)
    return 1 if any(failures) else 0


def check(name: str, columns: Sequence[str], user_dir: str | None) -> int:
    """Print the table of one mechanism at some places; returns the number of failed checks."""
    from fairseq_diverse.attention.registry import MECHANISMS
    from fairseq_diverse.testing import properties
    from fairseq_diverse.testing.models import ROBERTA, at, examples, places

    settings = examples(name)
    print(f"{name}: {len(settings)} setting{'s' * (len(settings) > 1)} at {', '.join(columns)}", flush=True)
    failed: dict[str, list[str]] = {}  # what differs -> where
    width = max(map(len, [*properties.PROPERTIES, "with every other mechanism"]))

    def row(title: str, cell: Callable[[str], str]) -> None:
        print(f"{title:{width}}  " + "  ".join(f"{cell(column):8}" for column in columns).rstrip(), flush=True)

    def attempt(title: str, column: str, *checks: Callable[[], object]) -> str:
        fine = True
        for number, run in enumerate(checks, 1):
            try:
                run()
            except Exception as error:  # a mechanism may raise anything
                where = f", setting {number}" if len(checks) > 1 else ""
                failed.setdefault(properties.told(error), []).append(f"{title} at {column}{where}")
                fine = False
        return "✓" if fine else "FAILED"

    def of_property(title: str, holds: Callable[[Any], None], column: str) -> str:
        checks = [partial(holds, at(flags, column)) for flags in settings if column in places(flags)]
        return attempt(title, column, *checks) if properties.applies(title, column) else "-"

    def of_components(title: str, column: str, check: Callable[[], object]) -> str:
        return "-" if column == ROBERTA else attempt(title, column, check)  # whose attention is the encoder's

    row("property", str)
    row("what the class declares exists", lambda c: of_components("declared", c, partial(properties.declared, name)))
    for title, holds in properties.PROPERTIES.items():
        row(title, partial(of_property, title, holds))
    if MECHANISMS[name].neutral is not None or MECHANISMS[name].neutral_zeros:
        neutral = partial(properties.neutral_is_the_baseline, name)
        row("neutral setting = baseline", lambda c: attempt("neutral setting", c, partial(neutral, c)))
    others = partial(properties.with_others, name)
    row("with every other mechanism", lambda c: of_components("with others", c, partial(others, c)))
    row("reload in a new process", lambda c: of_components("reload", c, lambda: _reload(name, c, user_dir)))
    for problem, titles in failed.items():
        further = f" (and {n} more {'properties' if n > 1 else 'property'})" if (n := len(titles) - 1) else ""
        print(f"  {titles[0]}: {problem}{further}")
    count = sum(map(len, failed.values()))
    print(f"{name}: {f'{count} failed' if count else 'every property holds'}\n", flush=True)
    return count


def _reload(name: str, column: str, user_dir: str | None) -> None:
    from fairseq_diverse.testing import properties
    from fairseq_diverse.testing.models import at, components, examples

    flags = [at(flags, column) for flags in examples(name) if column in components(flags)]
    differences = properties.reload(flags, user_dir)
    properties.require(max(differences) <= 1e-6, f"outputs differ by {max(differences):.2g}")
