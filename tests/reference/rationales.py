"""Rationales with loops: LIME (Ribeiro et al., 2016) and the measures of ERASER (DeYoung et al., 2020)."""

import math
from itertools import pairwise

import numpy as np

from tests.reference.lists import dot, linear, sigmoid, softmax


def lime(kept: list[list[int]], probabilities: list[float]) -> list[float]:
    """Coefficients of the words by the normal equations; the last unknown is the intercept, which has no penalty."""
    words = len(kept[0])
    left, right = np.diag([1.0] * words + [0.0]), np.zeros(words + 1)
    for row, probability in zip(kept, probabilities, strict=True):
        cosine = sum(row) / (math.sqrt(sum(row)) * math.sqrt(words)) if sum(row) else 0.0
        weight = math.sqrt(math.exp(-((100 * (1 - cosine)) ** 2) / 25**2))
        inputs = np.array([*row, 1])
        left += weight * np.outer(inputs, inputs)
        right += weight * inputs * probability
    return np.linalg.solve(left, right)[:words].tolist()


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
    best_first = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return best_first[: max(1, round(share * len(scores)))]


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


def lstm(states: list[list[float]], weights: dict[str, list], suffix: str) -> list[list[float]]:
    """One direction of an LSTM (Hochreiter and Schmidhuber, 1997), gates in torch's order i, f, g, o."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w_in, w_out, b_in, b_out = (weights[f"lstm.{name}_l0{suffix}"] for name in names)
    size = len(w_out[0])
    hidden, cell, found = [0.0] * size, [0.0] * size, []
    for x in states:
        gates = [a + b for a, b in zip(linear(x, w_in, b_in), linear(hidden, w_out, b_out), strict=True)]
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

    def layer(x: list[float], name: str) -> list[float]:
        rows = weights[f"{name}.weight"]
        return linear(x, rows, weights.get(f"{name}.bias", [0.0] * len(rows)))

    logits = []
    for state in h:
        mixed = [math.tanh(a + q) for a, q in zip(layer(state, "project"), weights["query"], strict=True)]
        logits.append(layer(mixed, "score")[0])
    pooled = [dot(softmax(logits), column) for column in zip(*h, strict=True)]
    return layer([max(0.0, value) for value in layer(pooled, "classifier.0")], "classifier.3")
