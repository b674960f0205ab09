"""A small data set in ERASER's layout."""

import json
from pathlib import Path


def write_eraser(folder: Path, examples: int, docs: bool = False) -> None:
    """Films that are good or bad, as one of five words says; the last example of each split has a second document.

    Args:
        docs: the documents are files of ``docs/``, several sentences each, not lines of ``docs.jsonl``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"extra": "more words"}
    for split in ("train", "val", "test"):
        lines = []
        for number in range(examples):
            name, word = f"{split}{number}", ("good", "bad")[number % 2]
            texts[name] = f"the film was {word} fun" if number % 3 == 0 else f"{word} fun the film was"
            start = texts[name].split().index(word)
            evidence = [[{"docid": name, "start_token": start, "end_token": start + 2, "text": f"{word} fun"}]]
            line = {"annotation_id": name, "classification": word, "query": "was it good", "evidences": evidence}
            lines.append(line | ({"docids": [name, "extra"]} if number == examples - 1 else {}))
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if docs:
        (folder / "docs").mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / "docs" / name).write_text(text.replace(" fun", " fun\n"))
    else:
        lines = [json.dumps({"docid": name, "document": text}) for name, text in texts.items()]
        (folder / "docs.jsonl").write_text("".join(f"{line}\n" for line in lines))
