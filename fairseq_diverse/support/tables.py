"""Text and tables for terminals, pages and pictures."""

import unicodedata
from collections.abc import Collection, Sequence


def one_line(text: str) -> str:
    """Text without line breaks and characters that steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def readable(text: str) -> str:
    """Text of any language, without control characters; those that join letters or set their direction are kept."""
    return "".join(" " if unicodedata.category(character) in ("Cc", "Cs") else character for character in text)


def in_columns(rows: Sequence[Sequence[object]], left: Collection[int] = (0,)) -> str:
    """Rows of cells, two spaces between columns: those in ``left``, counted from 0, to the left, the others right."""
    from tabulate import tabulate

    cells = [list(map(str, row)) for row in rows]
    aligned = ["left" if number in left else "right" for number in range(len(cells[0]))]
    return tabulate(cells, tablefmt="plain", disable_numparse=True, colalign=aligned, preserve_whitespace=True)
