"""YiSi-0 and YiSi-1 (Lo, 2019), without semantic roles.

For a hypothesis h and a reference r of units (words, or subwords of a model), with s(e, f) their similarity and n-grams
of n = 3 units, or as many as the shorter sentence has:

    w(e)     = log2(1 + (U + 1) / (U_e + 1))                    U references, U_e of them with e
    g(i, j)  = sum_k w(r_{i+k}) s(r_{i+k}, h_{j+k})
    recall   = sum_i max(0, max_j g(i, j)) / sum_i sum_k w(r_{i+k})
    YiSi     = P R / (a P + (1 - a) R),  a = 0.8

precision P is recall with the sides exchanged, the weights still those of the references; a unit that no reference has
weighs as much as its lower-case form. A test set's score is the mean of its sentences', from 0 to 1. YiSi-0 has for s
the longest common substring, 2 LCS / (|e| + |f|) in characters; YiSi-1 the cosine of contextual embeddings.

n, a and the weights are those of the authors' C++ program (https://github.com/chikiulo/yisi); docs/metrics.md says
which of the scores that it publishes are those of this one. It counts bytes where this counts characters. Which layer
and n the paper took for contextual embeddings is not known here."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_diverse.metrics.scores import Lines, Result
from fairseq_diverse.metrics.words import mean_of
from fairseq_diverse.support.installed import install, needed

ORDER = 3
ALPHA = 0.8
BATCH = 32
MODEL = "FAIRSEQ_DIVERSE_YISI_MODEL"  # variable with the folder of YiSi-1's model, where none is given
NOTE = "contextual embeddings not compared with the C++ program"


def yisi_0(hypotheses: Lines, references: Lines) -> Result:
    """YiSi-0 of tokenized lines, times 100: similar words have a long substring in common."""
    weights = UnitWeights([line.split() for line in references])
    scores = []
    pairs = zip(hypotheses, references, strict=True)
    for hypothesis, reference in tqdm(pairs, "YiSi-0", len(references), unit=" sentences", disable=None, leave=False):
        h, r = hypothesis.split(), reference.split()
        similarity = np.array([[common_substring(e, f) for f in h] for e in r]).reshape(len(r), len(h))
        scores.append(100 * sentence_score(similarity, weights(r), weights(h)))
    return mean_of(scores, f"n:{ORDER}|alpha:{ALPHA}")


def use_model(folder: Path) -> None:
    """Let this process and those that it starts score YiSi-1 with a model. Raises ``ValueError``: it is not a folder of
    a model."""
    try:
        _check(folder)
    except ValueError as error:
        raise ValueError(f"--yisi-model {error}") from None
    os.environ[MODEL] = str(folder.resolve())


def yisi_1(hypotheses: Lines, references: Lines, model: Path | None, layer: int = -1) -> Result:
    """YiSi-1 of raw lines, times 100, with the embeddings of a model for transformers; longer sentences are cut.

    Args:
        model: folder with the model and its tokenizer; nothing is downloaded. None for the one of ``MODEL``.
        layer: whose output is taken; 0 is the embeddings before the first layer, -1 the last layer's. Another one, no
            model or no transformers is a ``ValueError``.
    """
    import torch

    if model is None and not os.environ.get(MODEL):
        raise ValueError(f"needs an embedding model for transformers; give --yisi-model DIR, or set {MODEL}")
    model = model or Path(os.environ[MODEL])
    network, tokenizer = _load(model)
    layers = network.config.num_hidden_layers
    if not -layers - 1 <= layer <= layers:
        raise ValueError(f"{model} has layers 0 to {layers}, not {layer}")
    network.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    weights = UnitWeights([tokenizer.tokenize(line) for line in references])
    both = (_embed(lines, network, tokenizer, layer) for lines in (references, hypotheses))
    pairs = tqdm(zip(*both, strict=True), "YiSi-1", len(references), unit=" sentences", disable=None, leave=False)
    scores = [100 * sentence_score(a @ b.T, weights(r), weights(h)) for (r, a), (h, b) in pairs]
    return mean_of(scores, f"n:{ORDER}|alpha:{ALPHA}|model:{model.name}|layer:{layer}|{NOTE}")


class UnitWeights:
    """w(e) of the module's formula, from the units of the references."""

    def __init__(self, references: Sequence[Sequence[str]]):
        self.sentences = len(references)
        self.counts = Counter(unit for units in references for unit in set(units))

    def __call__(self, units: Sequence[str]) -> np.ndarray:
        counts = np.array([self.counts.get(unit, self.counts[unit.lower()]) for unit in units], dtype=np.float64)
        return np.log2(1 + (self.sentences + 1) / (counts + 1))


@lru_cache(maxsize=1 << 20)
def common_substring(a: str, b: str) -> float:
    """2 LCS / (|a| + |b|), LCS the length of the longest common substring; from 0 to 1."""
    longest = 0
    for start in range(len(a)):
        while start + longest < len(a) and a[start : start + longest + 1] in b:
            longest += 1
    return 2 * longest / (len(a) + len(b))


def sentence_score(similarity: np.ndarray, reference: np.ndarray, hypothesis: np.ndarray) -> float:
    """YiSi of one sentence, from 0 to 1; 0 where a side is empty: of the (R, H) similarity of units of the reference
    and the hypothesis, at most 1, and their (R,) and (H,) weights."""
    n = min(ORDER, *similarity.shape)
    if n == 0:
        return 0.0
    recall = _covered(similarity, reference, n)
    precision = _covered(similarity.T, hypothesis, n)
    if min(precision, recall) == 0:
        return 0.0
    return precision * recall / (ALPHA * precision + (1 - ALPHA) * recall)


def _covered(similarity: np.ndarray, weights: np.ndarray, n: int) -> float:
    """The weighted share of the rows' n-grams that the columns' hold."""
    rows, columns = (size - n + 1 for size in similarity.shape)
    weighted = similarity * weights[:, None]
    gain = sum(weighted[k : k + rows, k : k + columns] for k in range(n))
    whole = sum(weights[k : k + rows] for k in range(n))
    return float(np.max(gain, axis=1).clip(min=0).sum() / np.sum(whole))


def _load(model: Path) -> tuple[Any, Any]:
    transformers = needed("transformers", f"transformers is not installed; run: {install('metrics')}")
    _check(model)
    try:
        network = transformers.AutoModel.from_pretrained(model, local_files_only=True)
        return network, transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # whatever a damaged or unknown model raises
        raise ValueError(f"{model}: transformers cannot load it: {str(error).splitlines()[0]}") from None


def _check(model: Path) -> None:
    if not (model / "config.json").is_file():
        raise ValueError(f"{model}: not a folder of a model for transformers (no config.json)")


def _embed(lines: Sequence[str], network: Any, tokenizer: Any, layer: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Units of each line, without special ones, and their (units, C) embeddings of length 1."""
    import torch

    limits = (tokenizer.model_max_length, getattr(network.config, "max_position_embeddings", math.inf) - 2)
    cut = {"truncation": True, "max_length": int(min(*limits, 1 << 20)), "padding": True}
    for start in range(0, len(lines), BATCH):
        texts = list(lines[start : start + BATCH])
        batch = tokenizer(texts, **cut, return_special_tokens_mask=True, return_tensors="pt")
        special = batch.pop("special_tokens_mask").bool() | ~batch["attention_mask"].bool()
        with torch.no_grad():
            outputs = network(**batch.to(network.device), output_hidden_states=True).hidden_states[layer]
        vectors = torch.nn.functional.normalize(outputs.double(), dim=-1).cpu().numpy()
        for ids, skip, rows in zip(batch["input_ids"], special.numpy(), vectors, strict=True):
            yield tokenizer.convert_ids_to_tokens(ids[~skip].tolist()), rows[~skip]
