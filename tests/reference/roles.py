"""Roles and diversity of heads, with loops."""

import math

from tests.reference.agreement import cosine


def shares(weights, real, counts, words, offset, limit):
    """Of ``weights`` [b][h][t][s]: by head, the share of queries on the neighbour, and on the rarest word."""
    neighbour, rarest = [], []
    for head in range(len(weights[0])):
        near, rare = [], []
        for b, sentence in enumerate(weights):
            least = min(count for count, word in zip(counts[b], words[b], strict=True) if word)
            for i, row in enumerate(sentence[head]):
                largest = max(range(len(row)), key=row.__getitem__)
                if real[b][i] and 0 <= i + offset < len(row) and real[b][i + offset]:
                    near.append(largest == i + offset)
                if real[b][i] and least < limit:
                    rare.append(words[b][largest] and counts[b][largest] == least)
        neighbour.append(sum(near) / len(near))
        rarest.append(sum(rare) / len(rare))
    return neighbour, rarest


def off_diagonal_cosine(heads):
    """``heads`` [n][h][d]."""
    pairs = [(i, j) for i in range(len(heads[0])) for j in range(len(heads[0])) if i != j]
    return sum(cosine(row[i], row[j]) for row in heads for i, j in pairs) / (len(heads) * len(pairs))


def constant_share(heads):
    total = sum(x * x for row in heads for head in row for x in head)
    constant = 0.0
    for h in range(len(heads[0])):
        for d in range(len(heads[0][0])):
            constant += len(heads) * (sum(row[h][d] for row in heads) / len(heads)) ** 2
    return constant / total


def effective_rank(singular_values):
    """Roy and Vetterli (2007), from the singular values."""
    total = sum(singular_values)
    return math.exp(-sum(s / total * math.log(s / total) for s in singular_values if s > 0))
