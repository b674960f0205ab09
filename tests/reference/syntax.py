"""Zhang et al. (2021), Eqs. 3-10, Shaw et al. (2018) and Yang et al. (2018), with loops over one sentence and head."""

import math

from tests.reference.lists import dot, linear, mean, sigmoid


def dependency_relation(word, head):
    size = range(len(word))
    pairs = [[(word[i], word[j]) for j in size] for i in size]
    heads = dict(zip(word, head, strict=True))
    return [
        [min(i, j) >= 0 and (i == j or heads[i] == j or heads[j] == i) for i, j in row] for row in pairs
    ]  # fmt: skip


def phrase_relation(word, start, end):
    phrases = {w: set(range(s, e)) | {w} for w, s, e in zip(word, start, end, strict=True)}
    return [[min(i, j) >= 0 and (j in phrases[i] or i in phrases[j]) for j in word] for i in word]


def phrase_penalty(embedding, weight, bias, out):
    return -abs(dot([math.tanh(value) for value in linear(embedding, weight, bias)], out))


def head_confidence(weights, valid):
    return mean([max(row) for row, real in zip(weights, valid, strict=True) if real])


def syntactic_attention(weights, relation, valid):
    return mean(
        [
            sum(w for w, related in zip(row, kin, strict=True) if related)
            for row, kin, real in zip(weights, relation, valid, strict=True)
            if real
        ]
    )


def relative_logits(q, table, keys):
    m, first = len(table) // 2, keys - len(q)
    return [[dot(row, table[max(-m, min(m, s - first - t)) + m]) for s in range(keys)] for t, row in enumerate(q)]


def relative_values(weights, table):
    limit, first = len(table) // 2, len(weights[0]) - len(weights)
    out = []
    for t, row in enumerate(weights):
        total = [0.0] * len(table[0])
        for s, w in enumerate(row):
            for d, x in enumerate(table[max(-limit, min(limit, s - first - t)) + limit]):
                total[d] += w * x
        out.append(total)
    return out


def localness_bias(q, hidden, centre, window, valid):
    """(heads, real tokens, real tokens); q (heads, tokens, D), each layer its weight and bias."""
    length = sum(valid)
    result = [[] for _ in q]
    for t in (t for t, real in enumerate(valid) if real):
        z = [math.tanh(x) for x in linear([x for head in q for x in head[t]], *hidden)]
        for h, (p, d) in enumerate(zip(linear(z, *centre), linear(z, *window), strict=True)):
            middle, size = (length - 1) * sigmoid(p), length * sigmoid(d) + 0.1
            result[h].append([-((j - middle) ** 2) / (2 * (size / 2) ** 2) for j in range(length)])
    return result


def shared_localness_bias(q, weight, centre, window, valid):
    """Rows and columns of the real tokens only, of one head."""
    length = sum(valid)
    rows = []
    for vector in (v for v, real in zip(q, valid, strict=True) if real):
        hidden = [math.tanh(dot(line, vector)) for line in weight]
        middle, size = (length * sigmoid(dot(out, hidden)) for out in (centre, window))
        rows.append([-((j - middle) ** 2) / (2 * (max(size, 1e-3) / 2) ** 2) for j in range(length)])
    return rows
