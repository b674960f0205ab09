"""Tables of text for a terminal."""

from collections.abc import Collection, Sequence


def in_columns(rows: Sequence[Sequence[object]], left: Collection[int] = (0,)) -> str:
    """Rows of cells, two spaces between columns: those in ``left``, counted from 0, to the left, the others right."""
    from tabulate import tabulate

    cells = [list(map(str, row)) for row in rows]
    aligned = ["left" if number in left else "right" for number in range(len(cells[0]))]
    return tabulate(cells, tablefmt="plain", disable_numparse=True, colalign=aligned, preserve_whitespace=True)
