"""Random noun phrases, places and times."""

import random
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Sequence
from typing import TypeVar

from fairseq_diverse.toy import lexicon, phrases, words
from fairseq_diverse.toy.lexicon import entries, pairs
from fairseq_diverse.toy.phrases import Common, Coordination, Name, NounPhrase, Prepositional, Pronoun, Time
from fairseq_diverse.toy.relative import Relative

T = TypeVar("T")

FIRST_NAMES, LAST_NAMES, STEMS = entries(words.FIRST_NAMES), entries(words.LAST_NAMES), entries(words.STEMS)
CITIES = [city.split(":") for city in entries(words.CITIES)]
FAMILY_ENDINGS, CITY_ENDINGS = entries(words.FAMILY_ENDINGS), entries(words.CITY_ENDINGS)
SYLLABLES = [entries(part) for part in words.SYLLABLES]
TITLES, DEGREES, COMPOUNDS = pairs(words.TITLES), pairs(words.DEGREES), pairs(words.COMPOUNDS)
ATTACHMENTS = [tuple(entry.split("/")) for entry in entries(words.ATTACHMENTS)]
TIMES = [(entry[0], phrases.tagged_time(*entry[2:].replace(" ", "=", 1).split("="))) for entry in entries(words.TIMES)]
SINGULAR = ["the", "a", "this", "my", "his", "her", "every", "our", "your", "their"]
PLURAL = ["the", "", "my", "some", "these", "many", "all", "his", "her", "few", "our", "their", "your"]
PRONOUNS = ["he", "she", "I", "they", "we", "you", "someone", "everyone", "nobody"]


class Nominals(ABC):
    """Draws phrases. All chance comes from ``random.Random.random``, whose values are the same on every Python.

    ``depth`` is how many levels of clauses and phrases may still hang on what is drawn. ``barred`` are the kinds of
    tool that a verb before the noun would claim, so that no "with" such a tool may hang on the noun. ``subject``: the
    phrase stands before the verb. ``closed``: it has no relative clause.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def weighted(self, items: Sequence[T], cumulated: Sequence[float]) -> T:
        return items[min(bisect(cumulated, self.random() * cumulated[-1]), len(items) - 1)]

    def zipf(self, items: Sequence[T], offset: int = 3) -> T:
        """An item with a probability inverse to its rank plus ``offset``."""
        return self.weighted(items, lexicon.zipf_weights(len(items), offset))

    @abstractmethod
    def relative(self, head: Common, depth: int, barred: str) -> Relative | None:
        """A relative clause for the noun, or None."""

    def person(self) -> Name:
        first = "".join(map(self.zipf, SYLLABLES)) if self.chance(0.25) else self.zipf(FIRST_NAMES)
        last = self.zipf(STEMS) + self.zipf(FAMILY_ENDINGS) if self.chance(0.5) else self.zipf(LAST_NAMES)
        form = self.random()
        if form < 0.75:
            name = [first] if form < 0.55 else [first, last]
            return Name(name, name)
        title, translation = self.zipf(TITLES)
        return Name([title, last], [translation, last])

    def city(self) -> Name:
        made = [self.zipf(STEMS) + self.zipf(CITY_ENDINGS)]
        native, *english = made if self.chance(0.4) else self.zipf(CITIES)
        return Name(english or [native], [native])

    def noun_phrase(
        self,
        kinds: str,
        depth: int = 0,
        it: Common | None = None,
        barred: str = "",
        subject: bool = False,
        closed: bool = False,
    ) -> NounPhrase:
        """A phrase of one of the kinds; ``it`` is what "it" would stand for."""
        if it and it.noun.kind in kinds and self.chance(0.6):
            return Pronoun("it", it.noun.gender, it.noun.kind != "A")
        if "P" in kinds:
            draw = self.random() * (1 if kinds == "P" else 1.5)
            if draw < (0.3 if subject else 0.14):
                return Pronoun(self.zipf(PRONOUNS if subject else PRONOUNS[:7], 2))
            if draw < (0.48 if subject else 0.34):
                return self.person()
        first = self.common(kinds, depth, barred, subject, closed)
        if (
            depth
            and first.closed
            and not first.attachments
            and first.determiner not in ("", "no")
            and self.chance(0.08)
        ):
            second = self.common(first.noun.kind)
            if second.determiner and second.noun is not first.noun:
                return Coordination(first, second)
        return first

    def common(
        self, kinds: str, depth: int = 0, barred: str = "", subject: bool = False, closed: bool = False
    ) -> Common:
        noun = self.weighted(*lexicon.nouns(kinds))
        mass = noun.kind in "DY"
        plural = not mass and self.chance(0.28)
        determiners = ["", "the"] if mass else PLURAL if plural else [*SINGULAR, "no"] if subject else SINGULAR
        result = Common(noun, self.zipf(determiners, 1), plural)
        if plural and result.determiner in ("the", "", "my", "his", "her") and self.chance(0.2):
            small = 2 + self.zipf(range(98), 1)
            result.count = small if self.chance(0.9) else 100 + int(self.random() * 900)
        if noun.kind in lexicon.PORTABLE + "ZVJB" and self.chance(0.14):
            result.modifier = self.zipf(COMPOUNDS, 5)
        for _ in range(self.weighted((0, 1, 2), (0.6, 0.88, 1.0))):
            adjective = self.weighted(*lexicon.adjectives(noun.kind))
            plain = result.determiner not in ("a", "") or result.adjectives or not self.chance(0.12)
            if adjective.english not in [other.english for _, other in result.adjectives]:
                result.adjectives.append((("", "") if plain else self.zipf(DEGREES), adjective))
        if noun.singular in ("bottle", "glass", "cup") and not plural and self.chance(0.5):
            result.content = self.weighted(*lexicon.nouns("D"))
        elif depth:
            self.attach(result, depth - 1, barred, subject, closed)
        return result

    def attach(self, head: Common, depth: int, barred: str, subject: bool, closed: bool) -> None:
        """Hang a prepositional phrase or a relative clause on the noun, or nothing."""
        draw = self.random()
        if draw < 0.16:
            fitting = [row for row in ATTACHMENTS if head.noun.kind in row[0] and (subject or "!" not in row[0])]
            if not fitting:
                return
            _, word, translation, case, kinds = self.zipf(fitting, 2)
            if kinds == "city":
                inner: NounPhrase = self.city()
            elif kinds == "Y":
                inner = Common(self.weighted(*lexicon.nouns("Y")), "")
            else:
                kinds = "".join(kind for kind in kinds if word != "with" or kind not in barred)
                inner = self.noun_phrase(kinds, depth, None, barred, closed=closed)
            if not inner.pronoun:
                head.attachments.append(Prepositional(word, translation, case, inner))
        elif draw < 0.28 and not closed:
            head.relative = self.relative(head, depth, barred)

    def where(self, table: str) -> Prepositional:
        """A preposition from a table of places, and a place."""
        word, translation, case, kinds = self.zipf([entry.split("/") for entry in entries(table)], 2)
        return Prepositional(word, translation, case, self.city() if kinds == "city" else self.located(kinds))

    def located(self, kinds: str) -> NounPhrase:
        return self.person() if kinds == "P" and self.chance(0.3) else self.common(kinds)

    def time(self, past: bool) -> Time:
        draw = self.random()
        count = 2 + self.zipf(range(60), 1)
        if draw < 0.12 and past:
            return phrases.time_ago(count, self.zipf(lexicon.UNITS))
        if draw < 0.2:
            return phrases.time_for(count, self.zipf(lexicon.UNITS))
        if draw < 0.25 and past:
            return phrases.year(1700 + int(self.random() * 320))
        return self.zipf([time for tense, time in TIMES if tense in ("bc" if past else "ac")])
