"""What the tasks that classify sentences share."""

from collections.abc import Sequence
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_diverse.data.classification import ClassificationDataset
from fairseq_diverse.models.diverse_transformer import DiverseEncoder


class ClassificationTask(FairseqTask):
    """Examples of ``sequences`` token sequences each, over ``dictionary``, in one of ``classes`` classes."""

    sequences: int
    classes: int
    dictionary: Dictionary

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> None:
        return None

    def max_positions(self) -> None:
        return None

    def pretrained_encoder(self) -> DiverseEncoder | None:
        """A trained encoder, to be used as it is; None where it is trained with the task."""
        return None

    def add_dataset(
        self, split: str, inputs: Sequence[Sequence[Tensor]], labels: Sequence[Any], known: Sequence[Any]
    ) -> None:
        """Make a split of examples and their labels, which are among those ``known``, one a class."""
        numbers = [known.index(label) for label in labels]
        self.datasets[split] = ClassificationDataset(inputs, numbers, self.dictionary.pad(), shuffle=split == "train")
