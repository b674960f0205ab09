"""Batches of a resumed training, of sentences that fit, and of few lengths; n-grams blocked without CUDA code."""

import inspect
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_diverse.support.errors import UserError

POSITIONS = "--max-source-positions and --max-target-positions (--max-positions of a language model)"
SHARD: ContextVar[tuple[int, int] | None] = ContextVar("SHARD", default=None)  # --num-shards, --shard-id to generate


def batch_iterator(make: Any, self: Any, dataset: Any, *args: Any, **flags: Any) -> Any:
    """As ``FairseqTask.get_batch_iterator``; batches that are made once are those of the first epoch.

    fairseq-fixed makes them in a random order seeded by ``seed + epoch`` of the epoch in which the process started: a
    process that resumes in epoch 3 would have others, with some pairs twice and others not at all in that epoch.
    Uninterrupted training does not change, nor do batches that are made again for every epoch.

    fairseq-generate gets its part of ``--num-shards``.
    """
    flags = inspect.signature(make).bind(self, dataset, *args, **flags).arguments  # some tasks give all by place
    epoch = flags.get("epoch", 1)
    if shard := SHARD.get():
        flags |= dict(zip(("num_shards", "shard_id"), shard, strict=True))
    anew = flags.get("disable_iterator_cache") or flags.get("update_epoch_batch_itr")
    once = not (anew or getattr(self.cfg, "rebuild_batches", False)) and self.can_reuse_epoch_itr(dataset)
    again = not once or dataset in self.dataset_to_epoch_iter
    try:
        iterator = make(**flags | {"epoch": epoch if again else 1})
    except AssertionError as error:
        if not str(error).startswith("Sentences lengths should not exceed max_tokens"):
            raise
        splits = [split for split, of in self.datasets.items() if of is dataset]
        flag = f"--max-tokens{'-valid' * any(split.startswith('valid') for split in splits)}"
        raise UserError(f"{flag} {flags.get('max_tokens')}: less than the longest sentence has; raise it") from error
    if not again:
        dataset.set_epoch(epoch)
        iterator.epoch = max(epoch, 1)
    return iterator


def least_padding(lengths: Any, count: int) -> Any:
    """At most ``count`` lengths, the longest among them, for which rounding all lengths up adds least."""
    values, numbers = np.unique(lengths, return_counts=True)
    before = np.append(0, np.cumsum(numbers))  # the number of sentences shorter than each length
    padded = np.triu((before - before[:, None]) * np.append(0.0, values))  # [i, j]: of i to j, rounded to the last
    padded[np.tril_indices(len(padded), -1)] = np.inf
    least, paths = padded[0], []
    for _ in range(min(count, len(values)) - 1):
        total = least[:, None] + padded
        least, path = total.min(0), total.argmin(0)
        paths.append(path)
    ends = [len(values)]
    for path in reversed(paths):
        ends.append(path[ends[-1]])
    return values[np.unique([end for end in ends if end]) - 1]


def in_buckets(pairs: Any, indices: Any, count: int) -> Any:
    """Let batches of these sentences of a ``LanguagePairDataset`` have one of ``count`` lengths, on both sides.

    fairseq's code for it needs NumPy 1, pads more, also to lengths of sentences that are left out later, and gives the
    decoder a word too many.

    Returns:
        The indices, by length.
    """
    lengths = pairs.num_tokens_vec(np.arange(len(pairs)))
    ends = least_padding(lengths[indices], count)
    pairs.bucketed_num_tokens = ends[np.searchsorted(ends, lengths).clip(max=len(ends) - 1)]
    pairs.buckets = [(None, length) for length in ends]
    return indices[np.argsort(pairs.bucketed_num_tokens[indices], kind="stable")]


def collate(eager: Any, self: Any, samples: Any, pad_to_length: Any = None) -> Any:
    """As ``LanguagePairDataset.collater``; with buckets, both sides have the length of the batch's bucket."""
    if self.buckets and samples and pad_to_length is None:
        length = max(self.bucketed_num_tokens[sample["id"]] for sample in samples)
        pad_to_length = {"source": length, "target": length}
    return eager(self, samples, pad_to_length)


def short_enough(
    choose: Any, self: Any, indices: Any, dataset: Any, max_positions: Any = None, *args: Any, **flags: Any
) -> Any:
    """As ``FairseqTask.filter_indices_by_size``; ``UserError`` if no sentence is short enough. Those that are left are
    put into buckets (--num-batch-buckets)."""
    chosen = choose(self, indices, dataset, max_positions, *args, **flags)
    if not len(chosen):
        none = f"none of the {len(indices)} sentences is within the {max_positions} positions of model and task"
        raise UserError(f"{none}: raise {POSITIONS}, or --max-tokens")
    pairs = getattr(dataset, "dataset", dataset)  # trees may be around it
    return in_buckets(pairs, chosen, count) if (count := getattr(pairs, "num_buckets", 0)) > 0 else chosen


def learned_positions(forward: Any, self: Any, input: Any, incremental_state: Any = None, positions: Any = None) -> Any:
    """As ``LearnedPositionalEmbedding.forward``; ``UserError`` if a sentence is longer than the positions."""
    if input.size(1) > self.max_positions:
        if positions is not None:  # from 0, as BERT's
            longest = int(positions.max()) + 1
        else:
            step = incremental_state is not None  # its position is the width, padding included
            longest = input.size(1) if step else int(input.ne(self.padding_idx).sum(1).max())
        if longest > self.max_positions:
            most = f"a sentence has {longest} subwords, but the model has learned positions for {self.max_positions}"
            raise UserError(f"{most}: leave out longer sentences, or train with more {POSITIONS}")
    return forward(self, input, incremental_state, positions)


def translation_task(init: Any, self: Any, cfg: Any, *args: Any, **flags: Any) -> None:
    """As ``TranslationTask.__init__``, with 1 for the default -1 of ``--upsample-primary``."""
    if getattr(cfg, "upsample_primary", None) == -1:
        cfg.upsample_primary = 1
    init(self, cfg, *args, **flags)


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
