"""Pre-training of masked language models: nothing is evaluated but the NLL on the validation split."""

from collections.abc import Sequence
from typing import Any

from fairseq_diverse.experiments.datasets import DataSet
from fairseq_diverse.experiments.kinds.kind import Kind, Loss, Measured, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Column, Line, Measure
from fairseq_diverse.experiments.rows import Row

SPANS = "span_corruption"


class Pretrained(Measured):
    """``valid_nll`` is in nats a masked token."""

    valid_nll: Loss


@register_kind
class Pretraining(Kind):
    """Rows of the tasks ``masked_lm`` and ``span_corruption`` (of T5), from which rows of GLUE and rationales start."""

    name = "pretraining"
    tasks = ("masked_lm", SPANS)
    Measured = Pretrained
    beside, title = ("glue", "rationales"), "Pre-training"
    opening = "NLL: nats a masked token at the last update, lower is better"
    columns = (Column("updates", lambda line: f"{line.facts['updates']:,}"),)
    draws_rows = False

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        if data.glue or (data.source and data.target):
            raise ValueError(
                f"row {row.name}: data set {row.data}: not text of one language (`fairseq-diverse prepare NAME "
                "--monolingual`)"
            )

    def outcome(self, row: Row, summary: Summary) -> str:
        return f"validation NLL {summary['valid_nll']['last']:.4f} a masked token"

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        return (Measure("nll", "NLL", self.loss, 4, heading="validation NLL", unit="nats", lower=True),)

    def notes(self, lines: Sequence[Line]) -> list[str]:
        spans = any(line.row.train.get("task") == SPANS for line in lines)
        return [f"of {SPANS}: a word of the spans, a sentinel or the end, not a masked token"] if spans else []

    def facts(self, row: Row, runs: Sequence[Summary]) -> dict[str, Any]:
        return {"updates": runs[0]["updates"]}
