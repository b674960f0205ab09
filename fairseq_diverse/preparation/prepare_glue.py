"""A task of GLUE, from its own files to what fairseq's ``sentence_prediction`` reads."""

from pathlib import Path
from typing import Any

from fairseq_diverse.preparation.config import BPE_DEFAULTS, FILTER_DEFAULTS, SIDE_DEFAULTS, DataConfig
from fairseq_diverse.preparation.encoding import Encoding
from fairseq_diverse.preparation.glue import AS_TEXT, ORIGIN, PREFIX, GlueTask, read_examples
from fairseq_diverse.preparation.prepare import prepare
from fairseq_diverse.support.files import new_folder, write_lines

BPE_SIZE = 8000  # of subwords that are learned on the task's own text


def prepare_glue(
    task: GlueTask, raw: Path, out: Path, encoding: Encoding | None = None, *, as_text: bool = False, **options: Any
) -> bool:
    """Write ``input0``, ``input1`` and ``label`` of every split into ``out``, or ``as_text`` pairs of ``input`` and
    ``label``, as fairseq's translation reads them; other arguments, result and errors as of `prepare`.

    ``raw`` has the task's files, or a folder of the task's name that has them; those of the last test sets may be
    missing. By default subwords are learned on the training text, not ``as_text``. A misshapen line is refused."""
    folder = raw / task.name if (raw / task.name).is_dir() else raw
    files = {split: folder / name for split, name in task.files.items()}
    tests = [split for split in files if split.startswith("test")]
    while tests and not files[tests[-1]].is_file():
        del files[tests.pop()]
    if missing := [path.name for path in files.values() if not path.is_file()]:
        hint = f"; it has no folder {task.name} either" * (folder == raw)
        raise ValueError(f"{folder}: lacks {', '.join(missing)}, GLUE's own files ({ORIGIN}){hint}")
    suffixes = ["input"] if as_text else [f"input{number}" for number in range(len(task.inputs))]
    sides = {suffix: {**SIDE_DEFAULTS, "language": "en", "suffix": suffix} for suffix in suffixes}
    bpe = {**BPE_DEFAULTS, "size": BPE_SIZE}
    if as_text:
        if encoding is None or encoding.bpe["kind"] != "t5":
            name, ways = f"{PREFIX}{task.name}{AS_TEXT}", "with data prepared with `bpe: {kind: t5}`"
            needed = f"a task as text needs the subwords of a T5: --sentencepiece DIR, or {name}@DATA {ways}"
            raise ValueError(f"{name}: {needed}")
        sides = {side: encoding.steps | {"language": as_} for side, as_ in (("source", "input"), ("target", "label"))}
        bpe = encoding.bpe
    config = DataConfig(task.name, sides, {split: split for split in files}, FILTER_DEFAULTS, bpe, True, glue=task.name)
    config = encoding.applied(config) if encoding and not as_text else config
    strict, say = options.pop("strict", False), options.get("say", print)
    with new_folder(out.with_name(f"{out.name}.raw")) as work:
        for split, path in files.items():
            labelled = not split.startswith("test")
            examples = list(read_examples(path, task, labelled, strict))
            rows: list[tuple[str, ...]] = []
            for inputs, label in filter(None, examples):
                if as_text:  # a test set has no labels
                    rows.append((task.as_text(inputs), "" if label is None else task.answer(label)))
                else:
                    rows.append(inputs if label is None else (*inputs, label))
            for column, name in enumerate([*suffixes, "label"] if labelled or as_text else suffixes):
                write_lines(work / f"{split}.{name}", (row[column] for row in rows))
            if skipped := examples.count(None):
                say(f"{split}: {skipped:,} lines with a wrong number of columns left out, as in fairseq's recipe")
        return prepare(config, work, out, encoding=encoding, **options)
