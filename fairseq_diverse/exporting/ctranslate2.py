"""Translation models for CTranslate2.

What is written is loaded again and compared with fairseq's model: the log probabilities of random sentences must be
equal (``TOLERANCE``), so that a setting that CTranslate2 ignores is an error.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.exporting.plain import plain_checkpoint
from fairseq_diverse.models.loading import load_models
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import remove, temporary_path
from fairseq_diverse.support.installed import install

TOLERANCE = 1e-3  # of a log probability; float32 rounding is about 1e-5
BLANK = "<blank>"  # what CTranslate2 calls fairseq's <pad>
SENTENCES, LONGEST = 8, 20  # random pairs that are compared, their subwords and </s> at most


def to_ctranslate2(path: str | Path, data: str | Path, out: str | Path, quantization: str | None = None) -> None:
    """Write a folder for ``ctranslate2.Translator``.

    Args:
        data: prepared data of the training, for its dictionaries.
        quantization: type of the written weights, see CTranslate2's ``convert``; by default float32.

    Raises:
        UserError: what ``plain_checkpoint`` raises; a setting or word that CTranslate2 does not have; ``out`` exists.
    """
    try:
        import ctranslate2  # noqa: F401
        from ctranslate2.converters import FairseqConverter
    except ImportError:
        raise UserError(f"--to ctranslate2 needs ctranslate2; install it: {install('export')}") from None
    plain = plain_checkpoint(path)
    settings = plain["cfg"]["model"]
    if settings["task"] != "translation":
        raise UserError(f"{path}: --task {settings['task']} cannot go; the task translation can")
    (model,), _, task = load_models([path], data)
    for side in (task.source_dictionary, task.target_dictionary):
        if BLANK in side.symbols:
            raise UserError(f"{path}: {BLANK} is a word of its dictionary, which CTranslate2 takes for padding")
    with _folder(out) as folder:
        file, float32, quantized = folder / "checkpoint.pt", folder / "float32", folder / "quantized"
        torch.save({"args": Namespace(**settings), "model": plain["model"]}, file)
        converter = FairseqConverter(str(file), str(data), task.cfg.source_lang, task.cfg.target_lang)
        try:
            converter.convert(str(float32))
        except OSError:
            raise
        except Exception as error:  # a setting that it does not know shows in many ways
            lines = [line.strip("- ").strip() for line in str(error).splitlines() if line.strip()] or [""]
            raise UserError(f"{path}: cannot go to CTranslate2: {lines[-1]} ({type(error).__name__})") from error
        if (difference := _difference(model.float().eval(), task, float32)) > TOLERANCE:
            raise UserError(
                f"{path}: cannot go to CTranslate2: a log probability would differ by {difference:.2g}; one of the "
                "model's settings is unknown there"
            )
        if quantization:
            converter.convert(str(quantized), quantization=quantization)
        os.replace(quantized if quantization else float32, out)


@contextmanager
def _folder(out: str | Path) -> Iterator[Path]:
    """A temporary folder beside ``out``, which must not exist or be an empty folder."""
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"--out {out}: exists; name a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = temporary_path(out)
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _difference(model: Any, task: Any, folder: Path) -> float:
    """The largest difference between log probabilities of fairseq's model and of CTranslate2's, for random pairs."""
    import ctranslate2

    numbers = torch.Generator().manual_seed(1)
    sides = task.source_dictionary, task.target_dictionary
    longest = min(LONGEST, *model.max_positions())
    pairs = [[_sentence(side, longest, numbers) for side in sides] for _ in range(SENTENCES)]
    words = [[[side[number] for number in pair[n]] for pair in pairs] for n, side in enumerate(sides)]
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=torch.get_num_threads())
    differences = []
    for (source, target), scored in zip(pairs, translator.score_batch(*words), strict=True):
        expected = _log_probabilities(model, source, target, task.target_dictionary.eos())
        differences.append((expected - torch.tensor(scored.log_probs)).abs().max())
    return float(torch.stack(differences).nan_to_num(torch.inf).max())


def _sentence(words: Any, longest: int, numbers: torch.Generator) -> list[int]:
    length = int(torch.randint(1, longest, (), generator=numbers))
    return torch.randint(words.nspecial, len(words), (length,), generator=numbers).tolist()


@torch.no_grad()
def _log_probabilities(model: Any, source: Sequence[int], target: Sequence[int], eos: int) -> Tensor:
    """(T + 1,) of the target's tokens and of </s>."""
    tokens, before, after = ([*source, eos], [eos, *target], [*target, eos])
    logits, _ = model(torch.tensor([tokens]), torch.tensor([len(tokens)]), torch.tensor([before]))  # (1, T + 1, words)
    return logits[0].log_softmax(-1).gather(-1, torch.tensor(after)[:, None]).squeeze(-1)
