"""German word order: the verb second, first or last, its other words at the end, and what stands between."""

from fairseq_diverse.toy import german
from fairseq_diverse.toy.clauses import Clause
from fairseq_diverse.toy.phrases import Argument, NounPhrase, Prepositional, Pronoun

HABEN = ("haben", "hat", "hatte", "gehabt")
SEIN = ("sein", "ist", "war", "gewesen")
WERDEN = ("werden", "wird", "wurde", "worden")
GEBEN = ("geben", "gibt", "gab", "gegeben")


def main(c: Clause, elided: bool = False) -> list[str]:
    """Verb second, after the subject or what is fronted; ``elided``: the subject was said before."""
    finite, rest = verbs(c)
    first = [
        word
        for _, subordinator, inner, front in c.adjuncts
        if front
        for word in [*subordinate(inner, subordinator), ","]
    ]
    first += c.time.words.split() if c.time and c.time_first else []
    first += c.place.german() if c.place and c.place_first else []
    said = [] if elided else subject(c)
    start = [*first, finite, *said] if first else [*said, finite]
    return [*start, *middle(c), *rest, *last(c), *(["und", *main(c.also, elided=True)] if c.also else [])]


def subordinate(c: Clause, subordinator: str, elided: bool = False) -> list[str]:
    """Verb last, and a separable prefix joined to it."""
    finite, rest = verbs(c)
    if c.verb and rest == [c.verb.prefix]:
        finite, rest = c.verb.prefix + finite, []
    words = [*subordinator.split(), *([] if elided else subject(c)), *middle(c), *rest, finite, *last(c)]
    return words + (["und", *subordinate(c.also, "", elided=True)] if c.also else [])


def question(c: Clause, asked: list[str]) -> list[str]:
    """Verb first, or second after the words ``asked``."""
    finite, rest = verbs(c)
    return [*asked, finite, *subject(c), *middle(c), *rest, *last(c)]


def infinitive(c: Clause, controller: Argument) -> list[str]:
    """With zu, which goes between a separable prefix and its verb."""
    assert c.verb
    bare = c.verb.german[0]
    verb = [f"{c.verb.prefix}zu{bare}"] if c.verb.prefix else ["zu", bare]
    return [*middle(c, controller), *verb, *last(c)]


def subject(c: Clause) -> list[str]:
    return ["es"] if c.existential else c.subject.german(c.verb.subject_case if c.verb else "nom")


def nominative(c: Clause) -> Argument:
    """What the verb agrees with: the object of a verb such as "miss" (fehlen), else the subject."""
    slots = zip(c.verb.objects if c.verb else (), c.objects, strict=False)
    return next((item for slot, item in slots if slot.case == "nom"), c.subject)


def verbs(c: Clause) -> tuple[str, list[str]]:
    """The finite verb, and the words of the right bracket in their order before it in a subordinate clause."""
    agent = nominative(c)
    person, plural = (3, False) if c.existential else (agent.person, agent.plural)
    parts = GEBEN if c.existential else c.verb.german if c.verb else SEIN
    prefix = c.verb.prefix if c.verb else ""
    participle = prefix + parts[3]
    if c.modal and c.modal.infinitive:
        forms = (*c.modal[1:4], "")
        finite = german.conjugate(forms, c.past or c.modal.past, person, plural)
        return finite, [participle, "werden"] if c.passive else [prefix + parts[0]]
    if c.tense in ("perfect", "pluperfect"):
        being = c.passive or not c.verb or c.verb.auxiliary == "sein"
        finite = german.conjugate(SEIN if being else HABEN, c.past, person, plural)
        return finite, [participle, "worden"] if c.passive else [participle]
    if c.passive:
        return german.conjugate(WERDEN, c.past, person, plural), [participle]
    return german.conjugate(parts, c.past, person, plural), [prefix] if prefix else []


def middle(c: Clause, controller: Argument | None = None) -> list[str]:
    """Between subject and right bracket: pronouns, time, dative, accusative, nicht, manner, means, place, predicate.

    An indefinite accusative or predicate noun is negated by kein, and nicht is left out.
    """
    pronouns: dict[str, list[str]] = {"nom": [], "acc": [], "dat": []}
    nouns: dict[str, list[str]] = {"dat": [], "acc": [], "nom": []}
    prepositional: list[str] = []
    negated = c.negated
    for slot, item in zip(c.verb.objects if c.verb else (), c.objects, strict=False):
        if slot.german and isinstance(item, NounPhrase):
            prepositional += Prepositional("", slot.german, slot.case, item).german()
            continue
        kein = negated and item.negatable and slot.case == "acc"
        negated = negated and not kein
        (pronouns if item.pronoun else nouns)[slot.case] += item.german(slot.case, kein)
    indefinite = c.subject if c.existential else c.predicate.noun if c.predicate else None
    kein = negated and indefinite is not None and indefinite.negatable
    words = [reflexive(controller or c.subject)] if c.verb and c.verb.reflexive else []
    words += pronouns["nom"] + pronouns["acc"] + pronouns["dat"]
    words += ["gerade"] if c.tense == "progressive" else []
    words += [c.often[1]] if c.often else []
    words += c.time.words.split() if c.time and not c.time_first else []
    words += nouns["dat"] + nouns["acc"] + nouns["nom"]
    words += c.subject.german("acc", kein) if c.existential else []
    words += ["nicht"] if negated and not kein else []
    words += ["gern"] if c.modal and not c.modal.infinitive else []
    words += [c.manner[1]] if c.manner else []
    words += [word for item in c.means for word in item.german()]
    words += prepositional
    words += c.place.german() if c.place and not c.place_first else []
    return words + (c.predicate.german(kein) if c.predicate else [])


def reflexive(controller: Argument) -> str:
    return german.REFLEXIVE.get(controller.word, "sich") if isinstance(controller, Pronoun) else "sich"


def last(c: Clause) -> list[str]:
    """The clauses behind the right bracket."""
    words: list[str] = []
    if c.complement:
        _, word, inner = c.complement
        words += [",", *(infinitive(inner, c.controller) if word == "zu" else subordinate(inner, word)), ","]
    for _, word, inner, front in c.adjuncts:
        words += [] if front else [",", *subordinate(inner, word), ","]
    return words
