"""Differential and gated attention with loops, from METHODS section 11; nothing of the package."""

import math

from tests.reference.lists import dot, sigmoid, softmax


def differential_attention(q, k, v, allowed, ratio, gain, initial_ratio):
    """One head: q (T, Dk), k (S, Dk), v (S, D), allowed (T, S) -> outputs (T, D), maps (T, S)."""
    half = len(q[0]) // 2
    outputs, maps = [], []
    for t, query in enumerate(q):
        parts = []
        for first, last in ((0, half), (half, 2 * half)):
            logits = [dot(query[first:last], key[first:last]) / math.sqrt(half) for key in k]
            parts.append(softmax(logits, allowed[t]))
        row = [one - ratio * two for one, two in zip(*parts, strict=True)]
        mixed = [sum(row[s] * v[s][d] for s in range(len(v))) for d in range(len(v[0]))]
        root = math.sqrt(dot(mixed, mixed) / len(mixed) + 1e-5)
        outputs.append([(1 - initial_ratio) * g * x / root for g, x in zip(gain, mixed, strict=True)])
        maps.append(row)
    return outputs, maps


def differential_ratio(query_1, key_1, query_2, key_2, initial_ratio):
    return math.exp(dot(query_1, key_1)) - math.exp(dot(query_2, key_2)) + initial_ratio


def gate_heads(heads, x, weight):
    """heads (H, T, D), x (T, C), weight (G, C) with G = H or H D -> (H, T, D)."""
    by_head = len(weight) == len(heads)
    width = len(heads[0][0])
    return [
        [
            [value * sigmoid(dot(weight[h if by_head else h * width + d], x[t])) for d, value in enumerate(row)]
            for t, row in enumerate(rows)
        ]
        for h, rows in enumerate(heads)
    ]
