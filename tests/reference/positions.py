"""Rotary positions, ALiBi, normalized queries and keys, and Synthesizer, with loops."""

import math

from tests.reference.lists import dot, linear


def rotated(vectors, first=0):
    """Lists of D numbers at positions first, first + 1, ..."""
    out = []
    for position, vector in enumerate(vectors, first):
        width, turned = len(vector), list(vector)
        for pair in range(width // 2):
            angle = position * 10000 ** (-2 * pair / width)
            point = complex(vector[2 * pair], vector[2 * pair + 1]) * complex(math.cos(angle), math.sin(angle))
            turned[2 * pair], turned[2 * pair + 1] = point.real, point.imag
        out.append(turned)
    return out


def slopes(heads):
    """The authors' recursive function."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes(closest) + slopes(2 * closest)[0::2][: heads - closest]


def alibi(heads, queries, keys):
    first = keys - queries
    return [[[-m * abs(first + t - s) for s in range(keys)] for t in range(queries)] for m in slopes(heads)]


def rms_normed(vector, gain):
    return [g * x / math.sqrt(dot(vector, vector) / len(vector) + 1e-6) for x, g in zip(vector, gain, strict=True)]


def random_logits(table, positions, queries):
    """One head and sentence: ``table`` N x N, ``positions`` of the S keys."""
    return [[table[t][s] for s in positions] for t in positions[len(positions) - queries :]]


def dense_logits(vectors, inner, inner_bias, outer, outer_bias):
    """One head and sentence."""
    hidden = [[max(0, value) for value in linear(x, inner, inner_bias)] for x in vectors]
    return [linear(row, outer, outer_bias) for row in hidden]


def t5_bucket(distance, both, buckets, far):
    """The bucket of key minus query, by the formula of the authors' code in real numbers."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(far / exact)
    return first + min(exact + math.floor(share * (buckets - exact) + 1e-9), buckets - 1)


def t5_bias(table, queries, keys, both, far):
    """``table`` buckets x heads"""
    first = keys - queries
    return [
        [[table[t5_bucket(s - first - t, both, len(table), far)][head] for s in range(keys)] for t in range(queries)]
        for head in range(len(table[0]))
    ]
