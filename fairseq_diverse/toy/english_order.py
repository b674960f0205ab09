"""English word order, as trees."""

from fairseq_diverse.toy.clauses import Clause
from fairseq_diverse.toy.lexicon import present_participle, principal_parts, third_person
from fairseq_diverse.toy.phrases import NounPhrase, preposition
from fairseq_diverse.toy.trees import Tree, leaf, phrase

Part = tuple[str, Tree]  # relation to the head, tree
LEXICAL = ("main", "semi")  # verbs that need "do" in negations and questions; semi: "want to"


def clause(c: Clause) -> Tree:
    """The declarative (S ...), without a full stop; of a clause with a Gap, what is left of it."""
    return phrase("S", *clause_parts(c))


def clause_parts(c: Clause) -> list[Part]:
    head = verb_phrase(c)
    if c.also:
        head = phrase("VP", ("head", head), ("cc", leaf("CC", "and")), ("conj", verb_phrase(c.also)))
    if c.existential:
        return [*fronted(c), ("expl", phrase("NP", ("head", leaf("EX", "there")))), ("head", head)]
    return [*fronted(c), *subject(c), ("head", head)]


def subject(c: Clause) -> list[Part]:
    """Nothing where a Gap is the subject."""
    return [(subject_relation(c), c.subject.english(True))] if isinstance(c.subject, NounPhrase) else []


def subject_relation(c: Clause) -> str:
    return "nsubj:pass" if c.passive else "nsubj"


def fronted(c: Clause) -> list[Part]:
    parts = [("advcl", subordinate(inner, word)) for word, _, inner, first in c.adjuncts if first]
    if c.time and c.time_first:
        parts.append((c.time.relation, c.time.tree))
    if c.place and c.place_first:
        parts.append(("obl", c.place.english()))
    return [*parts, ("punct", leaf(",", ","))] if parts else []


def subordinate(c: Clause, words: str) -> Tree:
    """(SBAR ...) with its subordinator of one, two ("so that") or no words."""
    marks: list[Part] = []
    for word in words.split():
        if word in ("when", "where", "why"):
            marks.append(("advmod", phrase("WHADVP", ("head", leaf("WRB", word)))))
        else:
            marks.append(("mark", leaf("IN", word, universal="SCONJ")))
    return phrase("SBAR", *marks, ("head", clause(c)))


def infinitive(verb: Tree) -> Tree:
    """(S (VP to ...))."""
    return phrase("S", ("head", phrase("VP", ("mark", leaf("TO", "to", universal="PART")), ("head", verb))))


def question(c: Clause) -> Tree:
    """The (SQ ...) of a yes-no question, or what follows a question word."""
    (kind, finite), *rest = verb_leaves(c, question=True)
    middle = [*subject(c), *adverbs(c)]
    if not rest:  # only "be" has no "do"
        return headed("SQ", finite, [*middle, *after_verb(c)])
    return phrase("SQ", (auxiliary_relation(kind), finite), *middle, ("head", nest(c, rest, [])))


def verb_phrase(c: Clause, finite: bool = True) -> Tree:
    return nest(c, verb_leaves(c, finite), adverbs(c) if finite else [])


def verb_leaves(c: Clause, finite: bool = True, question: bool = False) -> list[tuple[str, Tree]]:
    """The verbs from the finite one down to the main verb, each with its kind."""
    chain = [("main", c.verb.english) if c.verb and not c.copular else ("copula", "be")]
    if c.passive:
        chain.insert(0, ("passive", "be"))
    if c.tense == "progressive":
        chain.insert(0, ("progressive", "be"))
    if c.tense in ("perfect", "pluperfect"):
        chain.insert(0, ("perfect", "have"))
    if c.modal:
        chain.insert(0, ("semi" if " to" in c.modal.english else "modal", c.modal.english.split()[0]))
    if finite and chain[0][0] in LEXICAL and (question or c.negated):
        chain.insert(0, ("do", "do"))
    governors = ["finite" if finite else "to", *(kind for kind, _ in chain)]
    return [
        (kind, verb_leaf(c, kind, lemma, governor)) for (kind, lemma), governor in zip(chain, governors, strict=False)
    ]


def verb_leaf(c: Clause, kind: str, lemma: str, governor: str) -> Tree:
    """A verb in the form that the verb before it asks for."""
    _, past, participle = principal_parts(lemma)
    universal = "VERB" if kind in LEXICAL else "AUX"
    if kind == "modal":
        return leaf("MD", lemma)
    if governor == "finite":
        other = c.subject.plural or c.subject.person != 3
        label = "VBD" if c.past else "VBP" if other else "VBZ"
        if lemma == "be":
            many = c.subject.plural or c.subject.person == 2
            singular = "was" if c.past else "am" if c.subject.person == 1 else "is"
            return leaf(label, ("were" if c.past else "are") if many else singular, "be", universal)
        return leaf(label, past if c.past else lemma if other else third_person(lemma), lemma, universal)
    if governor == "progressive":
        return leaf("VBG", present_participle(lemma), lemma, universal)
    if governor in ("perfect", "passive"):
        return leaf("VBN", participle, lemma, universal)
    return leaf("VB", lemma, lemma, universal)


def adverbs(c: Clause) -> list[Part]:
    parts: list[Part] = [("advmod", leaf("RB", "not", universal="PART"))] if c.negated else []
    return parts + ([("advmod", phrase("ADVP", ("head", leaf("RB", c.often[0]))))] if c.often else [])


def nest(c: Clause, verbs: list[tuple[str, Tree]], adverbs: list[Part]) -> Tree:
    """One VP for every verb; the adverbs stand before a lexical verb and behind any other."""
    (kind, word), *rest = verbs
    before, after = (adverbs, []) if kind in LEXICAL else ([], adverbs)
    if not rest:
        return headed("VP", word, [*after, *after_verb(c)], before)
    inner = nest(c, rest, [])
    if kind == "semi":
        return phrase("VP", *before, ("head", word), ("xcomp", infinitive(inner)))
    return phrase("VP", (auxiliary_relation(kind), word), *after, ("head", inner))


def auxiliary_relation(kind: str) -> str:
    return "aux:pass" if kind == "passive" else "aux"


def headed(label: str, verb: Tree, after: list[Part], before: list[Part] | None = None) -> Tree:
    """A phrase whose head is the verb, or the predicate if it has one, and then the verb its copula."""
    relation = "cop" if any(name == "head" for name, _ in after) else "head"
    return phrase(label, *(before or []), (relation, verb), *after)


def after_verb(c: Clause) -> list[Part]:
    """Particle, objects, bound place, manner, means, free place, time, clauses."""
    parts: list[Part] = []
    if c.predicate:
        parts.append(("head", c.predicate.english()))
    if c.existential:
        parts += subject(c)
    if c.verb and c.verb.particle:
        parts.append(("compound:prt", phrase("PRT", ("head", leaf("RP", c.verb.particle)))))
    parts += object_parts(c)
    bound = c.frame in ("go", "put", "at")
    if c.place and bound:
        parts.append(("head" if c.copular else "obl", c.place.english()))
    if c.manner:
        parts.append(("advmod", phrase("ADVP", ("head", leaf("RB", c.manner[0])))))
    parts += [("obl", item.english()) for item in c.means]
    if c.place and not bound and not c.place_first:
        parts.append(("obl", c.place.english()))
    if c.time and not c.time_first:
        parts.append((c.time.relation, c.time.tree))
    if c.complement:
        word, _, inner = c.complement
        to = word == "to"
        parts.append(
            ("xcomp", infinitive(verb_phrase(inner, finite=False))) if to else ("ccomp", subordinate(inner, word))
        )
    return parts + [("advcl", subordinate(inner, word)) for word, _, inner, first in c.adjuncts if not first]


def object_parts(c: Clause) -> list[Part]:
    parts: list[Part] = []
    for slot, item in zip(c.verb.objects if c.verb else (), c.objects, strict=False):
        if not isinstance(item, NounPhrase):
            continue
        receiver = len(c.objects) == 2 and not parts
        word = slot.english or ("to" if receiver and c.receiver_last else "")
        tree = item.english()
        parts.append(("obl", preposition(word, tree)) if word else ("iobj" if receiver else "obj", tree))
    return parts[::-1] if c.receiver_last else parts
