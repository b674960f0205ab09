"""Functions of lists of numbers."""

import math


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(x, weight, bias):
    return [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]


def mean(values):
    return sum(values) / len(values) if values else 0.0


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(values, allowed=None):
    """0 where it is not ``allowed``."""
    seen = allowed or [True] * len(values)
    largest = max(value for value, see in zip(values, seen, strict=True) if see)
    powers = [math.exp(value - largest) if see else 0.0 for value, see in zip(values, seen, strict=True)]
    return [power / sum(powers) for power in powers]
