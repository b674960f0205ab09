"""Pre-training of masked language models: nothing is evaluated but the NLL on the validation split."""

from collections.abc import Sequence
from typing import Any

from fairseq_diverse.experiments.datasets import DataSet
from fairseq_diverse.experiments.kinds.kind import Kind, Loss, Measured, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Column, Measure
from fairseq_diverse.experiments.rows import Row


class Pretrained(Measured):
    """``valid_nll`` is in nats a masked token."""

    valid_nll: Loss


@register_kind
class Pretraining(Kind):
    """Rows of fairseq's task ``masked_lm``, from which rows of GLUE and of rationales start."""

    name = "pretraining"
    tasks = ("masked_lm",)
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

    def facts(self, row: Row, runs: Sequence[Summary]) -> dict[str, Any]:
        return {"updates": runs[0]["updates"]}
