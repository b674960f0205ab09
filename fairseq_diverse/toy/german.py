"""German concrete syntax: inflection, word order (verb second, first or last) and spelling."""

from collections.abc import Iterable

from fairseq_diverse.toy import abstract_syntax as ast
from fairseq_diverse.toy.lexicon import MUST_NOT, VOWELS, WORDS, Adjective, FixedTime, Noun

CASES = ("nom", "acc", "dat", "gen")
Declension = dict[str, list[str]]


def declension(*genders: str) -> Declension:
    """Forms of masculine, feminine, neuter and plural, in the order of CASES; - for no ending."""
    return {gender: forms.replace("-", "").split(" ") for gender, forms in zip("mfnp", genders, strict=True)}


STRONG = declension("er en em en", "e e er er", "es es em en", "e e en er")
MIXED = declension("er en en en", "e e en en", "es es en en", "en en en en")
WEAK = declension("e en en en", "e e en en", "e e en en", "en en en en")
DIES = declension("er en em es", "e e er er", "es es em es", "e e en er")
EIN = declension("- en em es", "e e er er", "- - em es", "e e en er")
DEFINITE = declension("der den dem des", "die die der der", "das das dem des", "die die den der")
RELATIVE = declension("der den dem", "die die der", "das das dem", "die die denen")

# English determiner -> German stem, declension, that of adjectives. "": none, a number or the bare plural.
DETERMINERS = {
    "": ("", {}, STRONG), "the": ("", DEFINITE, WEAK), "this": ("dies", DIES, WEAK), "these": ("dies", DIES, WEAK),
    "every": ("jed", DIES, WEAK), "all": ("all", DIES, WEAK), "a": ("ein", EIN, MIXED), "no": ("kein", EIN, MIXED),
    "my": ("mein", EIN, MIXED), "your": ("dein", EIN, MIXED), "his": ("sein", EIN, MIXED), "her": ("ihr", EIN, MIXED),
    "our": ("unser", EIN, MIXED), "their": ("ihr", EIN, MIXED), "many": ("viel", DIES, STRONG),
    "some": ("einig", DIES, STRONG), "few": ("wenig", DIES, STRONG),
}  # fmt: skip
PRONOUNS = {
    "I": ("ich", "mich", "mir"), "you": ("du", "dich", "dir"), "he": ("er", "ihn", "ihm"), "she": ("sie", "sie", "ihr"),
    "we": ("wir", "uns", "uns"), "they": ("sie", "sie", "ihnen"), "someone": ("jemand", "jemanden", "jemandem"),
    "nobody": ("niemand", "niemanden", "niemandem"), "everyone": ("jeder", "jeden", "jedem"),
    "who": ("wer", "wen", "wem"), "what": ("was", "was", "was"), "it m": ("er", "ihn", "ihm"),
    "it f": ("sie", "sie", "ihr"), "it n": ("es", "es", "ihm"),
}  # fmt: skip
INDEFINITE = ("someone", "nobody", "everyone")  # stay where nouns are
REFLEXIVE = {"I": ("mich", "mir"), "you": ("dich", "dir"), "we": ("uns", "uns")}  # accusative, dative; all others: sich
CONTRACTIONS = {
    ("in", "dem"): "im", ("an", "dem"): "am", ("von", "dem"): "vom", ("zu", "dem"): "zum", ("bei", "dem"): "beim",
    ("zu", "der"): "zur", ("in", "das"): "ins", ("an", "das"): "ans",
}  # fmt: skip
IRREGULAR_PRESENT = {
    "sein": ("bin", "bist", "ist", "sind"),
    "werden": ("werde", "wirst", "wird", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
}
HABEN = ("haben", "hat", "hatte", "gehabt")
SEIN = ("sein", "ist", "war", "gewesen")
WERDEN = ("werden", "wird", "wurde", "worden")
GEBEN = ("geben", "gibt", "gab", "gegeben")
UNITS, TENS = WORDS["numbers"]["german-units"], WORDS["numbers"]["german-tens"]


def number(n: int) -> str:
    """A number word: 23 is dreiundzwanzig; from 100 on digits."""
    if n < 20 or n >= 100:
        return UNITS[n] if n < 20 else str(n)
    unit, ten = n % 10, TENS[n // 10 - 2]
    return f"{UNITS[unit]}und{ten}" if unit else ten


def inflect(noun: Noun, case: str, plural: bool) -> str:
    """A noun's form: -n in the dative plural, -(e)s in the genitive, -(e)n for weak masculines."""
    if plural:
        return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")
    if noun.weak and case != "nom":
        return noun.german_plural
    word = noun.german
    if case != "gen" or noun.gender == "f":
        return word
    lower = word.lower()
    syllables = sum(a in VOWELS and b not in VOWELS for a, b in zip(lower, lower[1:] + "-", strict=True))
    long = word[-1] in "sßxz" or (syllables == 1 and word[-1] not in VOWELS + "h")
    return word + ("ses" if word.endswith("nis") else "es" if long else "s")


def stem(adjective: Adjective) -> str:
    """The part of an adjective before its endings: teuer, teur-; dunkel, dunkl-; müde, müd-; hoch, hoh-."""
    word = adjective.german
    if word.endswith(("euer", "auer")):
        return word[:-2] + "r"
    if word.endswith("el"):
        return word[:-2] + "l"
    return "hoh" if word == "hoch" else word.removesuffix("e")


def conjugate(parts: tuple[str, ...], past: bool, person: int, plural: bool) -> str:
    """The finite form of the verb with these principal parts."""
    base, third, preterite, _ = parts
    if not past and base in IRREGULAR_PRESENT:
        return IRREGULAR_PRESENT[base][3 if plural else person - 1]
    if plural:
        return (preterite + ("n" if preterite.endswith("e") else "en")) if past else base
    if past:
        return preterite + second_ending(preterite) if person == 2 else preterite
    if person == 3:
        return third
    if not third.endswith("t"):  # modals: ich kann, du kannst
        return third if person == 1 else third + second_ending(third)
    if person == 1:
        return base.removesuffix("n").removesuffix("e") + "e"
    before = third.removesuffix("t")
    return before + ("t" if before[-1] in "sßz" else "st")


def second_ending(before: str) -> str:
    return "t" if before[-1] in "sßz" else "est" if before[-1] in "td" else "st"


def noun_phrase(item: ast.Argument, case: str, negative: bool = False) -> list[str]:
    """The words in a case; ``negative`` turns "ein" or no article into "kein"."""
    match item:
        case ast.Gap():
            return []
        case ast.Pronoun(word, gender):
            return [PRONOUNS[f"{word} {gender}".strip()][CASES.index(case)]]
        case ast.Name(translation=words):  # the title is the only part that inflects
            return ["Herrn" if word == "Herr" and case != "nom" else word for word in words]
        case ast.Common():
            return common(item, case, negative)
        case ast.Coordination(one, other):
            return [*common(one, case), "und", *common(other, case)]


def common(item: ast.Common, case: str, negative: bool = False) -> list[str]:
    gender = "p" if item.plural else item.noun.gender
    article = "no" if negative and item.negatable else item.determiner
    before, endings, adjective_endings = DETERMINERS[article]
    words = [before + endings[gender][CASES.index(case)]] if article else []
    words += [number(item.count)] if item.count else []
    for degree, adjective in item.adjectives:
        words += [*degree[1].split(), stem(adjective) + adjective_endings[gender][CASES.index(case)]]
    noun = inflect(item.noun, case, item.plural)
    words.append(item.modifier[1] + noun.lower() if item.modifier else noun)
    words += [item.content.german] if item.content else []
    words += [word for part in item.attachments for word in prepositional(part)]
    return words + (relative(item.relative, gender) if item.relative else [])


def genitive(item: ast.NounPhrase) -> list[str]:
    """German for "of" this: the genitive if an article shows it, else von."""
    if isinstance(item, ast.Common) and item.determiner:
        return common(item, "gen")
    return ["von", *noun_phrase(item, "dat")]


def prepositional(item: ast.Prepositional) -> list[str]:
    """A preposition and the "it" of a thing merge into one word (darauf).

    Some prepositions merge with the definite article (im), unless a relative clause follows.
    """
    words = item.translation.split()
    if item.case == "gen":
        return words + genitive(item.phrase)
    *before, last = words
    if isinstance(item.phrase, ast.Pronoun) and item.phrase.thing:
        return [*before, f"da{'r' if last[0] in VOWELS else ''}{last}"]
    first, *rest = noun_phrase(item.phrase, item.case)
    joined = CONTRACTIONS.get((last, first))
    if joined and isinstance(item.phrase, ast.Common) and item.phrase.determiner == "the" and not item.phrase.relative:
        return [*before, joined, *rest]
    return [*words, first, *rest]


def relative(item: ast.Relative, gender: str) -> list[str]:
    """The pronoun takes its gender (p: plural) from the antecedent and its case from the verb."""
    verb = item.clause.verb
    case, before = verb.subject_case if verb else "nom", ""
    if item.of_object and verb:
        case, before = verb.objects[0].case, verb.objects[0].german
    return [",", *before.split(), RELATIVE[gender][CASES.index(case)], *subordinate(item.clause, ""), ","]


def time(item: ast.Time) -> list[str]:
    match item:
        case FixedTime(german=words):
            return words.split()
        case ast.Ago(count, unit):
            return ["vor", number(count), inflect(unit, "dat", True)]
        case ast.Duration(count, unit):
            return [number(count), unit.german_plural, "lang"]
        case ast.Year(n):
            return ["im", "Jahr", str(n)]


def sentence(item: ast.Sentence) -> str:
    """The text, with its final punctuation mark."""
    c = item.clause
    if isinstance(item, ast.Question):
        if item.asked is None or item.asked is c.subject:
            words = question(c, []) if item.asked is None else main(c)
        elif isinstance(item.asked, ast.Pronoun):
            assert c.verb
            words = question(c, noun_phrase(item.asked, c.verb.objects[0].case))
        else:
            words = question(c, [item.asked[1]])
        return spell([*words, "?"])
    if item.second is None:
        return spell([*main(c), "."])
    comma = [","] if item.conjunction[1] == "aber" else []
    return spell([*main(c), *comma, item.conjunction[1], *main(item.second), "."])


def main(c: ast.Clause, elided: bool = False) -> list[str]:
    """Verb second, after the subject or the fronted phrases; ``elided``: without the subject."""
    finite, rest = verbs(c)
    fronted = [(inner, subordinator) for _, subordinator, inner, front in c.adjuncts if front]
    first = [word for adjunct in fronted for word in [*subordinate(*adjunct), ","]]
    first += time(c.time) if c.time and c.time_first else []
    first += prepositional(c.place) if c.place and c.place_first else []
    start = [*(first or ([] if elided else subject(c))), finite]
    before = inner_subject(c) if first and not elided else nominative_pronoun(c)
    return [*start, *before, *middle(c), *rest, *last(c), *(["und", *main(c.also, elided=True)] if c.also else [])]


def subordinate(c: ast.Clause, subordinator: str, elided: bool = False) -> list[str]:
    """Verb last, joined with its separable prefix."""
    finite, rest = verbs(c)
    if c.verb and rest == [c.verb.prefix]:
        finite, rest = c.verb.prefix + finite, []
    words = [*subordinator.split(), *([] if elided else inner_subject(c)), *middle(c), *rest, finite, *last(c)]
    return words + (["und", *subordinate(c.also, "", elided=True)] if c.also else [])


def question(c: ast.Clause, asked: list[str]) -> list[str]:
    """Verb first, or second after the words ``asked``."""
    finite, rest = verbs(c)
    return [*asked, finite, *inner_subject(c), *middle(c), *rest, *last(c)]


def infinitive(c: ast.Clause, controller: ast.Argument) -> list[str]:
    """Infinitive with zu, which comes between a separable prefix and its verb."""
    assert c.verb
    prefix, bare = c.verb.prefix, c.verb.german[0]
    return [*middle(c, controller), *([f"{prefix}zu{bare}"] if prefix else ["zu", bare]), *last(c)]


def subject(c: ast.Clause) -> list[str]:
    return ["es"] if c.existential else noun_phrase(c.subject, c.verb.subject_case if c.verb else "nom")


def inner_subject(c: ast.Clause) -> list[str]:
    """The subject after the finite verb or a subordinator, after a nominative pronoun: "weil ihr Peter fehlt"."""
    return [*nominative_pronoun(c), *subject(c)]


def nominative(c: ast.Clause) -> ast.Argument:
    """The phrase that the verb agrees with: the object of verbs such as "miss" (fehlen), else the subject."""
    slots = zip(c.verb.objects if c.verb else (), c.objects, strict=False)
    return next((item for slot, item in slots if slot.case == "nom"), c.subject)


def nominative_pronoun(c: ast.Clause) -> list[str]:
    """The personal pronoun that the verb agrees with, if it is not the subject."""
    item = nominative(c)
    personal = isinstance(item, ast.Pronoun) and item.word not in INDEFINITE
    return noun_phrase(item, "nom") if item is not c.subject and personal else []


def verbs(c: ast.Clause) -> tuple[str, list[str]]:
    """The finite verb, and the words of the right bracket, which precede it in a subordinate clause."""
    agent = nominative(c)
    person, plural = (3, False) if c.existential else (agent.person, agent.plural)
    parts = GEBEN if c.existential else c.verb.german if c.verb else SEIN
    prefix = c.verb.prefix if c.verb else ""
    participle = prefix + parts[3]
    if c.modal and c.modal.infinitive:
        modal = MUST_NOT if c.modal.english == MUST_NOT.english and c.negated else c.modal
        finite = conjugate((*modal[1:4], ""), c.past or modal.past, person, plural)
        return finite, [participle, "werden"] if c.passive else [prefix + parts[0]]
    if c.tense in ("perfect", "pluperfect"):
        being = c.passive or not c.verb or c.verb.auxiliary == "sein"
        finite = conjugate(SEIN if being else HABEN, c.past, person, plural)
        return finite, [participle, "worden"] if c.passive else [participle]
    if c.passive:
        return conjugate(WERDEN, c.past, person, plural), [participle]
    return conjugate(parts, c.past, person, plural), [prefix] if prefix else []


def middle(c: ast.Clause, controller: ast.Argument | None = None) -> list[str]:
    """Between subject and right bracket: pronouns, time, dative, accusative, nicht, manner, means, place, predicate.

    An indefinite accusative or predicate noun is negated by kein instead of nicht.
    """
    pronouns: dict[str, list[str]] = {"nom": [], "acc": [], "dat": []}
    nouns: dict[str, list[str]] = {"dat": [], "acc": [], "nom": []}
    governed: list[str] = []
    negated = c.negated
    for slot, item in zip(c.verb.objects if c.verb else (), c.objects, strict=False):
        if slot.german and not isinstance(item, ast.Gap):
            governed += prepositional(ast.Prepositional("", slot.german, slot.case, item))
            continue
        kein = negated and item.negatable and slot.case == "acc"
        negated = negated and not kein
        if slot.case != "nom" or not nominative_pronoun(c):
            (pronouns if item.pronoun else nouns)[slot.case] += noun_phrase(item, slot.case, kein)
    indefinite = c.subject if c.existential else c.predicate.noun if c.predicate else None
    kein = negated and indefinite is not None and indefinite.negatable
    accusative = any(slot.case == "acc" and not slot.german for slot in c.verb.objects) if c.verb else False
    reflexives = [reflexive(controller or c.subject, accusative)] if c.verb and c.verb.reflexive else []
    words = pronouns["nom"] + pronouns["acc"] + reflexives + pronouns["dat"]
    words += ["gerade"] if c.tense == "progressive" else []
    words += [c.often[1]] if c.often else []
    words += time(c.time) if c.time and not c.time_first else []
    words += nouns["dat"] + nouns["acc"] + nouns["nom"]
    words += noun_phrase(c.subject, "acc", kein) if c.existential else []
    words += ["nicht"] if negated and not kein else []
    words += ["gern"] if c.modal and not c.modal.infinitive else []
    words += [c.manner[1]] if c.manner else []
    words += [word for item in c.means for word in prepositional(item)]
    words += governed
    words += prepositional(c.place) if c.place and not c.place_first else []
    return words + (predicate(c.predicate, kein) if c.predicate else [])


def predicate(item: ast.Predicate, negative: bool) -> list[str]:
    if not item.adjective:
        assert item.noun
        return noun_phrase(item.noun, "nom", negative)
    complement = prepositional(item.complement) if item.complement else []
    return [*complement, *item.degree[1].split(), item.adjective.german]


def reflexive(controller: ast.Argument, dative: bool) -> str:
    """Dative beside an accusative object: "ich sehe mir einen Film an"."""
    known = REFLEXIVE.get(controller.word) if isinstance(controller, ast.Pronoun) else None
    return known[dative] if known else "sich"


def last(c: ast.Clause) -> list[str]:
    """The clauses after the right bracket."""
    words: list[str] = []
    if c.complement:
        _, word, inner = c.complement
        words += [",", *(infinitive(inner, c.controller) if word == "zu" else subordinate(inner, word)), ","]
    for _, word, inner, front in c.adjuncts:
        words += [] if front else [",", *subordinate(inner, word), ","]
    return words


def spell(tokens: Iterable[str]) -> str:
    """Words to text: no comma twice, at the start or the end; no space before punctuation; a capital at the start."""
    kept: list[str] = []
    for token in tokens:
        if token == "," and (not kept or kept[-1] == ","):
            continue
        if token in ".?!" and kept and kept[-1] == ",":
            kept.pop()
        kept.append(token)
    text = " ".join(kept).replace(" ,", ",").replace(" .", ".").replace(" ?", "?")
    return text[0].upper() + text[1:]
