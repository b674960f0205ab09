"""Write the embedded corpus: an English-like and a German-like language from one grammar, with gold syntax trees.

OUT gets {train,valid,test}.{en,de} (raw text; English tokens are separated by spaces), .en.conllu (dependencies) and
.en.ptb (constituents, one tree a line). The same sizes and seed give the same files on every machine.
"""

import argparse
from pathlib import Path

from fairseq_diverse.data.probing import TASKS
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import read_lines, refuse_foreign
from fairseq_diverse.toy.corpus import RECORD, word_by_word, write_corpus
from fairseq_diverse.toy.probing import DECIDING, ERASER_FILES, FEWEST, write_probing, write_rationales

EXAMPLE = "fairseq-diverse toy --out toy --sentences 20000 --seed 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the files; created if missing")
    add("--sentences", type=int, default=20000, help="number of training sentences (default: %(default)s)")
    add("--valid", type=int, default=500, help="number of validation sentences (default: %(default)s)")
    add("--test", type=int, default=500, help="number of test sentences (default: %(default)s)")
    add("--seed", type=int, default=1, help="random seed, 0 or more (default: %(default)s)")
    add("--probing", type=int, default=0, metavar="N", help="also OUT/probing: SentEval's ten tasks, N sentences each")
    rationales = "also OUT/rationales: four of these tasks in ERASER's layout, with the word that decides"
    add("--rationales", type=int, default=0, metavar="N", help=rationales)
    add("--word-by-word", action="store_true", help="also score a word-by-word translation of the test split")


def main(args: argparse.Namespace) -> None:
    files = {"probing": [f"{task}.txt" for task in TASKS]}
    files |= {"rationales": [f"{task}/{file}" for task in DECIDING for file in ERASER_FILES]}
    for folder, names in files.items():
        if (count := getattr(args, folder)) and count < FEWEST:
            raise UserError(f"--{folder} {count}: at least {FEWEST}, or 0 for none")
        if count and (args.out / folder).is_file():
            raise UserError(f"--out {args.out}: has a file named {folder}; move it, or give another --out")
        if count:
            refuse_foreign(args.out, [f"{folder}/{name}" for name in names], RECORD)
    write_corpus(args.out, args.sentences, args.valid, args.test, args.seed)
    print(f"{args.out}: {args.sentences} training, {args.valid} validation and {args.test} test sentences")
    if args.probing:
        write_probing(args.out / "probing", args.probing, args.seed)
        print(f"{args.out / 'probing'}: ten tasks, {args.probing} sentences each")
    if args.rationales:
        write_rationales(args.out / "rationales", args.rationales, args.seed)
        print(f"{args.out / 'rationales'}: {', '.join(DECIDING)}, {args.rationales} sentences each")
    if args.word_by_word:
        print(word_by_word_score(args.out))


def word_by_word_score(corpus: Path) -> str:
    """BLEU and chrF (sacreBLEU, detokenized, cased) of word-by-word translations of the test split."""
    import sacrebleu

    train, test = ([read_lines(corpus / f"{split}.{side}") for side in ("en", "de")] for split in ("train", "test"))
    output = word_by_word(test[0], list(zip(*train, strict=True)))
    bleu, chrf = sacrebleu.corpus_bleu(output, test[1:]), sacrebleu.corpus_chrf(output, test[1:])
    return f"word by word: BLEU {bleu.score:.1f}, chrF {chrf.score:.1f} (sacreBLEU {sacrebleu.__version__})"
