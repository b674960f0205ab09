"""Write a model to share, or a translation model for plain fairseq.

--to safetensors writes a folder: weights (safetensors), settings (JSON), dictionaries, subwords and steps of
preparation, the Python files of --user-dir, and a model card, README.md. `translate --model`, `fairseq_diverse.load`
and every command that takes a checkpoint read it; loading runs no code of it. Give a run's folder, and the card has
the scores of all its seeds.

--to fairseq writes a checkpoint whose models other programs convert. The model's mechanisms must be off; training with
--disagreement is allowed. Otherwise one line says what cannot be exported.
"""

import argparse
from functools import partial
from pathlib import Path

from fairseq_diverse import __version__, register
from fairseq_diverse.support.files import refuse_folder

EXAMPLE = """fairseq-diverse export --to safetensors --out shared/my-model runs/DATA-SIZE-ROW/seed1
  fairseq-diverse export --to fairseq --out plain.pt average.pt"""
OTHERS = {
    "ctranslate2": "convert the file of --to fairseq with ct2-fairseq-converter (docs/export.md)",
    "huggingface": "no class of transformers fits fairseq's transformer: Marian's has other positions, and FSMT's "
    "decodes wrongly since it lost its own; --to safetensors writes a folder for the Hugging Face hub",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoints", metavar="CHECKPOINT", help="checkpoint of fairseq-train, an average, or the folder of a run")
    add("--to", required=True, choices=("safetensors", "fairseq", *OTHERS), help="a folder to share, or the program")
    add("--out", required=True, type=Path, metavar="PATH", help="folder, or for fairseq a checkpoint, to write")
    add("--data", metavar="DIR", help="for safetensors: data of its training (default: as the checkpoint names them)")


def main(args: argparse.Namespace) -> None:
    if args.to in OTHERS:
        raise ValueError(f"--to {args.to}: {OTHERS[args.to]}")
    path = Path(args.checkpoints)
    checkpoint = _run_checkpoint(path) if path.is_dir() else path
    if args.to == "fairseq":
        if args.data:
            raise ValueError(f"--data {args.data}: goes with --to safetensors")
        refuse_folder(args.out, "--out")
    if args.out.resolve() == checkpoint.resolve():
        raise ValueError(f"--out {args.out}: is the checkpoint; name another file")
    register()
    if args.to == "safetensors":
        return _share(checkpoint, args)
    from fairseq_diverse.models.plain import to_fairseq

    to_fairseq(checkpoint, args.out)
    print(f"{args.out}: for fairseq-generate, without --user-dir")
    return None


def _run_checkpoint(folder: Path) -> Path:
    """The checkpoint that a run evaluates, or a shared folder itself."""
    if (folder / "config.json").is_file():
        return folder
    names = "checkpoint_average.pt", "checkpoint_last.pt"
    if checkpoints := [path for name in names if (path := folder / "checkpoints" / name).is_file()]:
        return checkpoints[0]
    raise ValueError(f"{folder}: no folder of a run, with checkpoints/{' or '.join(names)}; name a checkpoint")


def _share(checkpoint: Path, args: argparse.Namespace) -> None:
    from fairseq_diverse.checkpoints.shared import CARD
    from fairseq_diverse.models.sharing import export_shared
    from fairseq_diverse.reports.card import model_card

    card = partial(model_card, args.out.resolve().name, checkpoint.resolve())
    export_shared(checkpoint, args.out, card, args.data, args.user_dir, __version__)
    print(f"{args.out}: translate --model and fairseq_diverse.load read it; complete its {CARD} before you share it")
