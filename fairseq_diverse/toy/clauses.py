"""Clauses: English word order with its tree, and the German sentence bracket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fairseq_diverse.toy import german
from fairseq_diverse.toy.lexicon import (
    CASES,
    Adjective,
    Object,
    Verb,
    present_participle,
    principal_parts,
    third_person,
)
from fairseq_diverse.toy.phrases import NounPhrase, Prepositional, Pronoun, Time, preposition
from fairseq_diverse.toy.trees import Tree, leaf, phrase

Part = tuple[str, Tree]


class Modal(NamedTuple):
    """English word (with "to": a full verb), German infinitive, third person, preterite; ``past``: the English word is past."""

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
BE = {"past": ("was", "were"), "present": ("is", "are")}
HABEN = ("haben", "hat", "hatte", "gehabt")
SEIN = ("sein", "ist", "war", "gewesen")
WERDEN = ("werden", "wird", "wurde", "worden")
SUBORDINATORS = {"when": "WRB"}  # all others are prepositions in the Penn Treebank


class Gap(NounPhrase):
    """The place in a relative clause that its pronoun has left; agrees as the antecedent."""

    def __init__(self, plural: bool, gender: str):
        self.plural, self.gender = plural, gender

    def german(self, case: str, negative: bool = False) -> list[str]:
        return []


@dataclass
class Predicate:
    """What follows "be": an adjective with its degree and complement, or a noun phrase."""

    adjective: Adjective | None = None
    degree: tuple[str, str] = ("", "")
    complement: Prepositional | None = None
    noun: NounPhrase | None = None

    def english(self) -> Tree:
        if self.noun:
            return self.noun.english()
        assert self.adjective
        parts: list[Part] = [("head", leaf("JJ", self.adjective.english))]
        if self.degree[0]:
            parts.insert(0, ("advmod", leaf("RB", self.degree[0])))
        if self.complement:
            parts.append(("obl", self.complement.english()))
        return phrase("ADJP", *parts)

    def german(self, negative: bool) -> list[str]:
        if self.noun:
            return self.noun.german("nom", negative)
        assert self.adjective
        before = self.complement.german() if self.complement else []
        return [*before, *([self.degree[1]] if self.degree[1] else []), self.adjective.german]


@dataclass
class Clause:
    """A subject, a verb with its objects, and what surrounds them.

    ``verb`` is None for "be" with a ``predicate``. ``tense``: present, past, perfect, pluperfect, progressive. ``objects``
    stand for ``verb.objects``, one by one. ``adjuncts`` are (English, German subordinator, clause, at the front).
    """

    subject: NounPhrase
    verb: Verb | None
    objects: list[NounPhrase] = field(default_factory=list)
    tense: str = "present"
    modal: Modal | None = None
    negated: bool = False
    passive: bool = False
    often: tuple[str, str] | None = None
    time: Time | None = None
    time_first: bool = False
    manner: tuple[str, str] | None = None
    means: list[Prepositional] = field(default_factory=list)
    place: Prepositional | None = None
    place_first: bool = False
    predicate: Predicate | None = None
    existential: bool = False
    complement: tuple[str, str, Clause] | None = None  # English and German subordinator ("to", "zu" for an infinitive)
    adjuncts: list[tuple[str, str, Clause, bool]] = field(default_factory=list)
    also: Clause | None = None  # a second predicate of the same subject
    receiver_last: bool = False  # "gives the book to the woman"

    # -- English ---------------------------------------------------------------------------------------------------

    def auxiliaries(self, question: bool = False) -> list[tuple[str, str]]:
        """The chain of verbs from the finite one down, as (lemma, kind)."""
        chain: list[tuple[str, str]] = []
        if self.modal:
            chain.append((self.modal.english.split()[0], "semi" if " to" in self.modal.english else "modal"))
        if self.tense in ("perfect", "pluperfect"):
            chain.append(("have", "perfect"))
        if self.tense == "progressive":
            chain.append(("be", "progressive"))
        if self.passive:
            chain.append(("be", "passive"))
        chain.append((self.verb.english[0], "main") if self.verb and not self.is_copular else ("be", "copula"))
        lexical = chain[0][1] in ("main", "semi")
        return [("do", "do"), *chain] if lexical and (question or self.negated) else chain

    def finite_leaf(self, lemma: str, kind: str, parts: tuple[str, str, str]) -> Tree:
        if kind == "modal":
            return leaf("MD", lemma)
        universal = "AUX" if kind not in ("main", "semi") else "VERB"
        past = self.tense in ("past", "pluperfect")
        agent = self.subject
        first_or_plural = agent.plural or agent.person != 3
        if lemma == "be":
            if past:
                word = "were" if agent.plural or agent.person == 2 else "was"
            else:
                word = "are" if agent.plural or agent.person == 2 else "am" if agent.person == 1 else "is"
        elif past:
            word = parts[1]
        else:
            word = lemma if first_or_plural else "has" if lemma == "have" else third_person(lemma)
        return leaf("VBD" if past else "VBP" if first_or_plural else "VBZ", word, lemma, universal)

    def verb_leaves(self, chain: list[tuple[str, str]], finite: bool) -> list[Tree]:
        leaves = []
        previous = "finite" if finite else "modal"
        for lemma, kind in chain:
            parts = principal_parts(lemma)
            universal = "VERB" if kind in ("main", "semi") else "AUX"
            if previous == "finite":
                leaves.append(self.finite_leaf(lemma, kind, parts))
            elif previous in ("modal", "do", "semi"):
                leaves.append(leaf("VB", lemma, lemma, universal))
            elif previous == "progressive":
                leaves.append(leaf("VBG", present_participle(lemma), lemma, universal))
            else:
                leaves.append(leaf("VBN", parts[2], lemma, universal))
            previous = kind
        return leaves

    def after_verb(self) -> list[Part]:
        """English objects and adverbials in their order: objects, manner, means, place, time, clauses."""
        parts: list[Part] = []
        if self.predicate:
            parts.append(("head", self.predicate.english()))
        if self.existential:
            parts.append(("nsubj", self.subject.english()))
        if self.verb and self.verb.particle:
            parts.append(("compound:prt", phrase("PRT", ("head", leaf("RP", self.verb.particle)))))
        slots = list(zip(self.verb.objects, self.objects, strict=False)) if self.verb else []
        if self.receiver_last:
            slots.reverse()
        for position, (slot, object_) in enumerate(slots):
            if isinstance(object_, Gap):
                continue
            tree = object_.english()
            if slot.english:
                parts.append(("obl", preposition(slot.english, tree)))
            elif self.receiver_last and position == 1:
                parts.append(("obl", preposition("to", tree)))
            else:
                parts.append(("iobj" if len(slots) > 1 and position == 0 and not self.receiver_last else "obj", tree))
        if self.place and not self.place_first and self.verb and self.verb.frame in ("go", "put", "at"):
            relation = "head" if self.is_copular else "obl"
            parts.append((relation, self.place.english()))
        if self.manner:
            parts.append(("advmod", phrase("ADVP", ("head", leaf("RB", self.manner[0])))))
        parts += [("obl", item.english()) for item in self.means]
        if self.place and not self.place_first and not (self.verb and self.verb.frame in ("go", "put", "at")):
            parts.append(("obl", self.place.english()))
        if self.time and not self.time_first:
            parts.append((self.time.relation, self.time.tree))
        if self.complement:
            word, _, clause = self.complement
            relation = "xcomp" if word == "to" else "ccomp"
            parts.append((relation, clause.infinitive() if word == "to" else clause.subordinate(word)))
        parts += [("advcl", clause.subordinate(word)) for word, _, clause, first in self.adjuncts if not first]
        return parts

    @property
    def is_copular(self) -> bool:
        return self.verb is None or (self.verb.english[0] == "be")

    def verb_phrase(
        self, finite: bool = True, chain: list[tuple[str, str]] | None = None, negated: bool | None = None
    ) -> Tree:
        """The English VP; with ``chain`` only its last verbs, for questions."""
        negated = self.negated if negated is None else negated
        full = self.auxiliaries() if finite else [item for item in self.auxiliaries() if item[1] != "do"]
        chain = full if chain is None else chain
        leaves = self.verb_leaves(full, finite)[len(full) - len(chain) :] if finite else self.verb_leaves(chain, finite)
        return self.nest(chain, leaves, negated, finite)

    def nest(self, chain: list[tuple[str, str]], leaves: list[Tree], negated: bool, adverb: bool = True) -> Tree:
        (lemma, kind), *rest = chain
        word, *others = leaves
        before: list[Part] = []
        after: list[Part] = []
        if negated and kind not in ("main", "semi"):
            after.append(("advmod", leaf("RB", "not", universal="PART")))
            negated = False
        if self.often and adverb and (kind == "main" or rest or kind == "copula"):
            part = ("advmod", phrase("ADVP", ("head", leaf("RB", self.often[0]))))
            (before if kind in ("main", "semi") else after).append(part)
            adverb = False
        if not rest:
            complements = self.after_verb()
            relation = "cop" if any(name == "head" for name, _ in complements) else "head"
            return phrase("VP", *before, (relation, word), *after, *complements)
        inner = self.nest(rest, others, negated, adverb)
        if kind == "semi":
            inner = phrase("S", ("head", phrase("VP", ("mark", leaf("TO", "to", universal="PART")), ("head", inner))))
            return phrase("VP", *before, ("head", word), *after, ("xcomp", inner))
        return phrase("VP", *before, ("aux:pass" if kind == "passive" else "aux", word), *after, ("head", inner))

    @property
    def subject_relation(self) -> str:
        return "nsubj:pass" if self.passive else "nsubj"

    def fronted(self) -> list[Part]:
        parts: list[Part] = []
        parts += [("advcl", clause.subordinate(word)) for word, _, clause, first in self.adjuncts if first]
        if self.time and self.time_first:
            parts.append((self.time.relation, self.time.tree))
        if self.place and self.place_first:
            parts.append(("obl", self.place.english()))
        return [*parts, ("punct", leaf(",", ","))] if parts else []

    def sentence_parts(self) -> list[Part]:
        """The children of the English S, without the full stop."""
        tree = self.verb_phrase()
        if self.also:
            tree = phrase("VP", ("head", tree), ("cc", leaf("CC", "and")), ("conj", self.also.verb_phrase()))
        if self.existential:
            there = phrase("NP", ("head", leaf("EX", "there")))
            return [*self.fronted(), ("expl", there), ("head", tree)]
        subject: list[Part] = (
            [] if isinstance(self.subject, Gap) else [(self.subject_relation, self.subject.english(True))]
        )
        return [*self.fronted(), *subject, ("head", tree)]

    def english(self) -> Tree:
        return phrase("S", *self.sentence_parts())

    def subordinate(self, word: str) -> Tree:
        """SBAR with its subordinator; several words ("so that") are marks one by one; "" for none."""
        marks: list[Part] = []
        for part in word.split():
            if part in ("when", "where", "why"):
                marks.append(("advmod", phrase("WHADVP", ("head", leaf("WRB", part)))))
            else:
                marks.append(("mark", leaf("IN", part, universal="SCONJ")))
        return phrase("SBAR", *marks, ("head", self.english()))

    def infinitive(self) -> Tree:
        inner = self.verb_phrase(finite=False, negated=False)
        return phrase("S", ("head", phrase("VP", ("mark", leaf("TO", "to", universal="PART")), ("head", inner))))

    def question(self, asked: str = "") -> Tree:
        """(SQ ...) after a question word, or the whole yes-no question."""
        chain = self.auxiliaries(question=True)
        leaves = self.verb_leaves(chain, True)
        subject: Part = (self.subject_relation, self.subject.english(True))
        if len(chain) == 1:  # be
            complements = self.after_verb()
            relation = "cop" if any(name == "head" for name, _ in complements) else "head"
            return phrase("SQ", (relation, leaves[0]), subject, *complements)
        relation = "aux:pass" if chain[0][1] == "passive" else "aux"
        rest = self.nest(chain[1:], leaves[1:], False)
        middle: list[Part] = [("advmod", leaf("RB", "not", universal="PART"))] if self.negated else []
        return phrase("SQ", (relation, leaves[0]), subject, *middle, ("head", rest))

    # -- German ----------------------------------------------------------------------------------------------------

    def german_verbs(self) -> tuple[str, list[str]]:
        """The finite verb and the words of the right bracket, in the order of a subordinate clause without the finite verb."""
        nominative = self.nominative()
        person, plural = nominative.person, nominative.plural
        past = self.tense in ("past", "pluperfect")
        parts = self.verb.german if self.verb else SEIN
        prefix = self.verb.prefix if self.verb else ""
        modal = self.modal if self.modal and self.modal.infinitive else None
        if self.existential:
            parts, plural, person = (GEBEN, False, 3)
        whole = [prefix + parts[3]] if self.verb else [parts[3]]
        if modal:
            forms = (modal.infinitive, modal.third, modal.preterite, "")
            inner = [whole[0], "werden"] if self.passive else [prefix + parts[0]]
            return german.conjugate(forms, past or modal.past, person, plural), inner
        if self.tense in ("perfect", "pluperfect"):
            being = self.passive or self.verb is None or self.verb.auxiliary == "sein"
            forms = SEIN if being and not self.existential else HABEN
            return german.conjugate(forms, past, person, plural), [*whole, "worden"] if self.passive else whole
        if self.passive:
            return german.conjugate(WERDEN, past, person, plural), whole
        return german.conjugate(parts, past, person, plural), [prefix] if prefix else []

    def nominative(self) -> NounPhrase:
        """The phrase that the German verb agrees with."""
        if self.verb and self.verb.subject_case == "dat":
            return next(o for slot, o in zip(self.verb.objects, self.objects, strict=True) if slot.case == "nom")
        return self.subject

    def middle(self, controller: NounPhrase | None = None) -> list[str]:
        """What stands between the brackets, after the subject: pronouns, time, dative, accusative, nicht, manner, place."""
        verb = self.verb
        early: dict[str, list[str]] = {"acc": [], "nom": [], "dat": []}
        late: dict[str, list[str]] = {"dat": [], "acc": [], "nom": []}
        prepositional: list[str] = []
        negated = self.negated
        for slot, object_ in zip(verb.objects if verb else (), self.objects, strict=False):
            if isinstance(object_, Gap):
                continue
            if slot.german:
                prepositional += Prepositional("", slot.german, slot.case, object_).german()
                continue
            kein = negated and object_.negatable and slot.case == "acc"
            negated = negated and not kein
            (early if object_.pronoun else late)[slot.case] += object_.german(slot.case, kein)
        predicate: list[str] = []
        if self.predicate:
            kein = negated and self.predicate.noun is not None and self.predicate.noun.negatable
            negated = negated and not kein
            predicate = self.predicate.german(kein)
        if self.existential:
            kein = negated and self.subject.negatable
            negated = negated and not kein
            late["acc"] += self.subject.german("acc", kein)
        words: list[str] = []
        if verb and verb.reflexive:
            words.append(self.reflexive(controller or self.subject))
        words += early["nom"] + early["acc"] + early["dat"]
        words += ["gerade"] if self.tense == "progressive" else []
        words += [self.often[1]] if self.often else []
        words += self.time.words.split() if self.time and not self.time_first else []
        words += ["gern"] if self.modal and not self.modal.infinitive else []
        words += late["dat"] + late["acc"] + late["nom"]
        words += ["nicht"] if negated else []
        words += [self.manner[1]] if self.manner else []
        for item in self.means:
            words += item.german()
        words += prepositional
        words += self.place.german() if self.place and not self.place_first else []
        return words + predicate

    def reflexive(self, controller: NounPhrase) -> str:
        word = controller.word if isinstance(controller, Pronoun) else ""
        return german.REFLEXIVE[word][0] if word in german.REFLEXIVE else "sich"

    def after_field(self) -> list[str]:
        """Clauses behind the right bracket."""
        words: list[str] = []
        if self.complement:
            _, word, clause = self.complement
            inner = clause.zu_infinitive(self.controller()) if word == "zu" else [word, *clause.german("sub")]
            words += [",", *inner, ","]
        for _, word, clause, first in self.adjuncts:
            if not first:
                words += [",", word, *clause.german("sub"), ","]
        return words

    def controller(self) -> NounPhrase:
        """Whose infinitive the complement is."""
        return self.objects[0] if self.verb and "object" in self.verb.flags else self.subject

    def zu_infinitive(self, controller: NounPhrase) -> list[str]:
        assert self.verb
        infinitive = self.verb.german[0]
        verb = [f"{self.verb.prefix}zu{infinitive}"] if self.verb.prefix else ["zu", infinitive]
        return [*self.middle(controller), *verb, *self.after_field()]

    def german(self, order: str, elided: bool = False, asked: list[str] | None = None) -> list[str]:
        """German words in ``main``, ``sub`` (verb-final) or ``question`` order; ``elided``: the subject was said before."""
        finite, right = self.german_verbs()
        case = self.verb.subject_case if self.verb else "nom"
        subject = ["es"] if self.existential else self.subject.german(case)
        if elided or isinstance(self.subject, Gap):
            subject = []
        front: list[str] = []
        for _, word, clause, first in self.adjuncts:
            if first:
                front += [word, *clause.german("sub"), ","]
        if self.time and self.time_first:
            front += self.time.words.split()
        if self.place and self.place_first:
            front += self.place.german()
        middle, after = self.middle(), self.after_field()
        if order == "sub":
            if right and right[0] == (self.verb.prefix if self.verb else None):
                right, finite = [], right[0] + finite
            words = [*subject, *front, *middle, *right, finite, *after]
        elif order == "question":
            words = [*(asked or []), finite, *subject, *middle, *right, *after]
        elif front:
            words = [*front, finite, *subject, *middle, *right, *after]
        else:
            words = [*subject, finite, *middle, *right, *after]
        if self.also:
            words += ["und", *self.also.german(order, elided=True)]
        return words


GEBEN = ("geben", "gibt", "gab", "gegeben")


@dataclass
class Relative:
    """A relative clause: ``clause`` has a Gap as subject (``position`` None) or as the object at ``position``."""

    clause: Clause
    position: int | None
    person: bool

    @property
    def slot(self) -> Object | None:
        return None if self.position is None or not self.clause.verb else self.clause.verb.objects[self.position]

    def english(self) -> Tree:
        slot = self.slot
        if slot is None:
            word = leaf("WP", "who") if self.person else leaf("WDT", "that", universal="PRON")
            relation = self.clause.subject_relation
        elif slot.english:
            word = leaf("WP", "whom", "who") if self.person else leaf("WDT", "which", universal="PRON")
            front = phrase(
                "WHPP",
                ("case", leaf("TO" if slot.english == "to" else "IN", slot.english)),
                ("head", phrase("WHNP", ("head", word))),
            )
            return self.wrap("obl", front)
        else:
            word = leaf("WP", "whom", "who") if self.person else leaf("WDT", "that", universal="PRON")
            relation = "obj"
        return self.wrap(relation, phrase("WHNP", ("head", word)))

    def wrap(self, relation: str, front: Tree) -> Tree:
        return phrase("SBAR", (relation, front), ("head", self.clause.english()))

    def german(self, gender: str) -> list[str]:
        slot = self.slot
        case = slot.case if slot else (self.clause.verb.subject_case if self.clause.verb else "nom")
        front = [german.RELATIVE[gender][CASES.index(case)]]
        if slot and slot.german:
            front.insert(0, slot.german)
        return [",", *front, *self.clause.german("sub"), ","]
