"""One line of raw text to tokens and back: normalization, tokenizer, case."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation.subwords import OF_PIECES, SPACE_MARK, readable
from fairseq_diverse.support.installed import needed

# Characters that Python, fairseq or an editor may read as the end of a line, and NUL.
SPECIAL = re.compile("[\0\v\f\r\x1c-\x1e\x85\u2028\u2029]")
# behind a letter or syllable, with which they are one: accents, vowels and finals of Korean, voicing of Japanese
ACCENTS = re.compile("[\u0300-\u036f\u1160-\u11ff\u3099\u309a]")
TOKENIZED = (
    "is it tokenized? BLEU and chrF are for text: detokenize it first (sacremoses -l {} detokenize < FILE), or compare "
    "by multi-bleu"
)
CZECH_DASH = re.compile("(\\w['\u2019\u02bc]) ([-\u2013]) (?=li(?: |$)|mail)", re.IGNORECASE)
# punctuation of scripts that Moses does not know: it closes what is before, as a comma does
CLOSING = re.compile(
    " ([\u055d\u0589\u060c\u061b\u061f\u066a\u06d4\u0964\u0965\u0f0d\u0f0e\u104a\u104b\u1362-\u1368\u17d4\u17d5])"
)
AMOUNT = re.compile("(?<=\\d )([$\xa2-\xa5\u20a0-\u20cf\ufdfc])(?=[^\\W\\d])")  # 5 € more, where Moses has 5 €more
TIGHT = re.compile(r"(?<=\d): (?=\d\d(?!\d))|(?<=\w) / (?=\w)")  # 9:30, and/or
APOSTROPHES = ("be", "ca", "tdt", "tr", "uk")  # languages that have them inside words, where Moses splits at them
APOSTROPHE = re.compile(r"(?<=\w) (['\u2019]) (?=\w)")
COLON = re.compile("(?<=[A-ZÅÄÖ0-9]) : (?=[a-zåäö]{1,5}(?: |$))")  # of Finnish and Swedish: EU:n, 20:een
PERCENT = re.compile(r"(?<!\S)(?<!\d )% (?=\d)")  # of Turkish, before its number: %25
OPENING = re.compile('[והבכלמש]{1,4}"([א-ת]{2,}|[א-ת]+"[א-ת])')  # of Hebrew, behind a prefix; no abbreviation
END = "\ue000"  # for private use: in no text
MODEL_ENTRIES = 50_000_000  # of a truecaser: words in lower case; sacremoses stops at 2 million
# Characters that are not words by themselves, though tokenizers take many of them for words: accents and vowel signs of
# the letter before, joiners of letters and of emoji, soft hyphens, zero-width spaces, byte order marks, signs inside
# words of Armenian, Tibetan, Hebrew and Catalan
CATEGORIES = ("Mn", "Mc", "Me", "Cf")
JOINER = "\u200d"
SYMBOLS = "\u2190-\u2bff\U0001f000-\U0001faff"  # emoji are among them
SKIN = "\U0001f3fb-\U0001f3ff"  # of emoji
FLAG = "\U0001f1e6-\U0001f1ff"  # two letters are one flag
SIGNS = "\u055b\u055c\u055e\u0f0b\u0f0c"  # Armenian stress, exclamation and question; between Tibetan syllables
INSIDE = r"(?<=\w)[\xb7\u2027](?=\w)|(?<=[\u05d0-\u05ea])[\"'\u05f3\u05f4](?=[\u05d0-\u05ea])"  # l·l; of abbreviations


def spaced_stops(lines: Sequence[str]) -> bool:
    """Whether most full stops at the end of lines have a space before, as in tokens."""
    return 2 * sum(line.endswith(" .") for line in lines) > sum(line.endswith(".") for line in lines)


def clean(line: str) -> tuple[str, bool]:
    """The line with line separators and NUL replaced by a space, and whether it had any; letters with accents behind
    them (NFD) are composed."""
    cleaned, count = SPECIAL.subn(" ", line)
    return unicodedata.normalize("NFC", cleaned) if ACCENTS.search(cleaned) else cleaned, count > 0


@cache
def pattern() -> re.Pattern[str]:
    """A run of such characters; a symbol behind a joiner and the second letter of a flag belong to the symbol before, a
    sign of ``INSIDE`` to the letters around it."""
    known = map(chr, (*range(0xAD, 0x20000), *range(0xE0000, 0xE0200)))
    marks = "".join(character for character in known if unicodedata.category(character) in CATEGORIES)
    return re.compile(f"(?:{JOINER}[{SYMBOLS}]|[{marks}{SKIN}{SIGNS}]|(?<=[{FLAG}])[{FLAG}]|{INSIDE})+")


def around(function: Callable[[str], str], line: str) -> str:
    """What ``function``, which changes nothing but spaces, makes of the line without characters of `pattern`, and these
    in their places: behind what they followed, or before the next word where that was a space.

    In ``function`` a hyphen may become ``@-@``, as Moses has it, or the reverse, and control characters may be dropped.
    """
    if not pattern().search(line):
        return function(line)
    bare, runs = [], dict[tuple[int, bool], str]()  # (number of characters before it, no space between): characters
    end = count = 0
    for match in pattern().finditer(line):
        bare.append(line[end : match.start()])
        count += len("".join(bare[-1].split()))
        start, end = match.span()
        place = count, count > 0 and not line[start - 1].isspace()
        runs[place] = runs.get(place, "") + match[0]
    text = "".join([*bare, line[end:]])
    result, expected = function(text), "".join(text.split())
    if not expected:
        return line.strip()
    out: list[str] = []
    at = here = 0
    while here < len(result):
        word = result[here]
        if word.isspace():
            out.append(word)
            here += 1
            continue
        while expected[at : at + 1] < " " and at < len(expected):
            at += 1
        out.append(runs.pop((at, False), ""))
        if result.startswith("@-@", here) and expected[at : at + 1] == "-":
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


class Tokens:
    """Tokenization of one side of a ``DataConfig``: ``steps`` are its ``language`` and the keys of ``SIDE_DEFAULTS``,
    ``subwords`` the kind of its subwords. ``truecaser``: its model, None before its training or without one; ``moses``:
    keep the case of known words within a sentence, as Moses does."""

    def __init__(self, steps: dict[str, Any], truecaser: Path | None = None, moses: bool = True, subwords: str = ""):
        import sacremoses

        language = steps.get("rules", steps["language"])  # data prepared before have no rules of their own
        self.steps, self.subwords = steps, subwords
        self.normalizer = sacremoses.MosesPunctNormalizer(language) if steps["normalize"] else None
        self.moses: Any = sacremoses.MosesTokenizer(language) if steps["tokenizer"] == "moses" else None
        self.detokenizer = sacremoses.MosesDetokenizer(language)
        self.keeps_known = moses
        self.truecaser: Any = None
        if truecaser:
            with readable(truecaser, "model of a truecaser"):
                self.truecaser = sacremoses.MosesTruecaser()
                self.truecaser.MAX_MODEL_ENTRIES = MODEL_ENTRIES
                self.truecaser.model = self.truecaser._load_model(str(truecaser))
        self.detruecaser = sacremoses.MosesDetruecaser()
        if steps["tokenizer"] == "jieba":
            _jieba()

    def tokenize(self, line: str) -> str:
        """Normalized, tokenized, cased text; tokens joined by single spaces."""
        line = clean(line)[0]
        if self.subwords in OF_PIECES:  # which does not tell its own mark from a space
            line = line.replace(SPACE_MARK, " ")
        if self.steps["tokenizer"] == "raw":  # for subwords that hold the spaces
            return line.strip()
        if self.normalizer:
            line = self.normalizer.normalize(line)
        if self.moses:
            line = around(self._split, line)
            line = self.moses.escape_xml(line) if self.steps["escape"] else line
        elif self.steps["tokenizer"] == "jieba":
            line = around(lambda text: " ".join(_jieba().cut(text)), line)
        line = " ".join(line.split())  # fairseq splits words at any Unicode space
        if self.steps["lowercase"]:
            line = line.lower()
        return self.truecase(line) if self.truecaser else line

    def _split(self, line: str) -> str:
        dashes = self.steps["aggressive-dashes"]
        return self.moses.tokenize(line, aggressive_dash_splits=dashes, escape=False, return_str=True)

    def truecase(self, line: str) -> str:
        return self.truecaser.truecase(line, return_str=True, use_known=self.keeps_known)

    def detokenize(self, line: str) -> str:
        """Detokenized text; normalization and lower-casing are not undone."""
        if self.steps["truecase"]:
            line = self.detruecaser.detruecase(line, return_str=True)
        if self.moses:
            line = self.detokenizer.unescape_xml(line) if self.steps["escape"] else line
            return around(self._join, _closed(line) if self.detokenizer.lang == "he" else line)
        if self.steps["tokenizer"] == "jieba":  # spaces are kept only between words of Latin letters or digits
            return around(lambda text: re.sub(r"(?<![!-~]) | (?![!-~])", "", text), line)
        return line

    def _join(self, line: str) -> str:
        if self.detokenizer.lang in APOSTROPHES:
            line = APOSTROPHE.sub(r"\1", line)
        if self.detokenizer.lang == "tr":
            line = PERCENT.sub("%", line)
        if self.detokenizer.lang in ("fi", "sv"):
            line = COLON.sub(":", line)
        words = line.split()
        if self.detokenizer.lang == "cs" and words:
            # sacremoses takes the last two words for those before a number, and cannot join "e' - mail"
            words = [*CZECH_DASH.sub(r"\1\2", line).split(), END]
        text = self.detokenizer.detokenize(words, unescape=False).removesuffix(END).rstrip()
        text = TIGHT.sub(lambda match: match[0].strip(), text)
        return AMOUNT.sub(r"\1 ", CLOSING.sub(r"\1", text))


def _closed(line: str) -> str:
    """The line with the closing quotes of ``OPENING`` at their words, where all quotes of the line are then paired."""
    words = line.split()
    if (words.count('"') - sum(map(bool, map(OPENING.fullmatch, words)))) % 2:
        return line
    out, opened = list[str](), False
    for word in words:
        if word == '"' and opened:
            out[-1], opened = f'{out[-1]}"', False
        else:
            out.append(word)
            opened = opened or bool(OPENING.fullmatch(word))
    return " ".join(out)


def _jieba() -> Any:
    jieba = needed("jieba", "tokenizer jieba: the package jieba is not installed; run: pip install jieba")
    jieba.setLogLevel("WARNING")
    return jieba
