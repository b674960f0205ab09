"""Metrics of lists of tokens, from their papers, with loops."""

import math

from nltk import edit_distance


def ngrams(tokens, n):
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def multi_bleu(hypotheses, references):
    """Papineni et al. (2002), Eqs. 1-3, one reference, over the whole corpus, times 100."""
    logarithms = []
    for n in range(1, 5):
        right = all_of_them = 0
        for h, r in zip(hypotheses, references, strict=True):
            left = ngrams(r, n)
            for gram in ngrams(h, n):
                all_of_them += 1
                if gram in left:
                    left.remove(gram)
                    right += 1
        if right == 0:
            return 0.0
        logarithms.append(math.log(right / all_of_them))
    c, r = (sum(map(len, side)) for side in (hypotheses, references))
    return 100 * (1.0 if c > r else math.exp(1 - r / c)) * math.exp(sum(logarithms) / 4)


def word_error_rate(hypotheses, references):
    """Edits by words of the references, times 100."""
    pairs = zip(hypotheses, references, strict=True)
    return 100 * sum(edit_distance(h, r) for h, r in pairs) / sum(map(len, references))


def common_subsequence(a, b):
    if not a or not b:
        return 0
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a)):
        for j in range(len(b)):
            longer = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if a[i] == b[j] else longer
    return table[-1][-1]


def rouge_l(hypotheses, references, beta=1.2):
    """Lin (2004), Eqs. 2-4, mean over sentences, times 100."""
    scores = []
    for h, r in zip(hypotheses, references, strict=True):
        common = common_subsequence(h, r)
        if common == 0:
            scores.append(0.0)
            continue
        precision, recall = common / len(h), common / len(r)
        scores.append((1 + beta**2) * precision * recall / (recall + beta**2 * precision))
    return 100 * sum(scores) / len(scores)


def cider(hypotheses, references):
    """CIDEr-D: Vedantam et al. (2015), Eqs. 1-3 and 6, one reference, mean over sentences; sigma = 6, times 10."""
    scores = []
    for h, r in zip(hypotheses, references, strict=True):
        for n in range(1, 5):

            def vector(tokens, n=n):
                grams = ngrams(tokens, n)
                with_it = {g: sum(g in ngrams(other, n) for other in references) for g in grams}
                return {g: grams.count(g) * math.log(len(references) / max(1, with_it[g])) for g in grams}

            a, b = vector(h), vector(r)
            norms = [math.sqrt(sum(x * x for x in v.values())) for v in (a, b)]
            dot = sum(min(a[g], b[g]) * b[g] for g in a if g in b)
            cosine = dot / (norms[0] * norms[1]) if all(norms) else 0.0
            scores.append(10 * math.exp(-((len(h) - len(r)) ** 2) / (2 * 6**2)) * cosine)
    return sum(scores) / len(scores)


def welch(a, b):
    """The statistic of Welch's t-test and its degrees of freedom."""
    means = [sum(x) / len(x) for x in (a, b)]
    parts = [sum((y - m) ** 2 for y in x) / (len(x) - 1) / len(x) for x, m in zip((a, b), means, strict=True)]
    freedom = sum(parts) ** 2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True))
    return (means[1] - means[0]) / math.sqrt(sum(parts)), freedom
