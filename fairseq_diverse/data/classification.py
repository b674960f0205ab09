"""Examples for classification: one or several token sequences, or words whose places are known, and a class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils
from torch import Tensor


class ClassificationDataset(FairseqDataset):
    """Examples of K token sequences and a class; a batch has examples with first (second, ...) sequences of similar
    length. ``shuffle``: of equal lengths, once: fairseq keeps the batches and only shuffles their order."""

    def __init__(self, inputs: Sequence[Sequence[Tensor]], labels: Sequence[int], pad: int, shuffle: bool) -> None:
        super().__init__()
        self.inputs, self.labels, self.pad, self.shuffle = inputs, labels, pad, shuffle
        lengths = [[*map(len, example)] for example in inputs]
        self.lengths = np.array(lengths, dtype=int).reshape(len(inputs), len(lengths[0]) if lengths else 1)  # (N, K)
        self.sizes = self.lengths.max(1, initial=0)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "inputs": self.inputs[index], "label": self.labels[index]}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of B examples: ``src_tokens`` (K B, T) has all first sequences, then all second ones, and so on."""
        if not samples:
            return {}
        sequences = [sequence for kth in zip(*(s["inputs"] for s in samples), strict=True) for sequence in kth]
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        sizes = {"nsentences": len(samples), "ntokens": int(lengths.sum())}
        net_input = {"src_tokens": data_utils.collate_tokens(sequences, self.pad), "src_lengths": lengths}
        ids, labels = (torch.tensor([s[name] for s in samples]) for name in ("id", "label"))
        return {"id": ids, **sizes, "net_input": net_input, "target": labels}

    def num_tokens(self, index: int) -> int:
        return int(self.lengths[index].sum())

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """By the length of the first sequence, then of the second, and so on."""
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        return order[np.lexsort(self.lengths[order].T[::-1])]


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
            starts = [self.starts[sample["id"]] for sample in samples]
            batch["net_input"]["starts"] = data_utils.collate_tokens(starts, -1)
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
