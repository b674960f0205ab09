"""The ten probing tasks of Conneau et al. (2018) in SentEval's format, labelled by the grammar's trees; some also in
ERASER's layout (DeYoung et al., 2020), with the word that decides on a sentence's class."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.toy.corpus import sentence_pair
from fairseq_diverse.toy.derivation import Derivation
from fairseq_diverse.toy.trees import Tree, dependencies

FEWEST = 10  # sentences per task, so that no split is empty
SHARES = {"tr": 0.8, "va": 0.1, "te": 0.1}
LENGTHS = (7, 9, 12, 16, 22)  # in words: the lower bound of each class but the first
DEPTHS = (4, 10)  # of a tree; lower and higher depths are clipped
CONTENT_WORDS = 20  # of word_content
TOP_SEQUENCES = 9  # of top_constituents; all others are one more class
DRAWN = 3000  # sentences from which words and sequences are chosen
NOUNS, VERBS = ("NN", "NNS"), ("VB", "VBD", "VBZ", "VBP")
FINITE = {"VBD": "PAST", "VBZ": "PRES", "VBP": "PRES"}

Example = tuple[str, str]  # label, sentence
Probe = Callable[[Tree], Example | None]  # None if the sentence does not suit the task


def write_probing(out: Path, sentences: int, seed: int = 1) -> dict[str, Counter[str]]:
    """Write ``<task>.txt`` for the ten tasks: split (tr, va, te), label and sentence, separated by tabs.

    In every task, 80% of the sentences are for training, 10% for validation and 10% for testing. None occurs twice, and
    the first sentence of each label is for training. The same arguments give the same files. ``sentences``: number per
    task. Returns counts of the labels, by task."""
    mix = {}
    with ExitStack() as stack:  # all files are renamed into place at the end
        for task, probe in make_probes(seed).items():
            drawn = draw_examples(task, probe, sentences, seed)
            file = stack.enter_context(atomic_write(out / f"{task}.txt"))
            file.writelines(f"{split}\t{label}\t{sentence}\n" for split, label, sentence, _ in drawn)
            mix[task] = Counter(label for _, label, _, _ in drawn)
    return mix


def draw_examples(task: str, probe: Probe, sentences: int, seed: int) -> list[tuple[str, str, str, Tree]]:
    """Split (tr, va, te), label, sentence and its tree, as `write_probing` writes them."""
    derivation = Derivation(f"{task} {seed}")  # the corpus of no seed
    examples: dict[str, tuple[str, Tree]] = {}
    while len(examples) < sentences:
        tree, _ = sentence_pair(derivation)
        example = probe(tree)
        if example is not None:
            label, sentence = example
            examples.setdefault(sentence, (label, tree))
    firsts = {label: sentence for sentence, (label, _) in reversed(examples.items())}
    ordered = sorted(examples.items(), key=lambda example: firsts[example[1][0]] != example[0])
    starts = [round(sentences * share) for share in (SHARES["tr"], SHARES["tr"] + SHARES["va"])]
    splits = ("tr" if number < starts[0] else "va" if number < starts[1] else "te" for number in range(sentences))
    return [(split, label, sentence, tree) for split, (sentence, (label, tree)) in zip(splits, ordered, strict=True)]


def make_probes(seed: int) -> dict[str, Probe]:
    """For each of the ten tasks, the label of a sentence and the sentence, which some tasks change."""
    rng = random.Random(f"probing {seed}")
    drawn = [tree for tree, _ in map(sentence_pair, [Derivation(seed + 100)] * DRAWN)]
    content, tops, others = _content_words(drawn), _top_sequences(drawn), _words_by_tag(drawn)

    def word_content(tree: Tree) -> Example | None:
        hits = [word for word in map(str.lower, words(tree)) if word in content]
        return (hits[0], text(tree)) if len(hits) == 1 else None

    def top_constituents(tree: Tree) -> Example:
        sequence = "_".join(child.label for _, child in tree.children)
        return (sequence if sequence in tops else "OTHER"), text(tree)

    def bigram_shift(tree: Tree) -> Example | None:
        order, tags = words(tree)[:-1], [leaf.label for leaf in tree.leaves()]  # the final punctuation stays
        # the first word's capital letter would show the shift; two adjectives have no order
        pairs = enumerate(itertools.pairwise(order))
        places = [i for i, (one, other) in pairs if i and one != other and tags[i : i + 2] != ["JJ", "JJ"]]
        if not places or rng.random() < 0.5:
            return "O", text(tree)
        place = rng.choice(places)
        order[place : place + 2] = order[place + 1], order[place]
        return "I", " ".join([*order, words(tree)[-1]])

    def odd_man_out(tree: Tree) -> Example | None:
        leaves = list(tree.leaves())
        places = [i for i, leaf in enumerate(leaves) if i and _is_content(leaf)]
        if not places:
            return None
        if rng.random() < 0.5:
            return "O", text(tree)
        place = rng.choice(places)
        replacement = rng.choice([w for w in others[leaves[place].label] if w != leaves[place].word])
        return "C", " ".join(replacement if i == place else leaf.word for i, leaf in enumerate(leaves))

    def coordination_inversion(tree: Tree) -> Example | None:
        clauses = [child for _, child in tree.children if child.label == "S"]
        if tree.label != "S" or len(clauses) != 2:
            return None
        if rng.random() < 0.5:
            return "O", text(tree)
        first = next(tree.leaves())
        begins_low = first.label != "NNP" and first.word != "I"
        left = [first.word.lower() if begins_low else first.word, *words(clauses[0])[1:]]
        swapped = iter([words(clauses[1].capitalized()), left])
        parts = [next(swapped) if child.label == "S" else words(child) for _, child in tree.children]
        return "I", " ".join(word for part in parts for word in part)

    return {
        "sentence_length": lambda tree: (str(sum(len(words(tree)) >= start for start in LENGTHS)), text(tree)),
        "word_content": word_content,
        "tree_depth": lambda tree: (str(min(max(depth(tree), DEPTHS[0]), DEPTHS[1])), text(tree)),
        "top_constituents": top_constituents,
        "bigram_shift": bigram_shift,
        "past_present": past_present,
        "subj_number": lambda tree: _number(tree, "nsubj"),
        "obj_number": lambda tree: _number(tree, "obj"),
        "odd_man_out": odd_man_out,
        "coordination_inversion": coordination_inversion,
    }


def words(tree: Tree) -> list[str]:
    return [leaf.word for leaf in tree.leaves()]


def text(tree: Tree) -> str:
    return " ".join(words(tree))


def depth(tree: Tree) -> int:
    """Phrases above the deepest word."""
    return 0 if tree.word else 1 + max(depth(child) for _, child in tree.children)


def past_present(tree: Tree) -> Example | None:
    """Tense of the main clause, from its finite verb: the root, its auxiliary or its copula."""
    place = finite_verb(tree)
    return None if place is None else (FINITE[[*tree.leaves()][place].label], text(tree))


def finite_verb(tree: Tree) -> int | None:
    """The place of the main clause's finite verb among the words."""
    heads, relations = dependencies(tree)
    root = heads.index(0) + 1
    for place, (leaf, head, relation) in enumerate(zip(tree.leaves(), heads, relations, strict=True)):
        if leaf.label in FINITE and (head == 0 or (head == root and relation in ("aux", "aux:pass", "cop"))):
            return place
    return None


def _number(tree: Tree, relation: str) -> Example | None:
    """Number of the main clause's noun in this relation; None if several are joined by "and"."""
    place = noun(tree, relation)
    label = "" if place is None else [*tree.leaves()][place].label
    return (label, text(tree)) if label in NOUNS else None


def noun(tree: Tree, relation: str) -> int | None:
    """The place among the words of the main clause's only one in this relation."""
    heads, relations = dependencies(tree)
    arcs, root = list(zip(heads, relations, strict=True)), heads.index(0) + 1
    places = [place for place, arc in enumerate(arcs) if arc == (root, relation)]
    return places[0] if len(places) == 1 and (places[0] + 1, "conj") not in arcs else None


def _content_words(trees: Sequence[Tree]) -> set[str]:
    """Nouns and verbs of medium frequency."""
    counts = Counter(leaf.word.lower() for tree in trees for leaf in tree.leaves() if _is_content(leaf)).most_common()
    first = min(CONTENT_WORDS, max(0, len(counts) - CONTENT_WORDS))
    return {word for word, _ in counts[first : first + CONTENT_WORDS]}


def _top_sequences(trees: Sequence[Tree]) -> set[str]:
    counts = Counter("_".join(child.label for _, child in tree.children) for tree in trees)
    return {sequence for sequence, _ in counts.most_common(TOP_SEQUENCES)}


def _words_by_tag(trees: Sequence[Tree]) -> dict[str, list[str]]:
    """The nouns and verbs of each part of speech, with repetitions; a capital letter would show where one was put."""
    by_tag: dict[str, list[str]] = {tag: [] for tag in NOUNS + VERBS}
    for tree in trees:
        for leaf in filter(_is_content, tree.leaves()):
            by_tag[leaf.label].append(leaf.word.lower())
    return by_tag


def _is_content(leaf: Tree) -> bool:
    return leaf.label in NOUNS + VERBS and leaf.lemma not in ("be", "do", "have")


ERASER_FILES = {"train.jsonl": "tr", "val.jsonl": "va", "test.jsonl": "te", "docs.jsonl": ""}
# the place of the word that decides, in a sentence with a label
DECIDING: dict[str, Callable[[Tree, str], int | None]] = {
    "word_content": lambda tree, label: [*map(str.lower, words(tree))].index(label),
    "past_present": lambda tree, label: finite_verb(tree),
    "subj_number": lambda tree, label: noun(tree, "nsubj"),
    "obj_number": lambda tree, label: noun(tree, "obj"),
}


def write_rationales(out: Path, sentences: int, seed: int = 1) -> None:
    """Write ``TASK/train.jsonl``, ``val.jsonl``, ``test.jsonl`` and ``docs.jsonl`` of the tasks in `DECIDING`: the
    sentences, classes and splits of `write_probing`, with one word each as evidence."""
    probes = make_probes(seed)
    with ExitStack() as stack:  # all files are renamed into place at the end
        for task, place_of in DECIDING.items():
            places = {split: out / task / name for name, split in ERASER_FILES.items()}
            files = {split: stack.enter_context(atomic_write(path)) for split, path in places.items()}
            drawn = draw_examples(task, probes[task], sentences, seed)
            for number, (split, label, sentence, tree) in enumerate(drawn):
                place = place_of(tree, label)
                assert place is not None
                name = f"{task}-{number}"
                span = {"docid": name, "start_token": place, "end_token": place + 1, "text": words(tree)[place]}
                line = {"annotation_id": name, "classification": label, "query": "", "evidences": [[span]]}
                for file, content in ((files[split], line), (files[""], {"docid": name, "document": sentence})):
                    file.write(json.dumps(content) + "\n")
