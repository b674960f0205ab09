"""Wang et al. (2021), sections 3.3 and 3.5, with loops over one sentence: maps are lists by head, row and column."""


def convolve(maps, weight, bias, component):
    """ReLU of the convolution; outside the map the values are 0."""
    size, heads = len(weight[0][0]), range(len(maps))
    half = (size - 1) // 2
    # where the window of row t and column s begins
    up = half if component == "encoder" else size - 1
    left = size - 1 if component == "decoder" else half
    rows, columns = len(maps[0]), len(maps[0][0])

    def cell(head, t, s):
        return maps[head][t][s] if 0 <= t < rows and 0 <= s < columns else 0.0

    def total(out, t, s):
        window = [(h, a, b) for h in heads for a in range(size) for b in range(size)]
        return bias[out] + sum(weight[out][h][a][b] * cell(h, t - up + a, s - left + b) for h, a, b in window)

    return [[[max(0.0, total(out, t, s)) for s in range(columns)] for t in range(rows)] for out in heads]


def evolve_logits(logits, previous, weight, bias, component, carry_ratio, conv_ratio, cells):
    carried = component == "encoder" and previous is not None
    inner = [
        [
            [carry_ratio * previous[h][t][s] + (1 - carry_ratio) * x if carried else x for s, x in enumerate(row)]
            for t, row in enumerate(head)
        ]
        for h, head in enumerate(logits)
    ]
    seen = [[[x if cells[t][s] else 0.0 for s, x in enumerate(row)] for t, row in enumerate(head)] for head in inner]
    convolved = convolve(seen, weight, bias, component)
    return [
        [
            [conv_ratio * c + (1 - conv_ratio) * x for c, x in zip(*rows, strict=True)]
            for rows in zip(*heads, strict=True)
        ]
        for heads in zip(convolved, inner, strict=True)
    ]
