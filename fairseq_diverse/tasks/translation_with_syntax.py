"""Translation with trees of the source sentences."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import ConcatDataset
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_diverse.criterions.observed import ObservedModel
from fairseq_diverse.data.trees import PairsWithTrees, SyntaxDataset
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.models.loading import arguments
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.paths import source_prefix


@register_task("translation_with_syntax", dataclass=TranslationConfig)
class TranslationWithSyntax(TranslationTask):
    """fairseq's ``translation``, plus the trees of ``fairseq-diverse binarize-syntax`` for models that need them.

    For other models the trees are not read and may be missing. With --enliven, training and validation log
    ``redundant_<layer>``, the share of redundant (sentence, head) pairs.
    """

    def __init__(self, cfg: TranslationConfig, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.trees: tuple[str, ...] = ()  # the kinds needed by the models built here

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if from_checkpoint and type(model) is TransformerModel:  # in an ensemble with a model that needs trees
            model = DiverseTransformerModel.build_model(arguments(cfg), self)
            if self.cfg.eval_bleu:  # fairseq made it with the model that this one replaces
                settings = Namespace(**json.loads(self.cfg.eval_bleu_args))
                self.sequence_generator = self.build_generator([model], settings)
        if plan := getattr(model.encoder, "plan", None):
            self.trees = tuple(dict.fromkeys((*self.trees, *plan.trees)))
        if self.trees and self.cfg.truncate_source:
            raise UserError("--truncate-source: trees cannot be truncated; leave it out, or filter the data")
        return model

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **options: Any) -> None:
        super().load_dataset(split, epoch=epoch, combine=combine, **options)
        if not self.trees:
            return
        paths = utils.split_paths(self.cfg.data)
        folder = Path(paths[(epoch - 1) % len(paths)] if split == self.cfg.train_subset else paths[0])
        source, target = self.cfg.source_lang, self.cfg.target_lang
        parts: list[SyntaxDataset] = []
        while True:  # train, train1, train2, ... as fairseq combines them
            prefix = str(source_prefix(folder, f"{split}{len(parts) or ''}", source, target))
            if parts and not (combine and Path(f"{prefix}.idx").exists()):
                break
            parts.append(SyntaxDataset(prefix, self.trees))
        ratios = [self.cfg.upsample_primary if len(parts) > 1 else 1, *[1] * (len(parts) - 1)]
        self.datasets[split] = PairsWithTrees(self.datasets[split], ConcatDataset(parts, ratios))

    def train_step(self, sample: Any, model: Any, *args: Any, **options: Any) -> Any:
        return self._log_redundant(super().train_step, sample, model, *args, **options)

    def valid_step(self, sample: Any, model: Any, criterion: Any) -> Any:
        return self._log_redundant(super().valid_step, sample, model, criterion)

    def build_dataset_for_inference(self, *args: Any, **options: Any) -> Any:
        if self.trees:
            raise UserError("fairseq-interactive has no trees for this model; use fairseq-diverse translate")
        return super().build_dataset_for_inference(*args, **options)

    def _log_redundant(self, step: Callable[..., Any], sample: Any, model: Any, *args: Any, **options: Any) -> Any:
        if not self.trees:
            return step(sample, model, *args, **options)
        observed = ObservedModel(model)
        result = step(sample, observed, *args, **options)
        for layer, heads in (observed.extra or {}).get("redundant", {}).items():
            metrics.log_scalar(f"redundant_{layer}", heads.float().mean(), weight=len(heads), round=3)
        return result
