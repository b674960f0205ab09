"""Noun phrases, prepositional phrases and times: each knows its English tree and its German words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairseq_diverse.toy import german
from fairseq_diverse.toy.lexicon import CASES, VOWELS, Adjective, Noun
from fairseq_diverse.toy.trees import Tree, leaf, phrase

if TYPE_CHECKING:
    from fairseq_diverse.toy.clauses import Relative

OBJECT_FORMS = {"I": "me", "he": "him", "she": "her", "we": "us", "they": "them", "who": "whom"}
UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_word(n: int) -> str:
    if n < 20:
        return UNITS[n]
    if n >= 100:
        return str(n)
    return TENS[n // 10 - 2] + (f"-{UNITS[n % 10]}" if n % 10 else "")


def preposition(words: str, relation_to: Tree) -> Tree:
    """(PP words relation_to), with the preposition as case marker of what follows."""
    cases = [("case", leaf("TO" if word == "to" else "IN", word)) for word in words.split()]
    return phrase("PP", *cases, ("head", relation_to))


class NounPhrase:
    """What all noun phrases share: agreement, English tree, German words in a case."""

    person = 3
    plural = False
    gender = "m"
    pronoun = False
    closed = True  # no relative clause at the end, so that what follows cannot belong to it

    def english(self, subject: bool = False) -> Tree:
        raise NotImplementedError

    def german(self, case: str, negative: bool = False) -> list[str]:
        """German words; ``negative`` turns "ein" or no article into "kein"."""
        raise NotImplementedError

    def genitive(self) -> list[str]:
        """ "of" this phrase: the genitive where there is an article to show it, else von."""
        return ["von", *self.german("dat")]

    @property
    def negatable(self) -> bool:
        return False


@dataclass
class Pronoun(NounPhrase):
    """``word`` in the subject's form; the German gender of "it" is its antecedent's, ``thing`` that of no animal."""

    word: str
    gender: str = "m"
    thing: bool = False
    pronoun = True

    def __post_init__(self) -> None:
        self.person = {"I": 1, "we": 1, "you": 2}.get(self.word, 3)
        self.plural = self.word in ("we", "they")

    def english(self, subject: bool = False) -> Tree:
        form = self.word if subject else OBJECT_FORMS.get(self.word, self.word)
        if self.word in ("who", "what"):
            return phrase("WHNP", ("head", leaf("WP", form, self.word)))
        tag = "NN" if self.word in ("someone", "nobody", "everyone") else "PRP"
        return phrase("NP", ("head", leaf(tag, form, self.word, "PRON")))

    def german(self, case: str, negative: bool = False) -> list[str]:
        word = f"it {self.gender}" if self.word == "it" else self.word
        return [german.PRONOUNS[word][CASES.index(case)]]


@dataclass
class Name(NounPhrase):
    """A person or a city; the title "Herr" is the only part that inflects."""

    words: list[str]
    translation: list[str]

    def english(self, subject: bool = False) -> Tree:
        *first, last = self.words
        return phrase("NP", *(("compound", leaf("NNP", word)) for word in first), ("head", leaf("NNP", last)))

    def german(self, case: str, negative: bool = False) -> list[str]:
        return ["Herrn" if word == "Herr" and case != "nom" else word for word in self.translation]


@dataclass
class Coordination(NounPhrase):
    parts: tuple[NounPhrase, NounPhrase]
    conjunction: tuple[str, str] = ("and", "und")
    plural = True

    def english(self, subject: bool = False) -> Tree:
        first, second = (part.english(subject) for part in self.parts)
        return phrase("NP", ("head", first), ("cc", leaf("CC", self.conjunction[0])), ("conj", second))

    def german(self, case: str, negative: bool = False) -> list[str]:
        return [*self.parts[0].german(case), self.conjunction[1], *self.parts[1].german(case)]


@dataclass
class Common(NounPhrase):
    """Determiner, number, adjectives with their degree, first part of a compound, noun, attachments, relative clause."""

    noun: Noun
    determiner: str = "the"  # "" for none
    plural: bool = False
    count: int = 0
    adjectives: list[tuple[tuple[str, str], Adjective]] = field(default_factory=list)
    modifier: tuple[str, str] | None = None
    attachments: list[Prepositional] = field(default_factory=list)
    content: Noun | None = None  # a cup of coffee
    relative: Relative | None = None

    def __post_init__(self) -> None:
        self.gender = self.noun.gender

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self.relative is None and all(part.phrase.closed for part in self.attachments)

    @property
    def negatable(self) -> bool:
        return self.determiner in ("a", "") and not self.count

    def english(self, subject: bool = False) -> Tree:
        parts: list[tuple[str, Tree]] = []
        for (degree, _), adjective in self.adjectives:
            word = leaf("JJ", adjective.english)
            parts.append(("amod", phrase("ADJP", ("advmod", leaf("RB", degree)), ("head", word)) if degree else word))
        if self.count:
            parts.insert(0, ("nummod", leaf("CD", number_word(self.count))))
        if self.modifier:
            parts.append(("compound", leaf("NN", self.modifier[0])))
        noun = leaf(
            "NNS" if self.plural else "NN", self.noun.plural if self.plural else self.noun.singular, self.noun.singular
        )
        parts.append(("head", noun))
        if self.determiner:
            parts.insert(0, self.english_determiner(next(parts[0][1].leaves()).word))
        tree = phrase("NP", *parts)
        after = [("nmod", part.english()) for part in self.attachments]
        if self.content:
            after.insert(0, ("nmod", preposition("of", phrase("NP", ("head", leaf("NN", self.content.singular))))))
        if self.relative:
            after.append(("acl:relcl", self.relative.english()))
        return phrase("NP", ("head", tree), *after) if after else tree

    def english_determiner(self, following: str) -> tuple[str, Tree]:
        if self.determiner in ("my", "your", "his", "her", "our", "their"):
            return "nmod:poss", leaf("PRP$", self.determiner)
        if self.determiner in ("many", "few"):
            return "amod", leaf("JJ", self.determiner)
        vowel = following[0] in VOWELS and not following.startswith(("one", "use", "uni", "eu", "y"))
        return "det", leaf(
            "DT",
            "an" if self.determiner == "a" and (vowel or following == "hour") else self.determiner,
            self.determiner,
        )

    def german(self, case: str, negative: bool = False) -> list[str]:
        gender = "p" if self.plural else self.gender
        article = "no" if negative and self.negatable else self.determiner
        words = german.determiner(article, gender, case)
        if self.count:
            words.append(german.number(self.count))
        for (_, degree), adjective in self.adjectives:
            words += [degree] if degree else []
            words.append(adjective.stem + german.adjective_ending(article, gender, case))
        noun = self.noun.inflect(case, self.plural)
        words.append(self.modifier[1] + noun.lower() if self.modifier else noun)
        if self.content:
            words.append(self.content.german)
        for part in self.attachments:
            words += part.german()
        return words + (self.relative.german(gender) if self.relative else [])

    def genitive(self) -> list[str]:
        return self.german("gen") if self.determiner else super().genitive()


@dataclass
class Prepositional:
    """English preposition, German preposition (several words; "" takes the genitive of what follows), German case, phrase."""

    english_words: str
    german_words: str
    case: str
    phrase: NounPhrase

    def english(self) -> Tree:
        return preposition(self.english_words, self.phrase.english())

    def german(self, negative: bool = False) -> list[str]:
        words = self.german_words.split()
        if self.case == "gen":
            return words + self.phrase.genitive()
        if isinstance(self.phrase, Pronoun) and self.phrase.word == "it" and self.phrase.thing:
            return [f"da{'r' if words[-1][0] in VOWELS else ''}{words[-1]}"]
        rest = self.phrase.german(self.case, negative)
        definite = isinstance(self.phrase, Common) and self.phrase.determiner == "the" and not self.phrase.relative
        short = german.CONTRACTIONS.get((words[-1], rest[0])) if definite else None
        return [*words[:-1], short, *rest[1:]] if short else words + rest


@dataclass
class Time:
    """A phrase of time: its relation to the verb, English tree, German words."""

    relation: str
    tree: Tree
    words: str


def parse_time(label: str, english: str, words: str) -> Time:
    """From tagged words such as ``last/JJ week/NN``."""
    leaves = [leaf(tag, word) for word, tag in (item.split("/") for item in english.split())]
    if label == "PP":
        first, *leaves = leaves
    relations = {"JJ": "amod", "DT": "det"}
    inner = [(relations[part.label], part) for part in leaves[:-1]]
    tree = phrase("NP" if label == "PP" else label, *inner, ("head", leaves[-1]))
    if label == "PP":
        return Time("obl", preposition(first.word, tree), words)
    return Time("advmod" if label == "ADVP" else "obl:tmod", tree, words)


def counted_time(kind: str, count: int, unit: Noun) -> Time:
    """ "two days ago" (vor zwei Tagen) or "for two days" (zwei Tage lang)."""
    span = phrase("NP", ("nummod", leaf("CD", number_word(count))), ("head", leaf("NNS", unit.plural, unit.singular)))
    if kind == "ago":
        tree = phrase("ADVP", ("obl:npmod", span), ("head", leaf("RB", "ago")))
        return Time("advmod", tree, f"vor {german.number(count)} {unit.inflect('dat', True)}")
    return Time("obl", preposition("for", span), f"{german.number(count)} {unit.inflect('acc', True)} lang")


def year(number: int) -> Time:
    return Time("obl", preposition("in", phrase("NP", ("head", leaf("CD", str(number))))), f"im Jahr {number}")
