"""Rationales: classifiers of ERASER's documents, and how well their predictions are explained (LIME)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.flags import own_command, to_arguments
from fairseq_diverse.experiments.kinds.kind import Kind, Measured, State, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Line, Measure
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.preparation import eraser
from fairseq_diverse.support.files import iterate_lines, read_json
from fairseq_diverse.support.paths import folders_of_data
from fairseq_diverse.support.typed import refuse_unknown

FILE = "rationales.json"
EXPLAINED = ("samples", "examples")  # the flags of `rationales` that a table's `generate` may have


class Explained(Measured):
    """Of the test set; ``rationale_share`` is that of the words that a rationale has."""

    documents: int
    rationale_share: float
    macro_f1: float
    accuracy: float
    auprc: float
    comprehensiveness: float
    sufficiency: float
    comprehensiveness_aopc: float
    sufficiency_aopc: float


@register_kind
class Rationales(Kind):
    """Rows of the task ``rationales``, on prepared data sets of ERASER (Wang et al., 2021, Table 8)."""

    name = "rationales"
    tasks = ("rationales",)
    keys = frozenset({"pretrained"})
    losses = ("accuracy", "loss")
    evaluation = ("rationales",)
    Measured = Explained
    published = ("perf", "auprc", "comprehensiveness", "sufficiency")
    opening = (
        "Perf.: macro F1, of CoS-E accuracy; AUPRC: scores by LIME against the words that people marked; Comp., Suff.: "
        "the probability that a prediction loses without its rationale (higher is better), and with its rationale "
        "alone (lower is better); AOPC: means over rationales of 1, 5, 10, 20, 50% of the words"
    )
    items = "documents"

    def examples(self, data: str) -> int | None:
        """Of the prepared data, else as ERASER has them."""
        for folder in folders_of_data(data):
            if (path := folder / "text" / eraser.FILES["train"]).is_file():
                return sum(1 for _ in iterate_lines(path))
        named = eraser.split_name(Path(data).name)
        return eraser.EXAMPLES.get(named[0]) if named else None

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        if not eraser.split_name(name):
            return None
        how = f"--raw DIR --out {folders[0]} (DIR has its files, downloaded by hand from {eraser.ORIGIN})"
        return DataSet(name, folders[0], "en", "", None, preparation=how)

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        where = f"row {row.name}"
        refuse_unknown(row.named_in_generate, EXPLAINED, f"{where}: generate")
        for flag, value in row.generate.items():
            if not str(value).isdecimal() or int(value) < 2:
                raise ValueError(f"{where}: generate: {flag}: {value}: a whole number above 1 expected")
        if not data.hash:
            return
        where += f": data set {row.data}"
        if not (data.path / "text/docs.jsonl").is_file():
            raise ValueError(f"{where}: not in ERASER's layout (`fairseq-diverse prepare eraser-NAME`)")
        if row.first and first and (data.path / "dict.txt").read_bytes() != (first.path / "dict.txt").read_bytes():
            wrong = f"another dictionary than {row.first.data}, on which row {row.first.name} pre-trains"
            raise ValueError(f"{where}: has {wrong}; prepare and name {eraser.PREFIX}NAME@{Path(row.first.data).name}")

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        files = ["--checkpoint", str(run.checkpoint), "--data", str(run.data.path)]
        out = ["--out", str(run.directory / "rationales.jsonl"), "--save", str(run.directory / FILE)]
        return {"rationales": own_command("rationales", run, *files, *out, *to_arguments(run.row.generate))}

    def settings(self, row: Row) -> dict[str, Any]:
        return super().settings(row) | {"generate": row.generate}

    def summarize(self, run: Run, state: State) -> Summary:
        return read_json(run.directory / FILE) or {}

    def outcome(self, row: Row, summary: Summary) -> str:
        figures = ("macro_f1", "accuracy", "auprc", "comprehensiveness", "sufficiency")
        return ", ".join(f"{name} {summary[name]:.3f}" for name in figures)

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        def of(key: str, name: str, lower: bool = False, compared: bool = True) -> Measure:
            return Measure(key, name, lambda run: run[key], 3, lower=lower, compared=compared)

        return (
            Measure("perf", "Perf.", performance, 3),
            of("auprc", "AUPRC"),
            of("comprehensiveness", "Comp."),
            of("sufficiency", "Suff.", lower=True),
            of("comprehensiveness_aopc", "Comp. AOPC", compared=False),
            of("sufficiency_aopc", "Suff. AOPC", lower=True, compared=False),
        )

    def notes(self, lines: Sequence[Line]) -> list[str]:
        runs = [line.runs[0] for line in lines]
        tests = sorted({(run["data"], 100 * run["rationale_share"], run["documents"]) for run in runs})
        return [f"{data}: rationales of {share:.0f}% of the words, {count:,} documents" for data, share, count in tests]


def performance(summary: Summary) -> float:
    """What Wang et al. (2021), Table 8, call Perf."""
    named = eraser.split_name(summary["data"])
    return summary["accuracy" if named and named[0].startswith("cose") else "macro_f1"]
