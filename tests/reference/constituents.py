"""Brackets of trees and the most probable tree of a PCFG, by loops over lists and dictionaries."""

import math

DELETED = ("TOP", "ROOT", "S1", "VROOT", "", ",", ":", "``", "''", ".")


def brackets(tree, gold_tags):
    """[label, words that count] of every phrase of nested tuples (label, child, ...); a tag's only child is a word."""
    found = []

    def visit(node, first):
        if isinstance(node[1], str):
            return [first] if gold_tags[first] not in (",", ":", "``", "''", ".") else [], first + 1
        words = []
        for child in node[1:]:
            of_child, first = visit(child, first)
            words += of_child
        label = node[0]
        for mark in "-=":
            if mark in label[1:]:
                label = label[: label.index(mark, 1)]
        if words and label not in DELETED:
            found.append(["ADVP" if label == "PRT" else label, words])
        return words, first

    visit(tree, 0)
    return found


def matched(gold, parsed):
    """How many brackets of two lists are the same, each with a partner of its own."""
    left, count = list(gold), 0
    for bracket in parsed:
        if bracket in left:
            left.remove(bracket)
            count += 1
    return count


def signature(word):
    marks = "C" * word[0].isupper() + "0" * any(letter.isdecimal() for letter in word) + "-" * ("-" in word)
    return f"{marks}:{word[-2:].lower()}"


class Pcfg:
    """The grammar in a dictionary of counts, as its file has it."""

    def __init__(self, grammar):
        self.roots, self.binary, self.unary, self.words = (grammar[k] for k in ("roots", "binary", "unary", "words"))

    def times(self, symbol):
        count = sum(rule[-1] for rule in self.binary + self.unary if rule[0] == symbol)
        return count + sum(tags.get(symbol, 0) for tags in self.words.values())

    def emission(self, tag, word):
        """P(tag | word) / times of the tag, times (times of the word, or 1 more if it is rare)."""
        if word not in self.words and word.lower() in self.words:
            word = word.lower()
        seen = self.words.get(word, {})
        weight = seen.get(tag, 0)
        if sum(seen.values()) <= 5:
            every = same = of_tag = of_tag_and_same = 0
            for other, tags in self.words.items():
                share = tags.get(tag, 0) / sum(tags.values())
                every, of_tag = every + 1, of_tag + share
                if signature(other) == signature(word):
                    same, of_tag_and_same = same + 1, of_tag_and_same + share
            weight += (of_tag_and_same + of_tag / every) / (same + 1)
        return math.log(weight / self.times(tag)) if weight else -math.inf

    def best(self, words):
        """The greatest logarithm of the probability of any tree."""
        times = {rule[0]: self.times(rule[0]) for rule in self.binary + self.unary}
        tags = {tag for of_word in self.words.values() for tag in of_word}
        cells = {}
        for start, word in enumerate(words):
            cell = {tag: score for tag in tags if (score := self.emission(tag, word)) > -math.inf}
            for above, tag, count in self.unary:
                if tag in cell:
                    score = cell[tag] + math.log(count / times[above])
                    cell[above] = max(cell.get(above, -math.inf), score)
            cells[start, start + 1] = cell
        for width in range(2, len(words) + 1):
            for start in range(len(words) - width + 1):
                cell = cells[start, start + width] = {}
                for middle in range(start + 1, start + width):
                    left, right = cells[start, middle], cells[middle, start + width]
                    for above, one, other, count in self.binary:
                        if one in left and other in right:
                            score = left[one] + right[other] + math.log(count / times[above])
                            cell[above] = max(cell.get(above, -math.inf), score)
        ends = [
            cells[0, len(words)][root] + math.log(count / sum(self.roots.values()))
            for root, count in self.roots.items()
            if root in cells[0, len(words)]
        ]
        return max(ends, default=-math.inf)

    def of_tree(self, tree, top=True):
        """The logarithm of the probability of one binarised tree of nested tuples."""
        score = math.log(self.roots[tree[0]] / sum(self.roots.values())) if top else 0.0
        if isinstance(tree[1], str):
            return score + self.emission(tree[0], tree[1])
        rule = [tree[0], *(child[0] for child in tree[1:])]
        (count,) = [counted[-1] for counted in self.binary + self.unary if list(counted[:-1]) == rule]
        return score + math.log(count / self.times(tree[0])) + sum(self.of_tree(child, False) for child in tree[1:])
