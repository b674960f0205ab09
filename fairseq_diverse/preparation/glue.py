"""The tasks of GLUE (Wang et al., 2018) in Wang et al. (2021), Table 3, and their files."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation.tokens import clean
from fairseq_diverse.support.files import iterate_lines

ORIGIN = "https://gluebenchmark.com/tasks"
PREFIX = "glue-"  # of the name of a prepared task
AS_TEXT = ".text"  # at the end of a task's name: as text, for models such as T5
T5 = "t5"  # in the place of a data set, the SentencePiece of a T5: glue-CoLA.text@t5
BERT = "bert"  # in the place of a data set, WordPiece of a folder: glue-CoLA@bert
HIGHEST = 5.0  # score of STS-B
SCORE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?")


@dataclass(frozen=True)
class GlueTask:
    """A task and the columns of its files.

    ``inputs``: the columns of one or two sentences; ``label``: the column of the label; ``labels``: its values, in the
    order of their numbers, none for a score; ``metrics``: of ``fairseq_diverse.metrics.glue``, the first one counts in
    GLUE's average; ``examples``: training examples; ``dev`` and ``test``: files by the name of their figures;
    ``unnamed``: names of the columns of training and dev files that have no header; ``skips``: whether training and dev
    files have lines that are not examples, which fairseq's recipe for GLUE leaves out.

    As text (Raffel et al., 2020, appendix D): ``words`` are those of the labels, by default the labels themselves;
    ``parts`` are the names of the sentences with their places among ``inputs``, by default these.
    """

    name: str
    inputs: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    examples: int
    words: tuple[str, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    dev: tuple[tuple[str, str], ...] = (("", "dev"),)
    test: tuple[tuple[str, str], ...] = (("", "test"),)
    unnamed: tuple[str, ...] = ()
    skips: bool = False

    @property
    def regression(self) -> bool:
        return not self.labels

    @property
    def files(self) -> dict[str, str]:
        """Name of the file of each split: train, valid, valid1, test, test1, as fairseq calls them."""
        splits = {"train": "train"}
        for split, sets in (("valid", self.dev), ("test", self.test)):
            splits |= {f"{split}{number or ''}": name for number, (_, name) in enumerate(sets)}
        return {split: f"{name}.tsv" for split, name in splits.items()}

    def as_text(self, inputs: Sequence[str]) -> str:
        """The sentences of an example as one text: ``mrpc sentence1: ... sentence2: ...``."""
        parts = self.parts or [(name, place) for place, name in enumerate(self.inputs)]
        return " ".join([self.name.lower().replace("-", ""), *(f"{name}: {inputs[place]}" for name, place in parts)])

    def answer(self, label: str) -> str:
        """The word of a label; a score (a share of the highest one) rounded to 0.2, with one decimal."""
        if self.regression:
            return f"{round(round(float(label) * HIGHEST * 5, 6)) / 5:.1f}"
        return (self.words or self.labels)[self.labels.index(label)]

    def read_answers(self, answers: Sequence[str]) -> list[float | None]:
        """The numbers of the classes that words mean, or the shares of the highest score; None: of none."""
        if not self.regression:
            words = self.words or self.labels
            return [words.index(word) if word in words else None for word in answers]
        scores = [float(word) if SCORE.fullmatch(word) else None for word in answers]
        return [None if score is None else score / HIGHEST for score in scores]

    def named(self, kind: str) -> dict[str, str]:
        """Splits of a kind, ``valid`` or ``test``, by the names of their figures: ``MNLI-m`` for the first of MNLI."""
        sets = self.dev if kind == "valid" else self.test
        return {f"{self.name}{end}": f"{kind}{number or ''}" for number, (end, _) in enumerate(sets)}


YES_NO = ("0", "1")
QUESTIONS = ("question1", "question2")
TWO = ("sentence1", "sentence2")
ENTAILED = ("entailment", "not_entailment")
F1 = ("f1", "accuracy")
MRPC = (("sentence1", 0), ("sentence2", 1))
COLA = ("source", "label", "note", "sentence")
MNLI: dict[str, Any] = {"parts": (("hypothesis", 1), ("premise", 0))}
MNLI |= {kind: (("-m", f"{kind}_matched"), ("-mm", f"{kind}_mismatched")) for kind in ("dev", "test")}
IN_ORDER = (
    GlueTask("CoLA", ("sentence",), "label", YES_NO, ("matthews",), 8551, ("unacceptable", "acceptable"), unnamed=COLA),
    GlueTask("SST-2", ("sentence",), "label", YES_NO, ("accuracy",), 67349, ("negative", "positive")),
    GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", YES_NO, F1, 3668, ("not_equivalent", "equivalent"), MRPC),
    GlueTask("STS-B", TWO, "score", (), ("pearson", "spearman"), 5749),
    GlueTask("QQP", QUESTIONS, "is_duplicate", YES_NO, F1, 363846, ("not_duplicate", "duplicate"), skips=True),
    GlueTask("MNLI", TWO, "gold_label", ("contradiction", "neutral", "entailment"), ("accuracy",), 392702, **MNLI),
    GlueTask("QNLI", ("question", "sentence"), "label", ENTAILED, ("accuracy",), 104743),
    GlueTask("RTE", TWO, "label", ENTAILED, ("accuracy",), 2490),
)
TASKS = {task.name: task for task in IN_ORDER}
NAMES = tuple(f"{PREFIX}{name}" for name in TASKS)
Example = tuple[tuple[str, ...], str | None]  # sentences, and the label, None in a test file


def split_name(name: str) -> tuple[GlueTask, str] | None:
    """The task that the name of a data set means and the data set whose dictionary it has, "" for none.

    ``glue-CoLA`` is CoLA by itself, ``glue-CoLA@NAME`` CoLA with dictionary and subwords of NAME, ``glue-CoLA@bert``
    with those of a BERT. With ``.text`` behind the task, it is as text (`is_text`). None for other names. Raises
    ``ValueError``: no such task.
    """
    if not name.startswith(PREFIX):
        return None
    task, at, encoding = name.removeprefix(PREFIX).partition("@")
    task = task.removesuffix(AS_TEXT)
    if task not in TASKS:
        raise ValueError(f"{name}: no task of GLUE; known: {', '.join(NAMES)}")
    if at and not encoding:
        raise ValueError(f"{name}: the name of a data set is missing behind @")
    return TASKS[task], encoding


def named_as_text(name: str) -> str:
    """The name of the same task as text. Raises ``ValueError``: no task of GLUE."""
    if not split_name(name):
        raise ValueError(f"--as-text: {name} is not a task of GLUE; known: {', '.join(NAMES)}")
    task, at, encoding = name.partition("@")
    return task.removesuffix(AS_TEXT) + AS_TEXT + at + encoding


def is_text(name: str) -> bool:
    """Whether the name of a data set means a task of GLUE as text, ``glue-CoLA.text@NAME``."""
    return name.startswith(PREFIX) and name.partition("@")[0].endswith(AS_TEXT)


def read_examples(path: Path, task: GlueTask, labelled: bool, strict: bool = False) -> Iterator[Example | None]:
    """The examples of a file in GLUE's own format: tab-separated, quotes are ordinary characters.

    Where ``task.skips``, None stands for a line of training or dev data with a wrong number of columns, unless
    ``strict``. A score becomes a share of the highest one, 0 to 1, as in fairseq's recipe. Raises ``ValueError``: a
    column, a label or a sentence is missing or unknown; names file and line.
    """
    columns = task.unnamed if labelled else ()
    wanted = (*task.inputs, task.label) if labelled else task.inputs
    empty = True
    for number, line in enumerate(iterate_lines(path), start=1):
        cells = line.split("\t")
        if not columns:
            columns = tuple(cells)
            if missing := [name for name in wanted if name not in columns]:
                named = f"files of {task.name} start with the names of their columns, {', '.join(wanted)} among them"
                raise ValueError(f"{path}, line 1: no column {', '.join(missing)}; {named}")
            if twice := [name for name in wanted if columns.count(name) > 1]:
                raise ValueError(f"{path}, line 1: column {twice[0]} twice; leave one of them out")
            continue
        where = f"{path}, line {number}"
        if len(cells) != len(columns):
            if task.skips and labelled and not strict:
                yield None
                continue
            raise ValueError(f"{where}: {len(columns)} columns separated by tabs expected, got {len(cells)}")
        row = dict(zip(columns, cells, strict=True))
        inputs = tuple(row[name] for name in task.inputs)
        if strict and not all(sentence.strip() for sentence in inputs):
            raise ValueError(f"{where}: a sentence is empty; fix the file or leave out --strict")
        if strict and any(clean(sentence)[1] for sentence in inputs):
            raise ValueError(f"{where}: a line separator or NUL inside the line; fix the file or leave out --strict")
        empty = False
        yield inputs, _label(row[task.label], task, where) if labelled else None
    if empty:
        raise ValueError(f"{path}: no examples")


def _label(text: str, task: GlueTask, where: str) -> str:
    if task.labels:
        if text not in task.labels:
            raise ValueError(f"{where}: label {text!r} is not one of {', '.join(task.labels)}")
        return text
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= HIGHEST:
        raise ValueError(f"{where}: {text!r} is not a score from 0 to {HIGHEST:g}")
    return repr(score / HIGHEST)
