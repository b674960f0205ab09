"""A training of `fairseq-diverse run`: as examples.images.train, but its end is a number of updates, and it leaves
``checkpoint_last.pt`` and lines in its log as fairseq does."""

import argparse
import json
from collections.abc import Sequence

import torch

from examples.images import train
from examples.images.data import Pictures
from examples.images.model import SIZES
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.support.errors import UserError, exit_with
from fairseq_diverse.support.files import atomic_write


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("examples.images.run", description=__doc__)
    parser.add_argument("--max-update", type=int, required=True)
    args, rest = parser.parse_known_args(words)
    given = train.arguments(rest)
    updates = len(Pictures(given.data, SIZES[given.size].image, given.seed)) // given.batch
    epochs, more = divmod(args.max_update, max(1, updates))
    if more or not epochs:
        raise UserError(
            f"--max-update {args.max_update}: not a number of whole epochs; one has {updates} updates of {given.batch} "
            "pictures"
        )
    train.main([*rest, "--epochs", str(epochs)])
    result = json.loads((given.out / "result.json").read_text())
    saved = load_checkpoint(given.out / "checkpoint.pt")
    state = {key: saved[key] for key in ("model", "settings", "classes")}
    with atomic_write(given.out / "checkpoint_last.pt", "wb") as file:
        torch.save(state | {"optimizer_history": [{"num_updates": args.max_update}]}, file)
    (given.out / "result.json").replace(given.out.parent / "images.json")
    print(f"num. shared model params: {result['parameters']:,} ({result['seconds'] / 60:.1f} minutes)")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        exit_with(str(error))
