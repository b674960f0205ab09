"""The metrics of GLUE (Wang et al., 2018), times 100."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

HEADINGS = {"matthews": "Matthews", "accuracy": "accuracy", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}


def glue_scores(names: Sequence[str], predictions: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
    """Scores of predictions, by name of the metric.

        matthews             correlation of classes (Matthews, 1975; of more than two, Gorodkin, 2004), -100 to 100
        accuracy             share of equal ones, 0 to 100
        f1                   harmonic mean of precision and recall of class 1, 0 to 100
        pearson, spearman    correlation of values, or of their ranks, -100 to 100

    By scikit-learn and scipy, of the numbers of classes, or of values. A correlation with predictions that are all
    equal is not defined; it is 0 here. Raises ``ValueError``: no examples, unequal numbers of them, or predictions that
    are not finite."""
    from scipy import stats
    from sklearn import metrics

    if not len(predictions) == len(targets) > 0:
        raise ValueError(f"{len(predictions)} predictions and {len(targets)} targets; equal numbers are needed")
    if not np.isfinite(predictions).all():
        raise ValueError("a prediction is not a finite number; training has diverged")
    constant = min(np.ptp(predictions), np.ptp(targets)) == 0
    formulas = {
        "matthews": lambda: metrics.matthews_corrcoef(targets, predictions),
        "accuracy": lambda: metrics.accuracy_score(targets, predictions),
        "f1": lambda: metrics.f1_score(targets, predictions, pos_label=1, zero_division=0.0),
        "pearson": lambda: 0.0 if constant else stats.pearsonr(predictions, targets).statistic,
        "spearman": lambda: 0.0 if constant else stats.spearmanr(predictions, targets).statistic,
    }
    return {name: 100 * float(formulas[name]()) for name in names}


def dev_scores(
    names: Sequence[str], predictions: Sequence[float], targets: Sequence[float], classes: bool
) -> dict[str, Any]:
    """``examples``, ``metrics``, and of ``classes`` ``majority``: of always predicting the most frequent label. Raises
    ``ValueError``: as `glue_scores`."""
    scores: dict[str, Any] = {"examples": len(targets), "metrics": glue_scores(names, predictions, targets)}
    if classes:
        ((label, _),) = Counter(targets).most_common(1)
        scores["majority"] = glue_scores(names, [label] * len(targets), targets)
    return scores
