"""T5's objective: spans of a text become sentinels, and are to be written."""

from typing import Any

import numpy as np
import torch
from fairseq.data.data_utils import numpy_seed
from fairseq.data.span_mask_tokens_dataset import SpanMaskedTokensDataset
from torch import Tensor


class Spans(SpanMaskedTokensDataset):
    """fairseq's dataset of spans, with </s> behind both texts and the number of sentences of a batch.

    Of n words round(0.15 n) are left out, in round(0.15 n / 3) spans of random lengths. The source has the other words,
    with sentinel i in place of span i; the target has sentinel i and the words of span i, in order. Source: Raffel et
    al. (2020), section 3.1.4, and the authors' code. fairseq's own dataset always leaves out the last words with </s>,
    so that no source has it, and takes the length of the first source for the number of sentences. Every item ends with
    </s>, and the dictionary with the sentinels, the first one last."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        words, end = item[:-1].numpy(), item[-1:]
        with numpy_seed(self.seed, self.epoch, index):
            left_out = self.random_spans_noise_mask(len(words)) if len(words) > 1 else np.zeros(len(words), bool)
        return {"id": index, "source": self._text(words, left_out, end), "target": self._text(words, ~left_out, end)}

    def _text(self, words: np.ndarray, left_out: np.ndarray, end: Tensor) -> Tensor:
        sentinels = self.create_sentinel_ids(left_out.astype(np.int8))
        return torch.cat([torch.from_numpy(self.filter_input_ids(words, sentinels)), end])

    def collater(self, samples: list[Any], pad_to_length: Any = None) -> dict[str, Any]:
        batch = super().collater(samples, pad_to_length)
        return batch | {"nsentences": len(samples)} if batch else batch
