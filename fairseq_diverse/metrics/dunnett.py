"""Several systems against one baseline, over seeds: Dunnett's test, its power, and Holm's correction."""

from collections.abc import Sequence
from functools import lru_cache
from math import fsum
from typing import NamedTuple

import numpy as np
import scipy

LEVEL = 0.05
POWER = 0.8


class SeedTest(NamedTuple):
    """The test of one system's difference to the baseline; see `dunnett` for the formulas.

    p and single_p are None if no score differs between seeds: then nothing can be tested.
    """

    difference: float
    error: float
    p: float | None
    single_p: float | None
    interval: tuple[float, float]
    deviation: float
    smallest: float


def dunnett(baseline: Sequence[float], systems: Sequence[Sequence[float]]) -> list[SeedTest]:
    """Dunnett's two-sided test: the mean over seeds of each of k systems against that of one baseline.

        error_i = s sqrt(1/n_i + 1/n_0)              standard error of the difference
        s^2     = sum of squares about each mean / f,    f = n_0 + sum_i n_i - (k + 1)    (``deviation`` is s)
        p_i     = P(max_j |T_j| >= |difference_i| / error_i)
        single_p_i = P(|T_i| >= |difference_i| / error_i)            for corrections over more than these systems
        interval_i = difference_i -+ d error_i,      P(max_j |T_j| >= d) = 0.05
        smallest_i = x error_i,                      P(|T'(x)| >= d) = 0.8

    T is the k-variate t distribution with f degrees of freedom and the correlations r_i r_j, r_i^2 = n_i / (n_i + n_0).
    p and intervals therefore hold for all systems at once; for one system this is the t-test with equal variances.
    T'(x) is the noncentral t distribution: if s were the true deviation, a true difference of ``smallest`` would have
    p < 0.05 in 80% of such experiments (power of one comparison).

    Source: Dunnett (1955; 1964 for the two-sided test); the power is Ramsey's (1978) per-pair power, computed as by
    power.dunnett.test of R's PMCMRplus. scipy.stats.dunnett estimates the same p from random points; here it is
    integrated, so that it depends neither on these nor on scipy's version. Scores are one per seed.

    Raises:
        ValueError: a side has fewer than two seeds, or a score is not finite.
    """
    if not systems:
        return []
    groups = [np.asarray(group, dtype=np.float64) for group in (baseline, *systems)]
    sizes = [len(group) for group in groups]
    if min(sizes) < 2:
        raise ValueError(f"two seeds of each system, or more, are needed; got {', '.join(map(str, sizes))}")
    if wrong := [score for group in groups for score in group if not np.isfinite(score)]:
        raise ValueError(f"scores are finite numbers; got {wrong[0]}")
    freedom = sum(sizes) - len(sizes)
    deviation = np.sqrt(fsum(((group - group.mean()) ** 2).sum() for group in groups) / freedom)  # in any order
    if deviation <= 1e-12 * max(np.abs(group).max() for group in groups):  # equal up to rounding
        deviation = 0.0
    first, *others = groups
    squares, counts = np.unique([n / (n + sizes[0]) for n in sizes[1:]], return_counts=True)
    ratios = tuple(zip(np.sqrt(squares).tolist(), counts.tolist(), strict=True))  # r_i, how many systems have it
    bound, visible = _critical_values(freedom, ratios)
    tests = []
    for group in others:
        difference = float(group.mean() - first.mean())
        error = float(deviation * np.sqrt(1 / len(group) + 1 / len(first)))
        p = max(0.0, 1 - _all_within(abs(difference) / error, freedom, ratios)) if error else None
        single_p = float(2 * scipy.special.stdtr(freedom, -abs(difference) / error)) if error else None
        reach = bound * error
        interval = difference - reach, difference + reach
        tests.append(SeedTest(difference, error, p, single_p, interval, float(deviation), visible * error))
    return tests


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values of m tests: counting those below 0.05, the family-wise error rate is at most 5%.

        the i-th smallest becomes max_{j <= i} min(1, (m - j + 1) p_j)

    Source: Holm (1979); valid for any dependence between the tests.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1, factors * np.asarray(p_values)[order]))
    return adjusted.tolist()


def _all_within(bound: float, freedom: int, ratios: Sequence[tuple[float, int]]) -> float:
    """P(|T_i| <= bound for all i), T as in `dunnett`: given s and the baseline's mean, the T_i are independent.

    E_s E_z prod_i [Phi((bound s - r_i z) / sqrt(1 - r_i^2)) - Phi((-bound s - r_i z) / sqrt(1 - r_i^2))]
    """
    scales, weights = _scales(freedom)
    z = np.linspace(-8, 8, 129)
    normal = np.exp(-(z**2) / 2)
    within = np.ones((len(scales), len(z)))
    reach = bound * scales[:, None]
    for ratio, count in ratios:
        rest = np.sqrt(1 - ratio**2)
        above, below = (scipy.special.ndtr((end - ratio * z) / rest) for end in (reach, -reach))
        within *= (above - below) ** count
    return float(weights @ within @ (normal / normal.sum()))


def _scales(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of s / sigma, s^2 with so many degrees of freedom, and their weights: equally spaced on a logarithmic
    scale, where the density is smooth and ends on both sides."""
    logs = np.linspace(-40 / freedom - 6 / np.sqrt(freedom), 6 / np.sqrt(freedom), 301)
    density = np.exp(freedom * (logs - np.exp(2 * logs) / 2 + 0.5))
    return np.exp(logs), density / density.sum()


@lru_cache(maxsize=256)
def _critical_values(freedom: int, ratios: tuple[tuple[float, int], ...]) -> tuple[float, float]:
    """d and x of `dunnett`."""
    scales, weights = _scales(freedom)
    bound = scipy.optimize.brentq(lambda d: _all_within(d, freedom, ratios) - (1 - LEVEL), 0, 1e3)

    def power(x: float) -> float:
        return float(weights @ (scipy.special.ndtr(x - bound * scales) + scipy.special.ndtr(-x - bound * scales)))

    return bound, scipy.optimize.brentq(lambda x: power(x) - POWER, 0, bound * scales[-1] + 9)
