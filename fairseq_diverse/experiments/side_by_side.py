"""Translations of the rows of a table, sentence by sentence."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.rows import Row
from fairseq_diverse.experiments.runs import find_runs
from fairseq_diverse.support.files import read_lines


@dataclass(frozen=True)
class Sentence:
    """A test sentence, by its number from 1, and its translation by every row that has one."""

    number: int
    source: str
    reference: str
    translations: dict[str, str]

    def as_text(self) -> str:
        lines = {"source": self.source, "reference": self.reference, **self.translations}
        width = max(map(len, lines))
        return "\n".join([f"sentence {self.number}", *(f"  {name:<{width}}  {line}" for name, line in lines.items())])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sentences(rows: Sequence[Row], count: int, runs: Path | None = None, test: str = "test") -> list[Sentence]:
    """``count`` sentences, evenly spread over a test set, as the first finished seed of each row translates them.

    Args:
        rows: rows that translate, of one or several data sets; only those on the data of the first are shown.
        runs: folder of the runs (default: ``runs_dir()``).
        test: name of the test set, by default the first.

    Raises:
        ValueError: a run's translations do not belong to the test set that the data has now; names the file.
    """
    rows = [row for row in rows if row.data == rows[0].data]
    found = find_runs(rows, [0], True, runs, cpu=True)
    data = found[0].data
    further = found[0].further
    split, name = (further[test], test) if test in further else ("test", "test")
    texts = [data.path / "text" / f"{split}.{language}" for language in (data.source, data.target)]
    of_rows = {run.row.name: sorted(run.directory.parent.glob(f"seed*/{name}.hyp")) for run in found}
    if not any(of_rows.values()) or not all(path.is_file() for path in texts):
        return []
    source, reference = map(read_lines, texts)
    translated = {row: read_lines(paths[0]) for row, paths in of_rows.items() if paths}
    for row, lines in translated.items():
        if len(lines) != len(reference):
            raise ValueError(
                f"{of_rows[row][0]}: {len(lines)} translations of the {len(reference)} sentences of {texts[1]}"
            )
    count = min(count, len(reference))
    return [
        Sentence(at + 1, source[at], reference[at], {row: lines[at] for row, lines in translated.items()})
        for at in (number * len(reference) // count for number in range(count))
    ]
