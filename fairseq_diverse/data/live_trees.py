"""Trees of new sentences for the model, parsed on the fly or from files."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.data.trees import READERS, Mismatch, project, sentence_rows
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax.parse import parse_lines
from fairseq_diverse.syntax.parsers import Parser, load_parser


class LiveTrees:
    """Trees of the needed kinds for lines of tokenized text, in their order. Raises ``UserError``: a kind has neither
    parser nor file, or a parser cannot be loaded.

    Args:
        parsers: by kind: parser, model, language, and the flag or file that gave the model.
        files: by kind: files with trees, read sentence by sentence; preferred to parsers.
        subwords: segmentation, see ``words_of``.
    """

    def __init__(
        self, needed: Sequence[str], parsers: dict[str, dict[str, str]], files: dict[str, Path], subwords: str
    ) -> None:
        self.needed, self.subwords, self.files, self.count = needed, subwords, files, 0
        self.parsers, self.ready = dict[str, Parser](), dict[str, Any]()
        if missing := [kind for kind in needed if kind not in files and kind not in parsers]:
            flags = ", ".join(f"--{kind} FILE or --{kind}-model NAME_OR_FOLDER" for kind in missing)
            raise UserError(f"this model needs {' and '.join(missing)} trees: give {flags}")
        for kind in needed:
            if kind in files:
                self.ready[kind] = READERS[kind](files[kind])
            else:
                how = parsers[kind]
                self.parsers[kind] = load_parser(kind, how["parser"], how["model"], how["language"], how["given"])

    def __call__(
        self, tokenized: Sequence[str], pieces: Sequence[str], left_out: Collection[int] = ()
    ) -> tuple[list[Tensor], list[int]]:
        """(T, 5) for the subwords of each line, in tokens and in subwords (``pieces``), and the lines (from 0) without
        a usable tree. Lines in ``left_out`` were replaced by empty ones, though the files have trees for them."""
        parsed = {kind: self._trees(kind, tokenized) for kind in self.needed}
        trees, unparsed = [], []
        for n, line in enumerate(pieces):
            known = parsed if n not in left_out else {}
            graph, tree = (known[kind][n] if kind in known else None for kind in ("dependency", "constituency"))
            try:
                rows = sentence_rows(line.split(), self.subwords, graph, tree)
            except Mismatch as mismatch:
                where = f"{self.files.get(mismatch.kind, 'the parser')}: sentence {self.count + n + 1}"
                raise UserError(f"{where} is not that line of the input: {mismatch}") from None
            no_graph = graph is None or graph.heads is None
            if ("dependency" in parsed and no_graph) or ("constituency" in parsed and not tree):
                unparsed.append(n)
            trees.append(project(torch.from_numpy(rows).long(), self.needed))
        self.count += len(pieces)
        return trees, unparsed

    def _trees(self, kind: str, tokenized: Sequence[str]) -> list[Any]:
        if kind in self.ready:
            trees = [tree for _, tree in zip(tokenized, self.ready[kind], strict=False)]
            if len(trees) < len(tokenized):
                count = self.count + len(trees)
                raise UserError(f"{self.files[kind]}: {count} sentences, but the input has more lines")
            return trees
        text = "".join(tree for tree, _ in parse_lines(self.parsers[kind], kind, tokenized)).split("\n")
        return list(READERS[kind](Path("the parser"), text if kind == "dependency" else text[: len(tokenized)]))
