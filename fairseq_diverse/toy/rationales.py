"""Probing tasks in ERASER's layout (DeYoung et al., 2020), with the word that decides on a sentence's class."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.toy.probing import draw_examples, finite_verb, make_probes, noun, words
from fairseq_diverse.toy.trees import Tree

FILES = {"train.jsonl": "tr", "val.jsonl": "va", "test.jsonl": "te", "docs.jsonl": ""}
# the place of the word that decides, in a sentence with a label
DECIDING: dict[str, Callable[[Tree, str], int | None]] = {
    "word_content": lambda tree, label: [*map(str.lower, words(tree))].index(label),
    "past_present": lambda tree, label: finite_verb(tree),
    "subj_number": lambda tree, label: noun(tree, "nsubj"),
    "obj_number": lambda tree, label: noun(tree, "obj"),
}


def write_rationales(out: Path, sentences: int, seed: int = 1) -> None:
    """Write ``TASK/train.jsonl``, ``val.jsonl``, ``test.jsonl`` and ``docs.jsonl`` of the tasks in `DECIDING`: the
    sentences, classes and splits of `write_probing`, with one word each as evidence."""
    probes = make_probes(seed)
    with ExitStack() as stack:  # all files are renamed into place at the end
        for task, place_of in DECIDING.items():
            files = {split: stack.enter_context(atomic_write(out / task / name)) for name, split in FILES.items()}
            drawn = draw_examples(task, probes[task], sentences, seed)
            for number, (split, label, sentence, tree) in enumerate(drawn):
                place = place_of(tree, label)
                assert place is not None
                name = f"{task}-{number}"
                span = {"docid": name, "start_token": place, "end_token": place + 1}
                span["text"] = words(tree)[place]
                line = {"annotation_id": name, "classification": label, "query": "", "evidences": [[span]]}
                for file, content in ((files[split], line), (files[""], {"docid": name, "document": sentence})):
                    file.write(json.dumps(content) + "\n")
