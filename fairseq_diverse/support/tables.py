"""Text and tables for terminals, pages and pictures."""

import re
import unicodedata
from collections.abc import Collection, Sequence

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


NUMBER = re.compile(r"[<≤]?\s*([+-]?\d[\d,]*(?:\.\d+)?)([KMGT]?)\b")
SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def first_number(text: str) -> float | None:
    """The number with which a cell begins, if any: 1.5 of ``+1.50 ± 0.20** (p = 0.030)``, 1.26e7 of ``12.6M``."""
    match = NUMBER.match(text)
    return float(match[1].replace(",", "")) * SCALE[match[2]] if match else None


def one_line(text: str) -> str:
    """Text without line breaks and characters that steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def readable(text: str) -> str:
    """Text of any language, without control characters; those that join letters or set their direction are kept."""
    return "".join(" " if unicodedata.category(character) in ("Cc", "Cs") else character for character in text)


def latex(text: str) -> str:
    """Text as LaTeX shows it."""
    text = one_line(text).translate(LATEX).replace("$^{*}$$^{*}$", "$^{**}$")
    text = re.sub(r"-(?=-)", "-{}", text)  # else one dash
    return re.sub(r"(?<![^\s(])-(?=\d)", "$-$", text)


def in_columns(rows: Sequence[Sequence[object]], left: Collection[int] = (0,)) -> str:
    """Rows of cells, two spaces between columns: those in ``left``, counted from 0, to the left, the others right."""
    from tabulate import tabulate

    cells = [list(map(str, row)) for row in rows]
    aligned = ["left" if number in left else "right" for number in range(len(cells[0]))]
    return tabulate(cells, tablefmt="plain", disable_numparse=True, colalign=aligned, preserve_whitespace=True)
