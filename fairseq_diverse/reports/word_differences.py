"""The words by which a translation differs from others of the same sentence."""

import difflib
import itertools
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

SINGLE = ("CJK UNIFIED", "CJK COMPATIBILITY", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # no spaces


class Part(NamedTuple):
    """Words of a translation that differ from the same texts, and what is missing before them."""

    text: str
    kinds: tuple[str, ...]  # of "reference" and "baseline": in which text they are not
    missing: Mapping[str, str]  # by kind


def words(text: str) -> list[str]:
    """Words, spaces and punctuation marks, which together are the text; letters of scripts without spaces are words."""
    groups = ((kind, "".join(group)) for kind, group in itertools.groupby(text, _kind))
    return [word for kind, group in groups for word in (group if kind == "single" else [group])]


def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    if unicodedata.category(character)[0] in "PS" or unicodedata.name(character, "").startswith(SINGLE):
        return "single"
    return "word"


def compare(text: str, others: Mapping[str, str]) -> list[Part]:
    """The text in parts whose words are all in the same of the others (texts by kind), or all missing there."""
    tokens = words(text)
    places = [i for i, token in enumerate(tokens) if not token.isspace()]
    kinds: list[tuple[str, ...]] = [()] * len(tokens)
    missing: list[dict[str, str]] = [{} for _ in range(len(tokens) + 1)]
    for kind, other in others.items():
        theirs = [token for token in words(other) if not token.isspace()]
        matcher = difflib.SequenceMatcher(None, theirs, [tokens[i] for i in places], autojunk=False)
        for operation, start, end, first, last in matcher.get_opcodes():
            if operation == "delete":
                missing[places[first] if first < len(places) else len(tokens)][kind] = " ".join(theirs[start:end])
            elif operation != "equal":
                for i in places[first:last]:
                    kinds[i] += (kind,)
    for before, space, after in zip(places, (i + 1 for i in places), places[1:], strict=False):
        if space < after and kinds[before] == kinds[after]:
            kinds[space] = kinds[before]
    parts: list[Part] = []
    for token, of_token, gap in itertools.zip_longest(tokens, kinds, missing):
        if parts and token is not None and not gap and of_token == parts[-1].kinds:
            parts[-1] = parts[-1]._replace(text=parts[-1].text + token)
        elif token is not None or gap:
            parts.append(Part(token or "", of_token or (), gap))
    return parts
