"""GLUE as text: a model such as T5 writes the words of labels; scored as other models of GLUE, in their tables."""

from fairseq_diverse.experiments.flags import Flags
from fairseq_diverse.experiments.kinds.glue import Glue
from fairseq_diverse.experiments.kinds.kind import register_kind
from fairseq_diverse.experiments.run import DataSet, Run


@register_kind
class GlueAsText(Glue):
    """Rows of the task ``text_to_text``, on prepared tasks of GLUE as text (``glue-CoLA.text``)."""

    name, within = "glue-text", "glue"
    tasks = ("text_to_text",)
    as_text = True

    def languages(self, data: DataSet) -> tuple[str, str]:
        return data.source, data.target

    def training(self, run: Run) -> Flags:
        """None: the words of the labels are in the data."""
        return {}
