"""Scores over seeds: means, and differences to a baseline, tested together with those of other systems."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, TypeVar

import numpy as np

from fairseq_diverse.metrics.dunnett import SeedTest, dunnett, holm
from fairseq_diverse.metrics.significance import seed_difference

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the standard deviation over them, None for one seed."""

    mean: float
    deviation: float | None

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def text(self, digits: int = 2) -> str:
        """``27.30 ± 0.15``."""
        return f"{self.mean:z.{digits}f}" + (f" ± {self.deviation:.{digits}f}" if self.deviation is not None else "")

    def entries(self, key: str) -> dict[str, Any]:
        return {key: self.mean, f"{key}_deviation": self.deviation}


@dataclass(frozen=True)
class Difference:
    """A system's mean over seeds minus its baseline's (`over_seeds`).

    Attributes:
        test: `dunnett` with the other systems of the baseline, ``systems`` in all; None where a side has one seed.
        ratio: the system's standard deviation divided by that of all others together, the baseline among them;
            ``baseline_ratio``: the baseline's divided by that of all systems. Each is None where the latter is 0.
        welch_p: of Welch's t-test of the two alone, whose variances may differ; None where nothing varies.
        untested: why nothing is tested; empty where it is.
        holm_p: ``test.single_p`` after Holm's correction over ``holm_of`` tests (`with_holm`).
    """

    delta: float
    test: SeedTest | None = None
    systems: int = 0
    ratio: float | None = None
    baseline_ratio: float | None = None
    welch_p: float | None = None
    untested: str = ""
    holm_p: float | None = None
    holm_of: int = 0

    @property
    def p(self) -> float | None:
        return self.test.p if self.test else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.test.interval if self.test and self.test.p is not None else None

    def text(self, digits: int, corrected: bool = False) -> str:
        """The difference, its standard error and p over seeds, by Holm's correction or without, with stars; or why
        there is no p."""
        shown = f"{self.delta:+.{digits}f}"
        p = self.holm_p if corrected else self.p
        if self.test is None or p is None:
            return f"{shown} ({self.untested})"
        return f"{shown} ± {self.test.error:.{digits}f}{stars(p)} ({p_text(p)})"

    def interval_text(self, digits: int) -> str:
        """``-0.10 to +0.20``; empty where nothing could be tested."""
        return " to ".join(f"{end:+.{digits}f}" for end in self.interval or ())

    def entries(self, prefix: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {"delta": self.delta}
        if test := self.test:
            values |= {"seed_error": test.error, "seed_p": test.p, "seed_single_p": test.single_p}
            values |= {"seed_deviation": test.deviation, "smallest": test.smallest, "seed_rows": self.systems}
            values |= {"seed_ratio": self.ratio, "seed_baseline_ratio": self.baseline_ratio}
            values["seed_welch_p"] = self.welch_p
        values |= {"untested": self.untested} if self.untested else {}
        values |= {"seed_interval": list(self.interval)} if self.interval else {}
        values |= {"holm_p": self.holm_p, "holm_of": self.holm_of} if self.holm_of else {}
        return {f"{prefix}{key}": value for key, value in values.items()}


def compared(baseline: Collection[int], system: Collection[int]) -> tuple[list[int], list[int]]:
    """The seeds of a baseline and a system whose difference is shown: all of them, as seeds are not paired. Where one
    side has one seed, so that nothing can be tested over seeds, the seed that both have, if there is one: a seed
    decides on initial values and the order of batches, which change a score as much as a mechanism.
    """
    shared = [seed for seed in baseline if seed in system]
    return (shared, shared) if min(len(baseline), len(system)) <= 1 and shared else (list(baseline), list(system))


def over_seeds(scores: Mapping[str, Mapping[int, float]], baselines: Mapping[str, str]) -> dict[str, Difference]:
    """What the seeds say of every system against its baseline, where both have scores and are not the same.

    The difference is that of the mean ``scores`` (by system, by seed) of the seeds that are `compared`. Systems with
    several seeds are tested together with the others of the same baseline."""
    values = {name: list(by_seed.values()) for name, by_seed in scores.items()}
    differences: dict[str, Difference] = {}
    for baseline in dict.fromkeys(control for control in baselines.values() if scores.get(control)):
        group = [name for name, control in baselines.items() if control == baseline != name and scores.get(name)]
        several = [name for name in group if min(len(values[baseline]), len(values[name])) > 1]
        tests = dict(zip(several, dunnett(values[baseline], [values[name] for name in several]), strict=True))
        for name in group:
            before, after = compared(scores[baseline], scores[name])
            means = [np.mean([scores[x][seed] for seed in seeds]) for x, seeds in ((name, after), (baseline, before))]
            delta = float(means[0] - means[1])
            if (test := tests.get(name)) is None:
                why = "one seed" if len(values[name]) == 1 else "baseline: one seed"
                differences[name] = Difference(delta, untested=why)
                continue
            ratio = _ratio([values[x] for x in (baseline, *several) if x != name], values[name])
            baseline_ratio = _ratio([values[x] for x in several], values[baseline])
            welch_p = seed_difference(values[baseline], values[name])[1]
            why = "no spread over seeds" if test.p is None else ""
            differences[name] = Difference(delta, test, len(several), ratio, baseline_ratio, welch_p, why)
    return differences


def with_holm(differences: Mapping[Key, Difference]) -> dict[Key, Difference]:
    """The differences, those that could be tested with their p after Holm's correction over all of them."""
    p_values = {key: d.test.single_p for key, d in differences.items() if d.test and d.test.single_p is not None}
    adjusted = zip(p_values, holm(list(p_values.values())), strict=True)
    return {**differences, **{key: replace(differences[key], holm_p=p, holm_of=len(p_values)) for key, p in adjusted}}


def _ratio(others: Sequence[Sequence[float]], scores: Sequence[float]) -> float | None:
    """The standard deviation over seeds of a system, divided by that of all others together (pooled)."""
    squares = fsum(np.var(values) * len(values) for values in others)
    pooled = (squares / sum(len(values) - 1 for values in others)) ** 0.5
    return float(np.std(scores, ddof=1)) / pooled if pooled else None


def p_text(value: float) -> str:
    """``p = 0.012`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def p_number(value: float | None) -> str:
    """A p-value in a column of its own; empty where there is none."""
    return "" if value is None else p_text(value).removeprefix("p ").removeprefix("= ")


def stars(p: float | None) -> str:
    """Of a p-value; none where nothing was tested."""
    return "" if p is None else "**" if p < 0.01 else "*" if p < 0.05 else ""


def corrected_p_values(differences: Sequence[Difference]) -> str:
    """Over how many p-values Holm's correction of these differences goes, and whether all of them are shown."""
    count = differences[0].holm_of if differences else 0
    shown = len(differences)
    return f"these {count} p-values" if count == shown else f"{count} p-values, {shown} of them shown"
