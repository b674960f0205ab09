"""The kinds of experiments, in the order in which they are asked for a data set."""

from fairseq_diverse.experiments.kinds import (  # noqa: F401
    classification,
    glue,
    glue_text,
    images,
    pretraining,
    rationales,
    translation,
)
