"""Zhang et al. (2021), Eqs. 3-10, Shaw et al. (2018) and Yang et al. (2018), with loops over one sentence and head."""

import math


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
    hidden = [
        math.tanh(sum(w * x for w, x in zip(row, embedding, strict=True)) + b)
        for row, b in zip(weight, bias, strict=True)
    ]
    return -abs(sum(h * u for h, u in zip(hidden, out, strict=True)))


def head_confidence(weights, valid):
    return _mean([max(row) for row, real in zip(weights, valid, strict=True) if real])


def syntactic_attention(weights, relation, valid):
    return _mean(
        [
            sum(w for w, related in zip(row, kin, strict=True) if related)
            for row, kin, real in zip(weights, relation, valid, strict=True)
            if real
        ]
    )


def relative_logits(q, table, keys):
    limit, first = len(table) // 2, keys - len(q)
    return [
        [
            sum(a * b for a, b in zip(row, table[max(-limit, min(limit, s - first - t)) + limit], strict=True))
            for s in range(keys)
        ]
        for t, row in enumerate(q)
    ]


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
        z = [math.tanh(x) for x in _layer(hidden, [x for head in q for x in head[t]])]
        for h, (p, d) in enumerate(zip(_layer(centre, z), _layer(window, z), strict=True)):
            mean, size = (length - 1) * _sigmoid(p), length * _sigmoid(d) + 0.1
            result[h].append([-((j - mean) ** 2) / (2 * (size / 2) ** 2) for j in range(length)])
    return result


def shared_localness_bias(q, weight, centre, window, valid):
    """Rows and columns of the real tokens only, of one head."""
    length = sum(valid)
    rows = []
    for vector in (v for v, real in zip(q, valid, strict=True) if real):
        hidden = [math.tanh(sum(w * x for w, x in zip(line, vector, strict=True))) for line in weight]
        mean, size = (
            length * _sigmoid(sum(u * h for u, h in zip(out, hidden, strict=True))) for out in (centre, window)
        )
        rows.append([-((j - mean) ** 2) / (2 * (max(size, 1e-3) / 2) ** 2) for j in range(length)])
    return rows


def _layer(linear, x):
    weight, bias = linear
    return [sum(w * y for w, y in zip(line, x, strict=True)) + b for line, b in zip(weight, bias, strict=True)]


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


def _mean(values):
    return sum(values) / len(values) if values else 0.0
