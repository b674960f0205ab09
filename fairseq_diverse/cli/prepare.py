"""Prepare data sets for fairseq-train: download, extract, clean, tokenize, segment into subwords, binarize.

NAME is a configuration in configs/data/ or a YAML file of your own. It needs --archives or --raw:
  --archives DIR  downloads missing archives into DIR, or lists those that you must download yourself, and extracts the
                  raw files into DIR/NAME; compares the numbers of lines and pairs with the configuration's; resumes
  --raw DIR       reads raw files that you have
Files of your own need no NAME: give --source, --target, --train, --valid, --test and --out instead. The settings are
written to OUT.yaml. To change them, edit that file and use it as NAME. Files may be compressed (raw/train.de.gz), or
one of both languages: two columns (raw/train.tsv) or TMX (raw/train.tmx), whose name is given in full. sacrebleu:wmt14
is a test set by sacreBLEU's name, which it downloads.

The result is one folder: dict.*.txt, the binarized splits, preprocess.json (a record of all steps), and text/ (the
cleaned splits, also tokenized and in subwords). It appears only when it is complete. Training pairs with an empty side
are dropped, lines of valid and test never (docs/configs.md: all that is cleaned).

propositional_logic and probing (SentEval) are checked and copied unchanged. --monolingual is for masked language
models. glue-TASK, of files in DIR or DIR/TASK, is for --task sentence_prediction; with --as-text, or as glue-TASK.text,
it has words for labels, for T5 and --task text_to_text. eraser-NAME is for --task rationales. Both take the subwords of
a pre-trained model: of the data set DATA as glue-TASK@DATA, of fairseq's RoBERTa, a BERT or a T5 by --gpt2-bpe,
--wordpiece or --sentencepiece (of several, BERT's is for tasks named glue-TASK@bert).
"""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import commonpath
from pathlib import Path
from typing import Any

import yaml

from fairseq_diverse.data.plain import PLAIN_DATA, download_plain, put_plain
from fairseq_diverse.preparation import DataConfig, eraser, extraction, glue, prepare
from fairseq_diverse.preparation.download import fetch
from fairseq_diverse.preparation.encoding import Encoding, of_data, of_gpt2, of_t5, of_wordpiece
from fairseq_diverse.preparation.prepare import wrong_pairs
from fairseq_diverse.preparation.raw import OTHERS, SACREBLEU, WANTED, joint
from fairseq_diverse.support.errors import warn
from fairseq_diverse.support.files import write_text
from fairseq_diverse.support.paths import config_names, config_path, runs_dir
from fairseq_diverse.support.processes import locked
from fairseq_diverse.support.typed import check_text, read_yaml

EXAMPLE = """fairseq-diverse prepare multi30k_en_de --raw multi30k --out data/multi30k_en_de
  fairseq-diverse prepare --source de --target en --train raw/train --valid raw/dev --test raw/test --bpe-size 8000 \\
      --out data"""
BOTH_WAYS = "write `prepare NAME --raw DIR`, or for files of your own "
BOTH_WAYS += "`prepare --source de --target en --train raw/train --valid raw/dev --test raw/test --out data`"
OWN = ("source", "target", "train", "valid", "test", "bpe_size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    erasers = (f"{eraser.PREFIX}{name}" for name in eraser.EXAMPLES)
    names = ", ".join((*config_names("data"), *PLAIN_DATA, *glue.NAMES, *erasers))
    add = parser.add_argument
    add("configs", nargs="*", metavar="NAME", help=f"{names}, or a YAML file")
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--raw", metavar="DIR", type=Path, help="folder of the raw files")
    folders.add_argument("--archives", metavar="DIR", type=Path, help="folder of the archives with the raw files")
    own_files = parser.add_argument_group("files of your own, instead of NAME and --raw")
    own_files.add_argument("--source", metavar="LANGUAGE", help="source language, the ending of its files, such as de")
    own_files.add_argument("--target", metavar="LANGUAGE", help="target language (default: none, monolingual text)")
    train = "training text: raw/train means raw/train.de and raw/train.en; or a .tsv, .tmx"
    own_files.add_argument("--train", metavar="PREFIX", help=train)
    own_files.add_argument("--valid", metavar="PREFIX", help="validation text")
    own_files.add_argument("--test", metavar="PREFIX", nargs="+", help="one or several test sets, also sacrebleu:NAME")
    own_files.add_argument("--bpe-size", metavar="N", type=int, help="number of BPE merges (default: 32000)")
    add("--no-download", action="store_true", help="list missing archives, download none")
    counts = parser.add_mutually_exclusive_group()
    counts.add_argument("--strict-counts", action="store_true", help="stop if numbers of lines or pairs differ")
    counts.add_argument("--accept-counts", action="store_true", help="only warn if they differ (the default)")
    add("--out", type=Path, help="folder to create (default: data/NAME in the folder of runs)")
    add("--monolingual", metavar="LANGUAGE", nargs="?", const="", help="only this language (default: the source)")
    add("--gpt2-bpe", metavar="DIR", type=Path, help="use the subwords of encoder.json, vocab.bpe and dict.txt in DIR")
    add("--wordpiece", metavar="DIR", type=Path, help="use the subwords of BERT's vocab.txt in DIR")
    add("--sentencepiece", metavar="DIR", type=Path, help="use the subwords of T5's spiece.model in DIR")
    add("--as-text", action="store_true", help="tasks of GLUE as text: `cola sentence: ...`, labels as words")
    add("--dedup", action="store_true", help="drop training pairs whose tokens were read before")
    add("--strict", action="store_true", help="refuse unclean lines instead of fixing or dropping them")
    add("--overwrite", action="store_true", help="replace a data set made of other files or settings")
    add("--workers", type=int, default=1, help="number of processes (default: 1)")


def main(args: argparse.Namespace) -> None:
    from fairseq_diverse.preparation.prepare_glue import prepare_glue

    if args.workers < 1:
        raise ValueError(f"--workers: at least 1 is needed, got {args.workers}")
    if not args.archives and (args.no_download or args.accept_counts or args.strict_counts):
        raise ValueError("--no-download, --accept-counts and --strict-counts go with --archives")
    if file_flags := [f"--{name.replace('_', '-')}" for name in OWN if getattr(args, name) is not None]:
        _check_own(args, file_flags[0])
    elif not args.configs:
        raise ValueError(f"what is to be prepared? {BOTH_WAYS[0].upper()}{BOTH_WAYS[1:]}")
    encodings = {glue.BERT: of_wordpiece(args.wordpiece)} if args.wordpiece else {}
    encodings |= {glue.T5: of_t5(args.sentencepiece)} if args.sentencepiece else {}
    encoding = of_gpt2(args.gpt2_bpe) if args.gpt2_bpe else next(iter(encodings.values()), None)
    if args.as_text:
        args.configs = [glue.named_as_text(name) for name in args.configs]
    if file_flags:
        return _prepare_own(args, encoding)
    configs = {name: _config(name, args, encoding) for name in args.configs}
    if not (args.raw or args.archives):
        raise ValueError(f"{args.configs[0]}: where are its files? Give --raw DIR or --archives DIR")
    if args.out and len(args.configs) > 1:
        raise ValueError(f"--out {args.out}: is for one NAME; several go to data/NAME in the directory of runs")
    wanted = {"raw": "raw files is expected, text with one sentence a line", "archives": "archives is expected"}
    for flag, contents in wanted.items():
        if (folder := getattr(args, flag)) and folder.exists() and not folder.is_dir():
            raise ValueError(f"--{flag} {folder}: a file; the folder of the {contents}")
    if args.archives:
        _refuse_missing([config for config in configs.values() if config], args)
    flags = {"workers": args.workers, "overwrite": args.overwrite}
    for name, config in configs.items():
        out = (args.out or runs_dir() / "data" / (config.name if config else name)).resolve()
        if task := glue.split_name(name):
            glue_flags = flags | {"as_text": glue.is_text(name), "strict": args.strict}
            new = prepare_glue(task[0], args.raw, out, _encoding_of(task[1], encoding, encodings), **glue_flags)
        elif names := eraser.split_name(name):
            new = eraser.prepare_eraser(names[0], args.raw, out, _encoding_of(names[1], encoding, encodings), **flags)
        elif config is None:
            new = _copy(name, out, args)
        elif args.raw:
            new = prepare(config, args.raw, out, encoding=encoding, strict=args.strict, **flags)
        else:
            new = _prepare_from_archives(config, out, args)
        if not new:
            print(f"already prepared: {out}")
    return None


def _config(name: str, args: argparse.Namespace, encoding: Encoding | None) -> DataConfig | None:
    """The configuration that a name means; None where there is none. Raises ValueError: also for flags that do not go
    with it."""
    task = glue.split_name(name) or eraser.split_name(name)
    given = {"--dedup": args.dedup, "--strict": args.strict and not name.startswith(glue.PREFIX)}
    given["--monolingual"] = args.monolingual is not None and not task
    if (task or name in PLAIN_DATA) and (ignored := [flag for flag, value in given.items() if value]):
        raise ValueError(f"{ignored[0]}: {name} is prepared as it is; leave it out")
    if task:
        if args.archives or args.monolingual is not None:
            todo = f"download its files by hand ({(glue if name.startswith(glue.PREFIX) else eraser).ORIGIN})"
            raise ValueError(f"{name}: {todo} and give their folder as --raw, without --archives and --monolingual")
        folders = {glue.BERT: args.wordpiece, glue.T5: args.sentencepiece}
        if task[1] in folders and not folders[task[1]] and not (runs_dir() / "data" / task[1]).is_dir():
            models = {glue.BERT: "BERT; give the folder of its vocab.txt as --wordpiece"}
            models[glue.T5] = "T5; give the folder of its spiece.model as --sentencepiece"
            raise ValueError(f"{name}: has the subwords of a {models[task[1]]}")
        if encoding and task[1] and not folders.get(task[1]):
            raise ValueError(f"{name}: takes the subwords of {task[1]}; leave out {_subword_flags(args)[0]}")
        return None
    if name in PLAIN_DATA:
        return None
    try:
        path = config_path("data", name)
    except ValueError as error:
        text = f"{name}: {WANTED}" if Path(name).suffix in OTHERS else error
        raise ValueError(f"{text}; {BOTH_WAYS}") from None
    config = DataConfig.load(path)
    if args.monolingual is not None:
        if args.archives:
            text = args.archives / name
            raise ValueError(f"--monolingual: goes with --raw; {text} has the text once {name} is prepared without it")
        config = config.monolingual(args.monolingual)
    if args.dedup:
        config = replace(config, filter={**config.filter, "dedup": True})
    return encoding.applied(config) if encoding else config


def _subword_flags(args: argparse.Namespace) -> list[str]:
    """The flag that names subwords, and its folder; empty if none does."""
    flags = {"--gpt2-bpe": args.gpt2_bpe, "--wordpiece": args.wordpiece, "--sentencepiece": args.sentencepiece}
    return next(([flag, str(folder.resolve())] for flag, folder in flags.items() if folder), [])


def _check_own(args: argparse.Namespace, first: str) -> None:
    """Refuse flags that do not go with files of the user's own; ``first`` is a flag that names them."""
    if args.configs:
        raise ValueError(f"{first}: not with the name {args.configs[0]}; {BOTH_WAYS}")
    if args.raw or args.archives:
        raise ValueError("--raw and --archives go with NAME; --train, --valid and --test are whole paths")
    if args.monolingual is not None:
        raise ValueError("--monolingual goes with NAME; leave it and --target out for one language")
    if args.as_text:
        raise ValueError("--as-text: is for tasks of GLUE; leave it out")
    needed = ["source", "train", "valid", *(("test",) if args.target is not None else ()), "out"]
    if missing := [f"--{name}" for name in needed if getattr(args, name) is None]:
        raise ValueError(f"{', '.join(missing)}: missing, since {first} is given; {BOTH_WAYS}")
    if args.bpe_size is not None and (subword_flags := _subword_flags(args)):
        why = f"not with {subword_flags[0]}, whose subwords are given; leave one of them out"
        raise ValueError(f"--bpe-size {args.bpe_size}: {why}")
    if args.test and args.target is None:
        raise ValueError("--test: text of one language has no test set; leave it out or add --target")
    for split in ("train", "valid", "test"):
        paths = getattr(args, split) or []
        for path in [paths] if isinstance(paths, str) else paths:
            if joint(path) or path.startswith(SACREBLEU):
                continue
            if path.removesuffix(".gz").endswith((f".{args.source}", f".{args.target}")):
                prefix = path.removesuffix(".gz").rpartition(".")[0]
                raise ValueError(f"--{split} {path}: leave out the language: {prefix} means {prefix}.{args.source}")
            if Path(path).exists() and not any(Path(f"{path}.{args.source}{end}").exists() for end in ("", ".gz")):
                kind = "folder" if Path(path).is_dir() else "file"
                wanted = "where the beginning of the names of text files is wanted, one for each language: raw/train"
                plain = f"raw/train.{args.source}, plain text with one sentence a line"
                raise ValueError(f"--{split} {path}: a {kind}, {wanted} means {plain}")


def _prepare_own(args: argparse.Namespace, encoding: Encoding | None) -> None:
    """Prepare files of the user's own by a configuration that is written to OUT.yaml."""
    out = args.out.resolve()
    settings, raw = _own_configuration(args)
    config, written = DataConfig.from_mapping(out.name, settings), out.with_name(f"{out.name}.yaml")
    words = ["fairseq-diverse", "prepare", str(written), "--raw", str(raw), "--out", str(out), *_subword_flags(args)]
    rerun = " ".join(shlex.join(words).splitlines())
    if not args.overwrite and written.exists() and read_yaml(written) != settings:
        todo = f"`{rerun}` follows it, and --overwrite replaces it"
        raise ValueError(f"{written}: exists and says otherwise than the flags; {todo}")
    flags = {"strict": args.strict, "workers": args.workers, "overwrite": args.overwrite}
    if not prepare(encoding.applied(config) if encoding else config, raw, out, encoding=encoding, **flags):
        print(f"already prepared: {out}")
    content = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    write_text(written, f"# after a change: {rerun} --overwrite\n{content}")
    print(f"configuration: {written}")


def _own_configuration(args: argparse.Namespace) -> tuple[Mapping[str, Any], Path]:
    """The configuration that the flags mean, as YAML has it, and the folder that its files are in."""
    prefixes = {"train": [args.train], "valid": [args.valid], **({"test": args.test} if args.test else {})}
    local = [path for paths in prefixes.values() for path in paths if not path.startswith(SACREBLEU)]
    absolute = {path: Path(path).parent.resolve() / Path(path).name for path in local}  # a file may be a link
    raw = Path(commonpath([path.parent for path in absolute.values()])) if local else Path.cwd()
    inside = {path: str(whole.relative_to(raw)) for path, whole in absolute.items()}
    files = {split: [inside.get(path, path) for path in paths] for split, paths in prefixes.items()}
    for split, names in files.items():
        for name in names:  # the configuration must be readable
            check_text(name, f"--{split} ")
    check_text(str(raw).replace("$", ""), "the folder of the files: ")
    check_text(str(args.out).replace("$", ""), "--out ")
    settings = {
        "source": args.source,
        "target": args.target,
        "files": {split: names[0] if len(names) == 1 else names for split, names in files.items()},
        "filter": {"dedup": True} if args.dedup else None,
        "bpe": None if args.bpe_size is None else {"size": args.bpe_size},
    }
    return {key: value for key, value in settings.items() if value is not None}, raw


def _encoding_of(named: str, default: Encoding | None, encodings: Mapping[str, Encoding]) -> Encoding | None:
    """The subwords of the data set or folder ``named``, or those of ``encodings``; without a name, ``default``."""
    if not named or named in encodings:
        return encodings.get(named, default)
    by_name = runs_dir() / "data" / named
    return of_data(by_name if by_name.is_dir() else Path(named))


def _refuse_missing(configs: Sequence[DataConfig], args: argparse.Namespace) -> None:
    """List what must be brought by hand for all data sets together; with --no-download, everything that is missing."""
    archives: dict[str, str] = {}
    by_hand: dict[str, str] = {}
    for config in configs:
        if not config.sources:
            raise ValueError(f"--archives: {config.name} names no sources; bring its files and use --raw")
        if not extraction.is_extracted(config, args.archives, args.archives / config.name):
            by_hand |= config.sources.by_hand
            archives |= config.sources.archives if args.no_download else {}
    fetch(archives, by_hand, args.archives, download=False)


def _copy(name: str, out: Path, args: argparse.Namespace) -> bool:
    data, raw = PLAIN_DATA[name], args.raw or args.archives / name
    if args.archives:
        if args.no_download:
            download_plain(data, raw, download=False)
        with locked(args.archives):
            download_plain(data, raw, download=not args.no_download)
    if written := put_plain(data, raw, out, args.overwrite):
        print(f"prepared {out}")
    return written


def _prepare_from_archives(config: DataConfig, out: Path, args: argparse.Namespace) -> bool:
    assert config.sources is not None
    raw = args.archives / config.name
    if not extraction.is_extracted(config, args.archives, raw):
        with locked(args.archives):
            fetch(config.sources.archives, config.sources.by_hand, args.archives, download=not args.no_download)
            extraction.extract(config, args.archives, raw)
    _report_differences(extraction.wrong_lines(config, raw), args.strict_counts, "replace the archive")
    flags = {"strict": args.strict, "workers": args.workers, "overwrite": args.overwrite}
    written = prepare(config, raw, out, hold_out=config.sources.hold_out, resumes=True, **flags)
    _report_differences(wrong_pairs(config, out), args.strict_counts, f"{out} is complete all the same")
    return written


def _report_differences(differences: list[str], strict: bool, otherwise: str) -> None:
    if differences and strict:
        raise ValueError(f"{'; '.join(differences)}; {otherwise}, or leave out --strict-counts")
    for difference in differences:
        warn(difference)
