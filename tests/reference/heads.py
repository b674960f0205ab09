"""Li and Luo (2022), Eqs. 7, 8, 11, 12, with loops over one sentence."""

import math

from tests.reference.lists import dot, softmax


def mix_heads(maps, matrix):
    heads, rows, columns = range(len(maps)), range(len(maps[0])), range(len(maps[0][0]))
    return [[[sum(matrix[g][h] * maps[h][t][s] for h in heads) for s in columns] for t in rows] for g in heads]


def pair(q, k, v, allowed):
    """Head i's queries over head j's keys and values: (T, D) outputs and (T, S) weights."""
    out, maps = [], []
    for query, seen in zip(q, allowed, strict=True):
        weights = softmax([dot(query, key) / math.sqrt(len(query)) for key in k], seen)
        out.append([sum(w * value[d] for w, value in zip(weights, v, strict=True)) for d in range(len(v[0]))])
        maps.append(weights)
    return out, maps


def interacting_attention(q, k, v, allowed, combine):
    """(T, H H D) or (T, H D), and the (H, T, S) mean maps."""
    heads, rows = range(len(q)), []
    pairs = [[pair(q[i], k[j], v[j], allowed) for j in heads] for i in heads]
    for t in range(len(q[0])):
        row = []
        for i in heads:
            if combine == "concat":
                row += [x for j in heads for x in pairs[i][j][0][t]]
            else:
                row += [sum(pairs[i][j][0][t][d] for j in heads) / math.sqrt(len(q)) for d in range(len(v[0][0]))]
        rows.append(row)
    maps = [
        [
            [sum(pairs[i][j][1][t][s] for j in heads) / len(q) for s in range(len(k[0]))]
            for t in range(len(q[0]))
        ]
        for i in heads
    ]  # fmt: skip
    return rows, maps
