"""Random derivations of the grammar: which phrases and clauses a sentence is made of, and with what frequency."""

import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from fairseq_diverse.toy import german, lexicon, words
from fairseq_diverse.toy.clauses import MODALS, Clause, Gap, Predicate, Relative
from fairseq_diverse.toy.lexicon import Object, Verb
from fairseq_diverse.toy.phrases import (
    Common,
    Coordination,
    Name,
    NounPhrase,
    Prepositional,
    Pronoun,
    Time,
    counted_time,
    parse_time,
    year,
)
from fairseq_diverse.toy.trees import Tree, leaf, phrase

T = TypeVar("T")

FIRST_NAMES = "Anna Peter Maria Thomas Julia Martin Laura Paul Emma Felix Clara Jonas Sophie Max Hannah Lukas Eva Simon Nora David Ida Oskar Lena Jakob Marta Robert Olga Viktor Greta Anton".split()
LAST_NAMES = "Müller Schmidt Weber Fischer Becker Hoffmann Koch Richter Klein Wolf Neumann Braun Krüger Lange".split()
CITIES = "Berlin Hamburg Wien:Vienna Paris London München:Munich Köln:Cologne Rom:Rome Dresden Zürich:Zurich Bremen Prag:Prague Leipzig Warschau:Warsaw".split()
STEMS = (
    "Stein Berg Wald Kel Brun Hof Lind Rosen Alt Neu Eich Grün Mar Tann Hirsch Wolfs Mühl Sand Birken Falken".split()
)
FAMILY_ENDS = "meier mann bauer er bach huber feld hofer wirt ner".split()
CITY_ENDS = "stadt heim burg dorf feld hausen au brück furt tal".split()
SYLLABLES = (
    "Ka Lo Mi Ta Ru Be Sa No Ve Di Fa Jo".split(),
    "ri la ne mo vi sa to dre li ka".split(),
    "n na s ra ro l lia m x".split(),
)
TITLES = (("Mr.", "Herr"), ("Mrs.", "Frau"), ("Dr.", "Doktor"))
DEGREES = (
    ("very", "sehr"),
    ("too", "zu"),
    ("rather", "ziemlich"),
    ("so", "so"),
    ("especially", "besonders"),
    ("almost", "fast"),
)
SUBORDINATORS = (
    ("because", "weil"),
    ("when", ""),
    ("if", "wenn"),
    ("although", "obwohl"),
    ("before", "bevor"),
    ("while", "während"),
    ("after", "nachdem"),
    ("so that", "damit"),
    ("until", "bis"),
)
ADJECTIVE_COMPLEMENTS = (
    ("proud", "stolz", "of", "auf", "acc"),
    ("satisfied", "zufrieden", "with", "mit", "dat"),
    ("interested", "interessiert", "in", "an", "dat"),
    ("angry", "böse", "at", "auf", "acc"),
    ("famous", "bekannt", "for", "für", "acc"),
    ("jealous", "eifersüchtig", "of", "auf", "acc"),
)
TIMES = [
    (tense, parse_time(label, *rest.split("=")))
    for tense, label, rest in (entry.split(maxsplit=2) for entry in lexicon.entries(words.TIMES))
]
PAIRS = {
    name: [tuple(entry.split()) for entry in lexicon.entries(table)]
    for name, table in {"often": words.OFTEN, "manner": words.MANNERS, "compound": words.COMPOUNDS}.items()
}


class Derivation:
    """Draws sentences. All randomness comes from ``random.Random.random``, whose values are the same on every Python."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    # -- chances -----------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def weighted(self, items: Sequence[T], cumulated: Sequence[float]) -> T:
        return items[min(bisect(cumulated, self.random() * cumulated[-1]), len(items) - 1)]

    def zipf(self, items: Sequence[T], offset: int = 3) -> T:
        """An item with probability inverse to its rank plus ``offset``."""
        return self.weighted(items, lexicon.zipf_weights(len(items), offset))

    # -- noun phrases ------------------------------------------------------------------------------------------------

    def person_name(self) -> Name:
        first = "".join(self.zipf(part) for part in SYLLABLES) if self.chance(0.25) else self.zipf(FIRST_NAMES)
        last = self.zipf(STEMS) + self.zipf(FAMILY_ENDS) if self.chance(0.5) else self.zipf(LAST_NAMES)
        form = self.random()
        if form < 0.55:
            return Name([first], [first])
        if form < 0.75:
            return Name([first, last], [first, last])
        english, translation = self.zipf(TITLES)
        return Name([english, last], [translation, last])

    def city(self) -> Name:
        if self.chance(0.4):
            made = self.zipf(STEMS) + self.zipf(CITY_ENDS)
            return Name([made], [made])
        native, _, english = self.zipf(CITIES).partition(":")
        return Name([english or native], [native])

    def noun_phrase(
        self,
        kinds: str,
        depth: int = 1,
        *,
        it: Common | None = None,
        barred: str = "",
        subject: bool = False,
        closed: bool = False,
    ) -> NounPhrase:
        """A phrase of one of the kinds.

        ``it``: what "it" may stand for. ``barred``: kinds of tool that the verb before would claim, so that "with" such a tool
        cannot hang on this noun. ``subject``: before the verb. ``closed``: without a relative clause.
        """
        if it and it.noun.kind in kinds and self.chance(0.6):
            return Pronoun("it", it.noun.gender, it.noun.kind != "A")
        if "P" in kinds:
            share = self.random() * (1 if kinds == "P" else 1.5)
            if share < (0.3 if subject else 0.14):
                return Pronoun(
                    self.zipf(
                        ["he", "she", "I", "they", "we", "you", "someone", "everyone", "nobody"][: 9 if subject else 7],
                        2,
                    )
                )
            if share < (0.48 if subject else 0.34):
                return self.person_name()
        if depth and self.chance(0.06):
            first, second = (self.common(kinds, 0, barred, closed=True) for _ in range(2))
            if first.noun is not second.noun and second.determiner and first.determiner:
                return Coordination((first, second))
        return self.common(kinds, depth, barred, subject, closed)

    def common(self, kinds: str, depth: int, barred: str = "", subject: bool = False, closed: bool = False) -> Common:
        noun = self.weighted(*lexicon.nouns(kinds))
        mass = noun.kind in "DY"
        plural = not mass and self.chance(0.28)
        if mass:
            determiner = self.zipf(["", "the"], 1)
        elif plural:
            determiner = self.zipf(
                ["the", "", "my", "some", "these", "many", "all", "his", "her", "few", "our", "their", "your"], 1
            )
        else:
            determiner = self.zipf(
                ["the", "a", "this", "my", "his", "her", "every", "our", "your", "their", "no"]
                if subject
                else ["the", "a", "the", "her", "this", "his", "my", "every", "their", "your", "our"],
                1,
            )
        result = Common(noun, determiner, plural)
        if plural and determiner in ("the", "", "my", "his", "her") and self.chance(0.2):
            result.count = 2 + int(self.zipf(range(250), 1)) if self.chance(0.9) else 100 + int(self.random() * 900)
        if noun.kind in lexicon.PORTABLE + "ZVJB" and self.chance(0.14):
            result.modifier = self.zipf(PAIRS["compound"], 5)
        for _ in range(2 if self.chance(0.12) else 1 if self.chance(0.32) else 0):
            adjective = self.weighted(*lexicon.adjectives(noun.kind))
            if adjective.english not in [other.english for _, other in result.adjectives]:
                degree = (
                    self.zipf(DEGREES)
                    if self.chance(0.12) and determiner in ("a", "") and not result.adjectives
                    else ("", "")
                )
                result.adjectives.append((degree, adjective))
        if noun.singular in ("bottle", "glass", "cup") and self.chance(0.5) and not plural:
            result.content = self.weighted(*lexicon.nouns("D"))
        elif depth:
            self.attach(result, depth, barred, subject, closed)
        return result

    def attach(self, head: Common, depth: int, barred: str, subject: bool, closed: bool) -> None:
        """Perhaps a prepositional phrase or a relative clause on the noun."""
        kind = head.noun.kind
        options: list[tuple[str, str, str, str]] = []  # English, German, case, kinds
        if kind in "SLHTCQZVBIJNE":
            options.append(("of", "", "gen", "P"))
        if kind in "SLC":
            options.append(("of", "aus", "dat", "Y"))
        if kind == "P":
            options += [("with", "mit", "dat", "COKMWXL"), ("from", "aus", "dat", "city")]
        if kind == "B":
            options += [("with", "mit", "dat", "GJ"), ("by", "an", "dat", "N")]
        if kind == "T":
            options += [("about", "über", "acc", "PAIEV"), ("by", "von", "dat", "P"), ("for", "für", "acc", "P")]
        if kind == "Q":
            options.append(("with", "mit", "dat", "OKMWXF"))
        if subject and kind in "PASLTZ":
            options += [("in", "in", "dat", "B"), ("on", "auf", "dat", "Z")]
        draw = self.random()
        if draw < 0.16 and options:
            english, translation, case, kinds = self.zipf(options, 2)
            kinds = "".join(k for k in kinds if k not in barred) if kinds != "city" and english == "with" else kinds
            inner = self.city() if kinds == "city" else self.noun_phrase(kinds, depth - 1, barred=barred, closed=closed)
            if kinds == "Y" and isinstance(inner, Common):
                inner = Common(inner.noun, "")
            if not inner.pronoun:
                head.attachments.append(Prepositional(english, translation, case, inner))
        elif draw < 0.28 and not closed and kind != "Y":
            head.relative = self.relative(head, depth - 1, barred)

    def relative(self, head: Common, depth: int, barred: str) -> Relative | None:
        gap = Gap(head.plural, "p" if head.plural else head.gender)
        kind = head.noun.kind
        if self.chance(0.55):
            clause = self.clause(depth, subject=gap, kind=kind, barred=barred)
            return Relative(clause, None, kind == "P") if clause else None
        found = [verb for verb in lexicon.verbs("", 1)[0] if kind in verb.objects[0].kinds]
        if not found:
            return None
        verb = self.zipf(found, 4)
        clause = self.finish(Clause(self.noun_phrase(verb.subject, 0, subject=True), verb, [gap]), depth, barred=barred)
        return Relative(clause, 0, kind == "P")

    # -- prepositional phrases and adverbs -----------------------------------------------------------------------------

    def located(self, options: Sequence[tuple[str, str, str]], case: str, barred: str = "") -> Prepositional:
        english, translation, kinds = self.zipf(options, 2)
        inner = self.city() if kinds == "city" else self.common(kinds, 0, barred, closed=True)
        return Prepositional(english, translation, case, inner)

    def place(self, kinds: str = "", barred: str = "") -> Prepositional:
        options = [
            ("in", "in", "B"),
            ("in", "in", "city"),
            ("by", "an", "N"),
            ("behind", "hinter", "BG"),
            ("under", "unter", "G"),
            ("near", "in der Nähe von", "BN"),
            ("beside", "neben", "ZV"),
        ]
        if kinds and kinds in "SLTCOKMWXF":
            options = [
                ("on", "auf", "Z"),
                ("in", "in", "Q"),
                ("under", "unter", "Z"),
                ("beside", "neben", "SZ"),
                ("behind", "hinter", "SQ"),
            ]
        if kinds and kinds in "H":
            options = [("on", "an", "J"), ("behind", "hinter", "Z"), ("beside", "neben", "J")]
        return self.located(options, "dat", barred)

    def target(self, kind: str) -> Prepositional:
        """Where something is put: the accusative."""
        options = [
            ("on", "auf", "Z"),
            ("into", "in", "Q"),
            ("under", "unter", "Z"),
            ("beside", "neben", "SZ"),
            ("behind", "hinter", "SQ"),
        ]
        return self.located([("on", "an", "J"), ("beside", "neben", "J")] if kind in "HC" else options, "acc")

    def direction(self) -> Prepositional:
        options = [
            ("to", "in", "B", "acc"),
            ("to", "nach", "city", "dat"),
            ("to", "zu", "P", "dat"),
            ("from", "aus", "city", "dat"),
            ("to", "an", "N", "acc"),
            ("from", "aus", "B", "dat"),
            ("to", "zu", "E", "dat"),
            ("through", "durch", "B", "acc"),
            ("from", "von", "P", "dat"),
        ]
        english, translation, kinds, case = self.zipf(options, 2)
        return self.located([(english, translation, kinds)], case)

    def time(self, past: bool) -> Time:
        draw = self.random()
        count = 2 + self.zipf(range(60), 1)
        if draw < 0.12 and past:
            return counted_time("ago", count, self.zipf(lexicon.UNITS))
        if draw < 0.2:
            return counted_time("for", count, self.zipf(lexicon.UNITS))
        if draw < 0.25 and past:
            return year(1700 + int(self.random() * 320))
        return self.zipf([time for tense, time in TIMES if tense in ("bc" if past else "ac")])

    # -- clauses -------------------------------------------------------------------------------------------------------

    def clause(
        self,
        depth: int,
        *,
        subject: NounPhrase | None = None,
        kind: str = "",
        it: Common | None = None,
        barred: str = "",
        past: bool | None = None,
    ) -> Clause | None:
        """A declarative clause; with ``subject`` (of ``kind``) its verb is chosen to fit. None if no verb fits."""
        frame, objects = self.frame(depth, subject)
        if frame == "copula":
            return self.finish(self.copula(depth, subject, kind, it), depth, past)
        if frame == "weather":
            return self.finish(Clause(Pronoun("it", "n"), self.weighted(*lexicon.verbs("weather", 0))), depth, past)
        found, weights = lexicon.verbs(frame.replace("passive", ""), objects, "" if frame == "passive" else kind)
        if not found or (frame == "passive" and not any(passive(verb, kind) for verb in found)):
            return None
        verb = self.weighted(found, weights)
        while frame == "passive" and not passive(verb, kind):
            verb = self.weighted(found, weights)
        kinds = verb.objects[0].kinds if frame == "passive" else verb.subject
        agent = subject or self.noun_phrase(kinds, depth, it=it, subject=True)
        if isinstance(agent, Pronoun) and agent.word == "it":
            it = None
        clause = Clause(agent, verb)
        if frame == "passive":
            clause.passive = True
            if self.chance(0.5):
                by = self.person_name() if self.chance(0.3) else self.common("P", 0, closed=True)
                clause.means.append(Prepositional("by", "von", "dat", by))
            return self.finish(clause, depth, past, barred)
        return self.finish(self.with_objects(clause, depth, it, barred), depth, past, barred)

    def frame(self, depth: int, subject: NounPhrase | None) -> tuple[str, int]:
        """Complement and number of objects of the verb to choose."""
        rows = FRAMES if depth and not subject else FRAMES[:8]
        frame, objects, _ = self.weighted(rows, lexicon.cumulated(row[2] for row in rows))
        return frame, objects

    def with_objects(self, clause: Clause, depth: int, it: Common | None, barred: str) -> Clause:
        verb = clause.verb
        assert verb
        for position, slot in enumerate(verb.objects):
            closed = not depth or position < len(verb.objects) - 1 or bool(verb.frame) or self.chance(0.4)
            chosen = self.noun_phrase(
                slot.kinds, 0 if closed else depth, it=it, barred=barred + verb.tool, closed=closed
            )
            if isinstance(chosen, Pronoun) and chosen.word == getattr(clause.subject, "word", ""):
                chosen = self.person_name()
            clause.objects.append(chosen)
        if len(verb.objects) == 2:
            clause.receiver_last = "to" in verb.flags or clause.objects[1].pronoun or self.chance(0.4)
        return clause

    def copula(self, depth: int, subject: NounPhrase | None, kind: str, it: Common | None) -> Clause:
        subject = subject or self.noun_phrase(lexicon.ANY + "IE", depth, it=it, subject=True)
        kind = kind or kind_of(subject, it)
        if kind == "P" and self.chance(0.15) and not subject.plural:
            noun = self.common("P", 0, closed=True)
            noun.determiner, noun.plural, noun.count = "a", False, 0
            return Clause(subject, None, predicate=Predicate(noun=noun))
        if kind == "P" and self.chance(0.2):
            adjective, translation, english, preposition, case = self.zipf(ADJECTIVE_COMPLEMENTS)
            complement = Prepositional(english, preposition, case, self.noun_phrase("PAIEBT", 0, closed=True))
            return Clause(
                subject,
                None,
                predicate=Predicate(lexicon.Adjective(adjective, translation, "P", 1.0), complement=complement),
            )
        degree = self.zipf(DEGREES) if self.chance(0.3) else ("", "")
        return Clause(subject, None, predicate=Predicate(self.weighted(*lexicon.adjectives(kind)), degree))

    def set_tense(self, clause: Clause, past: bool | None) -> None:
        """Tense and modal; ``past`` binds them to another clause's time."""
        verb = clause.verb
        stative = verb is None or "stative" in verb.flags
        past = self.chance(0.5) if past is None else past
        draw = self.random()
        clause.tense = "past" if past else "present"
        if draw < 0.16:
            willing = verb is not None and verb.subject[:1] == "P" and verb.subject_case == "nom" and not clause.passive
            modal = self.zipf(
                [
                    modal
                    for modal in MODALS
                    if (willing or " to" not in modal.english)
                    and modal.past <= past
                    and (past <= modal.past or " to" in modal.english)
                ],
                2,
            )
            clause.modal = modal
            clause.tense = "past" if past and not modal.past else "present"
        elif draw < 0.28:
            clause.tense = "pluperfect" if past and self.chance(0.6) else "perfect"
        elif draw < 0.36 and not past and not stative and not clause.passive:
            clause.tense = "progressive"
        self.clear_tense(clause)

    def clear_tense(self, clause: Clause) -> None:
        """ "They put" is always the present, because "put" would be the past as well."""
        same = clause.verb and clause.verb.english[0] == clause.verb.english[1] and not clause.passive
        if (
            same
            and clause.tense == "past"
            and not clause.modal
            and not clause.negated
            and (clause.subject.plural or clause.subject.person != 3)
        ):
            clause.tense = "present"

    def finish(self, clause: Clause, depth: int, past: bool | None = None, barred: str = "") -> Clause:
        """Tense, negation, adverbials and the verb's complement."""
        verb = clause.verb
        frame = verb.frame if verb else ""
        self.set_tense(clause, past)
        if frame == "put":
            clause.place = self.target(kind_of(clause.objects[0], None))
        elif frame == "at":
            clause.place = self.place(verb.subject if verb and verb.english[0] == "be" else "")
        elif frame == "go":
            clause.place = self.direction()
            if (
                clause.place.german_words in ("in", "nach", "aus")
                and verb
                and verb.english[0] in ("go", "travel")
                and self.chance(0.3)
            ):
                clause.means.append(Prepositional("by", "mit", "dat", Vehicle(self.weighted(*lexicon.nouns("V")))))
        negative = any(
            getattr(item, "determiner", "") == "no" or getattr(item, "word", "") == "nobody"
            for item in [clause.subject, *clause.objects]
        )
        clause.negated = self.chance(0.11) and not negative and not frame == "weather"
        self.clear_tense(clause)
        if self.chance(0.08) and not clause.negated and clause.tense not in ("progressive",):
            clause.often = self.zipf(PAIRS["often"])
        timed = self.chance(0.22) and clause.tense in ("present", "past") and frame not in ("that", "if", "inf")
        if timed:
            clause.time = self.time(clause.tense == "past" and clause.modal is None or clause.tense == "past")
        if all(item.closed for item in clause.objects) and verb and frame not in ("that", "if", "inf", "weather"):
            self.adverbials(clause, verb, barred)
        elif timed and not all(item.closed for item in clause.objects):
            clause.time = None
        if frame == "that":
            clause.complement = ("that" if self.chance(0.7) else "", "dass", self.full_clause(depth - 1))
        elif frame == "if":
            word, translation = self.zipf(
                [("if", "ob"), ("whether", "ob"), ("why", "warum"), ("when", "wann"), ("where", "wo")]
            )
            inner = self.full_clause(depth - 1)
            if (word == "when" and inner.time) or (word == "where" and (inner.place or not inner.verb)):
                word, translation = "whether", "ob"
            clause.complement = (word, translation, inner)
        elif frame == "inf":
            clause.complement = ("to", "zu", self.infinitive(clause, depth - 1))
        return clause

    def adverbials(self, clause: Clause, verb: Verb, barred: str) -> None:
        """Means, manner and place."""
        if verb.tool and self.chance(0.35):
            clause.means.append(Prepositional("with", "mithilfe", "gen", self.common(verb.tool, 0, closed=True)))
        elif verb.subject[:1] == "P" and self.chance(0.06) and not clause.passive:
            clause.means.append(Prepositional("with", "zusammen mit", "dat", self.noun_phrase("P", 0, closed=True)))
        if self.chance(0.14) and "stative" not in verb.flags and verb.subject[:1] == "P":
            clause.manner = self.zipf(PAIRS["manner"])
        if self.chance(0.16) and not verb.frame and "stative" not in verb.flags:
            clause.place = self.place(barred=barred + verb.tool)

    def infinitive(self, outer: Clause, depth: int) -> Clause:
        """What someone tries, or is asked, to do: a clause without tense, whose subject is the outer clause's."""
        frame, objects = self.zipf([("", 1), ("", 0), ("go", 0), ("put", 1), ("", 2)], 2)
        found, weights = lexicon.verbs(frame, objects, "P")
        verb = self.weighted(found, weights)
        while verb.subject_case != "nom" or "stative" in verb.flags:
            verb = self.weighted(found, weights)
        clause = self.finish(self.with_objects(Clause(outer.controller(), verb), depth, None, ""), depth)
        clause.tense, clause.modal, clause.negated, clause.often, clause.time = "present", None, False, None, None
        return clause

    def full_clause(self, depth: int, it: Common | None = None, past: bool | None = None) -> Clause:
        clause = None
        while clause is None:
            clause = self.clause(depth, it=it, past=past)
        return clause

    # -- sentences -----------------------------------------------------------------------------------------------------

    def sentence(self) -> tuple[Tree, list[str]]:
        """English tree and German words, both with the final punctuation mark."""
        draw = self.random()
        if draw < 0.1:
            return self.question()
        first = self.existential() if draw < 0.15 else self.full_clause(2)
        antecedent = it_of(first)
        past = first.tense in ("past", "pluperfect")
        if draw > 0.86 and not first.complement:
            english, translation = self.zipf([("and", "und"), ("but", "aber"), ("or", "oder")], 1)
            second = self.full_clause(1, antecedent, past)
            comma = [","] if translation == "aber" else []
            tree = phrase(
                "S",
                ("head", first.english()),
                ("punct", leaf(",", ",")),
                ("cc", leaf("CC", english)),
                ("conj", second.english()),
                ("punct", leaf(".", ".")),
            )
            return tree, [*first.german("main"), *comma, translation, *second.german("main"), "."]
        if draw > 0.64 and not first.complement:
            english, translation = self.zipf(SUBORDINATORS)
            front = self.chance(0.35)
            other = self.full_clause(1, None if front else antecedent, past)
            if english == "when":
                translation = "als" if other.tense in ("past", "pluperfect") else "wenn"
            first.adjuncts.append((english, translation, other, front))
        elif (
            draw > 0.58
            and not first.complement
            and not first.modal
            and first.verb
            and first.tense in ("present", "past")
        ):
            self.second_predicate(first)
        if not any(front for *_, front in first.adjuncts) and first.verb:
            first.time_first = first.time is not None and self.chance(0.4)
            first.place_first = (
                not first.time_first and first.place is not None and first.verb.frame == "" and self.chance(0.2)
            )
        return phrase("S", *first.sentence_parts(), ("punct", leaf(".", "."))), [*first.german("main"), "."]

    def second_predicate(self, clause: Clause) -> None:
        """ "and" with a second verb for the same subject."""
        if not all(item.closed for item in clause.objects) or clause.verb and clause.verb.subject_case != "nom":
            return
        other = self.clause(0, subject=clause.subject, kind=kind_of(clause.subject, None), past=clause.tense == "past")
        if other and other.verb and other.verb.subject_case == "nom" and not other.passive and not clause.passive:
            other.tense, other.modal, other.negated, other.time = clause.tense, None, False, None
            self.clear_tense(other)
            if other.tense == clause.tense:
                clause.also = other

    def existential(self) -> Clause:
        subject = self.common(lexicon.ANY, 1, closed=True)
        subject.determiner = "" if subject.plural or subject.noun.kind in "DY" else self.zipf(["a", "no"], 1)
        clause = Clause(subject, None, existential=True, tense=self.zipf(["present", "past"], 2))
        if subject.closed:
            clause.place = self.place()
        clause.negated = subject.plural and self.chance(0.1)
        return clause

    def question(self) -> tuple[Tree, list[str]]:
        mark = ("punct", leaf(".", "?"))
        kind = self.zipf(["yes", "adverb", "who", "object"], 2)
        if kind == "who":
            clause = self.clause(1, subject=Pronoun("who"), kind="P")
            while clause is None:
                clause = self.clause(1, subject=Pronoun("who"), kind="P")
            who = clause.subject.english(True)
            return phrase(
                "SBARQ", (clause.subject_relation, who), ("head", phrase("SQ", ("head", clause.verb_phrase()))), mark
            ), [*clause.german("main"), "?"]
        if kind == "object":
            found = [
                v
                for v in lexicon.verbs("", 1)[0]
                if not v.objects[0].english and v.objects[0].case in ("acc", "dat") and not v.objects[0].german
            ]
            verb = self.zipf(found, 4)
            slot = verb.objects[0]
            asked = Pronoun("what" if "P" not in slot.kinds or (slot.case == "acc" and self.chance(0.3)) else "who")
            clause = self.finish(Clause(self.noun_phrase(verb.subject, 0, subject=True), verb, [Gap(False, "m")]), 0)
            tree = phrase("SBARQ", ("obj", asked.english()), ("head", clause.question()), mark)
            return tree, [*clause.german("question", asked=asked.german(slot.case)), "?"]
        clause = self.full_clause(1)
        while clause.complement or clause.existential:
            clause = self.full_clause(1)
        if kind == "yes":
            tree = clause.question()
            return phrase("SQ", *tree.children, mark), [*clause.german("question"), "?"]
        word, translation = self.zipf([("why", "warum"), ("when", "wann"), ("where", "wo"), ("how", "wie")], 1)
        if word == "where" and clause.verb and clause.verb.frame == "go":
            translation = "wohin"
            clause.place = None
        elif (word == "where" and clause.place) or not clause.verb:
            word, translation = "why", "warum"
        if word == "when":
            clause.time = None
        if word == "how":
            clause.manner = None
        front = phrase("WHADVP", ("head", leaf("WRB", word)))
        return phrase("SBARQ", ("advmod", front), ("head", clause.question()), mark), [
            *clause.german("question", asked=[translation]),
            "?",
        ]


FRAMES = [
    ("", 1, 0.42),
    ("", 0, 0.12),
    ("copula", 0, 0.12),
    ("", 2, 0.08),
    ("go", 0, 0.07),
    ("put", 1, 0.05),
    ("at", 0, 0.05),
    ("passive", 1, 0.06),
    ("that", 0, 0.06),
    ("if", 0, 0.02),
    ("inf", 0, 0.06),
    ("inf", 1, 0.03),
    ("that", 1, 0.02),
    ("if", 1, 0.02),
    ("at", 1, 0.01),
    ("weather", 0, 0.01),
]


class Vehicle(Common):
    """ "by train": no article in English, the definite one in German."""

    def english(self, subject: bool = False) -> Tree:
        return phrase("NP", ("head", leaf("NN", self.noun.singular)))


def passive(verb: Verb, kind: str) -> bool:
    """Whether the verb has a passive, with a subject of this kind."""
    slot = verb.objects[0]
    plain = (
        slot.case == "acc"
        and not slot.english
        and not slot.german
        and not verb.reflexive
        and "stative" not in verb.flags
    )
    return plain and kind in slot.kinds


def kind_of(item: NounPhrase, it: Common | None) -> str:
    """The kind of noun that the phrase stands for."""
    if isinstance(item, Pronoun) and item.word == "it" and it:
        return it.noun.kind
    if isinstance(item, Coordination):
        return kind_of(item.parts[0], it)
    return item.noun.kind if isinstance(item, Common) else "P"


def it_of(clause: Clause) -> Common | None:
    """The one thing or animal among subject and objects, which "it" in the next clause stands for."""
    found = [
        item
        for item in [clause.subject, *clause.objects]
        if isinstance(item, Common) and not item.plural and item.noun.kind != "P"
    ]
    return found[0] if len(found) == 1 else None


def sentence_pair(derivation: Derivation) -> tuple[Tree, str]:
    """One English tree of 3 to 40 words and its German translation."""
    while True:
        tree, german_words = derivation.sentence()
        if 3 <= sum(1 for _ in tree.leaves()) <= 40:
            return tree.capitalized(), german.finish(german_words)
