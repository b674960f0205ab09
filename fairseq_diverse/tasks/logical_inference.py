"""Logical inference: which of seven relations holds between two formulae (Bowman et al., 2015)."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import MISSING

from fairseq_diverse.data.formulas import RELATIONS, SYMBOLS
from fairseq_diverse.data.logic import MOST_OPERATORS, Pair, read_pairs
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.tasks.classification import ClassificationTask

VALID_RATIO = 17  # one pair in so many is for validation


@dataclass
class LogicalInferenceConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "folder with trainN and testN for N = 0 to 12 operators"})
    train_operators: int = field(
        default=6, metadata={"help": "largest number of operators in training and validation formulae, 0 to 12"}
    )
    valid_seed: int = field(
        default=1, metadata={"help": "random seed for the choice of validation pairs, 1 in 17 of the training files"}
    )


@register_task("logical_inference", dataclass=LogicalInferenceConfig)
class LogicalInference(ClassificationTask):
    """Pairs of formulae and their relation.

    Splits: ``train`` and ``valid`` from the files up to ``--train-operators``; ``test``: all test files with 1 to 12
    operators; ``testN`` and ``trainN``: one file.

    Source: Li et al. (2021), section 4.3. Raises ``UserError``: a file is missing or wrong, a setting is out of range,
    or there are fewer than 17 training pairs.
    """

    classes = len(RELATIONS)
    sequences = 2  # of an example

    def __init__(self, cfg: LogicalInferenceConfig) -> None:
        super().__init__(cfg)
        if not 0 <= cfg.train_operators <= MOST_OPERATORS:
            raise UserError(f"--train-operators {cfg.train_operators}: from 0 to {MOST_OPERATORS}")
        self.dictionary = Dictionary()
        self.index = {symbol: self.dictionary.add_symbol(symbol) for symbol in SYMBOLS}
        self.tests = {str(count): f"test{count}" for count in range(1, MOST_OPERATORS + 1)}

    def load_dataset(self, split: str, **unused: Any) -> None:
        pairs = self._pairs(split)
        both = [[[self.index[symbol] for symbol in side] for side in (pair.left, pair.right)] for pair in pairs]
        inputs = [list(map(torch.tensor, sides)) for sides in both]
        self.add_dataset(split, inputs, [pair.relation for pair in pairs], RELATIONS)

    def _pairs(self, split: str) -> list[Pair]:
        folder = Path(self.cfg.data)
        if re.fullmatch(r"(train|test)\d+", split):
            return read_pairs(folder / split)
        if split == "test":
            return [pair for count in range(1, MOST_OPERATORS + 1) for pair in read_pairs(folder / f"test{count}")]
        if split not in ("train", "valid"):
            raise UserError(f"{split}: logical_inference has the splits train, valid, test, trainN and testN")
        pairs = [pair for n in range(self.cfg.train_operators + 1) for pair in read_pairs(folder / f"train{n}")]
        random.Random(self.cfg.valid_seed).shuffle(pairs)
        valid = len(pairs) // VALID_RATIO
        if not valid:
            few = f"{len(pairs)} training pairs with --train-operators {self.cfg.train_operators}: too few"
            todo = "raise the flag or write more pairs"
            raise UserError(f"{folder}: {few}, since one in {VALID_RATIO} is for validation; {todo}")
        return pairs[:valid] if split == "valid" else pairs[valid:]
