"""Miniature files in the formats of GLUE and of GPT-2's subwords."""

import json
import random
from pathlib import Path

from fairseq_diverse.preparation.glue import TASKS

HEADERS = {  # of training and dev files, as GLUE has them
    "CoLA": "",
    "SST-2": "sentence label",
    "MRPC": "Quality,#1 ID,#2 ID,#1 String,#2 String",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "QQP": "id qid1 qid2 question1 question2 is_duplicate",
    "MNLI": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2 label1 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
}
WORDS = ["a", "man", "walks", "quickly", "through", "the", "old", "town", "and", "looks", "at", "houses"]


def write_task(folder: Path, name: str, examples: int = 12, tests: bool = True) -> dict[str, list[tuple[str, ...]]]:
    """Write the files of a task into ``folder/NAME``; returns the sentences and the label of every line, by split.

    The first sentence of each line has one quotation mark.
    """
    task, numbers = TASKS[name], random.Random(name)
    header = HEADERS[name].split("," if "," in HEADERS[name] else None)
    (folder / name).mkdir(parents=True, exist_ok=True)
    written = {}
    for split, file in task.files.items():
        labelled = not split.startswith("test")
        if not labelled and not tests:
            continue
        columns = (header or task.unnamed) if labelled else ["index", *task.inputs]
        lines = ["\t".join(columns)] if header or not labelled else []
        written[split] = []
        for number in range(examples):
            sentences = [" ".join(numbers.choices(WORDS, k=3 + number % 4)) for _ in task.inputs]
            sentences[0] = f'"{sentences[0]}'
            place = number + len(written) - 1  # labels start with another one in each split
            label = task.labels[place % len(task.labels)] if task.labels else f"{place % 6}.000"
            cells = dict.fromkeys(columns, "x") | dict(zip(task.inputs, sentences, strict=True))
            cells |= {task.label: label} if labelled else {}
            lines.append("\t".join(cells.values()))
            written[split].append((*sentences, label))
        (folder / name / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written


def gpt2_files(folder: Path) -> None:
    """Files in the format of GPT-2's subwords: 256 bytes and the merge of i and n."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    folder.mkdir(exist_ok=True)
    symbols = [*bytes_to_unicode().values(), "in"]
    (folder / "encoder.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\ni n\n")
    (folder / "dict.txt").write_text("".join(f"{number} 1\n" for number in range(len(symbols))))
