"""One tree for constituents and dependencies: phrases have labels, and children have a relation to the head child.

The head of a constituent is the head of its child with relation ``head``. Brackets and dependencies are therefore two
views of one derivation, and dependencies are projective."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

UNIVERSAL = {
    "NN": "NOUN", "NNS": "NOUN", "NNP": "PROPN", "DT": "DET", "PRP": "PRON", "PRP$": "PRON", "JJ": "ADJ", "RB": "ADV",
    "IN": "ADP", "TO": "ADP", "RP": "ADP", "VB": "VERB", "VBP": "VERB", "VBZ": "VERB", "VBD": "VERB", "VBN": "VERB",
    "VBG": "VERB", "MD": "AUX", "CD": "NUM", "CC": "CCONJ", "WP": "PRON", "WDT": "PRON", "WRB": "ADV", "EX": "PRON",
    ".": "PUNCT", ",": "PUNCT",
}  # fmt: skip


@dataclass(slots=True)
class Tree:
    """A leaf (``word`` set, ``label`` its part of speech) or a phrase with ``children``: pairs of relation and tree."""

    label: str
    word: str = ""
    lemma: str = ""
    universal: str = ""
    children: tuple[tuple[str, "Tree"], ...] = ()

    def leaves(self) -> Iterator["Tree"]:
        if self.word:
            yield self
        for _, child in self.children:
            yield from child.leaves()

    def capitalized(self) -> "Tree":
        """A copy of the tree with a capital first letter (leaves may be shared between trees)."""
        if self.word:
            return replace(self, word=self.word[0].upper() + self.word[1:])
        (relation, first), *rest = self.children
        return replace(self, children=((relation, first.capitalized()), *rest))

    def brackets(self) -> str:
        """The tree in Penn Treebank brackets, on one line."""
        return f"({self.label} {self.word or ' '.join(child.brackets() for _, child in self.children)})"


def leaf(label: str, word: str, lemma: str = "", universal: str = "") -> Tree:
    return Tree(label, word, lemma or (word if label == "NNP" else word.lower()), universal or UNIVERSAL[label])


def phrase(label: str, *children: tuple[str, Tree]) -> Tree:
    assert [relation for relation, _ in children].count("head") == 1, (label, children)
    return Tree(label, children=children)


def dependencies(tree: Tree) -> tuple[list[int], list[str]]:
    """Head (from 1; 0 for the root) and relation of every leaf. A conjunction depends on the conjunct after it."""
    heads: list[int] = []
    relations: list[str] = []

    def head_of(node: Tree) -> int:
        if node.word:
            heads.append(0)
            relations.append("root")
            return len(heads)
        inner = [head_of(child) for _, child in node.children]
        names = [relation for relation, _ in node.children]
        top = inner[names.index("head")]
        for position, (name, word) in enumerate(zip(names, inner, strict=True)):
            if name != "head":
                after_conjunction = name == "cc" and "conj" in names[position:]
                heads[word - 1] = inner[names.index("conj", position)] if after_conjunction else top
                relations[word - 1] = name
        return top

    head_of(tree)
    return heads, relations


def conllu(tree: Tree, name: str) -> str:
    """The tree's dependencies as one CoNLL-U sentence, with its final empty line."""
    leaves = list(tree.leaves())
    lines = [f"# sent_id = {name}", f"# text = {' '.join(leaf.word for leaf in leaves)}"]
    for number, (word, head, relation) in enumerate(zip(leaves, *dependencies(tree), strict=True), start=1):
        columns = number, word.word, word.lemma, word.universal, word.label, "_", head, relation, "_", "_"
        lines.append("\t".join(map(str, columns)))
    return "\n".join(lines) + "\n\n"
