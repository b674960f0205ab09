"""Rationales: LIME (Ribeiro et al., 2016), and measures of ERASER (DeYoung et al., 2020). W: words of a document."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of a document's words, of which AOPC is the mean
KERNEL_WIDTH = 25.0
RIDGE = 1.0


def lime_samples(words: int, samples: int, seed: int) -> np.ndarray:
    """(samples, W) of 1 for words that are kept, 0 for those that are removed; the first row keeps all.

    Each further row removes k random words, k uniform from 1 to W, as `lime` for texts does.
    """
    draws = np.random.default_rng(seed)
    kept = np.ones((samples, words))
    for row, count in zip(kept[1:], draws.integers(1, words + 1, samples - 1), strict=True):
        row[draws.choice(words, count, replace=False)] = 0
    return kept


def lime_weights(kept: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """What each word adds to a probability, (W,), by a linear model around the whole text.

        min over w, b of  sum_n s_n (p_n - w . z_n - b)^2 + |w|^2,    s_n = sqrt(exp(-d_n^2 / 25^2))

    d_n is 100 times the cosine distance of z_n to the whole text. Source: Ribeiro et al. (2016), Eq. 1 and section
    3.4, with the constants of their package `lime`.

    Args:
        kept: (N, W) z, of which the first row is the whole text.
        probabilities: (N,) p of the class that is predicted for the whole text.
    """
    from sklearn.linear_model import Ridge

    distances = 100 * (1 - np.sqrt(kept.mean(1)))  # the cosine of n ones of W to W ones is sqrt(n / W)
    model = Ridge(alpha=RIDGE).fit(kept, probabilities, np.sqrt(np.exp(-((distances / KERNEL_WIDTH) ** 2))))
    return np.asarray(model.coef_)


def as_scores(weights: np.ndarray) -> np.ndarray:
    """(W,) weights without the negative ones, divided by their sum; zeros where none is positive."""
    positive = np.clip(weights, 0, None)
    return positive / (positive.sum() or 1.0)


def top_words(scores: np.ndarray, share: float) -> np.ndarray:
    """(W,) True at the words with the highest scores: of them a share, at least one; of equal ones the first."""
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]] = True
    return chosen


def auprc(scores: Sequence[float], evidence: Sequence[int]) -> float | None:
    """Area under the precision-recall curve of scores against evidence, 0 to 1, by trapezoids between all thresholds,
    as ERASER's program does; None for a document without evidence."""
    from sklearn.metrics import auc, precision_recall_curve

    if not any(evidence):
        return None
    precision, recall, _ = precision_recall_curve(evidence, scores)
    return float(auc(recall, precision))


def mean_share(evidence: Sequence[Sequence[int]]) -> float:
    """The mean share of evidence in documents that have some; their rationales are so long. Raises ``ValueError``: no
    document has evidence."""
    shares = [sum(marks) / len(marks) for marks in evidence if any(marks)]
    if not shares:
        raise ValueError("no example of train.jsonl has evidence, which decides how long rationales are")
    return sum(shares) / len(shares)


def rationale_scores(
    documents: Sequence[Mapping[str, Any]], predictions: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """The measures of a test set, 0 to 1 but the differences of probabilities, which are -1 to 1.

        comprehensiveness = p(text) - p(text without its rationale),  sufficiency = p(text) - p(rationale alone)

    with p of the class that is predicted for the text; both as means over texts. The `aopc` ones are the means over
    rationales of 1, 5, 10, 20 and 50% of the words. Source: DeYoung et al. (2020), section 4; Wang et al. (2021), Table
    8. ``auprc`` is a mean over documents with evidence, of which a text may have several.

    ``documents`` have of each text ``auprc`` of its documents, ``comprehensiveness``, ``sufficiency``, and lists of
    both for `SHARES`."""
    from sklearn.metrics import accuracy_score, f1_score

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    areas = [area for document in documents for area in document["auprc"]]
    scores = {
        "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0.0)),
        "accuracy": float(accuracy_score(labels, predictions)),
        "auprc": mean(areas) if areas else 0.0,
    }
    for name in ("comprehensiveness", "sufficiency"):
        scores[name] = mean([document[name] for document in documents])
        scores[f"{name}_aopc"] = mean([mean(document[f"{name}_by_share"]) for document in documents])
    return scores
