"""Blocking repeated n-grams, without fairseq's CUDA extension."""

from typing import Any

import torch
from torch import Tensor


def block_repeated(_: Any, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
    """Block the words that would repeat an n-gram; if these are all words, block none. Returns ``lprobs`` with -inf at
    blocked words.

    Args:
        tokens: (B * beam, longest) written so far, ``step`` words after the first symbol; later ones are empty.
        lprobs: (B * beam, words)."""
    size = self.no_repeat_ngram_size
    if step < size:
        return lprobs
    written = tokens[:, 1 : step + 1]
    ngrams = written.unfold(1, size, 1)
    begun = (ngrams[:, :, :-1] == written[:, None, step + 1 - size :]).all(2)
    repeated = torch.zeros_like(lprobs).scatter_add(1, ngrams[:, :, -1], begun.to(lprobs)) > 0
    blocked = lprobs.masked_fill(repeated, float("-inf"))
    return blocked.where(blocked.isfinite().any(1, keepdim=True), lprobs)
