"""Differential and gated attention with loops, from METHODS section 11; nothing of the package."""

import math


def softmax(values, allowed):
    largest = max(v for v, a in zip(values, allowed, strict=True) if a)
    powers = [math.exp(v - largest) if a else 0.0 for v, a in zip(values, allowed, strict=True)]
    return [p / sum(powers) for p in powers]


def differential_attention(q, k, v, allowed, ratio, gain, initial_ratio):
    """One head: q (T, Dk), k (S, Dk), v (S, D), allowed (T, S) -> outputs (T, D), maps (T, S)."""
    half = len(q[0]) // 2
    outputs, maps = [], []
    for t, query in enumerate(q):
        parts = []
        for first, last in ((0, half), (half, 2 * half)):
            logits = [sum(query[i] * key[i] for i in range(first, last)) / math.sqrt(half) for key in k]
            parts.append(softmax(logits, allowed[t]))
        row = [one - ratio * two for one, two in zip(*parts, strict=True)]
        mixed = [sum(row[s] * v[s][d] for s in range(len(v))) for d in range(len(v[0]))]
        root = math.sqrt(sum(x * x for x in mixed) / len(mixed) + 1e-5)
        outputs.append([(1 - initial_ratio) * g * x / root for g, x in zip(gain, mixed, strict=True)])
        maps.append(row)
    return outputs, maps


def differential_ratio(query_1, key_1, query_2, key_2, initial_ratio):
    one = math.exp(sum(a * b for a, b in zip(query_1, key_1, strict=True)))
    two = math.exp(sum(a * b for a, b in zip(query_2, key_2, strict=True)))
    return one - two + initial_ratio


def gate_heads(heads, x, weight):
    """heads (H, T, D), x (T, C), weight (G, C) with G = H or H D -> (H, T, D)."""

    def gate(row, t):
        return 1 / (1 + math.exp(-sum(w * y for w, y in zip(weight[row], x[t], strict=True))))

    by_head = len(weight) == len(heads)
    width = len(heads[0][0])
    return [
        [
            [value * gate(h if by_head else h * width + d, t) for d, value in enumerate(row)]
            for t, row in enumerate(rows)
        ]
        for h, rows in enumerate(heads)
    ]
