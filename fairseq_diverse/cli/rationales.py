"""Explain what a classifier of documents predicts: which words, by LIME, and how far these agree with people's.

Writes one JSON object a document, in the format that ERASER's own program scores, and prints the measures of ERASER.
If interrupted, the same command resumes. --html shows the documents with the words that people marked underlined and
those that the model's prediction depends on in colour.
"""

import argparse
import hashlib
import json
import os
import shutil
from pathlib import Path

from tqdm import tqdm

from fairseq_diverse import register
from fairseq_diverse.metrics.rationales import mean_share
from fairseq_diverse.preparation.pipeline import read_record
from fairseq_diverse.preparation.progress import INTERVAL
from fairseq_diverse.preparation.raw import file_hash
from fairseq_diverse.reports.rationales import page
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import refuse_folder, write_text
from fairseq_diverse.support.processes import locked

EXAMPLE = "fairseq-diverse rationales --checkpoint best.pt --data data/eraser-movies --out found.jsonl --html page.html"
SHOWN = {
    **{"macro_f1": "macro F1", "accuracy": "accuracy", "auprc": "AUPRC"},
    **{"comprehensiveness": "comprehensiveness", "sufficiency": "sufficiency"},
    **{"comprehensiveness_aopc": "comprehensiveness, AOPC", "sufficiency_aopc": "sufficiency, AOPC"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="CKPT", help="trained with --task rationales")
    add("--data", required=True, metavar="DIR", help="folder that `prepare eraser-NAME` wrote")
    add("--out", type=Path, required=True, metavar="FILE", help="rationales, a JSON object a document")
    add("--split", choices=("valid", "test"), default="test", help="default: test")
    add("--examples", type=int, metavar="N", help="only the first N documents (default: all)")
    add("--samples", type=int, default=1000, metavar="N", help="samples of LIME a document (default: 1000)")
    add("--seed", type=int, default=1, help="of the samples (default: 1)")
    add("--max-tokens", type=int, default=8000, metavar="N", help="tokens per batch (default: 8000)")
    add("--save", type=Path, metavar="FILE", help="also write the measures as JSON")
    add("--html", type=Path, metavar="FILE", help="also write a page with the documents")


def main(args: argparse.Namespace) -> None:
    for name, least in (("examples", 1), ("samples", 2), ("max_tokens", 1)):
        if (value := getattr(args, name)) is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    for name in ("out", "save", "html"):
        if path := getattr(args, name):
            refuse_folder(path, f"--{name}")
    import torch

    from fairseq_diverse.analysis.rationales import explain, measured, probabilities
    from fairseq_diverse.checkpoints.shared import CONFIG
    from fairseq_diverse.models.loading import load_models

    register()
    (model,), _, task = load_models([args.checkpoint], args.data)
    if not hasattr(task, "dataset_of"):
        raise UserError(f"{args.checkpoint}: not trained with --task rationales")
    model.eval()
    if torch.cuda.is_available():
        model.cuda()
    examples = task.examples[args.split][: args.examples]
    share = mean_share([example.evidence for example in task.examples["train"]])
    model_file = Path(args.checkpoint, CONFIG) if Path(args.checkpoint).is_dir() else Path(args.checkpoint)
    count = len(examples)
    made_by = [file_hash(model_file), read_record(args.data)["hash"], args.split, count, args.samples, args.seed]
    folder = args.out.with_name(f".{args.out.name}.{hashlib.sha256(str(made_by).encode()).hexdigest()[:16]}.part")
    with locked(folder):
        records, part = [], folder / "records"
        if part.exists():  # of an interrupted call; a last line that was not written to its end is cut off
            lines = part.read_bytes().split(b"\n")[:-1]
            try:
                records = list(map(json.loads, lines))
            except ValueError:
                raise UserError(f"{part}: damaged; delete it, and give the command again") from None
            part.write_bytes(b"".join(line + b"\n" for line in lines))
        left = examples[len(records) :]
        bar = tqdm(left, initial=len(records), total=count, desc="rationales", unit="document", mininterval=INTERVAL)
        with open(part, "a", encoding="utf-8") as file:
            for number, example in enumerate(bar, start=len(records)):
                predict = probabilities(model, task, example.query, args.max_tokens)
                draw = args.samples, 1_000_003 * args.seed + number
                fitting = task.fitting(example.query, example.words)
                records.append(explain(example, fitting, predict, task.labels, share, draw))
                file.write(json.dumps(records[-1], ensure_ascii=False) + "\n")
                file.flush()
        os.replace(part, args.out)
        shutil.rmtree(folder)
    scores = measured(records, examples)
    if args.save is not None:
        write_text(args.save, json.dumps({"documents": count, "rationale_share": share, **scores}))
    if args.html is not None:
        write_text(args.html, page(f"{Path(args.data).name}: rationales", records, examples))
    print(f"{count:,} documents, rationales of {100 * share:.0f}% of the words")
    for name, heading in SHOWN.items():
        print(f"{heading} {scores[name]:.4f}")
