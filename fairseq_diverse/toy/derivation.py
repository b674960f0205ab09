"""Random clauses and sentences: what they are made of, and how often."""

from dataclasses import replace

from fairseq_diverse.toy import english_order, german, german_order, lexicon, words
from fairseq_diverse.toy.clauses import MODALS, Clause, Gap, Modal, Predicate
from fairseq_diverse.toy.lexicon import ANY, Adjective, Verb, entries, pairs
from fairseq_diverse.toy.nominals import DEGREES, Nominals
from fairseq_diverse.toy.phrases import Argument, Common, Coordination, Prepositional, Pronoun, Vehicle
from fairseq_diverse.toy.relative import Relative
from fairseq_diverse.toy.trees import Tree, leaf, phrase

OFTEN, MANNERS = pairs(words.OFTEN), pairs(words.MANNERS)
SUBORDINATORS = [tuple(entry.split("=")) for entry in entries(words.SUBORDINATORS)]
PREDICATES = pairs(words.PREDICATES)
ASKED = (("if", "ob"), ("whether", "ob"), ("why", "warum"), ("when", "wann"), ("where", "wo"))
# Frame of the verb, number of its objects, share. The second table only where there is room for one more clause.
FRAMES = (
    ("", 1, 0.42), ("", 0, 0.12), ("copula", 0, 0.12), ("", 2, 0.08), ("go", 0, 0.07), ("passive", 1, 0.06),
    ("put", 1, 0.05), ("at", 0, 0.05),
)  # fmt: skip
DEEP_FRAMES = (
    *FRAMES, ("that", 0, 0.06), ("inf", 0, 0.06), ("inf", 1, 0.03), ("if", 0, 0.02), ("if", 1, 0.02), ("that", 1, 0.02),
    ("at", 1, 0.01), ("weather", 0, 0.01),
)  # fmt: skip
FINAL = ("punct", leaf(".", "."))
ASKING = ("punct", leaf(".", "?"))
COMMA = ("punct", leaf(",", ","))


class Derivation(Nominals):
    """Draws sentences; see Nominals for ``depth`` and ``barred``."""

    # -- clauses -------------------------------------------------------------------------------------------------------

    def clause(
        self,
        depth: int,
        subject: Argument | None = None,
        kind: str = "",
        it: Common | None = None,
        barred: str = "",
        past: bool | None = None,
    ) -> Clause:
        """A declarative clause; with ``subject``, of that ``kind``, its verb is chosen to fit."""
        table = DEEP_FRAMES if depth and not subject else FRAMES
        frame, objects, _ = self.weighted(table, lexicon.cumulated(row[2] for row in table))
        if frame == "copula":
            return self.finish(self.copula(depth, subject, kind, it), depth, past)
        if frame == "passive":
            found = [verb for verb in lexicon.verbs("", 1)[0] if passive(verb, kind)]
            verb = self.zipf(found, 5) if found else None
        else:
            choice = lexicon.verbs(frame, objects, kind)
            verb = self.weighted(*choice) if choice[0] else None
        if verb is None:  # nothing that such a subject does: another frame
            return self.clause(depth, subject, kind, it, barred, past)
        if frame == "weather":
            return self.finish(Clause(Pronoun("it", "n"), verb), depth, past)
        kinds = verb.objects[0].kinds if frame == "passive" else verb.subject
        agent = subject or self.noun_phrase(kinds, depth, it, subject=True)
        clause = Clause(agent, verb, passive=frame == "passive")
        if clause.passive and self.chance(0.5):
            clause.means.append(Prepositional("by", "von", "dat", self.located("P")))
        elif not clause.passive:
            self.add_objects(clause, depth, None if is_it(agent) else it, barred)
        return self.finish(clause, depth, past)

    def add_objects(self, clause: Clause, depth: int, it: Common | None, barred: str) -> None:
        verb = clause.verb
        assert verb
        for position, slot in enumerate(verb.objects):
            closed = not depth or position < len(verb.objects) - 1 or bool(verb.frame) or self.chance(0.4)
            chosen = self.noun_phrase(slot.kinds, 0 if closed else depth, it, barred + verb.tool, closed=closed)
            if isinstance(chosen, Pronoun) and (chosen == clause.subject or chosen in clause.objects):
                chosen = self.common(slot.kinds)
            it = None if is_it(chosen) else it
            clause.objects.append(chosen)
        if len(verb.objects) == 2:
            clause.receiver_last = "to" in verb.flags or clause.objects[1].pronoun or self.chance(0.4)

    def copula(self, depth: int, subject: Argument | None, kind: str, it: Common | None) -> Clause:
        subject = subject or self.noun_phrase(ANY + "IE", depth, it, subject=True)
        kind = kind or kind_of(subject, it)
        clause = Clause(subject, None)
        if kind == "P" and not subject.plural and self.chance(0.15):
            noun = self.common("P")
            noun.determiner, noun.plural, noun.count = "a", False, 0
            clause.predicate = Predicate(noun=noun)
        elif kind == "P" and self.chance(0.2):
            english, translation, before, german_before, case = self.zipf(PREDICATES)
            complement = Prepositional(before, german_before, case, self.noun_phrase("PAIEBT"))
            clause.predicate = Predicate(Adjective(english, translation, "P", 1.0), complement=complement)
        else:
            degree = self.zipf(DEGREES) if self.chance(0.3) else ("", "")
            clause.predicate = Predicate(self.weighted(*lexicon.adjectives(kind)), degree)
        return clause

    def finish(self, clause: Clause, depth: int, past: bool | None = None) -> Clause:
        """Tense, negation, adverbials and the verb's complement; ``past`` binds the tense."""
        frame = clause.frame
        self.set_tense(clause, self.chance(0.5) if past is None else past)
        said_no = any(denies(item) for item in [clause.subject, *clause.objects])
        clause.negated = self.chance(0.11) and not said_no and frame != "weather"
        self.avoid_ambiguous_tense(clause)
        if self.chance(0.08) and not clause.negated and clause.tense != "progressive":
            clause.often = self.zipf(OFTEN)
        if self.chance(0.22) and clause.tense in ("present", "past") and clause.closed:
            clause.time = self.time(clause.past)
        if frame == "put":
            hung = clause.verb and clause.verb.english == "hang"
            clause.place = self.where(words.TARGETS_ON_WALLS if hung else words.TARGETS)
        elif frame == "at":
            clause.place = self.where(self.places(clause))
        elif frame == "go":
            clause.place = self.where(words.DIRECTIONS)
        if clause.verb and clause.closed and frame not in ("that", "if", "inf", "weather"):
            self.add_adverbials(clause, clause.verb)
        if frame in ("that", "if", "inf"):
            clause.complement = self.complement(clause, depth - 1)
        return clause

    def set_tense(self, clause: Clause, past: bool) -> None:
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

    def avoid_ambiguous_tense(self, clause: Clause) -> None:
        """ "They put" is always the present, although it could be the past."""
        verb, agent = clause.verb, clause.subject
        unclear = verb and verb.english in lexicon.SAME_PAST and (agent.plural or agent.person != 3)
        if unclear and clause.tense == "past" and not (clause.passive or clause.modal or clause.negated):
            clause.tense, clause.time = "present", None

    def places(self, clause: Clause) -> str:
        """Which table of places fits what is there."""
        kind = kind_of(clause.objects[0] if clause.objects else clause.subject)
        if kind == "H":
            return words.PLACES_ON_WALLS
        return words.PLACES_OF_THINGS if kind in lexicon.PORTABLE + "F" else words.PLACES

    def add_adverbials(self, clause: Clause, verb: Verb) -> None:
        """Means, company, manner and place, where nothing before them could claim them."""
        by_vehicle = verb.english in ("go", "travel") and clause.place and clause.place.word in ("to", "from")
        if by_vehicle and self.chance(0.3):
            clause.means.append(Prepositional("by", "mit", "dat", Vehicle(self.weighted(*lexicon.nouns("V")))))
            if verb.english == "go":  # on wheels: fahren
                clause.verb = replace(verb, german=lexicon.german_parts("fahren"))
        elif verb.tool and self.chance(0.35):
            clause.means.append(Prepositional("with", "mithilfe", "gen", self.common(verb.tool)))
        elif "P" in verb.subject and not clause.passive and self.chance(0.06):
            clause.means.append(Prepositional("with", "zusammen mit", "dat", self.noun_phrase("P")))
        if "stative" not in verb.flags and "P" in verb.subject and self.chance(0.14):
            clause.manner = self.zipf(MANNERS)
        if "stative" not in verb.flags and not verb.frame and self.chance(0.16):
            clause.place = self.where(words.PLACES)

    def complement(self, clause: Clause, depth: int) -> tuple[str, str, Clause]:
        if clause.frame == "inf":
            return "to", "zu", self.infinitive(clause.controller)
        inner = self.clause(depth)
        if clause.frame == "that":
            return ("that" if self.chance(0.7) else ""), "dass", inner
        word, translation = self.zipf(ASKED)
        answered = inner.time if word == "when" else inner.place or not inner.verb if word == "where" else None
        return ("whether", "ob", inner) if answered else (word, translation, inner)

    def infinitive(self, controller: Argument) -> Clause:
        """What someone tries, or is asked, to do; nothing but its verb, objects and places."""
        frame, objects = self.zipf((("", 1), ("", 0), ("go", 0), ("put", 1), ("", 2)), 2)
        choice = lexicon.verbs(frame, objects, kind_of(controller))
        verb = self.weighted(*choice) if choice[0] else None
        if verb is None or verb.subject_case != "nom" or "stative" in verb.flags:
            return self.infinitive(controller)
        clause = Clause(controller, verb)
        self.add_objects(clause, 0, None, "")
        self.finish(clause, 0)
        clause.tense, clause.modal, clause.negated, clause.often, clause.time = "present", None, False, None, None
        return clause

    def relative(self, head: Common, depth: int, barred: str) -> Relative | None:
        kind = head.noun.kind
        gap = Gap(head.plural)
        if self.chance(0.55):
            return Relative(self.clause(depth, gap, kind, barred=barred), False, kind == "P")
        found = [verb for verb in lexicon.verbs("", 1)[0] if kind in verb.objects[0].kinds]
        if not found:
            return None
        verb = self.zipf(found, 4)
        clause = Clause(self.noun_phrase(verb.subject, subject=True), verb, [gap])
        return Relative(self.finish(clause, depth), True, kind == "P")

    # -- sentences -----------------------------------------------------------------------------------------------------

    def sentence(self) -> tuple[Tree, list[str]]:
        """English tree and German words, both with their final punctuation mark."""
        draw = self.random()
        if draw < 0.1:
            return self.question()
        first = self.existential() if draw < 0.15 else self.clause(2)
        if not first.complement and draw > 0.86:
            return self.two_clauses(first)
        if not first.complement and draw > 0.64:
            english, translation = self.zipf(SUBORDINATORS)
            front = self.chance(0.35)
            other = self.clause(1, it=None if front else it_of(first), past=first.past)
            translation = "als" if english == "when" and other.past else translation
            first.adjuncts.append((english, translation, other, front))
        elif not first.complement and draw > 0.57:
            first.also = self.second_predicate(first)
        if first.verb and not any(front for *_, front in first.adjuncts):
            first.time_first = first.time is not None and self.chance(0.4)
            first.place_first = bool(first.place and not first.time_first and not first.frame and self.chance(0.2))
        return phrase("S", *english_order.clause_parts(first), FINAL), [*german_order.main(first), "."]

    def two_clauses(self, first: Clause) -> tuple[Tree, list[str]]:
        english, translation = self.zipf((("and", "und"), ("but", "aber"), ("or", "oder")), 1)
        second = self.clause(1, it=it_of(first), past=first.past)
        parts = (("head", english_order.clause(first)), COMMA, ("cc", leaf("CC", english)))
        tree = phrase("S", *parts, ("conj", english_order.clause(second)), FINAL)
        between = [",", translation] if translation == "aber" else [translation]
        return tree, [*german_order.main(first), *between, *german_order.main(second), "."]

    def second_predicate(self, first: Clause) -> Clause | None:
        """What the same subject does as well, in the same tense; None if that would be ambiguous."""
        plain = first.tense in ("present", "past") and not first.modal and not first.passive and first.closed
        if not plain or not first.verb or first.verb.subject_case != "nom":
            return None
        other = self.clause(0, first.subject, kind_of(first.subject), past=first.past)
        if not other.verb or other.verb.subject_case != "nom" or other.passive:
            return None
        other.tense, other.modal, other.negated, other.time = first.tense, None, False, None
        self.avoid_ambiguous_tense(other)
        return other if other.tense == first.tense else None

    def existential(self) -> Clause:
        subject = self.common(ANY, 1, closed=True)
        mass = subject.plural or subject.noun.kind in "DY"
        subject.determiner = "" if mass else self.zipf(("a", "no"), 1)
        clause = Clause(subject, None, existential=True, tense=self.zipf(("present", "past"), 2))
        clause.place = self.where(words.PLACES)
        clause.negated = subject.plural and subject.negatable and self.chance(0.2)
        return clause

    def question(self) -> tuple[Tree, list[str]]:
        kind = self.zipf(("yes", "adverb", "who", "object"), 2)
        if kind == "who":
            clause = self.clause(1, Pronoun("who"), "P")
            inner = phrase("SQ", ("head", english_order.verb_phrase(clause)))
            return phrase("SBARQ", *english_order.subject(clause), ("head", inner), ASKING), [
                *german_order.main(clause),
                "?",
            ]
        if kind == "object":
            return self.object_question()
        clause = self.clause(1)
        if clause.complement or clause.frame == "weather":
            return self.question()
        if kind == "yes":
            tree = english_order.question(clause)
            return phrase("SQ", *tree.children, ASKING), [*german_order.question(clause, []), "?"]
        word, translation = self.zipf((("why", "warum"), ("when", "wann"), ("where", "wo"), ("how", "wie")), 1)
        if word == "where" and clause.frame == "go":
            translation, clause.place = "wohin", None
        elif word == "where" and (clause.place or not clause.verb):
            word, translation = "why", "warum"
        clause.time = None if word == "when" else clause.time
        clause.manner = None if word == "how" else clause.manner
        front = ("advmod", phrase("WHADVP", ("head", leaf("WRB", word))))
        tree = phrase("SBARQ", front, ("head", english_order.question(clause)), ASKING)
        return tree, [*german_order.question(clause, [translation]), "?"]

    def object_question(self) -> tuple[Tree, list[str]]:
        """ "Whom" in the case that the German verb governs, or "what"."""
        verb = self.zipf(ASKABLE, 4)
        slot = verb.objects[0]
        thing = "P" not in slot.kinds or (slot.case == "acc" and slot.kinds != "P" and self.chance(0.3))
        asked = Pronoun("what" if thing else "who")
        clause = self.finish(Clause(self.noun_phrase(verb.subject, subject=True), verb, [Gap()]), 0)
        tree = phrase("SBARQ", ("obj", asked.english()), ("head", english_order.question(clause)), ASKING)
        return tree, [*german_order.question(clause, asked.german(slot.case)), "?"]


def plain_object(verb: Verb) -> bool:
    """Whether its one object has no preposition in either language, and a case that "whom" or "what" can show."""
    slot = verb.objects[0]
    return not slot.english and not slot.german and (slot.case == "acc" or (slot.case == "dat" and "P" in slot.kinds))


def readings(verb: Verb) -> int:
    """How many verbs of one object share its English words, so that only an object would tell them apart."""
    return [(v.english, v.particle) for v in lexicon.verbs("", 1)[0]].count((verb.english, verb.particle))


ASKABLE = [verb for verb in lexicon.verbs("", 1)[0] if plain_object(verb) and readings(verb) == 1]


def passive(verb: Verb, kind: str) -> bool:
    """Whether the verb has a passive with a subject of this kind ("" for any), done by a person."""
    slot = verb.objects[0]
    able = plain_object(verb) and slot.case == "acc" and not verb.reflexive and "stative" not in verb.flags
    return able and kind in slot.kinds and "P" in verb.subject


def modal_fits(modal: Modal, past: bool, willing: bool) -> bool:
    """Full verbs such as "want to" have both tenses but need someone who wants."""
    return (willing or modal.english == "have to") if " to" in modal.english else modal.past == past


def is_it(item: Argument) -> bool:
    return isinstance(item, Pronoun) and item.word == "it"


def denies(item: Argument) -> bool:
    """Whether the phrase is a negation itself."""
    return getattr(item, "determiner", "") == "no" or getattr(item, "word", "") == "nobody"


def kind_of(item: Argument, it: Common | None = None) -> str:
    """The kind of noun that the phrase is or stands for; "it" stands for ``it``."""
    if is_it(item) and it:
        return it.noun.kind
    if isinstance(item, Coordination):
        return item.first.noun.kind
    return item.noun.kind if isinstance(item, Common) else "P"


def it_of(clause: Clause) -> Common | None:
    """The one thing or animal among subject and objects, which "it" in the next clause stands for."""
    nouns = [item for item in [clause.subject, *clause.objects] if isinstance(item, Common)]
    found = [item for item in nouns if not item.plural and item.noun.kind != "P"]
    return found[0] if len(found) == 1 else None


def sentence_pair(derivation: Derivation) -> tuple[Tree, str]:
    """One English tree of 3 to 40 words and its German translation."""
    while True:
        tree, translation = derivation.sentence()
        if 3 <= sum(1 for _ in tree.leaves()) <= 40:
            return tree.capitalized(), german.finish(translation)
