"""A report as text, Markdown, LaTeX and CSV (HTML: page.py)."""

import csv
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fairseq_diverse.experiments.kinds.kind import KINDS
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.tables import in_columns, latex, one_line

Cells = Sequence[Sequence[str]]  # of a table, the header first


class Block(NamedTuple):
    """A table, its title, the notes below it."""

    cells: Cells
    title: str
    notes: Sequence[str]


MARKDOWN = re.compile(r"[\\`*\[\]~|$]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word means nothing
NOT_IN_CSV = ("machines", "versions", "commits", "missing")
BLOCK = re.compile(r"^(?:(?=[#>+=-])|\d+(?=[.)]))")  # what makes a line a heading, a list or a quotation


def as_text(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """Columns aligned, the first to the left and the others to the right; long headers have several lines."""
    header, *rows = [list(map(one_line, row)) for row in cells]
    widths = [max([len(row[number]) for row in rows] + [9]) for number in range(len(header))]
    wrapped = [textwrap.fill(text, width, break_long_words=False) for text, width in zip(header, widths, strict=True)]
    return "\n".join([one_line(title), "", in_columns([wrapped, *rows]), "", *map(one_line, notes)])


def as_markdown(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """A pipe table; notes are a list."""
    header, *rows = [list(map(escaped, row)) for row in cells]
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
    title, *notes = [BLOCK.sub(r"\g<0>\\", escaped(text.strip())) for text in (title, *notes)]
    return "\n".join([title, "", *lines, "", *(f"- {note}" for note in notes)])


def escaped(text: str) -> str:
    """Text as Markdown shows it."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", one_line(text))
    return MARKDOWN.sub(r"\\\g<0>", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text))


def lost_figures(old: str, new: str, gone: Sequence[str]) -> list[str]:
    """The rows whose figures in Markdown tables became "not run" or "not measured", or empty in rows that are ``gone``
    (all, where it is empty); published figures are none."""
    before, after = _cells_of(old), _cells_of(new)
    names = set(map(escaped, gone))
    unknown = {key[:2] for key, cell in before.items() if "not run" in cell}  # already
    figures = {key for key, cell in before.items() if re.search(r"\d", cell) and "published" not in key[2]}
    lost = []
    for key in (key for key in before if key in figures and key[:2] not in unknown):
        now, row = after.get(key, ""), key[1]
        if now in ("not run", "not measured") or (not now and (not names or row in names)):
            lost.append(row)
    return list(dict.fromkeys(lost))


def _cells_of(text: str) -> dict[tuple[int, str, str], str]:
    """Cells of the tables in a Markdown text but those of the first column, by number of the table, row and heading."""
    cells: dict[tuple[int, str, str], str] = {}
    number = 0
    header: list[str] = []
    for line in text.splitlines():
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if row and header:
            cells |= {(number, row[0], heading): cell for heading, cell in zip(header[1:], row[1:], strict=False)}
        else:
            number, header = number + bool(row), row
    return cells


def as_latex(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """A floating table for the package booktabs; the title is its caption, notes are below."""

    def line(row: Sequence[str]) -> str:
        return " & ".join(map(latex, row)) + r" \\"

    columns = "l" + "r" * (len(cells[0]) - 1)
    lines = [r"% \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{latex(title)}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line(cells[0]), r"\midrule", *map(line, cells[1:])]
    lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\footnotesize {latex(note)}" for note in notes)]
    return "\n".join([*lines, r"\end{table}"])


def as_csv(content: Mapping[str, Any], names: str | None) -> str:
    """The lines of a report as JSON has them, one a row, with the columns of these names, joined by commas; values in
    values have columns such as ``published.bleu``. UserError: there is no such column."""
    rows = [dict(_flat(line)) for line in _lines(content)]
    header = list(dict.fromkeys(name for row in rows for name in row))
    chosen = [name.strip() for name in names.split(",")] if names is not None else header
    if unknown := [name for name in chosen if name not in header]:
        raise UserError(f"--columns: no column {', '.join(unknown)}; there are: {', '.join(header)}")
    text = io.StringIO()
    table = csv.DictWriter(text, chosen, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().rstrip("\n")


def _lines(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """With the test set and the property of groups that a line is of, where there are several tables."""
    for test, by_property in content.get("groups", {}).items():
        for name, table in by_property.items():
            yield from ({"test": test, "by": name, **line} for line in table["rows"])
    for test, table in content.get("tests", {}).items():
        yield from ({"test": test, **line} for line in table["rows"])
    if "tests" not in content:
        yield from content.get("rows", ())
    for kind in KINDS:  # of those that are shown beside
        yield from content.get(kind, ())


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values inside a value, with their names joined by points; those of lists are counted from 1."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value, start=1):
            if name or key not in NOT_IN_CSV:
                yield from _flat(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, one_line(value) if isinstance(value, str) else value
