"""The ten probing tasks of SentEval (Conneau et al., 2018) and their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_lines

SURFACE = ("sentence_length", "word_content")
SYNTACTIC = ("tree_depth", "top_constituents", "bigram_shift")
SEMANTIC = ("past_present", "subj_number", "obj_number", "odd_man_out", "coordination_inversion")
GROUPS = {"Surface": SURFACE, "Syntactic": SYNTACTIC, "Semantic": SEMANTIC}  # of Li et al. (2021), Table 7
TASKS = SURFACE + SYNTACTIC + SEMANTIC
SPLITS = {"train": "tr", "valid": "va", "test": "te"}
ORIGIN = "https://github.com/facebookresearch/SentEval, folder data/probing"


class Example(NamedTuple):
    label: str
    words: list[str]


def group_means(figures: Mapping[str, float]) -> dict[str, float]:
    """The mean of each group of tasks, for groups with a value for every task (Li et al., 2021, Table 7)."""
    complete = {group: tasks for group, tasks in GROUPS.items() if set(tasks) <= set(figures)}
    return {group: sum(figures[task] for task in tasks) / len(tasks) for group, tasks in complete.items()}


def read_probing(folder: Path, task: str) -> dict[str, list[Example]]:
    """The examples of a task by split: train, valid, test. Raises ``UserError``: the file is missing, a line is not a
    split, a label and a sentence, a split is empty, or a label does not occur in the training split."""
    path = folder / f"{task}.txt"
    if not path.is_file():
        files = ", ".join(f"{name}.txt" for name in TASKS)
        origin = f"from SentEval ({ORIGIN}) or `fairseq-diverse toy --probing`"
        raise UserError(f"{path}: missing; the ten files are {files}, {origin}")
    examples: dict[str, list[Example]] = {split: [] for split in SPLITS}
    names = {short: split for split, short in SPLITS.items()}
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) != 3 or cells[0] not in names or not cells[1] or not cells[2].strip():
            raise UserError(f"{path}, line {number}: SPLIT<TAB>LABEL<TAB>SENTENCE expected, with splits tr, va, te")
        examples[names[cells[0]]].append(Example(cells[1], cells[2].split()))
    for split, split_examples in examples.items():
        if not split_examples:
            raise UserError(f"{path}: no sentences in the split {SPLITS[split]}")
    trained = {example.label for example in examples["train"]}
    for split, split_examples in examples.items():
        if unknown := {example.label for example in split_examples} - trained:
            label = f"label {min(unknown)!r} of the split {SPLITS[split]}"
            raise UserError(f"{path}: {label} is missing in the training split")
    return examples
