"""Compare a parser's constituency trees with gold trees: precision, recall and F1 of labelled brackets.

As evalb with its parameters COLLINS.prm: without tags, functions, the label above the sentence, and punctuation. Files
have one tree a line, or trees as treebanks have them. Sentences without a tree in either file are left out and counted,
as by evalb. Complete match: percent of sentences whose brackets are all the same.
"""

import argparse
from pathlib import Path

from fairseq_diverse.cli import first_lines, named_path
from fairseq_diverse.support.tables import in_columns, one_line
from fairseq_diverse.syntax.brackets import Brackets, compare_files

EXAMPLE = "fairseq-diverse score-trees --gold raw/test.en.ptb pcfg=parses/test.pcfg benepar=parses/test.benepar"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trees", nargs="+", metavar="NAME=FILE", help="the trees of a parser, and its name in the table")
    add("--gold", required=True, type=Path, metavar="FILE", help="gold trees of the same sentences")


def main(args: argparse.Namespace) -> None:
    cells = [["parser", "sentences", "precision", "recall", "F1", "complete match"]]
    for name, path in (named_path(text, "FILE") for text in args.trees):
        brackets, lacking = compare_files(args.gold, Path(path))
        total = Brackets(*map(sum, zip(*brackets, strict=True))) if brackets else Brackets(0, 0, 0)
        complete = 100 * sum(tree.matched == tree.gold == tree.parsed for tree in brackets) / max(len(brackets), 1)
        figures = (f"{figure:.2f}" for figure in (total.precision, total.recall, total.f1, complete))
        cells.append([one_line(name), f"{len(brackets):,}", *figures])
        if lacking:
            print(f"{name}: {len(lacking)} without a tree, left out: sentence {first_lines(lacking)}")
    print(in_columns(cells))
