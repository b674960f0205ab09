"""German inflection and spelling: articles, adjectives, pronouns, verbs, numbers, contractions, punctuation."""

from collections.abc import Iterable

from fairseq_diverse.toy import words
from fairseq_diverse.toy.lexicon import CASES

# Endings in the order of CASES; p is the plural of every gender.
STRONG = {
    "m": ("er", "en", "em", "en"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "en"),
    "p": ("e", "e", "en", "er"),
}
MIXED = {
    "m": ("er", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("es", "es", "en", "en"),
    "p": ("en", "en", "en", "en"),
}
WEAK = {
    "m": ("e", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("e", "e", "en", "en"),
    "p": ("en", "en", "en", "en"),
}
DEFINITE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
DIES = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
EIN = {"m": ("", "en", "em", "es"), "f": ("e", "e", "er", "er"), "n": ("", "", "em", "es"), "p": ("e", "e", "en", "er")}
RELATIVE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "denen"),
}

# English determiner -> German stem and declension. "" is the bare plural.
DETERMINERS = {
    "the": ("", DEFINITE, WEAK), "this": ("dies", DIES, WEAK), "these": ("dies", DIES, WEAK),
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
REFLEXIVE = {"I": "mich", "you": "dich", "we": "uns"}  # all others: sich
CONTRACTIONS = {
    ("in", "dem"): "im", ("an", "dem"): "am", ("von", "dem"): "vom", ("zu", "dem"): "zum", ("bei", "dem"): "beim",
    ("zu", "der"): "zur", ("in", "das"): "ins", ("an", "das"): "ans",
}  # fmt: skip
IRREGULAR_PRESENT = {
    "sein": ("bin", "bist", "ist", "sind"),
    "werden": ("werde", "wirst", "wird", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
}
UNITS = words.GERMAN_UNITS.split()
TENS = words.GERMAN_TENS.split()


def determiner(english: str, gender: str, case: str) -> list[str]:
    if not english:
        return []
    stem, endings, _ = DETERMINERS[english]
    return [stem + endings[gender][CASES.index(case)]]


def adjective_ending(english: str, gender: str, case: str) -> str:
    """The ending that an adjective takes after an English determiner ("" for none or a number)."""
    declension = DETERMINERS[english][2] if english else STRONG
    return declension[gender][CASES.index(case)]


def number(n: int) -> str:
    """A German number word: 23 is dreiundzwanzig; from 100 on digits."""
    if n < 20:
        return UNITS[n]
    if n >= 100:
        return str(n)
    unit, ten = n % 10, TENS[n // 10 - 2]
    return f"{UNITS[unit]}und{ten}" if unit else ten


def conjugate(parts: tuple[str, str, str, str], past: bool, person: int, plural: bool) -> str:
    """The finite form of the verb with these principal parts."""
    infinitive, third, preterite, _ = parts
    if not past and infinitive in IRREGULAR_PRESENT:
        return IRREGULAR_PRESENT[infinitive][3 if plural else person - 1]
    if plural:
        return (preterite + ("n" if preterite.endswith("e") else "en")) if past else infinitive
    if past:
        return preterite + second_ending(preterite) if person == 2 else preterite
    if person == 3:
        return third
    if not third.endswith("t"):  # modals: ich kann, du kannst
        return third if person == 1 else third + second_ending(third)
    if person == 1:
        return infinitive.removesuffix("n").removesuffix("e") + "e"
    stem = third.removesuffix("t")
    return stem + ("t" if stem[-1] in "sßz" else "st")


def second_ending(stem: str) -> str:
    return "t" if stem[-1] in "sßz" else "est" if stem[-1] in "td" else "st"


def finish(tokens: Iterable[str]) -> str:
    """Words to text: one comma, and none at the start or end; punctuation attached; a capital first."""
    kept: list[str] = []
    for token in tokens:
        if token == "," and (not kept or kept[-1] == ","):
            continue
        if token in ".?!" and kept and kept[-1] == ",":
            kept.pop()
        kept.append(token)
    text = " ".join(kept).replace(" ,", ",").replace(" .", ".").replace(" ?", "?")
    return text[0].upper() + text[1:]
