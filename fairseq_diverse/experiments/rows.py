"""One row of a table with everything resolved."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

ENCODER = ("from-checkpoint", "checkpoint-data")  # where an encoder lies that is probed
EARLY = ("max-epoch", "patience", "stop-min-lr", "stop-time-hours")  # by which a row ends training before max-update


@dataclass(frozen=True)
class Row:
    """One row of a table with everything resolved: what is trained, on what, and how it is translated.

    ``train`` and ``generate`` hold flags of fairseq-train and fairseq-generate as they stand on a command line
    (``True``: a flag without a value); ``lenpen`` length penalties of which each run takes the one with the highest
    BLEU on its validation split, empty where ``generate`` decides; ``average`` is empty, or the number of checkpoints
    (``last``) and the updates between them (``every``). ``baseline`` is the row that it is compared with; ``published``
    holds a paper's figures, measured on the data set ``published_on``. ``family`` is the row of the file that a grid
    made this one of. ``metrics`` are those of ``fairseq-diverse score`` that translations are scored by besides BLEU,
    chrF and TER.
    ``tests`` are the sets that it is evaluated on besides the first test set: names of the data's test sets, or valid.
    ``user_dir`` is a folder of mechanisms of the user's own.
    """

    name: str
    data: str
    size: str
    train: dict[str, str | bool]
    generate: dict[str, str | bool]
    average: dict[str, int]
    baseline: str
    published: dict[str, Any]
    published_on: str
    family: str
    metrics: tuple[str, ...] = ()
    user_dir: str = ""
    lenpen: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    @property
    def max_update(self) -> int:
        return int(self.train["max-update"])

    @property
    def ends_early(self) -> list[str]:
        """The flags by which training may end before ``max-update``."""
        return [flag for flag in EARLY if flag in self.train]

    def key(self, data_hash: str) -> str:
        """Ten hexadecimal digits that equal runs share: data, flags and averaging, but not the seed.

        Args:
            data_hash: of all that is read, a probed encoder too: where that lies is not in the key.
        """
        train = {flag: value for flag, value in self.train.items() if flag not in ENCODER}
        content = {"data": data_hash, "train": train, "generate": self.generate, "average": self.average}
        content |= {"lenpen": self.lenpen} if self.lenpen else {}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
