"""Roles of encoder heads: they attend to a neighbour or to the rarest word of the sentence (Voita et al., 2019)."""

import torch
from torch import Tensor

FREQUENT = 500  # a sentence whose rarest word is one of so many most frequent ones has no rare word
POSITIONAL = 0.9  # of the queries, in Voita et al. (2019)
MAJORITY = 0.5  # for the other roles; neither paper gives a number


def neighbour_hits(weights: Tensor, valid: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """How often the largest weight is on the neighbour at ``offset``.

        queries i with  argmax over j of weights[i, j] = i + offset,  of those where i and i + offset are real

    Source: Voita et al. (2019), where a head is positional if this holds for at least 90% of them.

    Args:
        weights: (B, H, T, T) attention weights.
        valid: (B, T) bool, True at real tokens.
        offset: -1 for the token before, 1 for the next.

    Returns:
        (H,) hits, and the number of queries.
    """
    neighbour = torch.arange(valid.size(1), device=valid.device) + offset
    inside = (neighbour >= 0) & (neighbour < len(neighbour))
    counted = valid & inside & valid[:, neighbour.clamp(0, len(neighbour) - 1)]  # (B, T)
    hits = (weights.argmax(-1) == neighbour) & counted.unsqueeze(1)
    return hits.sum((0, 2)), counted.sum()


def rare_hits(weights: Tensor, valid: Tensor, counts: Tensor, words: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """How often the largest weight is on the rarest word of the sentence.

        queries i with  counts[argmax over j of weights[i, j]] = min over words j of counts[j]

    Only sentences whose rarest word is rare count. Source: Voita et al. (2019), where this means that the word is not
    among the 500 most frequent ones.

    Args:
        weights: (B, H, T, T) attention weights.
        valid: (B, T) bool, True at real queries.
        counts: (B, T) how often each token is in the training data.
        words: (B, T) bool, True at the tokens that can be the rarest: real tokens except the end of the sentence.
        limit: a word with a lower count is rare.

    Returns:
        (H,) hits, and the number of queries in these sentences.
    """
    word_counts = counts.masked_fill(~words, torch.iinfo(counts.dtype).max)
    lowest = word_counts.amin(-1, keepdim=True)  # (B, 1)
    counted = valid & (lowest < limit)
    rarest = (word_counts == lowest).unsqueeze(1).expand(weights.shape[:3])  # (B, H, T)
    hits = rarest.gather(-1, weights.argmax(-1)) & counted.unsqueeze(1)
    return hits.sum((0, 2)), counted.sum()


def roles(figures: dict[str, Tensor]) -> list[list[str]]:
    """The roles of every head, joined by commas: positional, syntactic, rare words.

    Positional: for at least 90% of the queries the largest weight is on the previous token, or for as many on the next.
    Syntactic: in most sentences its attention to dependencies exceeds the gate. Rare words: for most queries the
    largest weight is on the sentence's rarest word. Source: Zhang et al. (2021), section 3.0.2. The figures, (layers,
    H) each, are those of ``inspect_heads``; ``rarest`` and ``redundant`` may be missing.
    """
    known = {"positional": torch.maximum(figures["previous"], figures["next"]) >= POSITIONAL}
    if "redundant" in figures:
        known["syntactic"] = figures["redundant"] < 1 - MAJORITY
    if "rarest" in figures:
        known["rare words"] = figures["rarest"] > MAJORITY
    layers, heads = map(range, figures["previous"].shape)
    return [[", ".join(name for name, has in known.items() if has[layer, head]) for head in heads] for layer in layers]
