"""The tasks of T5: pre-training by spans that are left out, and fine-tuning from text to text."""

from typing import Any

import numpy as np
import torch
from fairseq.data import AppendTokenDataset
from fairseq.data.data_utils import numpy_seed
from fairseq.data.span_mask_tokens_dataset import SpanMaskedTokensDataset
from fairseq.tasks import register_task
from fairseq.tasks.span_masked_lm import SpanMaskedLMConfig, SpanMaskedLMTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_diverse.preparation.subwords import SENTINELS
from fairseq_diverse.support.errors import UserError


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


@register_task("span_corruption", dataclass=SpanMaskedLMConfig)
class SpanCorruptionTask(SpanMaskedLMTask):
    """fairseq's ``span_masked_lm`` as T5 is pre-trained: no <s>, and </s> at the end of every source; see ``Spans``."""

    def load_dataset(self, split: str, *args: Any, **more: Any) -> None:
        """As in fairseq. Raises ``UserError``: the dictionary has no sentinels, or too few for so long texts."""
        cfg, last = self.cfg, self.dictionary[len(self.dictionary) - 1]
        if last != "<extra_id_0>":
            todo = "prepare the text with `bpe: {kind: t5}` or the subwords of a T5"
            raise UserError(f"{cfg.data}/dict.txt: the last word is {last}, not the sentinel <extra_id_0>; {todo}")
        if not 0 < cfg.noise_density < 1:
            raise UserError(f"--noise-density {cfg.noise_density}: must be between 0 and 1")
        if not cfg.mean_noise_span_length >= 1:
            raise UserError(f"--mean-noise-span-length {cfg.mean_noise_span_length}: must be at least 1")
        self._check_spans(np.array([cfg.tokens_per_sample]))
        super().load_dataset(split, *args, **more)
        base = self.datasets[split]
        self._check_spans(np.unique(base.dataset.sizes) - 1)
        shares, drawn = (base.noise_density, base.mean_noise_span_length), {"shuffle": base.shuffle, "seed": base.seed}
        self.datasets[split] = Spans(base.dataset, self.dictionary, *shares, **drawn)

    def _check_spans(self, lengths: np.ndarray) -> None:
        """Whether the spans of texts of these numbers of words can be drawn and have a sentinel each."""
        lengths = lengths[lengths > 1]
        left_out = np.clip(np.round(lengths * self.cfg.noise_density), 1, lengths - 1)
        spans = np.maximum(np.round(left_out / self.cfg.mean_noise_span_length), 1)
        for room, what in (np.full_like(spans, SENTINELS), "sentinels"), (lengths - left_out, "words between them"):
            if (wrong := spans > room).any():
                first = wrong.argmax()
                why = f"a text of {lengths[first]} words has {spans[first]:.0f} spans, but {room[first]:.0f} {what}"
                raise UserError(f"--noise-density {self.cfg.noise_density}: {why}; lower it, or --tokens-per-sample")

    def _load_dataset_split(self, *args: Any) -> Any:
        blocks = super()._load_dataset_split(*args).dataset.dataset  # without <s> and </s>
        return AppendTokenDataset(blocks, self.dictionary.eos())


@register_task("text_to_text", dataclass=TranslationConfig)
class TextToTextTask(TranslationTask):
    """fairseq's ``translation`` from one text to another of the same language, as T5 is fine-tuned."""
