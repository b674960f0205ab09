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
