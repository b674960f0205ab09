"""What a clause is made of; ``english_order.py`` and ``german_order.py`` put it in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fairseq_diverse.toy.lexicon import Adjective, Verb
from fairseq_diverse.toy.phrases import Argument, NounPhrase, Prepositional, Time
from fairseq_diverse.toy.trees import Tree, leaf, phrase


class Modal(NamedTuple):
    """English word (a full verb if it has "to"), German infinitive, third person, past; ``past``: the only tense."""

    english: str
    infinitive: str
    third: str
    preterite: str
    past: bool = False


MODALS = (
    Modal("can", "können", "kann", "konnte"),
    Modal("must", "müssen", "muss", "musste"),
    Modal("will", "werden", "wird", "wurde"),
    Modal("want to", "wollen", "will", "wollte"),
    Modal("should", "sollen", "soll", "sollte", past=True),
    Modal("have to", "müssen", "muss", "musste"),
    Modal("could", "können", "kann", "konnte", past=True),
    Modal("may", "dürfen", "darf", "durfte"),
    Modal("would", "werden", "wird", "würde", past=True),
    Modal("like to", "", "", ""),  # an adverb in German: gern
)


class Gap(Argument):
    """The place in a relative clause or question that its pronoun has left; it agrees as the pronoun does."""

    def __init__(self, plural: bool = False):
        self.plural = plural

    def german(self, case: str, negative: bool = False) -> list[str]:
        return []


@dataclass
class Predicate:
    """What follows "be": an adjective with its degree and complement, or a noun phrase."""

    adjective: Adjective | None = None
    degree: tuple[str, ...] = ("", "")
    complement: Prepositional | None = None
    noun: NounPhrase | None = None

    def english(self) -> Tree:
        if not self.adjective:
            assert self.noun
            return self.noun.english()
        degree = [("advmod", leaf("RB", self.degree[0]))] if self.degree[0] else []
        complement = [("obl", self.complement.english())] if self.complement else []
        return phrase("ADJP", *degree, ("head", leaf("JJ", self.adjective.english)), *complement)

    def german(self, negative: bool) -> list[str]:
        if not self.adjective:
            assert self.noun
            return self.noun.german("nom", negative)
        complement = self.complement.german() if self.complement else []
        return [*complement, *self.degree[1].split(), self.adjective.german]


@dataclass
class Clause:
    """A subject, a verb with its objects, and what surrounds them.

    ``verb`` is None for "be" with a ``predicate`` and for "there is" (``existential``). ``tense``: present, past,
    perfect, pluperfect or progressive. ``objects`` stand for ``verb.objects``, one by one. ``complement``: English and
    German subordinator and clause ("to" and "zu" for an infinitive). ``adjuncts``: the same, and whether at the front.
    ``also``: a second predicate of the same subject. ``receiver_last``: "gives the book to the woman".
    """

    subject: Argument
    verb: Verb | None
    objects: list[Argument] = field(default_factory=list)
    tense: str = "present"
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
    complement: tuple[str, str, Clause] | None = None
    adjuncts: list[tuple[str, str, Clause, bool]] = field(default_factory=list)
    also: Clause | None = None
    receiver_last: bool = False

    @property
    def past(self) -> bool:
        """Whether the finite verb is."""
        return self.tense in ("past", "pluperfect")

    @property
    def copular(self) -> bool:
        return self.verb is None or self.verb.english == "be"

    @property
    def frame(self) -> str:
        return self.verb.frame if self.verb else ""

    @property
    def closed(self) -> bool:
        """Whether what is put behind the objects cannot belong to a clause within them."""
        return all(item.closed for item in self.objects)

    @property
    def controller(self) -> Argument:
        """Who does what the complement's infinitive says."""
        return self.objects[0] if self.verb and "object" in self.verb.flags else self.subject
