"""Translations of the rows of a table, sentence by sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_diverse.experiments.run import Row, Run
from fairseq_diverse.experiments.runs.folder import folders_by_seed
from fairseq_diverse.experiments.runs.saved import runs_of
from fairseq_diverse.support.files import read_lines
from fairseq_diverse.support.tables import one_line, readable


@dataclass(frozen=True)
class Sentence:
    """A test sentence, by its number from 1, and its translation by every row that has one."""

    number: int
    source: str
    reference: str
    translations: dict[str, str]

    def as_text(self) -> str:
        texts = {"source": self.source, "reference": self.reference, **self.translations}
        lines = {one_line(name): readable(text) for name, text in texts.items()}
        width = max(map(len, lines))
        return "\n".join([f"sentence {self.number}", *(f"  {name:<{width}}  {line}" for name, line in lines.items())])


@dataclass(frozen=True)
class SideBySide:
    """Sentences of a test set, of ``total`` ones, and the seed that each row's translations are of."""

    sentences: list[Sentence]
    total: int
    seeds: dict[str, int]


def sentences_of(rows: Sequence[Row], root: Path | None, count: int, test: str | None) -> list[Sentence]:
    """Those of `side_by_side`, of the rows' runs in a folder of runs (None: the default)."""
    return side_by_side(runs_of(rows, root), count, test or "test").sentences if count else []


def side_by_side(runs: Sequence[Run], count: int, test: str = "test") -> SideBySide:
    """``count`` sentences, evenly spread over a test set, as the first finished seed of each row translates them; only
    of rows on the data of the first run. Raises ValueError: a run's translations do not belong to the test set that the
    data has now; names the file."""
    data, split, name = runs[0].data, runs[0].split_of(test), test if test in runs[0].further else "test"
    texts = [data.path / "text" / f"{split}.{language}" for language in (data.source, data.target)]
    folders = {run.row.name: folders_by_seed(run).items() for run in runs if run.data.path == data.path}
    files = {row: {seed: folder / f"{name}.hyp" for seed, folder in of_row} for row, of_row in folders.items()}
    of_rows = {row: {seed: file for seed, file in of_row.items() if file.is_file()} for row, of_row in files.items()}
    if not any(of_rows.values()) or not all(path.is_file() for path in texts):
        return SideBySide([], 0, {})
    source, reference = map(read_lines, texts)
    chosen = {row: min(of_row) for row, of_row in of_rows.items() if of_row}
    translated = {row: read_lines(of_rows[row][seed]) for row, seed in chosen.items()}
    for row, lines in translated.items():
        if len(lines) != len(reference):
            path = of_rows[row][chosen[row]]
            raise ValueError(f"{path}: {len(lines)} translations of the {len(reference)} sentences of {texts[1]}")
    count = min(count, len(reference))
    shown = [
        Sentence(at + 1, source[at], reference[at], {row: lines[at] for row, lines in translated.items()})
        for at in (number * len(reference) // count for number in range(count))
    ]
    return SideBySide(shown, len(reference), chosen)
