"""Escapes of Moses, the Penn Treebank and parsers."""

import functools
import html
import re
import unicodedata

BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
SAME = {"``": '"', "''": '"', "`": "'"}


@functools.lru_cache(2**16)
def without_moses(word: str) -> str:
    """A Moses token as a plain word for a parser: ``&apos;s`` -> ``'s``, ``@-@`` -> ``-``; what would be white space,
    such as ``&nbsp;``, stays."""
    plain = html.unescape(word)
    return "-" if word == "@-@" else plain if plain.split() == [plain] else word


def with_brackets_escaped(word: str) -> str:
    """A word as a leaf of a PTB tree: ``(`` -> ``-LRB-``."""
    for bracket, escaped in BRACKETS.items():
        word = word.replace(bracket, escaped)
    return word


@functools.lru_cache(2**16)
def comparable(word: str) -> str:
    """A normal form of a word that is equal for all escapes; for alignment checks, not for output."""
    word = without_moses(re.sub("&(amp;)+", "&", word))  # text of the web may be escaped many times
    for bracket, escaped in BRACKETS.items():
        word = word.replace(escaped, bracket)
    word = word.replace("\\/", "/").replace("\\*", "*")
    return unicodedata.normalize("NFKC", SAME.get(word, word))
