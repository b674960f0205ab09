"""From raw parallel text to a binarized data set, and the same steps for single lines."""

from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.preparation.pipeline import Preprocessing
from fairseq_diverse.preparation.prepare import prepare

__all__ = ["DataConfig", "Preprocessing", "prepare"]
