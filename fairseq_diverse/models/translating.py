"""Translating lines of raw text with a model and the preparation steps of its data."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import LanguagePairDataset

from fairseq_diverse.data.live_trees import LiveTrees
from fairseq_diverse.data.trees import PairsWithTrees
from fairseq_diverse.host.data import to_device
from fairseq_diverse.host.programs import generation_settings
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.pipeline import FILE
from fairseq_diverse.syntax.parsers import KINDS, located, parser_of, recorded_parsers

CHARACTERS = 20  # per subword; longer lines are not segmented, since the time is quadratic in the length of a word


class Translator:
    """From lines of raw text to hypotheses: (score, text), best first.

    Args:
        models, task: of `load_models`; several models are an ensemble.
        data: the folder whose preprocess.json has the steps.
        cpu, fp16: do not use a GPU; half precision.
        batch_size: sentences of a batch.
        files, parsers: by kind of tree, a file with the trees of the input, or the model of a parser (default: that of
            the data's trees).
        search: settings of fairseq's beam search: ``beam``, ``lenpen``, ``nbest``, ``max_len_a``, ``max_len_b``.

    ``noticed`` has the numbers of lines that were not translated, or without a tree, by what is said of them.

    Raises:
        ValueError: the data have no such steps, or trees that the models need are missing.
    """

    def __init__(
        self,
        models: Sequence[Any],
        task: Any,
        data: str | Path,
        cpu: bool = False,
        fp16: bool = False,
        batch_size: int = 64,
        files: Mapping[str, Path] | None = None,
        parsers: Mapping[str, str] | None = None,
        **search: Any,
    ) -> None:
        self.models, self.task, self.data, self.batch_size = models, task, data, batch_size
        self.preprocessing = Preprocessing.load(data).of_model(task)
        self.cuda = torch.cuda.is_available() and not cpu
        for model in models:
            model.make_generation_fast_(beamable_mm_beam_size=search.get("beam", 5), need_attn=False)
            if fp16:
                model.half()
            if self.cuda:
                model.cuda()
        self.search = generation_settings(**search)
        self.generator = task.build_generator(models, self.search)
        needed = dict.fromkeys(kind for m in models for kind in getattr(getattr(m.encoder, "plan", None), "trees", ()))
        tree_files, self.parsers = self._tree_sources(needed, files or {}, parsers or {})
        subwords = self.preprocessing.record["bpe"]["kind"]
        self.trees = LiveTrees(list(needed), self.parsers, tree_files, subwords) if needed else None
        self.count = 0
        self.noticed: dict[str, list[int]] = {"too long, not translated": [], "without a usable tree": []}

    def _tree_sources(
        self, needed: Collection[str], files: Mapping[str, Path], models: Mapping[str, str]
    ) -> tuple[dict[str, Path], dict[str, dict[str, str]]]:
        """By kind, the files of trees and the parsers that the flags name, or the data's record."""
        parsers: dict[str, dict[str, str]] = {}
        source = self.preprocessing.source
        if needed and source == self.preprocessing.record["source"]:  # else the recorded parsers are of the other side
            where = f"{Path(self.data) / FILE}"
            recorded = recorded_parsers(self.preprocessing.record, where)
            parsers = {kind: how | {"given": f"{where}: model"} for kind, how in recorded.items()}
        for kind in KINDS:
            file, model = files.get(kind), models.get(kind)
            if (file or model) and kind not in needed:
                flag = f"--{kind} {file}" if file else f"--{kind}-model {model}"
                raise ValueError(f"{flag}: this model uses no {kind} trees; leave it out")
            if file and model:
                raise ValueError(f"--{kind} and --{kind}-model: give one, the trees or a parser")
            if model:
                how = {"parser": parser_of(kind, model), "model": located(model), "language": source}
                parsers[kind] = how | {"given": f"--{kind}-model"}
        return {kind: files[kind] for kind in needed if kind in files}, parsers

    def __call__(self, lines: Sequence[str]) -> list[list[tuple[float, str]]]:
        longest = min(model.max_positions()[0] for model in self.models)
        endless = {n for n, line in enumerate(lines) if len("".join(line.split())) > CHARACTERS * longest}
        lines = ["" if n in endless else line for n, line in enumerate(lines)]
        side = self.preprocessing.tokens["source"], self.preprocessing.subwords["source"]
        tokenized = [side[0].tokenize(line) for line in lines]
        pieces = [side[1].segment(line) for line in tokenized]
        trees: list[Any] = []
        if self.trees:
            trees, unparsed = self.trees(tokenized, pieces, endless)
            self.noticed["without a usable tree"] += [self.count + n + 1 for n in unparsed if tokenized[n]]
        words = self.task.source_dictionary
        ids = [words.encode_line(line, add_if_not_exist=False).long() for line in pieces]  # ends with </s>
        results: list[list[tuple[float, str]]] = [[(0.0, "")] for _ in lines]
        todo = []
        for n, sentence in enumerate(ids):
            if n in endless or len(sentence) > longest:
                self.noticed["too long, not translated"].append(self.count + n + 1)
            elif len(sentence) > 1:
                todo.append(n)
        todo.sort(key=lambda n: len(ids[n]))
        pairs = LanguagePairDataset(ids, [*map(len, ids)], words)
        pairs = PairsWithTrees(pairs, trees) if self.trees else pairs
        for start in range(0, len(todo), self.batch_size):
            sample = pairs.collater([pairs[n] for n in todo[start : start + self.batch_size]])
            sample["net_input"].pop("prev_output_tokens", None)
            sample = to_device(sample, self.cuda)
            with torch.no_grad():
                translations = self.task.inference_step(self.generator, self.models, sample)
            for n, hypotheses in zip(sample["id"].tolist(), translations, strict=True):
                results[n] = [self._read(hypothesis) for hypothesis in hypotheses[: self.search.nbest]]
        self.count += len(lines)
        return results

    def _read(self, hypothesis: Any) -> tuple[float, str]:
        dictionary = self.task.target_dictionary
        text = dictionary.string(hypothesis["tokens"].int().cpu(), extra_symbols_to_ignore={dictionary.eos()})
        return float(hypothesis["score"]) / math.log(2), self.preprocessing.decode(text)
