"""English concrete syntax: inflection and word order, as trees."""

from fairseq_diverse.toy import abstract_syntax as ast
from fairseq_diverse.toy.lexicon import ENGLISH, VOWELS, WORDS, FixedTime, Noun, with_s
from fairseq_diverse.toy.trees import Tree, leaf, phrase

Part = tuple[str, Tree]  # relation to the head, tree
LEXICAL = ("main", "semi")  # verbs that need "do" in negations and questions; semi: "want to"
OBJECT_FORMS = {"I": "me", "he": "him", "she": "her", "we": "us", "they": "them", "who": "whom"}
POSSESSIVES = ("my", "your", "his", "her", "our", "their")
UNITS, TENS = WORDS["numbers"]["english-units"], WORDS["numbers"]["english-tens"]
FULL_STOP = ("punct", leaf(".", "."))
QUESTION_MARK = ("punct", leaf(".", "?"))
COMMA = ("punct", leaf(",", ","))


def number(n: int) -> str:
    """A number word; from 100 on digits."""
    if n < 20 or n >= 100:
        return UNITS[n] if n < 20 else str(n)
    return TENS[n // 10 - 2] + (f"-{UNITS[n % 10]}" if n % 10 else "")


def regular_past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    return base[:-1] + "ied" if base[-1] == "y" and base[-2] not in VOWELS else doubled(base) + "ed"


def doubled(base: str) -> str:
    """The stem before -ed and -ing: plan, plann-; visit and open do not double."""
    closed = len(base) > 2 and base[-1] not in VOWELS + "wx" and base[-2] in VOWELS and base[-3] not in VOWELS
    single = sum(letter in VOWELS for letter in base) == 1 or base in ("forget", "begin", "forbid")
    return base + base[-1] if closed and single else base


def third_person(base: str) -> str:
    return "has" if base == "have" else with_s(base, ("s", "x", "ch", "sh", "o"))


def present_participle(base: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    return (base[:-1] if base.endswith("e") and not base.endswith("ee") else doubled(base)) + "ing"


def noun_phrase(item: ast.NounPhrase, subject: bool = False) -> Tree:
    """The tree; ``subject`` chooses a pronoun's form."""
    match item:
        case ast.Pronoun(word):
            form = word if subject else OBJECT_FORMS.get(word, word)
            if word in ("who", "what"):
                return phrase("WHNP", ("head", leaf("WP", form, word)))
            tag = "NN" if word in ("someone", "nobody", "everyone") else "PRP"
            return phrase("NP", ("head", leaf(tag, form, word, "PRON")))
        case ast.Name(words):
            *first, last = words
            return phrase("NP", *(("compound", leaf("NNP", word)) for word in first), ("head", leaf("NNP", last)))
        case ast.Vehicle(noun):
            return common(ast.Common(noun, ""))
        case ast.Common():
            return common(item)
        case ast.Coordination(one, other):
            return phrase("NP", ("head", common(one)), ("cc", leaf("CC", "and")), ("conj", common(other)))


def common(item: ast.Common) -> Tree:
    parts: list[Part] = []
    if item.count:
        parts.append(("nummod", leaf("CD", number(item.count))))
    for degree, adjective in item.adjectives:
        tree = leaf("JJ", adjective.english)
        if degree[0]:
            tree = phrase("ADJP", ("advmod", leaf("RB", degree[0])), ("head", tree))
        parts.append(("amod", tree))
    if item.modifier:
        parts.append(("compound", leaf("NN", item.modifier[0])))
    form = item.noun.plural if item.plural else item.noun.singular
    parts.append(("head", leaf("NNS" if item.plural else "NN", form, item.noun.singular)))
    if item.determiner:
        parts.insert(0, determiner(item.determiner, next(parts[0][1].leaves()).word))
    after: list[Part] = []
    if item.content:
        after.append(("nmod", preposition("of", common(ast.Common(item.content, "")))))
    after += [("nmod", prepositional(part)) for part in item.attachments]
    if item.relative:
        after.append(("acl:relcl", relative(item.relative)))
    tree = phrase("NP", *parts)
    return phrase("NP", ("head", tree), *after) if after else tree


def determiner(word: str, following: str) -> Part:
    if word in POSSESSIVES:
        return "nmod:poss", leaf("PRP$", word)
    if word in ("many", "few"):
        return "amod", leaf("JJ", word)
    vowel = following[0] in "aeiou" and not following.startswith(("one", "use", "uni", "eu"))
    return "det", leaf("DT", "an" if word == "a" and vowel else word, word)


def relative(item: ast.Relative) -> Tree:
    slot = item.clause.verb.objects[0] if item.of_object and item.clause.verb else None
    if item.person:
        word = leaf("WP", "whom" if slot else "who", "who")
    else:
        word = leaf("WDT", "which" if slot and slot.english else "that", universal="PRON")
    pronoun = phrase("WHNP", ("head", word))
    relation = "obj" if slot else subject_relation(item.clause)
    if slot and slot.english:
        relation, pronoun = "obl", preposition(slot.english, pronoun, "WHPP")
    return phrase("SBAR", (relation, pronoun), ("head", clause(item.clause)))


def prepositional(item: ast.Prepositional) -> Tree:
    return preposition(item.word, noun_phrase(item.phrase))


def preposition(word: str, after: Tree, label: str = "PP") -> Tree:
    """(PP word after): the preposition is the case marker of the phrase after it."""
    return phrase(label, ("case", leaf("TO" if word == "to" else "IN", word)), ("head", after))


def time(item: ast.Time) -> Part:
    match item:
        case FixedTime(label=label, english=english):
            *modifiers, head = [leaf(tag, word) for word, tag in english]
            before = modifiers.pop(0).word if label == "PP" else ""
            inner = [("amod" if part.label == "JJ" else "det", part) for part in modifiers]
            tree = phrase("NP" if before else label, *inner, ("head", head))
            if before:
                return "obl", preposition(before, tree)
            return "advmod" if label == "ADVP" else "obl:tmod", tree
        case ast.Ago(count, unit):
            return "advmod", phrase("ADVP", ("obl:npmod", span(count, unit)), ("head", leaf("RB", "ago")))
        case ast.Duration(count, unit):
            return "obl", preposition("for", span(count, unit))
        case ast.Year(n):
            return "obl", preposition("in", phrase("NP", ("head", leaf("CD", str(n)))))


def span(count: int, unit: Noun) -> Tree:
    return phrase("NP", ("nummod", leaf("CD", number(count))), ("head", leaf("NNS", unit.plural, unit.singular)))


def sentence(item: ast.Sentence) -> Tree:
    """The tree with its final punctuation mark."""
    c = item.clause
    if isinstance(item, ast.Question):
        if item.asked is None:
            return phrase("SQ", *question(c).children, QUESTION_MARK)
        if item.asked is c.subject:
            return phrase("SBARQ", *subject(c), ("head", phrase("SQ", ("head", verb_phrase(c)))), QUESTION_MARK)
        if isinstance(item.asked, ast.Pronoun):
            front = ("obj", noun_phrase(item.asked))
        else:
            front = ("advmod", phrase("WHADVP", ("head", leaf("WRB", item.asked[0]))))
        return phrase("SBARQ", front, ("head", question(c)), QUESTION_MARK)
    if item.second is None:
        return phrase("S", *clause_parts(c), FULL_STOP)
    conjunction = ("cc", leaf("CC", item.conjunction[0]))
    return phrase("S", ("head", clause(c)), COMMA, conjunction, ("conj", clause(item.second)), FULL_STOP)


def clause(c: ast.Clause) -> Tree:
    """The declarative (S ...), without a full stop; for a clause with a Gap, the rest of it."""
    return phrase("S", *clause_parts(c))


def clause_parts(c: ast.Clause) -> list[Part]:
    head = verb_phrase(c)
    if c.also:
        head = phrase("VP", ("head", head), ("cc", leaf("CC", "and")), ("conj", verb_phrase(c.also)))
    if c.existential:
        return [*fronted(c), ("expl", phrase("NP", ("head", leaf("EX", "there")))), ("head", head)]
    return [*fronted(c), *subject(c), ("head", head)]


def subject(c: ast.Clause) -> list[Part]:
    """Empty if the subject is a Gap."""
    return [] if isinstance(c.subject, ast.Gap) else [(subject_relation(c), noun_phrase(c.subject, True))]


def subject_relation(c: ast.Clause) -> str:
    active = c.modal and " to" in c.modal.english  # "it had to be painted": the subject of had
    return "nsubj:pass" if c.passive and not active else "nsubj"


def fronted(c: ast.Clause) -> list[Part]:
    parts = [("advcl", subordinate(inner, word)) for word, _, inner, first in c.adjuncts if first]
    if c.time and c.time_first:
        parts.append(time(c.time))
    if c.place and c.place_first:
        parts.append(("obl", prepositional(c.place)))
    return [*parts, COMMA] if parts else []


def subordinate(c: ast.Clause, words: str) -> Tree:
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


def question(c: ast.Clause) -> Tree:
    """The (SQ ...) of a yes-no question, or the part after a question word."""
    (kind, finite), *rest = verb_leaves(c, question=True)
    middle = [*subject(c), *adverbs(c)]
    if not rest:  # only "be" has no "do"
        return headed("SQ", finite, [*middle, *after_verb(c)])
    return phrase("SQ", (auxiliary_relation(kind), finite), *middle, ("head", nest(c, rest, [])))


def verb_phrase(c: ast.Clause, finite: bool = True) -> Tree:
    return nest(c, verb_leaves(c, finite), adverbs(c) if finite else [])


def verb_leaves(c: ast.Clause, finite: bool = True, question: bool = False) -> list[tuple[str, Tree]]:
    """The verbs from the finite verb to the main verb, each with its kind."""
    chain = [("semi" if " to" in c.modal.english else "modal", c.modal.english.split()[0])] if c.modal else []
    chain += [("perfect", "have")] if c.tense in ("perfect", "pluperfect") else []
    chain += [("progressive", "be")] if c.tense == "progressive" else []
    chain += [("passive", "be")] if c.passive else []
    chain.append(("main", c.verb.english) if c.verb and not c.copular else ("copula", "be"))
    if finite and chain[0][0] in LEXICAL and (question or c.negated):
        chain.insert(0, ("do", "do"))
    governors = ["finite" if finite else "to", *(kind for kind, _ in chain)]
    return [(kind, verb_leaf(c, kind, lemma, of)) for (kind, lemma), of in zip(chain, governors, strict=False)]


def verb_leaf(c: ast.Clause, kind: str, lemma: str, governor: str) -> Tree:
    """A verb in the form that the verb before it (``governor``) requires."""
    _, past, participle = ENGLISH.get(lemma) or (lemma, *[regular_past(lemma)] * 2)
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


def adverbs(c: ast.Clause) -> list[Part]:
    parts: list[Part] = [("advmod", leaf("RB", "not", universal="PART"))] if c.negated else []
    return parts + ([("advmod", phrase("ADVP", ("head", leaf("RB", c.often[0]))))] if c.often else [])


def nest(c: ast.Clause, verbs: list[tuple[str, Tree]], adverbs: list[Part]) -> Tree:
    """One VP for every verb; the adverbs come before a lexical verb and after any other."""
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
    """A phrase headed by the predicate, with the verb as its copula, or without a predicate by the verb."""
    relation = "cop" if any(name == "head" for name, _ in after) else "head"
    return phrase(label, *(before or []), (relation, verb), *after)


def after_verb(c: ast.Clause) -> list[Part]:
    """Predicate, particle, objects, bound place, manner, means, free place, time, clauses."""
    parts: list[Part] = []
    if c.predicate:
        parts.append(("head", predicate(c.predicate)))
    if c.existential:
        parts += subject(c)
    if c.verb and c.verb.particle:
        parts.append(("compound:prt", phrase("PRT", ("head", leaf("RP", c.verb.particle)))))
    parts += object_parts(c)
    bound = c.frame in ("go", "put", "at")
    if c.place and bound:
        parts.append(("head" if c.copular else "obl", prepositional(c.place)))
    if c.manner:
        parts.append(("advmod", phrase("ADVP", ("head", leaf("RB", c.manner[0])))))
    parts += [("obl", prepositional(item)) for item in c.means]
    if c.place and not bound and not c.place_first:
        parts.append(("obl", prepositional(c.place)))
    if c.time and not c.time_first:
        parts.append(time(c.time))
    if c.complement:
        word, _, inner = c.complement
        to = ("xcomp", infinitive(verb_phrase(inner, finite=False))) if word == "to" else None
        parts.append(to or ("ccomp", subordinate(inner, word)))
    return parts + [("advcl", subordinate(inner, word)) for word, _, inner, first in c.adjuncts if not first]


def predicate(item: ast.Predicate) -> Tree:
    if not item.adjective:
        assert item.noun
        return noun_phrase(item.noun)
    degree = [("advmod", leaf("RB", item.degree[0]))] if item.degree[0] else []
    complement = [("obl", prepositional(item.complement))] if item.complement else []
    return phrase("ADJP", *degree, ("head", leaf("JJ", item.adjective.english)), *complement)


def object_parts(c: ast.Clause) -> list[Part]:
    parts: list[Part] = []
    for slot, item in zip(c.verb.objects if c.verb else (), c.objects, strict=False):
        if isinstance(item, ast.Gap):
            continue
        receiver = len(c.objects) == 2 and not parts
        word = slot.english or ("to" if receiver and c.receiver_last else "")
        tree = noun_phrase(item)
        parts.append(("obl", preposition(word, tree)) if word else ("iobj" if receiver else "obj", tree))
    return parts[::-1] if c.receiver_last else parts
