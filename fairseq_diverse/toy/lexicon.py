"""The words of both languages and their frequencies, from ``words.yaml``, which explains the notation."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

T = TypeVar("T")
Weighted = tuple[Sequence[T], Sequence[float]]  # items and their cumulated weights

ANY = "PAGSLHTCQZFDVBNOKMWXJ"  # everything concrete
PORTABLE = "SLHTCQOKMWX"
COMMON_KINDS = {"P": 4.0, "B": 2.0, "O": 0.3, "K": 0.3, "M": 0.3, "W": 0.3, "X": 0.3, "Y": 0.3}  # others: 1
FRAMES = ("go", "put", "at", "that", "if", "inf", "weather")
VOWELS = "aeiouäöüy"

# Strings only, so that a name such as No is not read as false; the C parser is ten times faster.
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
WORDS: dict[str, Any] = yaml.load(Path(__file__).with_name("words.yaml").read_bytes(), LOADER)


class Noun(NamedTuple):
    singular: str
    plural: str
    gender: str  # m, f, n
    german: str
    german_plural: str
    kind: str
    weak: bool
    weight: float


class Adjective(NamedTuple):
    english: str
    german: str
    kinds: str
    weight: float


class Object(NamedTuple):
    """One object of a verb: English and German preposition ("" for none), German case, kinds of noun."""

    english: str
    german: str
    case: str
    kinds: str


class Verb(NamedTuple):
    english: str
    particle: str
    german: tuple[str, ...]  # infinitive, third person, preterite, participle, all without the prefix
    prefix: str  # separable
    auxiliary: str
    reflexive: bool
    subject: str  # kinds
    objects: tuple[Object, ...]
    frame: str  # one of FRAMES, or ""
    tool: str
    flags: tuple[str, ...]  # stative, to, object

    @property
    def subject_case(self) -> str:
        return "dat" if any(slot.case == "nom" for slot in self.objects) else "nom"

    @property
    def plain_object(self) -> bool:
        """Whether its first object has no preposition in either language and a case that fits "whom" or "what"."""
        english, german, case, kinds = self.objects[0]
        return not english and not german and (case == "acc" or (case == "dat" and "P" in kinds))


class Modal(NamedTuple):
    """English word (a full verb if it has "to"), German infinitive, third person, past; ``past``: the only tense."""

    english: str
    infinitive: str
    third: str
    preterite: str
    past: bool = False


class FixedTime(NamedTuple):
    """A phrase of time from the table: tense, label, English words with their tags, German words."""

    tense: str
    label: str
    english: list[tuple[str, str]]
    german: str


def split(table: Iterable[str], separator: str | None = None) -> list[tuple[str, ...]]:
    return [tuple(entry.split(separator)) for entry in table]


def with_s(word: str, sibilants: tuple[str, ...] = ("s", "x", "ch", "sh")) -> str:
    """The plural of a noun, the third person of a verb."""
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(sibilants) else "s")


def read_noun(entry: str, kind: str, weight: float) -> Noun:
    english, article, german, german_plural = entry.split()
    singular, _, plural = english.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[article.rstrip("!")]
    plural = plural or with_s(singular)
    return Noun(singular, plural, gender, german, german_plural, kind, article.endswith("!"), weight)


def read_adjectives(table: Sequence[str]) -> list[Adjective]:
    result = []
    for rank, entry in enumerate(table):
        english, rest = entry.split(maxsplit=1)
        for reading in rest.split("/"):
            first, second = reading.split()
            german, kinds = (first, second) if second.isupper() or second == "*" else (second, first)
            result.append(Adjective(english, german, ANY + "IE" if kinds == "*" else kinds, 1 / (rank + 4)))
    return result


def german_parts(verb: str) -> tuple[str, ...]:
    """Infinitive, third person singular, preterite and participle of a German verb without its separable prefix."""
    prefix, _, base = verb.rpartition("-")
    if base in GERMAN:
        parts = GERMAN[base]
    else:
        base = base.rstrip("~")
        stem = base.removesuffix("n").removesuffix("e")
        soft = stem[-2] in VOWELS + "hlrmn" and stem[-3:-1] != "ch"  # wohnt, but zeichnet
        hard = stem[-1] in "td" or (stem[-1] in "mn" and not soft)
        link = "e" if hard else ""
        ge = "" if base.endswith("ieren") else "ge"
        parts = (base, f"{stem}{link}t", f"{stem}{link}te", f"{ge}{stem}{link}t")
    participle = parts[3].removeprefix("ge") if prefix else parts[3]
    return prefix + parts[0], prefix + parts[1], prefix + parts[2], prefix + participle


def read_object(text: str) -> Object:
    roles, kinds = text.split(":")
    english, _, german = roles.rpartition("=")
    preposition, _, case = german.rpartition("+")
    kinds = kinds.replace("*", ANY).replace("t", PORTABLE)
    return Object(english.replace("_", ""), preposition, case, kinds)


def read_verb(entry: str) -> Verb:
    sides, frame = entry.split(" | ")
    english, german = sides.split(" = ")
    subject, objects, extras = ([part.strip() for part in frame.split(">")] + ["", ""])[:3]
    base, _, particle = english.partition(" ")
    reflexive = german.startswith("sich ")
    german = german.removeprefix("sich ")
    prefix, _, stem = german.lstrip("*").rpartition("+")
    auxiliary, flags = "sein" if german.startswith("*") else "haben", extras.split()
    slots = tuple(read_object(item) for item in objects.split() if item != "_")
    tool = flags[flags.index("by") + 1] if "by" in flags else ""
    kept = tuple(flag for flag in flags if flag in ("stative", "to", "object"))
    more = subject.replace("t", PORTABLE), slots, next((flag for flag in flags if flag in FRAMES), ""), tool, kept
    return Verb(base, particle, german_parts(stem), prefix, auxiliary, reflexive, *more)


def read_time(entry: str) -> FixedTime:
    english, german = entry.split(" = ")
    tense, label, *tagged = english.split()
    return FixedTime(tense, label, [(word, tag) for word, tag in split(tagged, "/")], german)


NOUNS = [
    read_noun(entry, kind, COMMON_KINDS.get(kind, 1.0) / (rank + 3))
    for kind, table in WORDS["nouns"].items()
    for rank, entry in enumerate(table)
]
ADJECTIVES = read_adjectives(WORDS["adjectives"])
ENGLISH = {parts[0]: parts for parts in split(WORDS["english-irregular"])}
GERMAN = {parts[0]: parts for parts in split(WORDS["german-irregular"])}
VERBS = [read_verb(entry) for entry in WORDS["verbs"]]
SAME_PAST = [base for base, (_, past, _) in ENGLISH.items() if base == past]
TIMES = [read_time(entry) for entry in WORDS["times"]]
TIME_UNITS = [read_noun(entry, "", 1 / (rank + 1)) for rank, entry in enumerate(WORDS["time-units"])]
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
MUST_NOT = Modal("must", "dürfen", "darf", "durfte")  # negated; "muss nicht" is "does not have to"


@cache
def zipf_weights(n: int, offset: int) -> list[float]:
    """Cumulated weights of ``n`` items, each inverse to its rank plus ``offset``."""
    return [*accumulate(1 / (rank + offset) for rank in range(n))]


@cache
def nouns(kinds: str) -> Weighted[Noun]:
    allowed = [noun for noun in NOUNS if noun.kind in kinds]
    return allowed, [*accumulate(noun.weight for noun in allowed)]


@cache
def adjectives(kind: str) -> Weighted[Adjective]:
    allowed = [adjective for adjective in ADJECTIVES if kind in adjective.kinds]
    return allowed, [*accumulate(adjective.weight for adjective in allowed)]


@cache
def verbs(frame: str, objects: int, subject: str = "") -> Weighted[Verb]:
    """Verbs of one frame, by frequency; with ``subject``, only those that allow this kind of subject."""
    in_frame = (v for v in VERBS if v.frame == frame and len(v.objects) == objects)
    allowed = [v for v in in_frame if not subject or subject in v.subject]
    return allowed, zipf_weights(len(allowed), 5)


@cache
def passive_verbs(kind: str) -> Weighted[Verb]:
    """Verbs whose passive has a subject of this kind ("" for any) and a person as agent."""
    accusative = (v for v in verbs("", 1)[0] if v.plain_object and v.objects[0].case == "acc" and not v.reflexive)
    active = (v for v in accusative if "stative" not in v.flags and "P" in v.subject)
    allowed = [v for v in active if kind in v.objects[0].kinds]
    return allowed, zipf_weights(len(allowed), 5)


@cache
def verbs_with_object(kind: str) -> Weighted[Verb]:
    """Verbs with one object, which may be of this kind."""
    allowed = [v for v in verbs("", 1)[0] if kind in v.objects[0].kinds]
    return allowed, zipf_weights(len(allowed), 4)


@cache
def verbs_to_ask() -> Weighted[Verb]:
    """Verbs with one object for a question about it; no two have the same English words."""
    transitive = verbs("", 1)[0]
    english = [(v.english, v.particle) for v in transitive]
    unambiguous = [v for v in transitive if v.plain_object and english.count((v.english, v.particle)) == 1]
    return unambiguous, zipf_weights(len(unambiguous), 4)
