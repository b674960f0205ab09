"""What an encoder head looks at: the word before or behind, or the rarest word of the sentence (Voita et al., 2019)."""

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
    at = torch.arange(valid.size(1), device=valid.device) + offset
    inside = (at >= 0) & (at < len(at))
    asked = valid & inside & valid[:, at.clamp(0, len(at) - 1)]  # (B, T)
    hits = (weights.argmax(-1) == at) & asked.unsqueeze(1)
    return hits.sum((0, 2)), asked.sum()


def rare_hits(weights: Tensor, valid: Tensor, counts: Tensor, words: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """How often the largest weight is on the rarest word of the sentence.

        queries i with  counts[argmax over j of weights[i, j]] = min over words j of counts[j]

    in sentences whose rarest word is rare. Source: Voita et al. (2019), where those whose rarest word is one of the
    500 most frequent do not count.

    Args:
        weights: (B, H, T, T) attention weights.
        valid: (B, T) bool, True at real queries.
        counts: (B, T) how often each token is in the training data.
        words: (B, T) bool, True at the tokens that can be the rarest: real ones but the end of the sentence.
        limit: a word with fewer than so many is rare.

    Returns:
        (H,) hits, and the number of queries in these sentences.
    """
    of_words = counts.masked_fill(~words, torch.iinfo(counts.dtype).max)
    least = of_words.amin(-1, keepdim=True)  # (B, 1)
    asked = valid & (least < limit)
    rarest = (of_words == least).unsqueeze(1).expand(weights.shape[:3])  # (B, H, T)
    hits = rarest.gather(-1, weights.argmax(-1)) & asked.unsqueeze(1)
    return hits.sum((0, 2)), asked.sum()


def roles(figures: dict[str, Tensor]) -> list[list[str]]:
    """The functions of every head by its shares, joined by commas: positional, syntactic, rare words.

    Source: Zhang et al. (2021), section 3.0.2. Positional: the largest weight is on one and the same neighbour for at
    least 90% of the queries. Syntactic: important by its attention to dependencies in most sentences. Rare words: the
    largest weight is on the rarest word for most queries.

    Args:
        figures: (layers, H) by name, ``rarest`` and ``redundant`` where they are known.
    """
    known = {"positional": torch.maximum(figures["previous"], figures["next"]) >= POSITIONAL}
    if "redundant" in figures:
        known["syntactic"] = figures["redundant"] < 1 - MAJORITY
    if "rarest" in figures:
        known["rare words"] = figures["rarest"] > MAJORITY
    layers, heads = figures["previous"].shape
    return [
        [", ".join(name for name, has in known.items() if has[layer, head]) for head in range(heads)]
        for layer in range(layers)
    ]
