"""Parse tokenized text.

Dependencies are written as CoNLL-U (by spaCy or stanza), constituents as PTB brackets, one tree a line (by benepar,
stanza or a PCFG). Give the text before subword segmentation. Tokens stay as they are; Moses' escapes (&apos; @-@) are
undone for the parser only. Sentence N of the output is line N of the text. Empty lines and sentences on which the
parser fails get no tree; they are counted and listed in OUT.unparsed. If interrupted, the same command resumes.
Shards may run on several machines that share a folder: with --join, whichever shard ends last joins them all. --slurm
queues --shards such jobs.
--train-pcfg TREES writes the grammar of bracketed trees to --out, for --model GRAMMAR (--parser pcfg).
"""

import argparse
import collections
from pathlib import Path

import msgspec

from fairseq_diverse.cli import first_lines
from fairseq_diverse.support import slurm
from fairseq_diverse.support.files import atomic_write, refuse_folder, sha256_of
from fairseq_diverse.support.languages import base_language
from fairseq_diverse.support.paths import runs_dir
from fairseq_diverse.support.processes import Busy, cores, gpu_names
from fairseq_diverse.syntax.parse import join_shards, parse_file, refuse_other, shard_path
from fairseq_diverse.syntax.parsers import MODELS, PARSERS, located, parser_of
from fairseq_diverse.syntax.pcfg import train

EXAMPLE = "fairseq-diverse parse --kind dependency --input 'text/tok.{split}.en' --out 'parses/{split}.en.conllu'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kind", choices=("dependency", "constituency"), required=True, help="kind of trees")
    add("--parser", choices=("spacy", "benepar", "stanza", "pcfg"), help="default: by --kind and --model")
    add("--model", help="name, folder or grammar (default: the parser's default model for the language)")
    add("--language", default="en", help="language of the text (default: en)")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--input", metavar="FILES", help="tokenized text; {split} stands for each of --splits")
    group.add_argument("--train-pcfg", type=Path, metavar="TREES", help="bracketed trees: write their PCFG to --out")
    add("--out", required=True, metavar="FILES", help="files to write, with {split} if --input has it")
    add("--splits", default="train,valid,test", help="comma-separated (default: %(default)s)")
    add("--workers", type=int, help="processes (default: one per core, or per GPU with --device cuda)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: all GPUs that torch sees (default: cpu)")
    add("--shard", metavar="I/N", help="parse only the I-th of N equal parts, into OUT.I-of-N")
    add("--join", action="store_true", help="with --shard: join all shards if none is missing")
    _add_slurm(parser)


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    options = "queue the shards with SLURM, with options of sbatch: partition=cpu cpus_per_task=16 time=600 (minutes)"
    parser.add_argument("--slurm", nargs="*", metavar="OPTION=VALUE", help=options)
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="with --slurm: number of jobs (default: 1)")


def main(args: argparse.Namespace) -> None:
    if args.train_pcfg:
        return _train_pcfg(args)
    name = args.parser or parser_of(args.kind, args.model)
    if name not in PARSERS[args.kind]:
        raise ValueError(f"--parser {name}: makes no {args.kind} trees; take {' or '.join(PARSERS[args.kind])}")
    usual = "default" if name == "stanza" else MODELS.get((name, base_language(args.language)))
    model = located(args.model) if args.model else usual
    if not model:
        raise ValueError(f"--language {args.language}: no default model of {name} for it; give --model")
    for flag, count in (("workers", args.workers), ("shards", args.shards)):
        if count is not None and count < 1:
            raise ValueError(f"--{flag} {count}: at least 1 is needed")
    shard = None
    if args.shard is not None:
        number, _, total = args.shard.partition("/")
        if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
            raise ValueError(f"--shard {args.shard}: I/N with 1 <= I <= N is needed, for example 2/8")
        shard = int(number), int(total)
    if args.join and not args.shard:
        raise ValueError("--join: give --shard I/N too")
    if args.slurm is None and args.shards > 1:
        raise ValueError(f"--shards {args.shards}: needs --slurm; without it, start each with --shard I/N --join")
    if args.slurm is not None and args.shard:
        raise ValueError(f"--shard {args.shard}: with --slurm give --shards N")
    if ("{split}" in args.input) != ("{split}" in args.out):
        raise ValueError("--input and --out: {split} must be in both or in neither")
    splits = [split for split in args.splits.split(",") if split]
    if not splits:
        raise ValueError(f"--splits {args.splits!r}: names none")
    if args.slurm is not None:
        return _queue(args)
    gpus = gpu_names() if args.device == "cuda" else []
    if args.device == "cuda" and not gpus:
        raise ValueError("--device cuda: torch sees no GPU here")
    workers = args.workers or len(gpus) or cores()
    how = {"kind": args.kind, "parser": name, "model": model, "language": args.language}
    how |= {"grammar": sha256_of(model)} if name == "pcfg" and Path(model).is_file() else {}
    for split in splits if "{split}" in args.input else [""]:
        text, out = (Path(pattern.replace("{split}", split)) for pattern in (args.input, args.out))
        whole, out = out, shard_path(out, *shard) if shard else out
        for path in (out, whole):
            refuse_folder(path, "--out")
        existing = [path for path in (out, *[whole] * args.join) if path.exists()]
        for path in existing:
            refuse_other(path, text, how)
            print(f"{path}: there already")
        if not existing:
            count, unparsed = parse_file(text, out, how, workers, shard, gpus)
            reasons = collections.Counter(failure.reason for failure in unparsed)
            print(f"{out}: {count} lines, {len(unparsed)} without a tree")
            for reason, times in reasons.most_common():
                lines = [failure.line for failure in unparsed if failure.reason == reason]
                print(f"  {times} x {reason}: line {first_lines(lines)}")
        if args.join and shard and whole not in existing:
            try:
                missing = join_shards(whole, shard[1])
                print(f"{whole}: {f'{len(missing)} of {shard[1]} shards are missing' if missing else 'joined'}")
            except Busy as busy:  # the other splits remain to be parsed
                print(f"{whole}: {busy}")


def _train_pcfg(args: argparse.Namespace) -> None:
    if args.kind != "constituency" or args.parser not in (None, "pcfg") or args.model:
        raise ValueError("--train-pcfg: goes with --kind constituency, without --model or another --parser")
    if given := [flag for flag in ("workers", "shard", "join", "slurm") if getattr(args, flag) not in (None, False)]:
        raise ValueError(f"--{given[0]}: is for parsing, not for --train-pcfg")
    grammar, trees = train(args.train_pcfg)
    with atomic_write(args.out, "wb") as file:
        file.write(msgspec.json.encode(grammar))
    rules = len(grammar.binary) + len(grammar.unary)
    print(f"{args.out}: {trees:,} trees, {rules:,} rules, {len(grammar.words):,} words")


def _queue(args: argparse.Namespace) -> None:
    flags = argparse.ArgumentParser(add_help=False)  # which knows abbreviated flags
    _add_slurm(flags)
    line = flags.parse_known_args(args.words)[1]
    shards = [f"{number}/{args.shards}" for number in range(1, args.shards + 1)]
    jobs = [slurm.Command([*line, "--shard", shard, "--join"]) for shard in shards]
    for shard, job in zip(shards, slurm.submit(jobs, len(jobs), args.slurm, runs_dir() / "slurm"), strict=True):
        print(f"shard {shard}: job {job}")
    print(f"logs of jobs: {runs_dir() / 'slurm'}")
