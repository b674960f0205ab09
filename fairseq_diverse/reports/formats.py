"""A table of text cells, its header first, and notes below it, as text, Markdown or LaTeX (HTML: page.py)."""

import re
import textwrap
import unicodedata
from collections.abc import Sequence

from fairseq_diverse.support.tables import in_columns

Cells = Sequence[Sequence[str]]
Block = tuple[Cells, str, Sequence[str]]  # a table, its title, the notes below it

GREEK = {chr(code): unicodedata.name(chr(code)).split()[-1].lower() for code in range(0x3B1, 0x3CA) if code != 0x3C2}
# Characters that LaTeX reads as commands, and those that its default fonts lack
LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{"|": r"\textbar{}", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"[": "{[}", "]": "{]}"},  # after \\\\ a bracket would start a length
        **{letter: f"$\\{name.replace('lamda', 'lambda')}$" for letter, name in GREEK.items() if name != "omicron"},
        **{"Δ": r"$\Delta$", "≤": r"$\leq$", "≥": r"$\geq$", "±": r"$\pm$", "<": "$<$", ">": "$>$", "*": "$^{*}$"},
    }
)

MARKDOWN = re.compile(r"[\\`*\[\]~|$]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word means nothing
BLOCK = re.compile(r"^(?:(?=[#>+=-])|\d+(?=[.)]))")  # what makes a line a heading, a list or a quotation


def one_line(text: str) -> str:
    """Text without line breaks and characters that steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def as_text(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """Columns aligned, the first to the left and the others to the right; long headers have several lines."""
    header, *rows = [list(map(one_line, row)) for row in cells]
    widths = [max([len(row[number]) for row in rows] + [9]) for number in range(len(header))]
    wrapped = [textwrap.fill(text, width, break_long_words=False) for text, width in zip(header, widths, strict=True)]
    return "\n".join([one_line(title), "", in_columns([wrapped, *rows]), "", *map(one_line, notes)])


def as_markdown(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """A pipe table; notes are a list."""
    rule = ["---", *["---:"] * (len(cells[0]) - 1)]

    def escape(text: str) -> str:
        text = re.sub(r"&(?=#?\w+;)", "&amp;", one_line(text))
        return MARKDOWN.sub(r"\\\g<0>", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text))

    def escape_block(text: str) -> str:
        return BLOCK.sub(r"\g<0>\\", escape(text.strip()))

    lines = [
        f"| {' | '.join(row)} |" for row in (map(escape, cells[0]), rule, *(map(escape, row) for row in cells[1:]))
    ]
    return "\n".join([escape_block(title), "", *lines, "", *(f"- {escape_block(note)}" for note in notes)])


def as_latex(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """A floating table for the package booktabs; the title is its caption, notes are below."""

    def escape(text: str) -> str:
        text = one_line(text)
        return re.sub(r"(?<!\S)-(?=\d)", "$-$", text.translate(LATEX).replace("$^{*}$$^{*}$", "$^{**}$"))

    def line(row: Sequence[str]) -> str:
        return " & ".join(map(escape, row)) + r" \\"

    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}",
            r"\toprule",
            line(cells[0]),
            r"\midrule",
            *map(line, cells[1:]),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {escape(note)}" for note in notes),
            r"\end{table}",
        ]
    )
