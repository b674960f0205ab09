"""Probing: which properties of a sentence can be read from its encoding (Conneau et al., 2018)."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import MISSING

from fairseq_diverse.data.probing import TASKS, read_probing
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.models.loading import load_model
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.tasks.classification import ClassificationTask


@dataclass
class SentenceProbingConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "folder with SentEval's probing files, <task>.txt"})
    probe: ChoiceEnum(TASKS) = field(default=TASKS[0], metadata={"help": "one of the ten probing tasks"})  # type: ignore[valid-type]
    from_checkpoint: str = field(
        default="", metadata={"help": "translation model whose encoder is probed, without training it further"}
    )
    checkpoint_data: str = field(default="", metadata={"help": "prepared data that --from-checkpoint was trained on"})


@register_task("sentence_probing", dataclass=SentenceProbingConfig)
class SentenceProbing(ClassificationTask):
    """Sentences and one of their properties; splits train, valid and test.

    The dictionary has the words of the training sentences. With ``--from-checkpoint``, the sentences (tokenized as in
    the Penn Treebank) are detokenized, then tokenized and segmented like the data of that model.

    Source: Li et al. (2021), section 4.2. Raises ``UserError``: the file of the task is missing or wrong, or only one
    of the two flags for a checkpoint is given.
    """

    sequences = 1  # of an example

    def __init__(self, cfg: SentenceProbingConfig) -> None:
        super().__init__(cfg)
        if bool(cfg.from_checkpoint) != bool(cfg.checkpoint_data):
            raise UserError("--from-checkpoint and --checkpoint-data: give both, or neither")
        self.examples = read_probing(Path(cfg.data), str(cfg.probe))
        self.labels = sorted({example.label for example in self.examples["train"]})
        self.classes, self.tests = len(self.labels), {str(cfg.probe): "test"}
        self.preprocessing = None
        if cfg.checkpoint_data:
            try:
                self.preprocessing = Preprocessing.load(cfg.checkpoint_data)
            except ValueError as error:
                raise UserError(f"--checkpoint-data: {error}") from None
            self.dictionary = Dictionary.load(f"{cfg.checkpoint_data}/dict.{self.preprocessing.source}.txt")
        else:
            counts = Counter(word for example in self.examples["train"] for word in example.words)
            self.dictionary = Dictionary()
            for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                self.dictionary.add_symbol(word, n=count)

    def pretrained(self) -> DiverseTransformerModel | None:
        """The model of ``--from-checkpoint``."""
        if not self.cfg.from_checkpoint:
            return None
        return load_model(self.cfg.from_checkpoint, self.cfg.checkpoint_data)[0]

    def build_criterion(self, cfg: Any) -> Any:
        """As in fairseq. Raises ``UserError``: the criterion is not for classification, or regularizes an encoder that
        is not trained."""
        if self.cfg.from_checkpoint and cfg._name == "classification_with_disagreement":
            raise UserError("--from-checkpoint: the encoder is not trained; use --criterion classification")
        return super().build_criterion(cfg)

    def load_dataset(self, split: str, **unused: Any) -> None:
        if split not in self.examples:
            raise UserError(f"{split}: sentence_probing has the splits {', '.join(self.examples)}")
        lines = [" ".join(example.words) for example in self.examples[split]]
        if self.preprocessing is not None:
            raw = [self.preprocessing.tokens["source"].detokenize(line.replace(" n't", "n't")) for line in lines]
            lines = [self.preprocessing.encode(line) for line in raw]
        inputs = [[self.dictionary.encode_line(line, add_if_not_exist=False).long()] for line in lines]
        self.add_dataset(split, inputs, [example.label for example in self.examples[split]], self.labels)
