"""Li et al. (2021), Eqs. 5-7, with loops."""

import math

from tests.reference.lists import dot, mean


def cosine(a, b):
    norms = [math.sqrt(dot(v, v)) for v in (a, b)]
    return dot(a, b) / (norms[0] * norms[1]) if min(norms) > 1e-8 else 0.0


def cosine_agreement(vectors, valid):
    """Eqs. 5 and 7; ``vectors`` [b][h][t][d], ``valid`` [b][t]."""
    figures = []
    for sentence, real in zip(vectors, valid, strict=True):
        heads = range(len(sentence))
        for t, is_real in enumerate(real):
            if is_real:
                figures.append(mean([cosine(sentence[i][t], sentence[j][t]) for i in heads for j in heads]))
    return mean(figures)


def difference_agreement(weights, valid):
    """The negative mean of the squared differences of two heads' maps."""
    total, count = 0.0, 0
    for maps, real in zip(weights, valid, strict=True):
        for t in (t for t, is_real in enumerate(real) if is_real):
            rows, count = [one[t] for one in maps], count + 1
            total += sum((x - y) ** 2 for a in rows for b in rows for x, y in zip(a, b, strict=True)) / len(rows) ** 2
    return -total / max(count, 1)


def position_agreement(weights, valid):
    """Eq. 6; ``weights`` [b][h][t][s], ``valid`` [b][t]."""
    figures = []
    for sentence, real in zip(weights, valid, strict=True):
        heads = range(len(sentence))
        for t, is_real in enumerate(real):
            if is_real:
                rows = [[abs(weight) for weight in one[t]] for one in sentence]
                figures.append(mean([dot(rows[i], rows[j]) for i in heads for j in heads]))
    return mean(figures)


def centred(vectors, valid):
    """``vectors`` without each head's mean over the real positions."""
    real = [(b, t) for b, row in enumerate(valid) for t, is_real in enumerate(row) if is_real]
    heads, width = range(len(vectors[0])), range(len(vectors[0][0][0]))
    means = [[sum(vectors[b][h][t][d] for b, t in real) / len(real) for d in width] for h in heads]
    return [
        [[[x - means[h][d] for d, x in enumerate(vector)] for vector in head] for h, head in enumerate(sentence)]
        for sentence in vectors
    ]
