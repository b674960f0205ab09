"""Classification of documents of which people marked the words that show the class (DeYoung et al., 2020)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_diverse.data.classification import WordsDataset
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.eraser import FILES, SEPARATOR, read_eraser
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.tasks.classification import ClassificationTask

Text = tuple[Sequence[str], Sequence[str]]  # words of the query, which no rationale has, and of the document


@dataclass
class RationalesConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "folder that `fairseq-diverse prepare eraser-NAME` wrote"})
    max_positions: int = field(default=512, metadata={"help": "subwords of an example; longer documents are cut"})
    one_separator: bool = field(
        default=False, metadata={"help": "one separator between query and document, as BERT, not two as RoBERTa"}
    )


@register_task("rationales", dataclass=RationalesConfig)
class Rationales(ClassificationTask):
    """<s> QUERY </s> </s> DOCUMENT </s>, of a data set in ERASER's layout with splits train, valid and test.

    The word [sep] of a query, between the answers of CoS-E, is </s>, too, as ERASER's reader of CoS-E has it. Each word
    of the files is segmented by itself, so that its first subword is known. Raises ``UserError``: the data are not
    prepared, or as ``read_eraser``.
    """

    sequences = 1  # of an example
    mark, suited = "reads_words", "diverse_rationales, wang2021_evolving_rationales or diverse_bert_rationales"

    def __init__(self, cfg: RationalesConfig) -> None:
        super().__init__(cfg)
        folder = Path(cfg.data)
        try:
            self.preprocessing = Preprocessing.load(folder)
            self.examples = read_eraser(folder / "text")
        except ValueError as error:
            raise UserError(f"{error}; prepare it with `fairseq-diverse prepare eraser-NAME`") from None
        self.dictionary = Dictionary.load(str(folder / "dict.txt"))
        self.dictionary.add_symbol("<mask>")  # as of masked language models
        self.labels = sorted({example.label for example in self.examples["train"]})
        self.classes, self.tests = len(self.labels), {"test": "test"}
        self.segmented: dict[str, list[int]] = {}

    def max_positions(self) -> int:
        return self.cfg.max_positions

    def subwords(self, word: str) -> list[int]:
        """The numbers of a word's subwords, at least one."""
        if word not in self.segmented:
            steps = self.preprocessing
            text, subwords = steps.tokens["source"].tokenize(word), steps.subwords["source"]
            segments = subwords.segment(f" {text}" if subwords.kind == "gpt2" else text)
            numbers = [self.dictionary.index(subword) for subword in segments.split()]
            self.segmented[word] = numbers or [self.dictionary.unk()]
        return self.segmented[word]

    def encode(self, query: Sequence[str], words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Subwords (T,) and the places (W,) of the first one of each word of both; that of <s> where there is none."""
        numbers, starts = [self.dictionary.bos()], list[int]()
        for text in filter(len, (query, words)):
            if starts and not self.cfg.one_separator:
                numbers.append(self.dictionary.eos())
            for word in text:
                starts.append(len(numbers))
                numbers += [self.dictionary.eos()] if text is query and word == SEPARATOR else self.subwords(word)
            numbers.append(self.dictionary.eos())
        return torch.tensor(numbers), torch.tensor(starts or [0])

    def fitting(self, query: Sequence[str], words: Sequence[str]) -> int:
        """How many words of a document fit. Raises ``UserError``: none, since the query is too long."""
        left = self.cfg.max_positions - len(self.encode(query, ["a"])[0]) + len(self.subwords("a"))
        ends = itertools.accumulate(len(self.subwords(word)) for word in words)
        if not (count := sum(end <= left for end in ends)):
            none = f"no word of the document fits beside the query {' '.join(query)[:60]!r}"
            raise UserError(f"--max-positions {self.cfg.max_positions}: {none}; give more, as many as the encoder has")
        return count

    def dataset_of(self, texts: Sequence[Text], labels: Sequence[int], shuffle: bool = False) -> WordsDataset:
        """Texts as a dataset, those that are too long without their ends."""
        encoded = []
        for query, words in texts:
            one = self.encode(query, words)
            fits = len(one[0]) <= self.cfg.max_positions
            encoded.append(one if fits else self.encode(query, words[: self.fitting(query, words)]))
        return WordsDataset(encoded, labels, self.dictionary.pad(), shuffle)

    def load_dataset(self, split: str, **unused: Any) -> None:
        if split not in self.examples:
            raise UserError(f"{split}: this task has the splits {', '.join(FILES)}")
        examples = self.examples[split]
        texts = [(example.query, example.words) for example in examples]
        labels = [self.labels.index(example.label) for example in examples]
        self.datasets[split] = self.dataset_of(texts, labels, shuffle=split == "train")
