"""Searches that would not do what their flags say."""

from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.support.errors import UserError


def block_repeated(_: Any, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
    """Block the words that would repeat an n-gram; if these are all words, block none.

    Args:
        tokens: (B * beam, longest) written so far, ``step`` words after the first symbol; later ones are empty.
        lprobs: (B * beam, words).

    Returns:
        ``lprobs`` with -inf at blocked words.
    """
    size = self.no_repeat_ngram_size
    if step < size:
        return lprobs
    written = tokens[:, 1 : step + 1]
    ngrams = written.unfold(1, size, 1)
    begun = (ngrams[:, :, :-1] == written[:, None, step + 1 - size :]).all(2)
    repeated = torch.zeros_like(lprobs).scatter_add(1, ngrams[:, :, -1], begun.to(lprobs)) > 0
    blocked = lprobs.masked_fill(repeated, float("-inf"))
    return blocked.where(blocked.isfinite().any(1, keepdim=True), lprobs)


def sequence_generator(
    init: Any, self: Any, models: Any, tgt_dict: Any, *args: Any, lm_model: Any = None, **flags: Any
) -> None:
    """As ``SequenceGenerator.__init__``.

    Raises:
        UserError: the language model numbers words otherwise than the targets.
    """
    words = getattr(getattr(lm_model, "decoder", None), "dictionary", tgt_dict)
    if words.symbols != tgt_dict.symbols:
        raise UserError(
            "--lm-path: dict.txt in the data folder has other words than the target dictionary, or in another order; "
            "the language model must be trained with the target dictionary (fairseq-preprocess --srcdict)"
        )
    init(self, models, tgt_dict, *args, lm_model=lm_model, **flags)
