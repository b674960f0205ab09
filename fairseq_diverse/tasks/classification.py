"""Base class of the classification tasks."""

from collections.abc import Sequence
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_diverse.data.classification import ClassificationDataset
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.support.errors import UserError


class ClassificationTask(FairseqTask):
    """Examples of ``sequences`` token sequences each, over ``dictionary``, in one of ``classes`` classes."""

    sequences: int
    classes: int
    dictionary: Dictionary
    tests: dict[str, str]  # splits on which accuracy is measured, by their names in tables
    mark = "classifies"  # what a model for it has
    suited = "li2021_logic, li2021_probing or one derived from them"

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> Any:
        return cls(cfg)

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> None:
        return None

    def max_positions(self) -> int | None:
        return None

    def pretrained(self) -> DiverseTransformerModel | None:
        """A trained model whose encoder is used without further training; None if the task trains an encoder."""
        return None

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As in fairseq. Raises ``UserError``: the model is not a classifier."""
        arch = getattr(cfg, "arch", None) or cfg._name
        if not getattr(ARCH_MODEL_REGISTRY.get(arch), self.mark, False):
            raise UserError(f"--arch {arch}: is not a classifier; use {self.suited}")
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: Any) -> Any:
        """As in fairseq. Raises ``UserError``: the criterion is not for classification."""
        if not cfg._name.startswith("classification"):
            needed = "this task needs classification, or classification_with_disagreement"
            raise UserError(f"--criterion {cfg._name}: {needed}")
        return super().build_criterion(cfg)

    def add_dataset(
        self, split: str, inputs: Sequence[Sequence[Tensor]], labels: Sequence[Any], known: Sequence[Any]
    ) -> None:
        """Add a split of examples and their labels; ``known`` has one label per class."""
        numbers = [known.index(label) for label in labels]
        self.datasets[split] = ClassificationDataset(inputs, numbers, self.dictionary.pad(), shuffle=split == "train")
