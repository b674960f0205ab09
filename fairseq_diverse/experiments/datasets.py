"""A prepared data set that rows name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class DataSet:
    """A prepared data set; ``hash`` is None while it is not prepared (for ``--dry-run``).

    ``tests`` are its test sets by name, the first one first, each with its own hash where it has one. ``glue`` is the
    task of GLUE that it is, empty for other data. ``preparation`` are the flags with which ``fairseq-diverse
    prepare`` makes it, for messages; or says in words what to do by hand.
    """

    name: str
    path: Path
    source: str
    target: str
    hash: str | None
    tests: Mapping[str, str | None] = field(default_factory=lambda: {"test": None})
    glue: str = ""
    preparation: str = ""

    @property
    def subsets(self) -> dict[str, str]:
        """The splits that can be translated, by name; the first test set is also called test."""
        return {"valid": "valid", "test": "test"} | {name: f"test{n or ''}" for n, name in enumerate(self.tests)}
