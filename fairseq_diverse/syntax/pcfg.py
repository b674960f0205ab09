"""An unlexicalised PCFG: rules and probabilities read off trees, and the most probable tree of a sentence by CKY.

Source: the parsers that Zhang et al. (2021, Table A3) compare; theirs is Petrov and Klein (2007), which also splits the
labels by EM. This one is that of Klein and Manning (2003), section 2, without their hand-made splits: labels with that
of the parent, rules binarised with a memory of ``HORIZONTAL`` sisters, relative frequencies."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax.escapes import comparable, with_brackets_escaped
from fairseq_diverse.syntax.trees import ROOTS, Tree, read_brackets

HORIZONTAL, VERTICAL = 1, 1  # sisters and ancestors in a label, as in ``nltk.Tree.chomsky_normal_form``
RARE = 5  # times that a word is seen; its ending also counts then
LONGEST = 100  # words
BEAM = 14.0  # logarithm: how much less probable than the best of its cell a label may be
TAG = "/"  # begins the symbols of tags; no label of a phrase
LABEL = re.compile(r"-\w+-|[^-=|+^]*")  # without functions (NP-SBJ) and what nltk marks labels with

Count = Annotated[int, msgspec.Meta(ge=1)]


class Grammar(msgspec.Struct, forbid_unknown_fields=True):
    """A grammar's file, JSON: how often each rule of the binarised trees occurs.

    Tags begin with ``TAG``. Chains of phrases are one symbol (``S+VP``), so only tags are alone below a phrase.
    """

    roots: Annotated[dict[str, Count], msgspec.Meta(min_length=1)]
    binary: list[tuple[str, str, str, Count]]
    unary: list[tuple[str, str, Count]]
    words: Annotated[dict[str, dict[str, Count]], msgspec.Meta(min_length=1)]  # word -> tag -> times


def grammar_of(trees: Iterable[Tree]) -> Grammar:
    """The counts of trees, which are changed. Raises ``ValueError``: a word has a sister, or hundreds of phrases have
    one parent; names the tree by its number."""
    roots, rules, words = Counter[str](), Counter[tuple[str, ...]](), dict[str, Counter[str]]()
    for number, tree in enumerate(trees, 1):
        while tree.label() in ROOTS and len(tree) == 1 and not isinstance(tree[0], str):
            tree = tree[0]
        for node in tree.subtrees():
            above = any(isinstance(child, str) for child in node)
            if above and len(node) > 1:
                raise ValueError(f"tree {number}: ({node.label()} ...): every word needs a tag of its own")
            match = LABEL.match(node.label())
            node.set_label(TAG * above + ((match and match[0]) or "X"))
        tree.collapse_unary(collapsePOS=False, collapseRoot=True)
        try:
            tree.chomsky_normal_form(horzMarkov=HORIZONTAL, vertMarkov=VERTICAL)
        except ValueError:
            raise ValueError(f"tree {number}: too wide: NLTK cannot binarise it; leave it out") from None
        roots[tree.label()] += 1
        for node in tree.subtrees():
            if isinstance(node[0], str):
                words.setdefault(comparable(node[0]), Counter())[node.label()] += 1
            else:
                rules[node.label(), *(child.label() for child in node)] += 1
    binary, unary = ([(*rule, n) for rule, n in sorted(rules.items()) if len(rule) == size] for size in (3, 2))
    return Grammar(dict(roots), binary, unary, {word: dict(tags) for word, tags in sorted(words.items())})  # type: ignore


def train(path: Path) -> tuple[Grammar, int]:
    """The grammar of a file of bracketed trees, and the number of its usable trees. Raises ``UserError``: no tree is
    usable, or see ``grammar_of``."""
    trees = [tree for tree in read_brackets(path) if tree is not None]
    if not trees:
        raise UserError(f"{path}: no usable tree; bracketed trees are needed, such as (S (NP (PRP I)) (VP (VBP run)))")
    try:
        return grammar_of(trees), len(trees)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def signature(word: str) -> str:
    """What is known of an unknown word: capital, digit, hyphen and its last two letters."""
    marks = (("C", word[:1].isupper()), ("0", any(map(str.isdecimal, word))), ("-", "-" in word))
    return "".join(mark for mark, has in marks if has) + ":" + word[-2:].lower()


class Pcfg:
    """Constituents by a grammar of ``fairseq-diverse parse --train-pcfg``, as one PTB tree per line.

        tree = argmax  P(root) prod over rules P(A -> B C) prod over words P(word | tag)

    P(word | tag) is the relative frequency. For a word that is seen at most ``RARE`` times it is, up to a factor that
    all trees of the sentence share,

        P(tag | word) / P(tag),   P(tag | word) = (times with this tag + P(tag | signature)) / (times + 1)

    where P(tag | signature) counts each word of the lexicon once, and one more with the tags of all words. CKY keeps
    in every cell the labels A with log(P(A) P(words | A)) within ``BEAM`` of the best; a sentence for which that leaves
    no tree is parsed without a beam.
    """

    def __init__(self, model: str) -> None:
        self.path = model
        grammar = msgspec.json.decode(Path(model).read_bytes(), type=Grammar)
        symbols = {*grammar.roots, *chain(*grammar.words.values())}
        symbols |= {symbol for *rule, _ in (*grammar.binary, *grammar.unary) for symbol in rule}
        self.symbols = sorted(symbols)
        self.index = index = {symbol: n for n, symbol in enumerate(self.symbols)}
        rules = np.array([[*map(index.__getitem__, rule[:3]), rule[3]] for rule in grammar.binary], int).reshape(-1, 4)
        chains = np.array([[*map(index.__getitem__, rule[:2]), rule[2]] for rule in grammar.unary], int).reshape(-1, 3)
        times = np.zeros(len(index))
        for counts in (rules, chains):
            np.add.at(times, counts[:, 0], counts[:, -1])
        for tags in grammar.words.values():
            for tag, count in tags.items():
                times[index[tag]] += count
        times = np.maximum(times, 1)
        self.prior = np.log(times / times.sum()).astype(np.float32)
        rules = rules[np.argsort(rules[:, 0], kind="stable")]
        self.parent, self.left, self.right = rules[:, :3].T.copy()
        self.rule = np.log(rules[:, 3] / times[self.parent]).astype(np.float32)
        self.above, self.tag = chains[:, :2].T.copy()
        self.chain = np.log(chains[:, 2] / times[self.above]).astype(np.float32)
        self.root = np.full(len(index), -np.inf, np.float32)
        for symbol, count in grammar.roots.items():
            self.root[index[symbol]] = np.log(count / sum(grammar.roots.values()))
        self.tags = {tag: n for n, tag in enumerate(symbol for symbol in self.symbols if symbol.startswith(TAG))}
        self.places = [index[tag] for tag in self.tags]
        self.times, self.words, self.endings = times[self.places], grammar.words, dict[str, np.ndarray]()
        for word in grammar.words:
            shares = self.endings.setdefault(signature(word), np.zeros(len(self.tags)))
            shares += (seen := self.seen(word)) / seen.sum()
        self.every = np.sum([*self.endings.values()], axis=0)
        self.best = functools.lru_cache(1000)(self._best)  # of a batch in which one has no tree, see ``parse_safely``

    def parse(self, sentences: Sequence[list[str]]) -> list[str]:
        trees = [self.best(tuple(words)) for words in sentences]
        if "" in trees:
            long = max(map(len, sentences)) > LONGEST
            raise ValueError(f"more than {LONGEST} words" if long else "the grammar has no tree for it")
        return trees

    def seen(self, word: str) -> np.ndarray:
        """(tags,) how often a word of the lexicon has each tag."""
        times = np.zeros(len(self.tags))
        for tag, count in self.words.get(word, {}).items():
            times[self.tags[tag]] = count
        return times

    def emissions(self, word: str) -> np.ndarray:
        """(symbols,) log P(word | tag) up to a constant; minus infinity for phrases."""
        word = comparable(word)
        if word not in self.words and word.lower() in self.words:
            word = word.lower()
        if (weights := self.seen(word)).sum() <= RARE:
            ending = self.endings.get(signature(word), np.zeros(len(self.tags)))
            weights += (ending + self.every / self.every.sum()) / (ending.sum() + 1)
        scores = np.full(len(self.symbols), -np.inf, np.float32)
        with np.errstate(divide="ignore"):
            scores[self.places] = np.log(weights / self.times)
        return scores

    def _best(self, words: tuple[str, ...]) -> str:
        """The most probable tree; empty where there is none."""
        if len(words) > LONGEST:
            return ""
        scores = [self.emissions(word) for word in words]
        for beam in (BEAM, np.inf):
            chart = self._chart(scores, beam)
            top = chart[0, len(words)] + self.root
            if top.max() > -np.inf:
                tree = self._tree(chart, words, int(top.argmax()), 0, len(words))
                tree.un_chomsky_normal_form()
                for node in tree.subtrees():
                    node.set_label(node.label().removeprefix(TAG))
                return " ".join(tree.pformat(margin=10**9).split()) + "\n"
        return ""

    def _chart(self, emissions: Sequence[np.ndarray], beam: float) -> np.ndarray:
        """(start, end, symbol): the logarithm of the best probability of the words from a symbol."""
        count = len(emissions)
        chart = np.full((count, count + 1, len(self.symbols)), -np.inf, np.float32)
        for start, scores in enumerate(emissions):
            chart[start, start + 1] = scores
            np.maximum.at(chart[start, start + 1], self.above, self.chain + scores[self.tag])
        for width in range(2, count + 1):
            for start in range(count - width + 1):
                end = start + width
                left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]
                possible = (left.max(0) > -np.inf)[self.left] & (right.max(0) > -np.inf)[self.right]
                if not len(rules := np.flatnonzero(possible)):
                    continue
                best = (left[:, self.left[rules]] + right[:, self.right[rules]]).max(0) + self.rule[rules]
                parents = self.parent[rules]
                firsts = np.flatnonzero(np.diff(parents, prepend=-1))
                cell = chart[start, end]
                cell[parents[firsts]] = np.maximum.reduceat(best, firsts)
                likely = cell + self.prior
                cell[likely < likely.max() - beam] = -np.inf
        return chart

    def _tree(self, chart: np.ndarray, words: Sequence[str], symbol: int, start: int, end: int) -> Any:
        from nltk import Tree

        label = self.symbols[symbol]
        if label.startswith(TAG):
            return Tree(label, [with_brackets_escaped(words[start])])
        if end - start == 1:
            (chains,) = np.nonzero(self.above == symbol)
            best = chains[(self.chain[chains] + chart[start, end, self.tag[chains]]).argmax()]
            return Tree(label, [self._tree(chart, words, int(self.tag[best]), start, end)])
        rules = np.arange(*np.searchsorted(self.parent, (symbol, symbol + 1)))
        left = chart[start, start + 1 : end][:, self.left[rules]]
        right = chart[start + 1 : end, end][:, self.right[rules]]
        split, best = np.unravel_index((left + right + self.rule[rules]).argmax(), left.shape)
        middle = start + 1 + int(split)
        children = ((self.left, start, middle), (self.right, middle, end))
        return Tree(label, [self._tree(chart, words, int(side[rules[best]]), *span) for side, *span in children])
