"""Sentence pairs with the trees of their source."""

from collections.abc import Sequence
from typing import Any

from fairseq.data import BaseWrapperDataset

from fairseq_diverse.attention.relations import place_trees


class PairsWithTrees(BaseWrapperDataset):
    """Adds ``source_trees`` (B, T, 5) to the batches of a ``LanguagePairDataset``, aligned by sentence id.

    Args:
        pairs: the sentence pairs.
        trees: with the same indices.
    """

    def __init__(self, pairs: Any, trees: Any) -> None:
        super().__init__(pairs)
        self.trees = trees

    def collater(self, samples: Sequence[Any], **options: Any) -> dict[str, Any]:
        batch = self.dataset.collater(samples, **options)
        if batch:
            batch["net_input"]["source_trees"] = place_trees(batch, self.trees, self.dataset.src_dict.pad())
        return batch
