"""Characters that are not words by themselves: accents and vowel signs of the letter before, joiners of letters and of
emoji, soft hyphens, zero-width spaces, byte order marks, signs inside words of Armenian, Tibetan, Hebrew and Catalan.
Tokenizers take many of them for words."""

import re
from collections.abc import Callable
from functools import cache
from unicodedata import category

CATEGORIES = ("Mn", "Mc", "Me", "Cf")
JOINER = "\u200d"
SYMBOLS = "\u2190-\u2bff\U0001f000-\U0001faff"  # emoji are among them
SKIN = "\U0001f3fb-\U0001f3ff"  # of emoji
FLAG = "\U0001f1e6-\U0001f1ff"  # two letters are one flag
SIGNS = "\u055b\u055c\u055e\u0f0b\u0f0c"  # Armenian stress, exclamation and question; between Tibetan syllables
INSIDE = r"(?<=\w)[\xb7\u2027](?=\w)|(?<=[\u05d0-\u05ea])[\"'\u05f3\u05f4](?=[\u05d0-\u05ea])"  # l·l; of abbreviations


@cache
def pattern() -> re.Pattern[str]:
    """A run of them; a symbol behind a joiner and the second letter of a flag belong to the symbol before, a sign
    of ``INSIDE`` to the letters around it."""
    known = map(chr, (*range(0xAD, 0x20000), *range(0xE0000, 0xE0200)))
    marks = "".join(character for character in known if category(character) in CATEGORIES)
    return re.compile(f"(?:{JOINER}[{SYMBOLS}]|[{marks}{SKIN}{SIGNS}]|(?<=[{FLAG}])[{FLAG}]|{INSIDE})+")


def around(function: Callable[[str], str], line: str) -> str:
    """What ``function``, which changes nothing but spaces, makes of the line without these characters, and the
    characters in their places: behind what they followed, or before the next word where that was a space.

    In ``function`` a hyphen may become ``@-@``, as Moses has it, or the reverse, and control characters may be dropped.
    """
    if not pattern().search(line):
        return function(line)
    bare, runs = [], dict[tuple[int, bool], str]()  # (number of characters before it, no space between): characters
    end = count = 0
    for found in pattern().finditer(line):
        bare.append(line[end : found.start()])
        count += len("".join(bare[-1].split()))
        start, end = found.span()
        place = count, count > 0 and not line[start - 1].isspace()
        runs[place] = runs.get(place, "") + found[0]
    text = "".join([*bare, line[end:]])
    made, expected = function(text), "".join(text.split())
    if not expected:
        return line.strip()
    out: list[str] = []
    at = here = 0
    while here < len(made):
        word = made[here]
        if word.isspace():
            out.append(word)
            here += 1
            continue
        while expected[at : at + 1] < " " and at < len(expected):
            at += 1
        out.append(runs.pop((at, False), ""))
        if made.startswith("@-@", here) and expected[at : at + 1] == "-":
            word, step = "@-@", 1
        elif expected.startswith("@-@", at) and word == "-":
            step = 3
        elif expected[at : at + 1] == word:
            step = 1
        else:  # it changed the text
            return function(line)
        at += step
        here += len(word)
        out += [word, runs.pop((at, True), "")]
    return "".join([*out, *runs.values()])
