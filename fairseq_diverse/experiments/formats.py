"""A table of text cells, its header first, and notes below it, as text, Markdown, LaTeX or a page of HTML."""

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cells = Sequence[Sequence[str]]
Block = tuple[Cells, str, Sequence[str]]  # a table, its title, the notes below it

# Characters that LaTeX reads as commands, and those that its default fonts lack
LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{"|": r"\textbar{}", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"[": "{[}", "]": "{]}"},  # after \\\\ a bracket would start a length
        **{"Δ": r"$\Delta$", "±": r"$\pm$", "<": "$<$", ">": "$>$", "*": "$^{*}$"},
    }
)

STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
div { overflow-x: auto; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; }
table { font-size: .9rem; border-collapse: collapse; border: solid; border-width: 2px 0;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid; }
th:first-child, td:first-child { text-align: left; }
tbody tr:nth-child(even) { background: #f3f3f3; }
ul { color: #444; font-size: .9rem; padding-left: 1.1rem; }
figure { margin: 2rem 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
img { max-width: 100%; height: auto; }
"""


MARKDOWN = re.compile(r"[\\`*\[\]~|$]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word means nothing
BLOCK = re.compile(r"^(?:(?=[#>+=-])|\d+(?=[.)]))")  # what makes a line a heading, a list or a quotation


def one_line(text: str) -> str:
    """Text without line breaks and characters that steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def as_text(cells: Cells, title: str, notes: Sequence[str]) -> str:
    """Columns aligned, the first to the left and the others to the right."""
    cells, title, notes = [list(map(one_line, row)) for row in cells], one_line(title), list(map(one_line, notes))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pad = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    lines = ["  ".join(f(c, w) for f, c, w in zip(pad, row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([title, "", *lines, "", *notes])


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


def as_html(
    cells: Cells, title: str, notes: Sequence[str], figures: "Mapping[str, Figure]", more: Sequence[Block] = ()
) -> str:
    """One page that needs no other file.

    Args:
        figures: pictures by their captions; they are part of the page, as SVG.
        more: further tables, before the pictures.
    """

    def row(values: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(one_line(value))}</{tag}>" for value in values) + "</tr>"

    def block(tag: str, cells: Cells, title: str, notes: Sequence[str]) -> list[str]:
        return [
            f"<{tag}>{html.escape(one_line(title))}</{tag}>",
            f"<div><table>\n<thead>{row(cells[0], 'th')}</thead>\n<tbody>",
            *(row(values, "td") for values in cells[1:]),
            "</tbody>\n</table></div>",
            *(["<ul>", *(f"<li>{html.escape(one_line(note))}</li>" for note in notes), "</ul>"] if notes else []),
        ]

    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(one_line(title))}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            *block("h1", cells, title, notes),
            *(line for one in more for line in block("h2", *one)),
            *(
                f'<figure><figcaption>{html.escape(caption)}</figcaption><img alt="{html.escape(caption)}" '
                f'src="data:image/svg+xml;base64,{_svg(figure)}"></figure>'
                for caption, figure in figures.items()
            ),
            "</body>\n</html>",
        ]
    )


def _svg(figure: "Figure") -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return base64.b64encode(buffer.getvalue()).decode()
