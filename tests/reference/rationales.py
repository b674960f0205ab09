"""Rationales with loops: LIME (Ribeiro et al., 2016) and the measures of ERASER (DeYoung et al., 2020)."""

import math
from itertools import pairwise


def lime(kept: list[list[int]], probabilities: list[float]) -> list[float]:
    """Coefficients of the words by Gaussian elimination of the normal equations; the last unknown is the intercept."""
    words = len(kept[0])
    weights = []
    for row in kept:
        dot = sum(row)
        cosine = dot / (math.sqrt(dot) * math.sqrt(words)) if dot else 0.0
        distance = 100 * (1 - cosine)
        weights.append(math.sqrt(math.exp(-(distance**2) / 25**2)))
    size = words + 1
    system = [[0.0] * (size + 1) for _ in range(size)]
    for row, probability, weight in zip(kept, probabilities, weights, strict=True):
        inputs = [*row, 1]
        for i in range(size):
            for j in range(size):
                system[i][j] += weight * inputs[i] * inputs[j]
            system[i][size] += weight * inputs[i] * probability
    for i in range(words):
        system[i][i] += 1.0
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(system[row][i]))
        system[i], system[pivot] = system[pivot], system[i]
        for row in range(i + 1, size):
            factor = system[row][i] / system[i][i]
            for column in range(i, size + 1):
                system[row][column] -= factor * system[i][column]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (system[i][size] - sum(system[i][j] * found[j] for j in range(i + 1, size))) / system[i][i]
    return found[:words]


def auprc(scores: list[float], evidence: list[int]) -> float:
    """Every distinct score is a threshold, the highest first; the curve begins at precision 1, recall 0."""
    points = [(0.0, 1.0)]
    for threshold in sorted(set(scores), reverse=True):
        chosen = [mark for score, mark in zip(scores, evidence, strict=True) if score >= threshold]
        points.append((sum(chosen) / sum(evidence), sum(chosen) / len(chosen)))
    area = 0.0
    for (recall, precision), (next_recall, next_precision) in pairwise(points):
        area += (next_recall - recall) * (precision + next_precision) / 2
    return area


def rationale(scores: list[float], share: float) -> list[int]:
    """Places of the words, the best first; of equal ones the first."""
    count = max(1, round(share * len(scores)))
    chosen: list[int] = []
    while len(chosen) < count:
        best = None
        for place, score in enumerate(scores):
            if place not in chosen and (best is None or score > scores[best]):
                best = place
        chosen.append(best)
    return chosen


def faithfulness(probability, words: list[str], scores: list[float], share: float) -> tuple[float, float]:
    """Comprehensiveness and sufficiency; ``probability`` is that of the class predicted for the whole text."""
    chosen = rationale(scores, share)
    inside = [word for place, word in enumerate(words) if place in chosen]
    outside = [word for place, word in enumerate(words) if place not in chosen]
    return probability(words) - probability(outside), probability(words) - probability(inside)


def macro_f1(predictions: list[str], labels: list[str]) -> float:
    """The mean over classes that occur in either; 0 for a class without a hit."""
    classes = sorted({*predictions, *labels})
    total = 0.0
    for one in classes:
        hits = sum(p == one and t == one for p, t in zip(predictions, labels, strict=True))
        total += 2 * hits / (predictions.count(one) + labels.count(one))
    return total / len(classes)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def lstm(states: list[list[float]], weights: dict[str, list], suffix: str) -> list[list[float]]:
    """One direction of an LSTM (Hochreiter and Schmidhuber, 1997), gates in torch's order i, f, g, o."""
    w_in, w_out, b_in, b_out = (
        weights[f"lstm.{name}_l0{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    size = len(w_out[0])
    hidden, cell, found = [0.0] * size, [0.0] * size, []
    for x in states:
        gates = []
        for row in range(4 * size):
            total = b_in[row] + b_out[row]
            total += sum(w_in[row][k] * x[k] for k in range(len(x)))
            total += sum(w_out[row][k] * hidden[k] for k in range(size))
            gates.append(total)
        for k in range(size):
            keep, forget, output = (sigmoid(gates[part * size + k]) for part in (0, 1, 3))
            cell[k] = forget * cell[k] + keep * math.tanh(gates[2 * size + k])
            hidden[k] = output * math.tanh(cell[k])
        found.append([*hidden])
    return found


def reader(states: list[list[float]], weights: dict[str, list]) -> list[float]:
    """Logits of a document from the states of its words: BiLSTM, additive attention, ReLU layer, classes."""
    forward, backward = lstm(states, weights, ""), lstm(states[::-1], weights, "_reverse")[::-1]
    h = [one + other for one, other in zip(forward, backward, strict=True)]

    def linear(x: list[float], name: str) -> list[float]:
        bias = weights.get(f"{name}.bias", [0.0] * len(weights[f"{name}.weight"]))
        rows = weights[f"{name}.weight"]
        return [b + sum(w * value for w, value in zip(row, x, strict=True)) for row, b in zip(rows, bias, strict=True)]

    logits = []
    for state in h:
        mixed = [math.tanh(a + q) for a, q in zip(linear(state, "project"), weights["query"], strict=True)]
        logits.append(linear(mixed, "score")[0])
    exponentials = [math.exp(logit) for logit in logits]
    pooled = [0.0] * len(h[0])
    for state, weight in zip(h, exponentials, strict=True):
        for k, value in enumerate(state):
            pooled[k] += weight / sum(exponentials) * value
    inner = [max(0.0, value) for value in linear(pooled, "classifier.0")]
    return linear(inner, "classifier.3")
