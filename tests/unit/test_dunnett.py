"""Dunnett's test, what it could have found, and Holm's correction: against scipy, tables and simulation."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fairseq_diverse.metrics.dunnett import dunnett, holm
from tests.refusals import refused

DESIGNS = [[3] * 9, [2, 2], [2, 3, 2], [5, 2, 10], [3] * 21, [2, 40]]  # seeds of the baseline and of each system


def samples(sizes, shift=0.3):
    generator = np.random.default_rng(sum(sizes))
    return [generator.normal(28 + shift * (i % 3), 0.2, size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("sizes", DESIGNS, ids=str)
def test_dunnett_is_scipys(sizes):
    """scipy integrates at random points: its p-values are exact to about three digits."""
    first, *others = samples(sizes)
    expected = stats.dunnett(*others, control=first, rng=np.random.default_rng(1))
    for test, statistic, p in zip(dunnett(first, others), expected.statistic, expected.pvalue, strict=True):
        assert test.difference / test.error == pytest.approx(statistic)
        assert test.p == pytest.approx(p, abs=1e-3)
        assert test.single_p == pytest.approx(2 * stats.t.sf(abs(statistic), sum(sizes) - len(sizes)))
        assert test.single_p < test.p or len(others) == 1


@pytest.mark.parametrize(("sizes", "shift"), [([3, 3], 0.3), ([2, 5], 0.1), ([4, 2], 2)])
def test_one_system_is_tested_by_the_t_test(sizes, shift):
    first, second = samples(sizes, shift)
    (test,) = dunnett(first, [second])
    expected = stats.ttest_ind(second, first)
    assert (test.p, test.single_p) == pytest.approx([expected.pvalue] * 2, abs=1e-12)
    low, high = expected.confidence_interval()
    assert test.interval == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("systems", "seeds", "bound"),
    [(2, 3, 2.86), (3, 3, 2.88), (2, 5, 2.50), (3, 4, 2.68), (4, 5, 2.65), (9, 3, 2.95), (9, 7, 2.77)],
)
def test_critical_values_are_those_of_dunnetts_tables(systems, seeds, bound):
    """Dunnett (1964), two-sided, 5%, groups of equal size."""
    first, *others = samples([seeds] * (systems + 1))
    reach = [(test.interval[1] - test.difference) / test.error for test in dunnett(first, others)]
    assert reach == pytest.approx([bound] * systems, abs=0.005)


def test_the_systems_order_changes_no_bit():
    first, *others = samples([3, 2, 5, 4, 3])
    tests = dunnett(first, others)
    for order in itertools.permutations(range(4)):
        assert dunnett(first, [others[i] for i in order]) == [tests[i] for i in order]


def simulate(sizes, shift, trials=20_000):
    """(trials, systems) statistics of Dunnett's test, the true difference of the first system alone being ``shift``
    standard errors."""
    generator = np.random.default_rng(7)
    groups = [generator.normal(size=(trials, size)) for size in sizes]
    first, *others = groups
    others[0] += shift * (1 / sizes[0] + 1 / sizes[1]) ** 0.5
    squares = sum(((group - group.mean(1, keepdims=True)) ** 2).sum(1) for group in groups)
    deviation = (squares / (sum(sizes) - len(sizes))) ** 0.5
    errors = [deviation * (1 / sizes[0] + 1 / group.shape[1]) ** 0.5 for group in others]
    return np.stack([(group.mean(1) - first.mean(1)) / error for group, error in zip(others, errors, strict=True)], 1)


@pytest.mark.parametrize("sizes", [[3] * 5, [2, 2], [4, 2, 3]], ids=str)
def test_errors_and_power_in_simulated_experiments(sizes):
    """Without a difference 5% of the experiments have any p < 0.05; with ``smallest``, 80% find that system's."""
    first, *others = samples(sizes)
    test, *_ = dunnett(first, others)
    bound = (test.interval[1] - test.difference) / test.error
    assert (abs(simulate(sizes, 0)) > bound).any(axis=1).mean() == pytest.approx(0.05, abs=0.005)
    found = simulate(sizes, test.smallest / test.error)[:, 0]
    assert (abs(found) > bound).mean() == pytest.approx(0.8, abs=0.01)
    freedom, shift = sum(sizes) - len(sizes), test.smallest / test.error
    power = stats.nct.sf(bound, freedom, shift) + stats.nct.cdf(-bound, freedom, shift)
    assert power == pytest.approx(0.8, abs=1e-6)


PAGE = (Path(__file__).resolve().parents[2] / "docs/statistics.md").read_text(encoding="utf-8")


def test_the_table_of_the_docs_is_what_the_test_says():
    (rows,) = re.findall(r"^\| seeds \|(.*)\n.*\n((?:\| \d.*\n)+)", PAGE, re.MULTILINE)
    systems = [int(count) for count in re.findall(r"\d+", rows[0])]
    for line in rows[1].splitlines():
        seeds, *values = map(float, line.strip("| ").split(" | "))
        scores = np.arange(seeds)
        found = [dunnett(scores, [scores] * count)[0] for count in systems]
        assert [round(test.smallest / test.deviation, 2) for test in found] == values


def test_what_unequal_deviations_do():
    """The table of docs/statistics.md: the share of tables with a star, and of stars of the first row, in percent."""
    rng, tables = np.random.default_rng(1), 20_000
    groups = [[*rng.normal(size=count)] for count in (8, *[4] * 15)]
    (test, *_) = dunnett(groups[0], groups[1:])
    bound = (test.interval[1] - test.interval[0]) / 2 / test.error

    def stars(of_baseline, of_one):
        baseline, rows = rng.normal(size=(tables, 8)) * of_baseline, rng.normal(size=(tables, 15, 4))
        rows[:, 0] *= of_one
        variance = (8 * baseline.var(1) + 4 * rows.var(2).sum(1)) / 52
        errors = np.sqrt(variance * (1 / 4 + 1 / 8))[:, None]
        found = np.abs(rows.mean(2) - baseline.mean(1)[:, None]) / errors > bound
        return 100 * found.any(1).mean(), 100 * found[:, 0].mean()

    lines = re.findall(r"^\| (?:equal|one row|the baseline)\b.*? \| (.*%) \| (.*%) \|$", PAGE, re.MULTILINE)
    shares = [share for line in lines for share in zip(*(re.findall(r"[\d.]+", cell) for cell in line), strict=True)]
    for deviations, shown in zip(((1, 1), (1, 2), (1, 3), (2, 1), (3, 1)), shares, strict=True):
        assert stars(*deviations) == pytest.approx([*map(float, shown)], abs=0.8)


def test_what_cannot_be_tested():
    (test,) = dunnett([1.1, 1.1, 1.1], [[1.3, 1.3]])
    assert (test.p, test.single_p, test.error, test.smallest) == (None, None, 0, 0)
    assert test.interval == pytest.approx((0.2, 0.2))
    (test,) = dunnett([0.1] * 3, [[0.3] * 3])  # whose means are rounded
    assert test.p is None
    assert dunnett([1.0], []) == []
    refused("two seeds of each system, or more, are needed; got 2, 3, 1", dunnett, [1.0, 2.0], [[1.0, 2.0, 3.0], [1.0]])


@pytest.mark.parametrize("damaged", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_no_star(damaged):
    for baseline, system in (([1.0, 2.0], [3.0, damaged]), ([1.0, damaged], [3.0, 4.0])):
        refused(f"scores are finite numbers; got {damaged}", dunnett, baseline, [system])


def test_holm_rejects_what_his_steps_reject():
    """Holm (1979): compare the smallest p with 5% / m, the next with 5% / (m - 1), and stop at the first larger one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1, 1] and holm([]) == [] and holm([0.02]) == [0.02]
    generator = np.random.default_rng(3)
    for _ in range(50):
        values = (generator.random(8) ** 4).tolist()
        rejected = set()
        for step, place in enumerate(sorted(range(8), key=values.__getitem__)):
            if values[place] > 0.05 / (8 - step):
                break
            rejected.add(place)
        assert {place for place, p in enumerate(holm(values)) if p <= 0.05} == rejected
