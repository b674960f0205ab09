"""The metrics of GLUE, with loops, as shares."""

import math


def counts(predictions, targets):
    """True positives, false positives, false negatives, true negatives of class 1."""
    pairs = list(zip(predictions, targets, strict=True))
    return [pairs.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0))]


def matthews(predictions, targets):
    """Matthews (1975)."""
    tp, fp, fn, tn = counts(predictions, targets)
    norm = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(norm) if norm else 0.0


def gorodkin(predictions, targets):
    """Of any number of classes: cov(p, t) / sqrt(cov(p, p) cov(t, t)), summed over classes (Gorodkin, 2004)."""

    def covariance(first, second):
        total = 0.0
        for label in {*predictions, *targets}:
            x, y = ([float(value == label) for value in values] for values in (first, second))
            total += sum((a - sum(x) / len(x)) * (b - sum(y) / len(y)) for a, b in zip(x, y, strict=True))
        return total

    norm = covariance(predictions, predictions) * covariance(targets, targets)
    return covariance(predictions, targets) / math.sqrt(norm) if norm else 0.0


def f1(predictions, targets):
    tp, fp, fn, _ = counts(predictions, targets)
    return 2 * tp / (2 * tp + fp + fn) if tp else 0.0


def accuracy(predictions, targets):
    return sum(p == t for p, t in zip(predictions, targets, strict=True)) / len(targets)


def pearson(x, y):
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


def spearman(x, y):
    """Pearson of the ranks; equal values share the mean of theirs."""

    def ranks(values):
        return [sum(other < v for other in values) + (values.count(v) + 1) / 2 for v in values]

    return pearson(ranks(x), ranks(y))
