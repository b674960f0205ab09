"""Confidence intervals of scores and tests of differences; dunnett.py compares several systems over seeds."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

Combine = Callable[[np.ndarray], float]  # a score from the sums of counts
RESAMPLES = 10_000
TRIALS = 10_000  # of approximate randomization, as in sacreBLEU
SEED = 12345  # sacreBLEU's
CHUNK = 250  # resamples whose sentences are drawn at once


def paired_difference(baseline: np.ndarray, system: np.ndarray) -> tuple[float, float, float]:
    """Mean difference, system - baseline, of values for the same sentences (NLL, say), its standard error, and p.

    p is that of the two-sided paired t-test. Raises ``ValueError``: the arrays are not two equally long rows of at
    least two finite numbers.
    """
    from scipy.stats import ttest_rel

    baseline, system = np.asarray(baseline, dtype=np.float64), np.asarray(system, dtype=np.float64)
    if baseline.shape != system.shape or baseline.ndim != 1 or len(baseline) < 2:
        shapes = f"{baseline.shape} and {system.shape}"
        raise ValueError(f"values of the same sentences, at least two, are needed; got {shapes}")
    difference = system - baseline
    if not np.isfinite(difference).all():
        raise ValueError("a value is infinite or not a number")
    rounding = 1e-12 * max(np.abs(baseline).max(), np.abs(system).max())  # as in `dunnett`; of means over seeds
    if difference.std() <= rounding:  # the t-test would divide by it
        return float(difference.mean()), 0.0, float(abs(difference.mean()) <= rounding)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return float(difference.mean()), float(error), float(ttest_rel(system, baseline).pvalue)


def resampled(statistics: np.ndarray, combine: Combine) -> np.ndarray:
    """(resamples,) scores of as many sentences, drawn with replacement: the same ones for every system.
    ``statistics`` and ``combine`` are of a `Result`."""
    return np.array([combine(sums) for sums in resampled_sums(statistics)])


def resampled_sums(statistics: np.ndarray, resamples: int = RESAMPLES) -> np.ndarray:
    """(resamples, n) sums of the counts (sentences, n) of sentences drawn with replacement, sacreBLEU's draws."""
    return np.concatenate([times @ statistics for times in _draws(len(statistics), resamples)])


def bleu_scores(sums: np.ndarray) -> np.ndarray:
    """BLEU of every row of summed counts (resamples, 10), equal to `Result.combine` of that row.

        min(1, exp(1 - reference length / length)) * exp(mean_n log p_n),    p_n = matches_n / n-grams_n

    Source: Papineni et al. (2002). As in sacreBLEU (smoothing ``exp``), the k-th order without a match counts 2^-k
    matches, and no match at all, or an order without n-grams, gives 0.
    """
    length, reference_length, matches, counts = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:]
    misses = matches == 0
    smoothed = np.where(misses, 0.5 ** np.cumsum(misses, axis=1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.exp(np.minimum(1 - reference_length / length, 0))
        scores = 100 * brevity * np.exp(np.log(smoothed / counts).mean(axis=1))
    return np.where(misses.all(axis=1) | (counts == 0).any(axis=1), 0.0, scores)


@lru_cache(maxsize=1)
def _draws(sentences: int, resamples: int) -> list[np.ndarray]:
    """How often each sentence is in each resample, (at most CHUNK, sentences) at a time."""
    generator = np.random.default_rng(SEED)
    chunks = []
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        drawn = generator.choice(sentences, size=(rows, sentences), replace=True)
        places = drawn + sentences * np.arange(rows)[:, None]
        times = np.bincount(places.ravel(), minlength=places.size).reshape(places.shape)
        chunks.append(times.astype(np.uint16 if sentences < 2**16 else np.uint32))
    return chunks


def randomization_p_value(
    baseline: np.ndarray, system: np.ndarray, combine: Combine, trials: int = TRIALS, seed: int = SEED
) -> float:
    """Two-sided p-value of a difference by approximate randomization: each trial swaps sentences at random.

        p = (1 + #{t : |d_t| >= |delta|}) / (trials + 1),    d_t the difference after trial t's swaps

    Source: Riezler and Maxwell (2005). The swaps are those of ``sacrebleu --paired-ar`` with the same seed, which
    counts only |d_t| > |delta|: here equal systems have p = 1.

    Args:
        baseline, system: (sentences, n) counts of the same sentences.
        combine: computes a score from the sums of the counts.
    """
    swaps = np.random.default_rng(seed).integers(2, size=(trials, len(system)), dtype=bool)
    moved = np.array([(baseline - system)[swap].sum(0) for swap in swaps])
    totals = baseline.sum(0), system.sum(0)
    delta = abs(combine(totals[1]) - combine(totals[0])) - 1e-9
    as_large = sum(abs(combine(totals[1] + move) - combine(totals[0] - move)) >= delta for move in moved)
    return (1 + int(as_large)) / (trials + 1)


def sign_test_p_value(baseline: np.ndarray, system: np.ndarray, combine: Combine) -> float:
    """Two-sided p-value of a difference by the sign test: which sentences raise the corpus score of the baseline?

        f(i) = score of the baseline's sentences with the system's in place of sentence i,  against the baseline's score

    Source: Collins et al. (2005), section 4.3. Sentences that leave the score as it is (1e-9) count on neither side.
    Arguments as of ``randomization_p_value``; p is that of the binomial test with probability 1/2, 1 if no sentence
    counts.
    """
    from scipy.stats import binomtest

    total = baseline.sum(0)
    changes = np.array([combine(total + move) for move in system - baseline]) - combine(total)
    higher, lower = int((changes > 1e-9).sum()), int((changes < -1e-9).sum())
    return float(binomtest(higher, higher + lower).pvalue) if higher + lower else 1.0


def seed_difference(baseline: Sequence[float], system: Sequence[float]) -> tuple[float, float | None]:
    """Difference of the means over seeds, system - baseline, and p of Welch's two-sided t-test.

    The test is over seeds on one fixed test set; p is None if no score varies. For several systems with one baseline,
    use `dunnett`.

    Raises:
        ValueError: a side has fewer than two seeds.
    """
    from scipy.stats import ttest_ind_from_stats

    if min(len(baseline), len(system)) < 2:
        raise ValueError(f"two seeds of each system, or more, are needed; got {len(baseline)} and {len(system)}")
    difference = float(np.mean(system) - np.mean(baseline))
    scores = np.abs([*baseline, *system])
    if max(np.std(baseline), np.std(system)) <= 1e-12 * scores.max():  # equal up to rounding, as in `dunnett`
        return difference, None
    sides = [f for side in (system, baseline) for f in (np.mean(side), np.std(side, ddof=1), len(side))]
    return difference, float(ttest_ind_from_stats(*sides, equal_var=False).pvalue)  # ttest_ind warns of equal scores


def interval(scores: np.ndarray) -> tuple[float, float]:
    """The range of the middle 95% of bootstrapped scores, as sacreBLEU cuts it. Source: Koehn (2004)."""
    cut = len(scores) // 40
    ordered = np.sort(scores)
    return float(ordered[cut]), float(ordered[len(scores) - cut - 1])


def p_value(baseline: np.ndarray, system: np.ndarray, delta: float) -> float:
    """Two-sided p-value of a difference from both systems' scores in the same resamples (paired bootstrap).

        p = (1 + #{b : |d_b - mean(d)| >= |delta|}) / (resamples + 1),    d_b the difference in resample b

    Source: Koehn (2004) for the paired resamples, Riezler and Maxwell (2005) for the shift by their mean. Unlike
    ``sacrebleu --paired-bs``, which shifts |d_b|, it is two-sided throughout, and equal systems have p = 1.
    """
    differences = system - baseline
    as_large = np.abs(differences - differences.mean()) >= abs(delta) - 1e-9  # equal systems: 0 >= 0
    return (1 + int(as_large.sum())) / (len(differences) + 1)
