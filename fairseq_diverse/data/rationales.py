"""Examples whose words' places among the subwords are known."""

from collections.abc import Sequence
from typing import Any

from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from fairseq_diverse.data.classification import ClassificationDataset


class WordsDataset(ClassificationDataset):
    """One sequence of subwords an example; ``starts`` are the places of the first subword of each word.

    Args:
        texts: subwords and ``starts`` of each example; the others as of ``ClassificationDataset``.
    """

    def __init__(self, texts: Sequence[tuple[Tensor, Tensor]], labels: Sequence[int], pad: int, shuffle: bool) -> None:
        super().__init__([[tokens] for tokens, _ in texts], labels, pad, shuffle)
        self.starts = [starts for _, starts in texts]

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """As ``ClassificationDataset``, with ``starts`` (B, W), -1 behind the last word."""
        batch = super().collater(samples)
        if batch:
            batch["net_input"]["starts"] = collate_tokens([self.starts[sample["id"]] for sample in samples], -1)
        return batch

    def batches(self, max_tokens: int) -> list[dict[str, Any]]:
        """All examples, those of similar length together; each batch has at most so many subwords, padding included, or
        one example."""
        groups: list[list[int]] = [[]]
        for number in self.lengths[:, 0].argsort(kind="stable").tolist():
            if groups[-1] and (len(groups[-1]) + 1) * int(self.lengths[number, 0]) > max_tokens:
                groups.append([])
            groups[-1].append(number)
        return [self.collater([self[number] for number in group]) for group in groups if group]
