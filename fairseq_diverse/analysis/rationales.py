"""Rationales of a classifier's predictions, by LIME, and how faithful they are."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fairseq_diverse.host.data import to_device
from fairseq_diverse.metrics import rationales as measures
from fairseq_diverse.metrics.rationales import SHARES, as_scores, lime_samples, lime_weights, top_words
from fairseq_diverse.preparation.eraser import Annotation

Record = dict[str, Any]  # of a document, as ERASER's program reads it
Probabilities = Callable[[Sequence[Sequence[str]]], np.ndarray]  # of texts with the same query, (N, classes)


def probabilities(model: Any, task: Any, query: Sequence[str], max_tokens: int) -> Probabilities:
    """(N, classes) of documents, each a list of words, with one query."""

    def of(documents: Sequence[Sequence[str]]) -> np.ndarray:
        dataset = task.dataset_of([(query, words) for words in documents], [0] * len(documents))
        device = next(model.parameters()).device
        probs = np.empty((len(documents), task.classes))
        with torch.no_grad():
            for batch in dataset.batches(max_tokens):
                logits = model(**to_device(batch, device.type == "cuda")["net_input"])[0]
                probs[batch["id"].numpy()] = logits.double().softmax(-1).cpu().numpy()
        return probs

    return of


def explain(
    example: Annotation, fits: int, predict: Probabilities, labels: Sequence[str], share: float, draw: tuple[int, int]
) -> Record:
    """A prediction, its rationale, and the probabilities without it and of it alone.

    Words are scored by `lime_weights`, those behind the first ``fits`` ones, which the model does not read, with 0.
    The rationale has a ``share`` of the words; ``thresholded_scores`` are of rationales of `SHARES`. ``draw`` is the
    number of samples of LIME, and their seed."""
    words = example.words[:fits]
    kept, places = np.unique(lime_samples(len(words), *draw), axis=0, return_inverse=True)
    probs = predict([[*itertools.compress(words, row)] for row in kept])[places.reshape(-1)]
    whole = probs[0]
    predicted = int(whole.argmax())
    scores = np.zeros(len(example.words))
    scores[: len(words)] = as_scores(lime_weights(kept[places.reshape(-1)], probs[:, predicted]))
    chosen = np.array([top_words(scores, fraction) for fraction in (share, *SHARES)])
    inside, outside = (predict([[*itertools.compress(words, mask)] for mask in masks]) for masks in (chosen, ~chosen))

    def by_label(row: np.ndarray) -> dict[str, float]:
        return dict(zip(labels, row.tolist(), strict=True))

    def both(number: int) -> dict[str, dict[str, float]]:
        by_measure = {"comprehensiveness": outside[number], "sufficiency": inside[number]}
        return {f"{name}_classification_scores": by_label(row) for name, row in by_measure.items()}

    rationales, start = [], 0
    for docid, length in example.places:
        mask = chosen[0][start : start + length]
        ends = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]]))).reshape(-1, 2).tolist()
        hard = [{"start_token": first, "end_token": end} for first, end in ends]
        soft = scores[start : start + length].tolist()
        rationales.append({"docid": docid, "hard_rationale_predictions": hard, "soft_rationale_predictions": soft})
        start += length
    thresholded = [{"threshold": fraction, **both(number)} for number, fraction in enumerate(SHARES, start=1)]
    record = {"annotation_id": example.name, "rationales": rationales, "classification": labels[predicted]}
    return record | {"classification_scores": by_label(whole), **both(0), "thresholded_scores": thresholded}


def measured(records: Sequence[Record], examples: Sequence[Annotation]) -> dict[str, float]:
    documents = []
    for record, example in zip(records, examples, strict=True):
        marks, areas = iter(example.evidence), []
        for part, (_, length) in zip(record["rationales"], example.places, strict=True):
            areas.append(measures.auprc(part["soft_rationale_predictions"], [*itertools.islice(marks, length)]))
        document: dict[str, Any] = {"auprc": [area for area in areas if area is not None]}
        for name in ("comprehensiveness", "sufficiency"):
            label, key = record["classification"], f"{name}_classification_scores"
            parts = [record, *record["thresholded_scores"]]
            drops = [record["classification_scores"][label] - part[key][label] for part in parts]
            document |= {name: drops[0], f"{name}_by_share": drops[1:]}
        documents.append(document)
    predictions, labels = [record["classification"] for record in records], [example.label for example in examples]
    return measures.rationale_scores(documents, predictions, labels)
