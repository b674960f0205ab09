"""Derivations of the synchronous grammar: random sentences as abstract syntax."""

import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from fairseq_diverse.toy import abstract_syntax as ast
from fairseq_diverse.toy import lexicon
from fairseq_diverse.toy.lexicon import ANY, MODALS, PORTABLE, WORDS, Adjective, Modal, Verb, Weighted, split

T = TypeVar("T")
Places = Sequence[tuple[str, ...]]
Subject = ast.Argument | None  # None: not given
It = ast.Common | None  # the antecedent
Past = bool | None  # None: any tense

FIRST_NAMES, LAST_NAMES, STEMS = WORDS["first-names"], WORDS["last-names"], WORDS["stems"]
FAMILY_ENDINGS, CITY_ENDINGS, SYLLABLES = WORDS["family-endings"], WORDS["city-endings"], WORDS["syllables"]
CITIES = split(WORDS["cities"], "/")
TITLES, COMPOUNDS, PREDICATES = split(WORDS["titles"]), split(WORDS["compounds"]), split(WORDS["predicates"])
OFTEN, MANNERS = split(WORDS["frequency-adverbs"]), split(WORDS["manner-adverbs"])
DEGREES = split(WORDS["degree-adverbs"])
BEFORE_NOUNS = {"so": ("very", "sehr"), "too": ("rather", "ziemlich")}  # in place of "a so old man"
ATTACHMENTS = split(WORDS["attachments"], "/")
PLACES = {name: split(table, "/") for name, table in WORDS["places"].items()}
SUBORDINATORS = split(WORDS["subordinators"], " = ")
SINGULAR = ["the", "a", "this", "my", "his", "her", "every", "our", "your", "their"]
PLURAL = ["the", "", "my", "some", "these", "many", "all", "his", "her", "few", "our", "their", "your"]
PRONOUNS = ["he", "she", "I", "they", "we", "you", "someone", "everyone", "nobody"]
ASKED = (("if", "ob"), ("whether", "ob"), ("why", "warum"), ("when", "wann"), ("where", "wo"))
# Frame of the verb, number of objects, share. The second table is for clauses in which another one may be embedded.
FRAMES = (
    ("", 1, 0.42), ("", 0, 0.12), ("copula", 0, 0.12), ("", 2, 0.08), ("go", 0, 0.07), ("passive", 1, 0.06),
    ("put", 1, 0.05), ("at", 0, 0.05),
)  # fmt: skip
DEEP_FRAMES = (
    *FRAMES, ("that", 0, 0.06), ("inf", 0, 0.06), ("inf", 1, 0.03), ("if", 0, 0.02), ("if", 1, 0.02), ("that", 1, 0.02),
    ("at", 1, 0.01), ("weather", 0, 0.01),
)  # fmt: skip
SHARES = {table: [*accumulate(share for _, _, share in table)] for table in (FRAMES, DEEP_FRAMES)}


class Derivation:
    """Draws sentences. All randomness comes from ``random.Random.random``, which is the same in every Python version.

    ``depth``: number of levels of clauses and phrases that may be embedded. ``barred``: kinds of tools of a verb before
    the noun; the noun gets no "with" phrase with such a tool. ``it``: the antecedent of an "it". ``subject``: the
    phrase comes before the verb. ``closed``: it has no relative clause.
    """

    def __init__(self, seed: int | str):
        self.random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def weighted(self, items: Sequence[T], cumulated: Sequence[float]) -> T:
        return items[min(bisect(cumulated, self.random() * cumulated[-1]), len(items) - 1)]

    def zipf(self, items: Sequence[T], offset: int = 3) -> T:
        """An item with a probability inverse to its rank plus ``offset``."""
        return self.weighted(items, lexicon.zipf_weights(len(items), offset))

    def any_of(self, choice: Weighted[T]) -> T | None:
        return self.weighted(*choice) if choice[0] else None

    def sentence(self) -> ast.Sentence:
        draw = self.random()
        if draw < 0.1:
            return self.question()
        first = self.existential() if draw < 0.15 else self.clause(2)
        if not first.complement and draw > 0.86:
            conjunction = self.zipf((("and", "und"), ("but", "aber"), ("or", "oder")), 1)
            return ast.Statement(first, conjunction, self.clause(1, it=it_of(first), past=first.past))
        if not first.complement and draw > 0.64:
            english, german = self.zipf(SUBORDINATORS)
            front = self.chance(0.35)
            other = self.clause(1, it=None if front else it_of(first), past=first.past)
            first.adjuncts.append((english, "als" if english == "when" and other.past else german, other, front))
        elif not first.complement and draw > 0.57:
            first.also = self.second_predicate(first)
        if first.verb and not any(front for *_, front in first.adjuncts):
            first.time_first = first.time is not None and self.chance(0.4)
            first.place_first = bool(first.place and not first.time_first and not first.frame and self.chance(0.2))
        return ast.Statement(first)

    def second_predicate(self, first: ast.Clause) -> ast.Clause | None:
        """A second verb phrase of the same subject in the same tense; None if it would be ambiguous."""
        plain = first.tense in ("present", "past") and not first.modal and not first.passive and first.closed
        if not plain or not first.verb or first.verb.subject_case != "nom":
            return None
        other = self.clause(0, first.subject, kind_of(first.subject), past=first.past)
        if not other.verb or other.verb.subject_case != "nom" or other.passive:
            return None
        other.tense, other.modal, other.negated, other.time = first.tense, None, False, None
        self.avoid_ambiguous_tense(other)
        return other if other.tense == first.tense and first.frame != "weather" else None  # "it" rains, but sings not

    def existential(self) -> ast.Clause:
        subject = self.common(ANY, 1, closed=True)
        subject.determiner = "" if subject.plural or subject.noun.kind in "DY" else self.zipf(("a", "no"), 1)
        clause = ast.Clause(subject, None, existential=True, tense=self.zipf(("present", "past"), 2))
        clause.place = self.where(PLACES["anywhere"])
        clause.negated = subject.plural and subject.negatable and self.chance(0.2)
        return clause

    def question(self) -> ast.Question:
        kind = self.zipf(("yes", "adverb", "who", "object"), 2)
        if kind == "who":
            who = ast.Pronoun("who")
            return ast.Question(self.clause(1, who, "P"), who)
        if kind == "object":
            return self.object_question()
        clause = self.clause(1)
        if clause.complement or clause.frame == "weather":
            return self.question()
        if kind == "yes":
            return ast.Question(clause)
        word, translation = self.zipf((("why", "warum"), ("when", "wann"), ("where", "wo"), ("how", "wie")), 1)
        if word == "where" and clause.frame == "go":
            translation, clause.place = "wohin", None
        elif word == "where" and (clause.place or not clause.verb):
            word, translation = "why", "warum"
        clause.time = None if word == "when" else clause.time
        clause.manner = None if word == "how" else clause.manner
        return ast.Question(clause, (word, translation))

    def object_question(self) -> ast.Question:
        """A question with "whom" or "what"; the German verb governs the case of the pronoun."""
        verb = self.weighted(*lexicon.verbs_to_ask())
        slot = verb.objects[0]
        thing = "P" not in slot.kinds or (slot.case == "acc" and slot.kinds != "P" and self.chance(0.3))
        clause = self.finish(ast.Clause(self.noun_phrase(verb.subject, subject=True), verb, [ast.Gap()]), 0)
        return ast.Question(clause, ast.Pronoun("what" if thing else "who"))

    def clause(
        self, depth: int, subject: Subject = None, kind: str = "", it: It = None, barred: str = "", past: Past = None
    ) -> ast.Clause:
        """A declarative clause; with a ``subject`` of ``kind``, its verb fits the subject."""
        table = DEEP_FRAMES if depth and not subject else FRAMES
        frame, objects, _ = self.weighted(table, SHARES[table])
        if frame == "copula":
            return self.finish(self.copula(depth, subject, kind, it), depth, past)
        verb = self.any_of(lexicon.passive_verbs(kind) if frame == "passive" else lexicon.verbs(frame, objects, kind))
        if verb is None:  # the frame has no verb for this subject: draw another
            return self.clause(depth, subject, kind, it, barred, past)
        if frame == "weather":
            return self.finish(ast.Clause(ast.Pronoun("it", "n"), verb), depth, past)
        kinds = verb.objects[0].kinds if frame == "passive" else verb.subject
        agent = subject or self.noun_phrase(kinds, depth, it, subject=True)
        clause = ast.Clause(agent, verb, passive=frame == "passive")
        if clause.passive and self.chance(0.5):
            clause.means.append(ast.Prepositional("by", "von", "dat", self.located("P")))
        elif not clause.passive:
            self.add_objects(clause, depth, None if is_it(agent) else it, barred)
        return self.finish(clause, depth, past)

    def add_objects(self, clause: ast.Clause, depth: int, it: It, barred: str) -> None:
        verb = clause.verb
        assert verb
        for position, slot in enumerate(verb.objects):
            closed = not depth or position < len(verb.objects) - 1 or bool(verb.frame) or self.chance(0.4)
            chosen = self.noun_phrase(slot.kinds, 0 if closed else depth, it, barred + verb.tool, closed=closed)
            if isinstance(chosen, ast.Pronoun) and (chosen == clause.subject or chosen in clause.objects):
                chosen = self.common(slot.kinds)
            it = None if is_it(chosen) else it
            clause.objects.append(chosen)
        if len(verb.objects) == 2:
            clause.receiver_last = "to" in verb.flags or clause.objects[1].pronoun or self.chance(0.4)

    def copula(self, depth: int, subject: Subject, kind: str, it: It) -> ast.Clause:
        subject = subject or self.noun_phrase(ANY + "IE", depth, it, subject=True)
        kind = kind or kind_of(subject, it)
        clause = ast.Clause(subject, None)
        if kind == "P" and not subject.plural and self.chance(0.15):
            noun = self.common("P")
            noun.determiner, noun.plural, noun.count = "a", False, 0
            clause.predicate = ast.Predicate(noun=noun)
        elif kind == "P" and self.chance(0.2):
            english, translation, before, german_before, case = self.zipf(PREDICATES)
            complement = ast.Prepositional(before, german_before, case, self.noun_phrase("PAIEBT"))
            clause.predicate = ast.Predicate(Adjective(english, translation, "P", 1.0), complement=complement)
        else:
            degree = self.zipf(DEGREES) if self.chance(0.3) else ("", "")
            clause.predicate = ast.Predicate(self.weighted(*lexicon.adjectives(kind)), degree)
        return clause

    def finish(self, clause: ast.Clause, depth: int, past: Past = None) -> ast.Clause:
        """Tense, negation, adverbials and the verb's complement; ``past`` fixes the tense if it is not None."""
        frame = clause.frame
        self.set_tense(clause, self.chance(0.5) if past is None else past)
        items = [clause.subject, *clause.objects]
        said_no = any(getattr(x, "determiner", "") == "no" or getattr(x, "word", "") == "nobody" for x in items)
        clause.negated = self.chance(0.11) and not said_no and frame != "weather"
        self.avoid_ambiguous_tense(clause)
        if self.chance(0.08) and not clause.negated and clause.tense != "progressive":
            clause.often = self.zipf(OFTEN)
        if self.chance(0.22) and clause.tense in ("present", "past") and clause.closed:
            clause.time = self.time(clause.past)
        if frame == "put":
            hung = clause.verb and clause.verb.english == "hang"
            clause.place = self.where(PLACES["targets-on-walls" if hung else "targets"])
        elif frame == "at":
            clause.place = self.where(self.places(clause))
        elif frame == "go":
            clause.place = self.where(PLACES["directions"])
        if clause.verb and clause.closed and frame not in ("that", "if", "inf", "weather"):
            self.add_adverbials(clause, clause.verb)
        if frame in ("that", "if", "inf"):
            clause.complement = self.complement(clause, depth - 1)
        return clause

    def set_tense(self, clause: ast.Clause, past: bool) -> None:
        verb = clause.verb
        stative = verb is None or "stative" in verb.flags or clause.passive
        draw = self.random()
        clause.tense = "past" if past else "present"
        if draw < 0.16:
            willing = verb is not None and "P" in verb.subject and verb.subject_case == "nom" and not clause.passive
            clause.modal = self.zipf([modal for modal in MODALS if modal_fits(modal, past, willing)], 2)
            clause.tense = "present" if clause.modal.past else clause.tense
        elif draw < 0.28:
            clause.tense = "pluperfect" if past and self.chance(0.6) else "perfect"
        elif draw < 0.36 and not past and not stative:
            clause.tense = "progressive"

    def avoid_ambiguous_tense(self, clause: ast.Clause) -> None:
        """Use the present where an English form is ambiguous: "they put" is always translated as the present."""
        verb, agent = clause.verb, clause.subject
        unclear = verb and verb.english in lexicon.SAME_PAST and (agent.plural or agent.person != 3)
        if unclear and clause.tense == "past" and not (clause.passive or clause.modal or clause.negated):
            clause.tense, clause.time = "present", None

    def places(self, clause: ast.Clause) -> Places:
        """The table of places for the located thing or person."""
        kind = kind_of(clause.objects[0] if clause.objects else clause.subject)
        if kind == "H":
            return PLACES["on-walls"]
        return PLACES["of-things" if kind in PORTABLE + "F" else "anywhere"]

    def add_adverbials(self, clause: ast.Clause, verb: Verb) -> None:
        """Means, company, manner and place, if they cannot belong to an earlier phrase."""
        by_vehicle = verb.english in ("go", "travel") and clause.place and clause.place.word in ("to", "from")
        if by_vehicle and self.chance(0.3):
            clause.means.append(ast.Prepositional("by", "mit", "dat", ast.Vehicle(self.weighted(*lexicon.nouns("V")))))
            if verb.english == "go":  # on wheels: fahren
                clause.verb = verb._replace(german=lexicon.GERMAN["fahren"])
        elif verb.tool and self.chance(0.35):
            clause.means.append(ast.Prepositional("with", "mithilfe", "gen", self.common(verb.tool)))
        elif "P" in verb.subject and not clause.passive and self.chance(0.06):
            clause.means.append(ast.Prepositional("with", "zusammen mit", "dat", self.noun_phrase("P")))
        if "stative" not in verb.flags and "P" in verb.subject and self.chance(0.14):
            clause.manner = self.zipf(MANNERS)
        if "stative" not in verb.flags and not verb.frame and self.chance(0.16):
            clause.place = self.where(PLACES["anywhere"])

    def complement(self, clause: ast.Clause, depth: int) -> tuple[str, str, ast.Clause]:
        if clause.frame == "inf":
            return "to", "zu", self.infinitive(clause.controller)
        inner = self.clause(depth)
        if clause.frame == "that":
            return ("that" if self.chance(0.7) else ""), "dass", inner
        word, translation = self.zipf(ASKED)
        answered = inner.time if word == "when" else inner.place or not inner.verb if word == "where" else None
        return ("whether", "ob", inner) if answered else (word, translation, inner)

    def infinitive(self, controller: ast.Argument) -> ast.Clause:
        """The infinitive clause after "try" or "ask": only its verb, objects and place."""
        frame, objects = self.zipf((("", 1), ("", 0), ("go", 0), ("put", 1), ("", 2)), 2)
        verb = self.any_of(lexicon.verbs(frame, objects, kind_of(controller)))
        if verb is None or verb.subject_case != "nom" or "stative" in verb.flags:
            return self.infinitive(controller)
        clause = ast.Clause(controller, verb)
        self.add_objects(clause, 0, None, "")
        self.finish(clause, 0)
        clause.tense, clause.modal, clause.negated, clause.often, clause.time = "present", None, False, None, None
        return clause

    def relative(self, head: ast.Common, depth: int, barred: str) -> ast.Relative | None:
        kind = head.noun.kind
        gap = ast.Gap(head.plural)
        if self.chance(0.55):
            return ast.Relative(self.clause(depth, gap, kind, barred=barred), False, kind == "P")
        verb = self.any_of(lexicon.verbs_with_object(kind))
        if verb is None:
            return None
        clause = ast.Clause(self.noun_phrase(verb.subject, subject=True), verb, [gap])
        return ast.Relative(self.finish(clause, depth), True, kind == "P")

    def person(self) -> ast.Name:
        first = "".join(map(self.zipf, SYLLABLES)) if self.chance(0.25) else self.zipf(FIRST_NAMES)
        last = self.zipf(STEMS) + self.zipf(FAMILY_ENDINGS) if self.chance(0.5) else self.zipf(LAST_NAMES)
        form = self.random()
        if form < 0.75:
            name = [first] if form < 0.55 else [first, last]
            return ast.Name(name, name)
        title, translation = self.zipf(TITLES)
        return ast.Name([title, last], [translation, last])

    def city(self) -> ast.Name:
        made = [self.zipf(STEMS) + self.zipf(CITY_ENDINGS)]
        native, *english = made if self.chance(0.4) else self.zipf(CITIES)
        return ast.Name(english or [native], [native])

    def noun_phrase(
        self, kinds: str, depth: int = 0, it: It = None, barred: str = "", subject: bool = False, closed: bool = False
    ) -> ast.NounPhrase:
        """A phrase of one of the kinds; ``it``: the possible antecedent of "it"."""
        if it and it.noun.kind in kinds and self.chance(0.6):
            return ast.Pronoun("it", it.noun.gender, it.noun.kind != "A")
        if "P" in kinds:
            draw = self.random() * (1 if kinds == "P" else 1.5)
            if draw < (0.3 if subject else 0.14):
                return ast.Pronoun(self.zipf(PRONOUNS if subject else PRONOUNS[:7], 2))
            if draw < (0.48 if subject else 0.34):
                return self.person()
        first = self.common(kinds, depth, barred, subject, closed)
        can_join = depth and first.closed and not first.attachments and first.determiner not in ("", "no")
        if can_join and self.chance(0.08):
            second = self.common(first.noun.kind)
            if second.determiner and second.noun is not first.noun:
                return ast.Coordination(first, second)
        return first

    def common(
        self, kinds: str, depth: int = 0, barred: str = "", subject: bool = False, closed: bool = False
    ) -> ast.Common:
        noun = self.weighted(*lexicon.nouns(kinds))
        mass = noun.kind in "DY"
        plural = not mass and self.chance(0.28)
        determiners = ["", "the"] if mass else PLURAL if plural else [*SINGULAR, "no"] if subject else SINGULAR
        result = ast.Common(noun, self.zipf(determiners, 1), plural)
        if plural and result.determiner in ("the", "", "my", "his", "her") and self.chance(0.2):
            small = 2 + self.zipf(range(98), 1)
            result.count = small if self.chance(0.9) else 100 + int(self.random() * 900)
        if noun.kind in PORTABLE + "ZVJB" and self.chance(0.14):
            result.modifier = self.zipf(COMPOUNDS, 5)
        for _ in range(self.weighted((0, 1, 2), (0.6, 0.88, 1.0))):
            adjective = self.weighted(*lexicon.adjectives(noun.kind))
            plain = result.determiner not in ("a", "") or result.adjectives or not self.chance(0.12)
            if adjective.english not in [other.english for _, other in result.adjectives]:
                degree = ("", "") if plain else self.zipf(DEGREES)
                result.adjectives.append((BEFORE_NOUNS.get(degree[0], degree), adjective))
        if noun.singular in ("bottle", "glass", "cup") and not plural and self.chance(0.5):
            result.content = self.weighted(*lexicon.nouns("D"))
        elif depth:
            self.attach(result, depth - 1, barred, subject, closed)
        return result

    def attach(self, head: ast.Common, depth: int, barred: str, subject: bool, closed: bool) -> None:
        """Attach a prepositional phrase or a relative clause to the noun, or nothing."""
        draw = self.random()
        if draw < 0.16:
            fitting = [row for row in ATTACHMENTS if head.noun.kind in row[0] and (subject or "!" not in row[0])]
            if not fitting:
                return
            _, word, translation, case, kinds = self.zipf(fitting, 2)
            if kinds == "city":
                inner: ast.NounPhrase = self.city()
            elif kinds == "Y":
                inner = ast.Common(self.weighted(*lexicon.nouns("Y")), "")
            else:
                kinds = "".join(kind for kind in kinds if word != "with" or kind not in barred)
                inner = self.noun_phrase(kinds, depth, None, barred, closed=closed)
            if not inner.pronoun:
                head.attachments.append(ast.Prepositional(word, translation, case, inner))
        elif draw < 0.28 and not closed:
            head.relative = self.relative(head, depth, barred)

    def where(self, table: Places) -> ast.Prepositional:
        word, translation, case, kinds = self.zipf(table, 2)
        return ast.Prepositional(word, translation, case, self.city() if kinds == "city" else self.located(kinds))

    def located(self, kinds: str) -> ast.NounPhrase:
        return self.person() if kinds == "P" and self.chance(0.3) else self.common(kinds)

    def time(self, past: bool) -> ast.Time:
        draw = self.random()
        count = 2 + self.zipf(range(60), 1)
        if draw < 0.12 and past:
            return ast.Ago(count, self.zipf(lexicon.TIME_UNITS))
        if draw < 0.2:
            return ast.Duration(count, self.zipf(lexicon.TIME_UNITS))
        if draw < 0.25 and past:
            return ast.Year(1700 + int(self.random() * 320))
        return self.zipf([time for time in lexicon.TIMES if time.tense in ("bc" if past else "ac")])


def modal_fits(modal: Modal, past: bool, willing: bool) -> bool:
    """Full verbs such as "want to" have both tenses but need a person as the subject."""
    return (willing or modal.english == "have to") if " to" in modal.english else modal.past == past


def is_it(item: ast.Argument) -> bool:
    return isinstance(item, ast.Pronoun) and item.word == "it"


def kind_of(item: ast.Argument, it: It = None) -> str:
    """The kind of the phrase's noun or, for "it", of the antecedent ``it``."""
    if is_it(item) and it:
        return it.noun.kind
    if isinstance(item, ast.Coordination):
        return item.first.noun.kind
    return item.noun.kind if isinstance(item, ast.Common) else "P"


def it_of(clause: ast.Clause) -> ast.Common | None:
    """The antecedent of "it" in the next clause: the only thing or animal among subject and objects, or None."""
    nouns = [item for item in [clause.subject, *clause.objects] if isinstance(item, ast.Common)]
    antecedents = [item for item in nouns if not item.plural and item.noun.kind != "P"]
    return antecedents[0] if len(antecedents) == 1 else None
