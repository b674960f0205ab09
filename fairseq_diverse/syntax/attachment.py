"""What a sentence's dependencies say of its prepositional phrases and its subordinate clauses."""

from pathlib import Path

from fairseq_diverse.support.paths import source_prefix
from fairseq_diverse.syntax.trees import Dependencies

NOUNS = ("NOUN", "PROPN", "PRON")
SUBORDINATE = ("ccomp", "advcl", "acl:relcl", "relcl")


def kept_trees(data: Path, split: str, source: str, target: str) -> Path:
    """The dependency trees that ``binarize-syntax`` keeps of a split other than train, as they were given."""
    return Path(f"{source_prefix(data, split, source, target)}.conllu")


def attachments(sentence: Dependencies) -> set[str]:
    """What the sentence's prepositional phrases belong to: ``noun``, ``predicate`` (a verb or an adjective), both, or
    nothing.

    In Universal Dependencies the noun of such a phrase has a preposition as ``case``; it is the ``nmod`` of a noun or
    the ``obl`` of a predicate. With spaCy's labels the preposition is the ``prep`` of either. A phrase that is the
    predicate itself ("is in the garden") belongs to nothing.

    Trees of a parser without universal parts of speech (``_``) need the relations of Universal Dependencies: there a
    ``case`` is a preposition unless it marks a possessor ("the dog's").
    """
    assert sentence.heads is not None
    kinds = set()
    for word, (tag, relation) in enumerate(zip(sentence.tags, sentence.relations, strict=True)):
        head = sentence.heads[word]
        if relation == "prep":
            kinds.add("noun" if sentence.tags[head] in NOUNS else "predicate")
        elif relation == "case" and (tag == "ADP" or (tag == "_" and sentence.relations[head] != "nmod:poss")):
            kind = sentence.relations[head].partition(":")[0]
            kinds |= {{"nmod": "noun", "obl": "predicate"}[kind]} if kind in ("nmod", "obl") else set()
    return kinds


def subordinate(sentence: Dependencies) -> bool:
    """Whether the sentence has a clause with a finite verb of its own inside another one: a complement, an adverbial or
    a relative clause. German puts the verb of such a clause last.

    Relations do not say whether a verb is finite. In the embedded corpus it is: its infinitives are ``xcomp``.
    """
    return not set(SUBORDINATE).isdisjoint(sentence.relations)
