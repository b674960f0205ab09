"""All steps of a comparison on the embedded corpus: data, training, translation, a table, attention maps, a page.

Everything is written to the folder OUT; interrupted, the same command resumes. It takes five to ten minutes on two
cores of a CPU. docs/demo.md shows the table, and what the corpus is.
"""

import argparse
import contextlib
import io
import json
import os
import shlex
from pathlib import Path
from typing import Any

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, read_lines

EXAMPLE = "fairseq-diverse demo --rows baseline,gated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo"), metavar="OUT", help="folder for all files (default: %(default)s)")
    rows = "rows of table toy, or all (default: %(default)s)"
    add("--rows", default="baseline,evolving,disagreement", metavar="a,b", help=rows)
    add("--size", default="tiny", metavar="S", help="a name in configs/size, or a YAML file (default: %(default)s)")
    add("--updates", type=int, default=900, metavar="N", help="updates of each training (default: %(default)s)")
    add("--sentences", type=int, default=12000, metavar="N", help="training sentences (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    from fairseq_diverse.cli import main as command
    from fairseq_diverse.support.pictures import new_figure

    new_figure(1, 1)  # says that matplotlib is missing now, not after the trainings
    out: Path = args.out
    raw, data, words, page = out / "raw", out / "data/toy", out / "word-by-word.txt", out / "report.html"
    os.environ["FAIRSEQ_DIVERSE_RUNS"] = str(out)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    table = ["toy", "--size", args.size, "--set", f"max-update={args.updates}"]
    table += ["--rows", args.rows] if args.rows != "all" else []

    def runs() -> list[dict[str, Any]]:
        """The runs as they are now; also where no data are yet, so that wrong flags are refused first."""
        code, printed = _captured("run", *table, "--dry-run", "--json")
        return json.loads(printed) if not code else []

    if not runs():
        return 2
    print(f"== corpus and its word-by-word translation: {raw}", flush=True)
    if not words.is_file():
        corpus = ["toy", "--out", str(raw), "--sentences", str(args.sentences), "--seed", "1", "--word-by-word"]
        code, printed = _captured(*corpus)
        if code:
            return code
        with atomic_write(words) as file:
            file.write(printed)
    elif (count := len(read_lines(raw / "train.en"))) != args.sentences:
        raise UserError(f"--sentences {args.sentences}: {raw} has {count} already; give another --out")
    print(f"== tokens, subwords, fairseq-preprocess: {data}", flush=True)
    trees = ["--dependency", f"{raw}/{{split}}.en.conllu", "--constituency", f"{raw}/{{split}}.en.ptb"]
    steps = [["prepare", "toy", "--raw", str(raw), "--out", str(data)]]
    if not (data / "test.en-de.en.syntax.json").is_file():
        steps.append(["binarize-syntax", "--data", str(data), *trees])
    for step in steps:
        if code := command(step):
            return code
    print(f"== fairseq-train and fairseq-generate, three runs side by side; logs in {out}/toy-*/seed1", flush=True)
    if code := command(["run", *table, "--jobs", "3"]):
        return code
    print("== attention maps", flush=True)
    if failed := [run for run in runs() if not _draw(run, data, out / "attention")]:
        raise ValueError(f"{failed[0]['row']}: a map could not be drawn, see above")
    print("== results, and five test sentences", flush=True)
    columns = "row,parameters,BLEU,chrF,TER,length"  # no speed: the trainings share the machine unequally
    columns += ",Δ BLEU,Δ NLL" * (len(runs()) > 1) + ",seeds"
    shown = ["--columns", columns, "--translations", "5"], ["--format", "html", "--out", str(page)]
    if code := command(["report", *table, *shown[0]]) or command(["report", *table, *shown[1]]):
        return code
    print(words.read_text(encoding="utf-8").splitlines()[-1])
    print(f"\nthe same as a page:  {page}\nattention maps:      {out}/attention/")
    variable = f"FAIRSEQ_DIVERSE_RUNS={shlex.quote(str(out))}"
    print("Next (in a clone first: source .venv/bin/activate):")
    print(f"  fairseq-diverse demo --rows baseline,gated --out {shlex.quote(str(out))}    # another mechanism")
    print(f"  {variable} fairseq-diverse run {shlex.join(table)} --seeds 1,2,3 --jobs 2    # one seed proves nothing")
    files = "--train raw/train --valid raw/dev --test raw/test --out data"
    print(f"  fairseq-diverse prepare --source de --target en {files}    # your own text")
    return 0


def _captured(*words: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints."""
    from fairseq_diverse.cli import main as command

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = command(list(words))
    return code, printed.getvalue()


def _draw(run: dict[str, Any], data: Path, folder: Path) -> bool:
    """Draw the maps of a run that are older than its checkpoint; whether all of them are there."""
    code = 0
    for component in ("encoder", "cross"):
        picture, checkpoint = folder / f"{run['row']}-{component}-2.png", Path(run["checkpoint"])
        if picture.is_file() and picture.stat().st_mtime > checkpoint.stat().st_mtime:
            print(f"{picture}: drawn before")
            continue
        flags = ["--data", str(data), "--sentence", "3", "--layer", "2", "--component", component]
        failed, printed = _captured("plot", "attention", *flags, "--out", str(picture), "--path", str(checkpoint))
        print("\n".join(printed.splitlines()[-1:]), flush=True)
        code = code or failed
    return not code
