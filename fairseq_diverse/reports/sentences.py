"""What is known of a data set's test sentences, and the groups that they are in by it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_diverse.experiments.kinds.lines import Summaries, Summary
from fairseq_diverse.experiments.records import write_copy
from fairseq_diverse.experiments.run import DataSet, Row
from fairseq_diverse.experiments.runs.find import find_data
from fairseq_diverse.experiments.runs.saved import figures_by_test
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import iterate_lines, read_json, read_lines
from fairseq_diverse.support.paths import data_name
from fairseq_diverse.syntax.attachment import attachments, kept_trees, subordinate
from fairseq_diverse.syntax.trees import read_conllu

FOLDER = "sentences"  # of a folder of saved summaries
QUARTERS = (0.25, 0.5, 0.75)
COUNTS = (1, 10, 100)  # where classes of rare words begin
NO_TREE = "no usable tree"
TREES = {  # groups by trees; a sentence is in the group at the index that is kept of it
    "attachment": ("no prepositional phrase", "to a noun", "to a predicate", "to both", NO_TREE),
    "verb-final": ("none", "verb-final clause", NO_TREE),
}
BY = {
    "length": "words of the source, as tokenized: quartiles of the test sentences, those of one length in one group",
    "rare-words": "how often the source's rarest word is in the training text, as tokenized and in lower case",
    "attachment": "what the source's prepositional phrases are attached to, by the dependency trees of the data",
    "verb-final": "a subordinate or relative clause in the source, which German ends with its verb, by the dependency "
    "trees of the data",
}

Record = dict[str, Any]  # data_hash, longest, and tests: by name of a test set what is known of its sentences


class Groups(NamedTuple):
    """A partition of test sentences: the groups' names, and for each sentence the index of its group."""

    names: list[str]
    of: np.ndarray


def known_property(name: str) -> str:
    """The name of a property of sentences, or a UserError."""
    if name not in BY:
        raise UserError(f"--by {name}: not known; known are {', '.join(BY)}")
    return name


def describe(data: DataSet, tests: Sequence[str]) -> Record:
    """What is known of the sentences of test sets.

    ``data_hash`` is the data's, ``longest`` the words of the longest source sentence in training. Of every test set
    ``length`` and ``rarest`` hold a number for each sentence (`BY`; an empty sentence counts as one of frequent words),
    ``attachment`` and ``verb-final`` a digit, the index in `TREES`, where ``binarize-syntax`` kept its dependency
    trees; ``data_hash`` is its own hash, where it has one. Raises ValueError: text or trees are missing, damaged, or of
    different numbers of sentences."""
    texts = {name: [line.lower().split() for line in read_lines(_text(data, data.subsets[name]))] for name in tests}
    counts = dict.fromkeys((word for lines in texts.values() for line in lines for word in line), 0)
    longest = 0
    for line in iterate_lines(_text(data, "train")):
        words = line.lower().split()
        longest = max(longest, len(words))
        for word in words:
            if word in counts:
                counts[word] += 1
    most = max(counts.values(), default=0)
    known: dict[str, Any] = {}
    for name, lines in texts.items():
        digest = data.tests.get(name)
        known[name] = {
            **({"data_hash": digest} if digest else {}),
            "length": [len(words) for words in lines],
            "rarest": [min((counts[word] for word in words), default=most) for words in lines],
            **_tree_entries(data, data.subsets[name], len(lines)),
        }
    return {"data_hash": data.hash, "longest": longest, "tests": known}


def _text(data: DataSet, split: str) -> Path:
    return data.path / "text" / f"tok.{split}.{data.source}"


def _tree_entries(data: DataSet, split: str, count: int) -> dict[str, str]:
    """The entries of `describe` by trees; none where there are no trees."""
    path = kept_trees(data.path, split, data.source, data.target)
    if not path.is_file():
        return {}
    trees = list(read_conllu(path))
    if len(trees) != count:
        raise ValueError(f"{path}: {len(trees)} trees of {count} sentences; run fairseq-diverse binarize-syntax again")
    groups: dict[str, list[int]] = {kind: [names.index(NO_TREE)] * count for kind, names in TREES.items()}
    for number, tree in enumerate(trees):
        if tree.heads is not None:
            belongs = attachments(tree)
            groups["attachment"][number] = ("noun" in belongs) + 2 * ("predicate" in belongs)
            groups["verb-final"][number] = int(subordinate(tree))
    return {kind: "".join(map(str, values)) for kind, values in groups.items()}


def group(record: Record, test: str, by: str, where: str) -> Groups:
    """The groups of a test set's sentences that are not empty.

    By length there are four, those that the quartiles end, and where training has no sentence as long as the longest of
    the test set, those that are longer than all in training are groups of their own. Raises ValueError: the sentences
    have no trees; ``where`` names the record."""
    test_set = record["tests"][test]
    if by in TREES:
        if by not in test_set:
            todo = "`fairseq-diverse binarize-syntax --data DIR --dependency FILES` keeps them, which changes no runs"
            raise ValueError(f"--by {by}: {where} has no dependency trees of {test}; {todo}")
        number = np.array(list(map(int, test_set[by])))
        names = dict(enumerate(TREES[by]))
    else:
        values = np.array(test_set["length" if by == "length" else "rarest"])
        if by == "length":
            cuts = {*np.quantile(values, QUARTERS, method="inverted_cdf").tolist(), record["longest"]}
            number = np.searchsorted(sorted(cuts), values)
            ranges = {i: np.unique(values[number == i]) for i in np.unique(number)}
            names = {i: f"{r[0]} to {r[-1]} words" if len(r) > 1 else f"{r[0]} words" for i, r in ranges.items()}
        else:
            number = np.searchsorted(COUNTS, values, side="right")
            names = dict(enumerate(("never", "1 to 9 times", "10 to 99 times", "100 times or more")))
    used, number = np.unique(number, return_inverse=True)
    return Groups([names[i] for i in used], number)


def find_records(
    rows: Sequence[Row], summaries: Summaries, results: Path | None = None, root: Path | None = None
) -> dict[str, tuple[Record, str]]:
    """By data set of the finished rows, what is known of its test sentences, and where that comes from: the copy beside
    saved summaries (``results``), else the prepared data, of the folder of runs (``root``). Raises ValueError: there is
    neither, or it is of other data than the runs or of other sentences."""
    records = {}
    for name in dict.fromkeys(row.data for row in rows if summaries[row.name]):
        runs = [summary for row in rows if row.data == name for summary in summaries[row.name]]
        copy = record_path(results, name) if results else None
        if copy and copy.exists():
            record, where = _read(copy), str(copy)
        else:
            try:
                data = find_data(name, dry=True, root=root)
                is_here = not results or (data.hash is not None and data.hash == runs[0]["data_hash"])
            except ValueError:
                if not results:
                    raise
                is_here = False
            if not is_here:
                lacks = f"saved without what is known of the test sentences of {data_name(name)}"
                todo = f"`fairseq-diverse report TABLE --save {results}` where the data are prepared adds it ({copy})"
                raise ValueError(f"{results}: {lacks}; {todo}")
            scored = dict.fromkeys(test for summary in runs for test in figures_by_test(summary))
            record, where = describe(data, [test for test in scored if test in data.subsets]), str(data.path)
        for summary in runs:
            _refuse_other(record, summary, where)
        records[name] = record, where
    return records


def record_path(folder: Path, data: str) -> Path:
    """Where a folder of saved summaries has what is known of a data set's test sentences."""
    return folder / FOLDER / f"{data_name(data)}.json"


def save_records(folder: Path, records: Mapping[str, tuple[Record, str]]) -> None:
    """Copy them beside saved summaries, where `find_records` finds them."""
    for name, (record, _) in records.items():
        write_copy(record_path(folder, name), record)


def _refuse_other(record: Record, summary: Summary, where: str) -> None:
    parts = figures_by_test(summary)
    first = next(iter(parts))
    run = f"row {summary['system']} seed {summary['seed']}"
    for name, part in parts.items():
        test_set = record["tests"].get(name, {"length": []})
        known = record["data_hash"] if name == first else test_set.get("data_hash", part.get("data_hash"))
        count, expected = len(part["test_nll"]), len(test_set["length"])
        if part.get("data_hash", known) != known:
            raise ValueError(f"{where}: not the test sentences of {run} ({name}), whose data are others")
        if count != expected:
            raise ValueError(f"{where}: {expected} sentences of {name}; {run} was scored on {count}")


def _read(path: Path) -> Record:
    hint = "save it again"
    record = read_json(path, hint) or {}
    wrong = ValueError(f"{path}: not what `fairseq-diverse report TABLE --save` writes; {hint}")
    try:
        whole, counts = isinstance(record["data_hash"], str), [record["longest"]]
        for test_set in record["tests"].values():
            count = len(test_set["length"])
            whole &= isinstance(test_set.get("data_hash", ""), str) and len(test_set["rarest"]) == count
            counts += [*test_set["length"], *test_set["rarest"]]
            for kind in TREES.keys() & test_set.keys():
                digits = set("".join(map(str, range(len(TREES[kind])))))
                whole &= len(test_set[kind]) == count and set(test_set[kind]) <= digits
    except (KeyError, TypeError, AttributeError):
        raise wrong from None
    if not whole or not all(type(count) is int and count >= 0 for count in counts):
        raise wrong
    return record
