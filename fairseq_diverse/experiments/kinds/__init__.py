"""The kinds of experiments, in the order in which they are asked for a data set."""

from fairseq_diverse.experiments.kinds import classification, glue, images, pretraining, rationales, translation  # noqa: F401
