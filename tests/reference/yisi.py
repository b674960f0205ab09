"""YiSi without semantic roles (Lo, 2019), with loops."""

import math
from difflib import SequenceMatcher

from tests.reference.agreement import cosine


def weight(unit, references):
    """log2(1 + (U + 1) / (U_e + 1)); a unit that no reference has is looked up in lower case."""
    seen = sum(unit in reference for reference in references)
    if seen == 0:
        seen = sum(unit.lower() in reference for reference in references)
    return math.log2(1 + (len(references) + 1) / (seen + 1))


def common_substring(a, b):
    """2 LCS / (|a| + |b|) in characters."""
    return 2 * SequenceMatcher(None, a, b, autojunk=False).find_longest_match().size / (len(a) + len(b))


def covered(units, others, references, similarity, n):
    """Weighted share of the n-grams of ``units`` that occur in ``others``; both are (unit, features) pairs."""
    gained = whole = 0.0
    for i in range(len(units) - n + 1):
        weights = [weight(units[i + k][0], references) for k in range(n)]
        best = 0.0
        for j in range(len(others) - n + 1):
            value = 0.0
            for k in range(n):
                value += weights[k] * similarity(units[i + k][1], others[j + k][1])
            best = max(best, value)
        gained += best
        whole += sum(weights)
    return gained / whole


def sentence(hypothesis, reference, references, similarity, order=3, alpha=0.8):
    n = min(order, len(hypothesis), len(reference))
    if n == 0:
        return 0.0
    precision = covered(hypothesis, reference, references, similarity, n)
    recall = covered(reference, hypothesis, references, similarity, n)
    if precision == 0 or recall == 0:
        return 0.0
    return precision * recall / (alpha * precision + (1 - alpha) * recall)


def yisi_0(hypotheses, references):
    """Mean over sentences of lists of words, times 100."""
    pairs = [[[(word, word) for word in side] for side in pair] for pair in zip(hypotheses, references, strict=True)]
    return 100 * sum(sentence(h, r, references, common_substring) for h, r in pairs) / len(pairs)


def yisi_1(hypotheses, references):
    """The same of lists of (unit, vector) pairs."""
    units = [[unit for unit, _ in reference] for reference in references]
    scores = [sentence(h, r, units, cosine) for h, r in zip(hypotheses, references, strict=True)]
    return 100 * sum(scores) / len(scores)
