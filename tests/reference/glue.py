"""The metrics of GLUE, with loops, as shares."""

import math
from statistics import correlation as pearson


def gorodkin(predictions, targets):
    """cov(p, t) / sqrt(cov(p, p) cov(t, t)), summed over classes (Gorodkin, 2004); of two, that of Matthews (1975)."""

    def covariance(first, second):
        total = 0.0
        for label in {*predictions, *targets}:
            x, y = ([float(value == label) for value in values] for values in (first, second))
            total += sum((a - sum(x) / len(x)) * (b - sum(y) / len(y)) for a, b in zip(x, y, strict=True))
        return total

    norm = covariance(predictions, predictions) * covariance(targets, targets)
    return covariance(predictions, targets) / math.sqrt(norm) if norm else 0.0


matthews = gorodkin


def f1(predictions, targets):
    hits = sum(p == t == 1 for p, t in zip(predictions, targets, strict=True))
    return 2 * hits / (predictions.count(1) + targets.count(1)) if hits else 0.0


def accuracy(predictions, targets):
    return sum(p == t for p, t in zip(predictions, targets, strict=True)) / len(targets)


def spearman(x, y):
    """Pearson of the ranks; equal values share the mean of theirs."""

    def ranks(values):
        return [sum(other < v for other in values) + (values.count(v) + 1) / 2 for v in values]

    return pearson(ranks(x), ranks(y))
