"""Pre-training of masked language models: nothing is evaluated but the NLL on the validation split."""

from collections.abc import Sequence
from typing import Any

from fairseq_diverse.experiments.kinds.kind import Kind, Loss, Measured, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Column, Line, Measure, grouped
from fairseq_diverse.experiments.run import DataSet, Row

SPANS = "span_corruption"


def _unit(row: Row) -> str:
    """What the NLL of a row is a mean over."""
    return "a word of a span, a sentinel or the end" if row.train.get("task") == SPANS else "a masked token"


class Pretrained(Measured):
    """``valid_nll`` is in nats a masked token, or for T5 a token of the target."""

    valid_nll: Loss


@register_kind
class Pretraining(Kind):
    """Rows of the tasks ``masked_lm`` and ``span_corruption`` (of T5), from which rows of GLUE and rationales start."""

    name = "pretraining"
    tasks = ("masked_lm", SPANS)
    generates = False
    Measured = Pretrained
    beside, title = ("glue", "rationales"), "Pre-training"
    columns = (Column("updates", lambda line: f"{line.facts['updates']:,}"),)
    draws_rows = False

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        if data.glue or (data.source and data.target):
            needed = "not text of one language (`fairseq-diverse prepare NAME --monolingual`)"
            raise ValueError(f"row {row.name}: data set {row.data}: {needed}")

    def outcome(self, row: Row, summary: Summary) -> str:
        return f"validation NLL {summary['valid_nll']['last']:.4f} {_unit(row)}"

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        return (Measure("nll", "NLL", self.loss, 4, heading="validation NLL", unit="nats", lower=True),)

    def notes(self, lines: Sequence[Line]) -> list[str]:
        by_unit = grouped((_unit(line.row), line.name) for line in lines)
        units = [unit + f" ({', '.join(names)})" * (len(by_unit) > 1) for unit, names in by_unit.items()]
        return [f"NLL: nats {' or '.join(units)} at the last update, lower is better"]

    def facts(self, row: Row, runs: Sequence[Summary]) -> dict[str, Any]:
        return {"updates": runs[0]["updates"]}
