"""The tasks of T5: pre-training by spans that are left out, and fine-tuning from text to text."""

from typing import Any

from fairseq.data import AppendTokenDataset
from fairseq.tasks import register_task
from fairseq.tasks.span_masked_lm import SpanMaskedLMConfig, SpanMaskedLMTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_diverse.data.spans import Spans
from fairseq_diverse.preparation.subwords import SENTINELS
from fairseq_diverse.support.errors import UserError


@register_task("span_corruption", dataclass=SpanMaskedLMConfig)
class SpanCorruptionTask(SpanMaskedLMTask):
    """fairseq's ``span_masked_lm`` as T5 is pre-trained: no <s>, and </s> at the end of every source; see ``Spans``."""

    def load_dataset(self, split: str, *given: Any, **more: Any) -> None:
        """As in fairseq. Raises ``UserError``: the dictionary has no sentinels, or too few for so long texts."""
        cfg, last = self.cfg, self.dictionary[len(self.dictionary) - 1]
        if last != "<extra_id_0>":
            todo = "prepare the text with `bpe: {kind: t5}` or the subwords of a T5"
            raise UserError(f"{cfg.data}/dict.txt: the last word is {last}, not the sentinel <extra_id_0>; {todo}")
        if (spans := round(cfg.noise_density * cfg.tokens_per_sample / cfg.mean_noise_span_length)) > SENTINELS:
            found = f"has {spans} spans, but there are {SENTINELS} sentinels"
            raise UserError(f"--tokens-per-sample {cfg.tokens_per_sample}: {found}")
        super().load_dataset(split, *given, **more)
        made = self.datasets[split]
        shares, drawn = (made.noise_density, made.mean_noise_span_length), {"shuffle": made.shuffle, "seed": made.seed}
        self.datasets[split] = Spans(made.dataset, self.dictionary, *shares, **drawn)

    def _load_dataset_split(self, *given: Any) -> Any:
        blocks = super()._load_dataset_split(*given).dataset.dataset  # without <s> and </s>
        return AppendTokenDataset(blocks, self.dictionary.eos())


@register_task("text_to_text", dataclass=TranslationConfig)
class TextToTextTask(TranslationTask):
    """fairseq's ``translation`` from one text to another of the same language, as T5 is fine-tuned."""
