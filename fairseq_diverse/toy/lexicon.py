"""The tables of ``words.py`` as entries, and how English and German words inflect."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from fairseq_diverse.toy import words

ANY = "PAGSLHTCQZFDVBNOKMWXJ"  # everything concrete
PORTABLE = "SLHTCQOKMWX"
COMMON_KINDS = {"P": 4.0, "B": 2.0, "O": 0.3, "K": 0.3, "M": 0.3, "W": 0.3, "X": 0.3, "Y": 0.3}  # others: 1
CASES = ("nom", "acc", "dat", "gen")
VOWELS = "aeiouäöüy"


@dataclass(frozen=True)
class Noun:
    singular: str
    plural: str
    gender: str  # m, f, n
    german: str
    german_plural: str
    kind: str
    weak: bool
    weight: float

    def inflect(self, case: str, plural: bool) -> str:
        """The German form: -n in the dative plural, -(e)s in the genitive, -(e)n for weak masculines."""
        if plural:
            return self.german_plural + ("n" if case == "dat" and self.german_plural[-1] not in "ns" else "")
        if self.weak and case != "nom":
            return self.german_plural
        if case != "gen" or self.gender == "f":
            return self.german
        syllables = sum(
            a in VOWELS and b not in VOWELS
            for a, b in zip(self.german.lower(), self.german.lower()[1:] + "-", strict=True)
        )
        long = self.german[-1] in "sßxz" or (syllables == 1 and self.german[-1] not in VOWELS + "h")
        return self.german + ("ses" if self.german.endswith("nis") else "es" if long else "s")


@dataclass(frozen=True)
class Adjective:
    english: str
    german: str
    kinds: str
    weight: float

    @property
    def stem(self) -> str:
        """What German endings are added to: teuer, teur-; dunkel, dunkl-; müde, müd-; hoch, hoh-."""
        word = self.german
        if word.endswith(("euer", "auer")):
            return word[:-2] + "r"
        if word.endswith("el"):
            return word[:-2] + "l"
        return "hoh" if word == "hoch" else word.removesuffix("e")


@dataclass(frozen=True)
class Object:
    """One object of a verb: English and German preposition ("" for none), German case, kinds of noun."""

    english: str
    german: str
    case: str
    kinds: str


@dataclass(frozen=True)
class Verb:
    english: str
    particle: str
    german: tuple[str, str, str, str]  # infinitive, third person, preterite, participle, all without the prefix
    prefix: str  # separable
    auxiliary: str
    reflexive: bool
    subject: str  # kinds
    objects: tuple[Object, ...]
    frame: str  # "", go, put, at, that, if, inf, weather
    tool: str
    flags: tuple[str, ...]

    @property
    def subject_case(self) -> str:
        return "dat" if any(slot.case == "nom" for slot in self.objects) else "nom"


def entries(table: str) -> list[str]:
    return [" ".join(entry.split()) for entry in table.split(",")]


def pairs(table: str) -> list[tuple[str, ...]]:
    return [tuple(entry.split()) for entry in entries(table)]


def english_plural(noun: str) -> str:
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def parse_noun(entry: str, kind: str, weight: float) -> Noun:
    english, article, german, german_plural = entry.split()
    singular, _, plural = english.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[article.rstrip("!")]
    return Noun(
        singular, plural or english_plural(singular), gender, german, german_plural, kind, article.endswith("!"), weight
    )


NOUNS = [
    parse_noun(entry, kind, COMMON_KINDS.get(kind, 1.0) / (rank + 3))
    for kind, table in words.NOUNS.items()
    for rank, entry in enumerate(entries(table))
]
UNITS = [parse_noun(entry, "", 1 / (rank + 1)) for rank, entry in enumerate(entries(words.UNITS))]


def parse_adjectives() -> list[Adjective]:
    result = []
    for rank, entry in enumerate(entries(words.ADJECTIVES)):
        english, rest = entry.split(maxsplit=1)
        for reading in rest.split("/"):
            first, second = reading.split()
            german, kinds = (first, second) if second.isupper() or second == "*" else (second, first)
            result.append(Adjective(english, german, ANY + "IE" if kinds == "*" else kinds, 1 / (rank + 4)))
    return result


ADJECTIVES = parse_adjectives()


@cache
def principal_parts(base: str) -> tuple[str, str, str]:
    """English base, past and participle."""
    irregular = ENGLISH.get(base)
    return irregular if irregular else (base, regular_past(base), regular_past(base))


def regular_past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    return base[:-1] + "ied" if base[-1] == "y" and base[-2] not in VOWELS else doubled(base) + "ed"


def doubled(base: str) -> str:
    """The stem before -ed and -ing: plan, plann-; visit and open keep theirs."""
    closed = len(base) > 2 and base[-1] not in VOWELS + "wx" and base[-2] in VOWELS and base[-3] not in VOWELS
    single = sum(letter in VOWELS for letter in base) == 1 or base in ("forget", "begin", "forbid")
    return base + base[-1] if closed and single else base


def third_person(base: str) -> str:
    if base == "have":
        return "has"
    if base[-1] == "y" and base[-2] not in VOWELS:
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "x", "ch", "sh", "o")) else "s")


def present_participle(base: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    return (base[:-1] if base.endswith("e") and not base.endswith("ee") else doubled(base)) + "ing"


def german_parts(verb: str) -> tuple[str, str, str, str]:
    """Infinitive, third person singular, preterite and participle of a German verb without its separable prefix."""
    prefix, _, base = verb.rpartition("-")
    if base in GERMAN:
        parts = GERMAN[base]
    else:
        base = base.rstrip("~")  # weak in spite of a strong verb of the same form
        stem = base.removesuffix("n").removesuffix("e")
        hard = stem[-1] in "td" or (stem[-1] in "mn" and stem[-2] not in VOWELS + "hlrmn")
        link = "e" if hard else ""
        ge = "" if base.endswith("ieren") else "ge"
        parts = (base, f"{stem}{link}t", f"{stem}{link}te", f"{ge}{stem}{link}t")
    participle = parts[3].removeprefix("ge") if prefix else parts[3]
    return prefix + parts[0], prefix + parts[1], prefix + parts[2], prefix + participle


def parse_object(text: str) -> Object:
    roles, kinds = text.split(":")
    english, _, german = roles.rpartition("=")
    preposition, _, case = german.rpartition("+")
    kinds = kinds.replace("*", ANY).replace("t", PORTABLE)
    return Object(english.replace("_", ""), preposition, case, kinds)


def parse_verb(line: str) -> Verb:
    sides, frame = line.split(" : ")
    english, german = (side.strip() for side in sides.split("="))
    subject, objects, extras = ([part.strip() for part in frame.split(">")] + ["", ""])[:3]
    base, _, particle = english.partition(" ")
    reflexive = german.startswith("sich ")
    german = german.removeprefix("sich ")
    auxiliary = "sein" if german.startswith("*") else "haben"
    prefix, _, stem = german.lstrip("*").rpartition("+")
    flags = extras.split()
    tool = flags[flags.index("by") + 1] if "by" in flags else ""
    frames = [flag for flag in flags if flag in ("go", "put", "at", "that", "if", "inf", "weather")]
    return Verb(
        base,
        particle,
        german_parts(stem),
        prefix,
        auxiliary,
        reflexive,
        subject.replace("t", PORTABLE),
        tuple(parse_object(item) for item in objects.split() if item != "_"),
        frames[0] if frames else "",
        tool,
        tuple(flag for flag in flags if flag in ("stative", "to", "object")),
    )


def triples(table: str) -> dict[str, tuple[str, ...]]:
    return {entry.split()[0]: tuple(entry.split()) for entry in entries(table)}


ENGLISH: dict[str, tuple[str, str, str]] = triples(words.ENGLISH_IRREGULAR)  # type: ignore[assignment]
GERMAN: dict[str, tuple[str, str, str, str]] = triples(words.GERMAN_IRREGULAR)  # type: ignore[assignment]
SAME_PAST = [base for base, (_, past, _) in ENGLISH.items() if base == past]
VERBS = [parse_verb(line) for line in words.VERBS.strip().splitlines()]


def cumulated(weights: Iterable[float]) -> list[float]:
    return list(accumulate(weights))


@cache
def zipf_weights(n: int, offset: int) -> list[float]:
    """Cumulated weights of ``n`` items, each inverse to its rank plus ``offset``."""
    return cumulated(1 / (rank + offset) for rank in range(n))


@cache
def nouns(kinds: str) -> tuple[list[Noun], list[float]]:
    """Nouns of the kinds, with their weights."""
    found = [noun for noun in NOUNS if noun.kind in kinds]
    return found, cumulated(noun.weight for noun in found)


@cache
def adjectives(kind: str) -> tuple[list[Adjective], list[float]]:
    found = [adjective for adjective in ADJECTIVES if kind in adjective.kinds]
    return found, cumulated(adjective.weight for adjective in found)


@cache
def verbs(frame: str, objects: int, subject: str = "") -> tuple[list[Verb], list[float]]:
    """Verbs of one frame, in order of frequency; with ``subject`` only those that take such a subject."""
    found = [
        v for v in VERBS if v.frame == frame and len(v.objects) == objects and (not subject or subject in v.subject)
    ]
    return found, zipf_weights(len(found), 5)
