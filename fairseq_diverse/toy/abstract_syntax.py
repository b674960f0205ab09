"""Abstract syntax: the structure of a sentence that both languages share, before inflection and word order.

``english.py`` and ``german.py`` are the concrete syntaxes (Ranta 2004, Grammatical Framework)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fairseq_diverse.toy.lexicon import Adjective, FixedTime, Modal, Noun, Verb


class Agreement:
    """Features of a subject or object: agreement, and what may follow it."""

    person = 3
    plural = False
    pronoun = False

    @property
    def closed(self) -> bool:
        """Whether it has no relative clause that the following words could belong to."""
        return True

    @property
    def negatable(self) -> bool:
        """Whether German negates it with kein instead of nicht."""
        return False


@dataclass
class Gap(Agreement):
    """The gap of a fronted relative pronoun or question word; it has the pronoun's agreement."""

    plural: bool = False


@dataclass
class Pronoun(Agreement):
    """``word``: the English subject form; ``thing``: not an animal. "it" has the gender of its German antecedent."""

    word: str
    gender: str = ""
    thing: bool = False
    pronoun = True

    def __post_init__(self) -> None:
        self.person = {"I": 1, "we": 1, "you": 2}.get(self.word, 3)
        self.plural = self.word in ("we", "they")


@dataclass
class Name(Agreement):
    """A person or a city, with its German translation."""

    words: list[str]
    translation: list[str]


@dataclass
class Common(Agreement):
    """Determiner, number, adjectives with degrees, first part of a compound, noun, modifiers."""

    noun: Noun
    determiner: str = "the"  # "" for none
    plural: bool = False
    count: int = 0
    adjectives: list[tuple[tuple[str, ...], Adjective]] = field(default_factory=list)
    modifier: tuple[str, ...] | None = None
    content: Noun | None = None  # of a cup or glass, with "of" in English and without a preposition in German
    attachments: list[Prepositional] = field(default_factory=list)
    relative: Relative | None = None

    @property
    def closed(self) -> bool:
        return self.relative is None and all(part.phrase.closed for part in self.attachments)

    @property
    def negatable(self) -> bool:
        return self.determiner in ("a", "") and not self.count


class Vehicle(Common):
    """ "by train": no article in English, the definite one in German."""


@dataclass
class Coordination(Agreement):
    first: Common
    second: Common
    plural = True


NounPhrase = Pronoun | Name | Common | Coordination
Argument = NounPhrase | Gap


@dataclass
class Prepositional:
    """English and German preposition (one or more words), and the phrase after it with its German case."""

    word: str
    translation: str  # none for the genitive
    case: str
    phrase: NounPhrase


@dataclass
class Relative:
    """``clause`` has a Gap as its only object (``of_object``) or its subject; ``person``: the antecedent is one."""

    clause: Clause
    of_object: bool
    person: bool


@dataclass
class Predicate:
    """The predicate after "be": an adjective with degree and complement, or a noun phrase."""

    adjective: Adjective | None = None
    degree: tuple[str, ...] = ("", "")
    complement: Prepositional | None = None
    noun: NounPhrase | None = None


class Ago(NamedTuple):
    number: int
    unit: Noun


class Duration(NamedTuple):
    number: int
    unit: Noun


class Year(NamedTuple):
    number: int


Time = FixedTime | Ago | Duration | Year


@dataclass
class Clause:
    """A subject, a verb with its objects, and adjuncts."""

    subject: Argument
    verb: Verb | None  # None for "be" with a ``predicate`` and for "there is" (``existential``)
    objects: list[Argument] = field(default_factory=list)  # belong to ``verb.objects``, one by one
    tense: str = "present"  # or past, perfect, pluperfect, progressive
    modal: Modal | None = None
    negated: bool = False
    passive: bool = False
    often: tuple[str, ...] | None = None
    time: Time | None = None
    time_first: bool = False
    manner: tuple[str, ...] | None = None
    means: list[Prepositional] = field(default_factory=list)
    place: Prepositional | None = None
    place_first: bool = False
    predicate: Predicate | None = None
    existential: bool = False
    complement: tuple[str, str, Clause] | None = None  # English, German subordinator (to, zu: infinitive), clause
    adjuncts: list[tuple[str, str, Clause, bool]] = field(default_factory=list)  # the same, and whether at the front
    also: Clause | None = None  # a second predicate of the same subject
    receiver_last: bool = False  # "gives the book to the woman"

    @property
    def past(self) -> bool:
        """Whether the finite verb is in the past tense."""
        return self.tense in ("past", "pluperfect")

    @property
    def copular(self) -> bool:
        return self.verb is None or self.verb.english == "be"

    @property
    def frame(self) -> str:
        return self.verb.frame if self.verb else ""

    @property
    def closed(self) -> bool:
        """Whether no object has a relative clause that the following words could belong to."""
        return all(item.closed for item in self.objects)

    @property
    def controller(self) -> Argument:
        """The subject of the complement's infinitive."""
        return self.objects[0] if self.verb and "object" in self.verb.flags else self.subject


@dataclass
class Statement:
    """A clause, or two with the English and German conjunction between them."""

    clause: Clause
    conjunction: tuple[str, ...] = ()
    second: Clause | None = None


@dataclass
class Question:
    """``asked``: an English and German adverb, the pronoun of the clause's Gap, or its subject; None: yes or no."""

    clause: Clause
    asked: Pronoun | tuple[str, ...] | None = None


Sentence = Statement | Question
