"""Tasks of classification: logical inference, probing, and documents with rationales."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask, register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_diverse.attention.settings import option
from fairseq_diverse.data.classification import ClassificationDataset, WordsDataset
from fairseq_diverse.data.logic import MOST_OPERATORS, RELATIONS, SYMBOLS, Pair, read_pairs
from fairseq_diverse.data.probing import TASKS, read_probing
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.models.loading import load_model
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.eraser import FILES, SEPARATOR, read_eraser
from fairseq_diverse.support.errors import UserError

VALID_RATIO = 17  # one pair in so many is for validation
Text = tuple[Sequence[str], Sequence[str]]  # words of the query, which no rationale has, and of the document


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

    def add_dataset(self, split: str, inputs: list[list[Tensor]], labels: Sequence[Any], known: Sequence[Any]) -> None:
        """Add a split of examples and their labels; ``known`` has one label per class."""
        numbers = [known.index(label) for label in labels]
        self.datasets[split] = ClassificationDataset(inputs, numbers, self.dictionary.pad(), shuffle=split == "train")


@dataclass
class LogicalInferenceConfig(FairseqDataclass):
    data: str = option(MISSING, "folder with trainN and testN for N = 0 to 12 operators")
    train_operators: int = option(6, "largest number of operators in training and validation formulae, 0 to 12")
    valid_seed: int = option(1, "random seed for the choice of validation pairs, 1 in 17 of the training files")


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


@dataclass
class SentenceProbingConfig(FairseqDataclass):
    data: str = option(MISSING, "folder with SentEval's probing files, <task>.txt")
    probe: ChoiceEnum(TASKS) = field(default=TASKS[0], metadata={"help": "one of the ten probing tasks"})  # type: ignore[valid-type]
    from_checkpoint: str = option("", "translation model whose encoder is probed, without training it further")
    checkpoint_data: str = option("", "prepared data that --from-checkpoint was trained on")


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
        """The model of ``--from-checkpoint``. Raises ``UserError``: as ``load_model``, or it reads the target side."""
        if self.preprocessing is None:
            return None
        model, task = load_model(self.cfg.from_checkpoint, self.cfg.checkpoint_data)
        if self.preprocessing.of_model(task) is not self.preprocessing:
            read = f"reads {task.cfg.source_lang}, but the source of {self.cfg.checkpoint_data} is"
            todo = "give a model that was trained in the direction of its data"
            raise UserError(f"--from-checkpoint {self.cfg.from_checkpoint}: {read} {self.preprocessing.source}; {todo}")
        return model

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


@dataclass
class RationalesConfig(FairseqDataclass):
    data: str = option(MISSING, "folder that `fairseq-diverse prepare eraser-NAME` wrote")
    max_positions: int = option(512, "subwords of an example; longer documents are cut")
    one_separator: bool = option(False, "one separator between query and document, as BERT, not two as RoBERTa")


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
        room = self.cfg.max_positions - len(self.encode(query, ["a"])[0]) + len(self.subwords("a"))
        if not (count := sum(end <= room for end in itertools.accumulate(len(self.subwords(word)) for word in words))):
            none = f"no word of the document fits beside the query {' '.join(query)[:60]!r}"
            raise UserError(f"--max-positions {self.cfg.max_positions}: {none}; give more, as many as the encoder has")
        return count

    def dataset_of(self, texts: Sequence[Text], labels: Sequence[int], shuffle: bool = False) -> WordsDataset:
        """Texts as a dataset, those that are too long without their ends."""
        encoded = []
        for query, words in texts:
            example = self.encode(query, words)
            fits = len(example[0]) <= self.cfg.max_positions
            encoded.append(example if fits else self.encode(query, words[: self.fitting(query, words)]))
        return WordsDataset(encoded, labels, self.dictionary.pad(), shuffle)

    def load_dataset(self, split: str, **unused: Any) -> None:
        if split not in self.examples:
            raise UserError(f"{split}: this task has the splits {', '.join(FILES)}")
        examples = self.examples[split]
        texts = [(example.query, example.words) for example in examples]
        labels = [self.labels.index(example.label) for example in examples]
        self.datasets[split] = self.dataset_of(texts, labels, shuffle=split == "train")
