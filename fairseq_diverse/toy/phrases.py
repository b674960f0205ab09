"""Noun phrases, prepositional phrases and times: each knows its English tree and its German words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairseq_diverse.toy import german
from fairseq_diverse.toy import words as tables
from fairseq_diverse.toy.lexicon import CASES, VOWELS, Adjective, Noun
from fairseq_diverse.toy.trees import Tree, leaf, phrase

if TYPE_CHECKING:
    from fairseq_diverse.toy.relative import Relative

OBJECT_FORMS = {"I": "me", "he": "him", "she": "her", "we": "us", "they": "them", "who": "whom"}
POSSESSIVES = ("my", "your", "his", "her", "our", "their")
UNITS = tables.ENGLISH_UNITS.split()
TENS = tables.ENGLISH_TENS.split()


def number(n: int) -> str:
    """An English number word; from 100 on digits."""
    if n < 20 or n >= 100:
        return UNITS[n] if n < 20 else str(n)
    return TENS[n // 10 - 2] + (f"-{UNITS[n % 10]}" if n % 10 else "")


def preposition(word: str, after: Tree, label: str = "PP") -> Tree:
    """(PP word after): the preposition is the case marker of what follows."""
    return phrase(label, ("case", leaf("TO" if word == "to" else "IN", word)), ("head", after))


class Argument(ABC):
    """What a verb governs: agreement, and German words in a case."""

    person = 3
    plural = False
    pronoun = False
    closed = True  # no relative clause at its end, to which what follows could belong
    negatable = False  # German negates it with kein

    @abstractmethod
    def german(self, case: str, negative: bool = False) -> list[str]:
        """German words; ``negative`` turns "ein" or no article into "kein"."""


class NounPhrase(Argument):
    """An argument that is said, with its English tree."""

    @abstractmethod
    def english(self, subject: bool = False) -> Tree:
        """The tree; ``subject`` chooses a pronoun's form."""

    def genitive(self) -> list[str]:
        """German for "of" this: the genitive where an article can show it, else von."""
        return ["von", *self.german("dat")]


@dataclass
class Pronoun(NounPhrase):
    """``word``: the subject's form. "it" has the German gender of what it stands for; ``thing``: that is no animal."""

    word: str
    gender: str = ""
    thing: bool = False
    pronoun = True

    def __post_init__(self) -> None:
        self.person = {"I": 1, "we": 1, "you": 2}.get(self.word, 3)
        self.plural = self.word in ("we", "they")

    def english(self, subject: bool = False) -> Tree:
        form = self.word if subject else OBJECT_FORMS.get(self.word, self.word)
        if self.word in ("who", "what"):
            return phrase("WHNP", ("head", leaf("WP", form, self.word)))
        tag = "NN" if self.word in ("someone", "nobody", "everyone") else "PRP"
        return phrase("NP", ("head", leaf(tag, form, self.word, "PRON")))

    def german(self, case: str, negative: bool = False) -> list[str]:
        return [german.PRONOUNS[f"{self.word} {self.gender}".strip()][CASES.index(case)]]


@dataclass
class Name(NounPhrase):
    """A person or a city; the title "Herr" is the only part that inflects."""

    words: list[str]
    translation: list[str]

    def english(self, subject: bool = False) -> Tree:
        *first, last = self.words
        return phrase("NP", *(("compound", leaf("NNP", word)) for word in first), ("head", leaf("NNP", last)))

    def german(self, case: str, negative: bool = False) -> list[str]:
        return ["Herrn" if word == "Herr" and case != "nom" else word for word in self.translation]


@dataclass
class Coordination(NounPhrase):
    first: Common
    second: Common
    plural = True

    def english(self, subject: bool = False) -> Tree:
        return phrase("NP", ("head", self.first.english()), ("cc", leaf("CC", "and")), ("conj", self.second.english()))

    def german(self, case: str, negative: bool = False) -> list[str]:
        return [*self.first.german(case), "und", *self.second.german(case)]


@dataclass
class Common(NounPhrase):
    """Determiner ("" for none), number, adjectives with degrees, compound's first part, noun, what hangs on it.

    ``content``: of what there is a cup or a glass, "of" in English and nothing in German.
    """

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    count: int = 0
    adjectives: list[tuple[tuple[str, ...], Adjective]] = field(default_factory=list)
    modifier: tuple[str, ...] | None = None
    content: Noun | None = None
    attachments: list[Prepositional] = field(default_factory=list)
    relative: Relative | None = None

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self.relative is None and all(part.phrase.closed for part in self.attachments)

    @property
    def negatable(self) -> bool:  # type: ignore[override]
        return self.determiner in ("a", "") and not self.count

    def english(self, subject: bool = False) -> Tree:
        parts: list[tuple[str, Tree]] = []
        if self.count:
            parts.append(("nummod", leaf("CD", number(self.count))))
        for degree, adjective in self.adjectives:
            tree = leaf("JJ", adjective.english)
            if degree[0]:
                tree = phrase("ADJP", ("advmod", leaf("RB", degree[0])), ("head", tree))
            parts.append(("amod", tree))
        if self.modifier:
            parts.append(("compound", leaf("NN", self.modifier[0])))
        form = self.noun.plural if self.plural else self.noun.singular
        parts.append(("head", leaf("NNS" if self.plural else "NN", form, self.noun.singular)))
        if self.determiner:
            parts.insert(0, self.english_determiner(next(parts[0][1].leaves()).word))
        after: list[tuple[str, Tree]] = []
        if self.content:
            after.append(("nmod", preposition("of", Common(self.content, "").english())))
        after += [("nmod", part.english()) for part in self.attachments]
        if self.relative:
            after.append(("acl:relcl", self.relative.english()))
        tree = phrase("NP", *parts)
        return phrase("NP", ("head", tree), *after) if after else tree

    def english_determiner(self, following: str) -> tuple[str, Tree]:
        if self.determiner in POSSESSIVES:
            return "nmod:poss", leaf("PRP$", self.determiner)
        if self.determiner in ("many", "few"):
            return "amod", leaf("JJ", self.determiner)
        vowel = following[0] in "aeiou" and not following.startswith(("one", "use", "uni", "eu"))
        return "det", leaf("DT", "an" if self.determiner == "a" and vowel else self.determiner, self.determiner)

    def german(self, case: str, negative: bool = False) -> list[str]:
        gender = "p" if self.plural else self.noun.gender
        article = "no" if negative and self.negatable else self.determiner
        words = german.determiner(article, gender, case)
        words += [german.number(self.count)] if self.count else []
        ending = german.adjective_ending(article, gender, case)
        for degree, adjective in self.adjectives:
            words += [*degree[1].split(), adjective.stem + ending]
        noun = self.noun.inflect(case, self.plural)
        words.append(self.modifier[1] + noun.lower() if self.modifier else noun)
        words += [self.content.german] if self.content else []
        words += [word for part in self.attachments for word in part.german()]
        return words + (self.relative.german(gender) if self.relative else [])

    def genitive(self) -> list[str]:
        return self.german("gen") if self.determiner else super().genitive()


class Vehicle(Common):
    """ "by train": no article in English, the definite one in German."""

    def english(self, subject: bool = False) -> Tree:
        return Common(self.noun, "").english()


@dataclass
class Prepositional:
    """English and German preposition (one or more words) and the phrase after them, in a German case.

    The genitive can do without a German preposition. A preposition and the "it" of a thing become one word (darauf);
    so do some prepositions and the definite article (im), unless a relative clause follows.
    """

    word: str
    translation: str
    case: str
    phrase: NounPhrase

    def english(self) -> Tree:
        return preposition(self.word, self.phrase.english())

    def german(self) -> list[str]:
        words = self.translation.split()
        if self.case == "gen":
            return words + self.phrase.genitive()
        *before, last = words
        if isinstance(self.phrase, Pronoun) and self.phrase.thing:
            return [*before, f"da{'r' if last[0] in VOWELS else ''}{last}"]
        first, *rest = self.phrase.german(self.case)
        joined = german.CONTRACTIONS.get((last, first))
        if joined and isinstance(self.phrase, Common) and self.phrase.determiner == "the" and not self.phrase.relative:
            return [*before, joined, *rest]
        return [*words, first, *rest]


@dataclass
class Time:
    """A phrase of time: its relation to the verb, English tree, German words."""

    relation: str
    tree: Tree
    words: str


def tagged_time(label: str, english: str, words: str) -> Time:
    """From tagged words such as ``last/JJ week/NN``; of a PP the first word is the preposition."""
    leaves = [leaf(tag, word) for word, tag in (item.split("/") for item in english.split())]
    before = leaves.pop(0).word if label == "PP" else ""
    inner = [("amod" if part.label == "JJ" else "det", part) for part in leaves[:-1]]
    tree = phrase("NP" if before else label, *inner, ("head", leaves[-1]))
    if before:
        return Time("obl", preposition(before, tree), words)
    return Time("advmod" if label == "ADVP" else "obl:tmod", tree, words)


def span(count: int, unit: Noun) -> Tree:
    return phrase("NP", ("nummod", leaf("CD", number(count))), ("head", leaf("NNS", unit.plural, unit.singular)))


def time_ago(count: int, unit: Noun) -> Time:
    """ "two days ago", vor zwei Tagen."""
    tree = phrase("ADVP", ("obl:npmod", span(count, unit)), ("head", leaf("RB", "ago")))
    return Time("advmod", tree, f"vor {german.number(count)} {unit.inflect('dat', True)}")


def time_for(count: int, unit: Noun) -> Time:
    """ "for two days", zwei Tage lang."""
    return Time("obl", preposition("for", span(count, unit)), f"{german.number(count)} {unit.german_plural} lang")


def year(n: int) -> Time:
    return Time("obl", preposition("in", phrase("NP", ("head", leaf("CD", str(n))))), f"im Jahr {n}")
